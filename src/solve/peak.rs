//! A maximum taken apart by thresholds: [`walk`].
//!
//! # The problem
//!
//! The peak is the sum of a resident part, which adds up by sum, and a transient part, which adds
//! up by maximum. Solving for both would take one more dimension. Instead, for a threshold `t` on
//! the transient part, strike out all alternatives above it; what is left is a problem of sums
//! whose points have a peak of at most `resident + t`. The union over all transient values that
//! occur is the exact answer.
//!
//! Not all of them are needed. The frontier at `t` bounds from below every solution whose transient
//! part lies between a lower value `s` and `t`: such a solution is dominated by a point of that
//! frontier in everything but the transient part, which is at least `s`. If the points found so far
//! cover this bound, no threshold between `s` and `t` can add anything. So intervals of thresholds
//! are halved only where the bound is not covered, within `epsilon` if there is one.

use std::sync::Arc;

use super::options::Peak;
use super::refine::{Found, Front, Request, Solver};
use super::solution::Certificate;
use crate::contraction::leaf::View;
use crate::contraction::trace::Trace;
use crate::error::Result;
use crate::frontier::{CostVector, Scratch, Wide, prune};
use crate::problem::CostGraph;

/// Objectives beside the transient one, at most.
const OBJECTIVES: usize = 3;

/// Thresholds solved for with `epsilon`, at most: what they leave uncovered is said in the factor.
const MOST_THRESHOLDS: usize = 6;

/// The objectives with the peak in the place of the resident part; unused ones are 0.
type Key = Wide<OBJECTIVES>;

/// Thresholds of the transient part in `(low, high]`, by index; `front` is that of `high`.
struct Interval<C: CostVector> {
    low: isize,
    high: usize,
    front: Arc<Front<C>>,
}

/// The frontier over the request's objectives with the peak in the place of the resident part.
pub(crate) fn walk<C: CostVector>(
    solver: &mut Solver<'_, '_, C>,
    request: &Request,
    peak: Peak,
) -> Result<Found<C>> {
    let thresholds = thresholds(solver.graph, peak.transient);
    let mut walk = Walk {
        resident: request
            .objectives
            .iter()
            .position(|&objective| objective == peak.resident)
            .unwrap_or_default(),
        cap: peak.cap.unwrap_or(u64::MAX),
        thresholds,
        peak,
        request,
        points: Vec::new(),
        traces: Vec::new(),
        inner: 1.0,
        cover: 1.0,
        weights: 0,
    };
    walk.run(solver)?;
    Ok(walk.finish(solver))
}

struct Walk<'r, C: CostVector> {
    peak: Peak,
    request: &'r Request,
    /// Position of the resident part among the objectives.
    resident: usize,
    cap: u64,
    thresholds: Vec<u64>,
    /// Points found, with trace and index; a frontier.
    points: Vec<(Key, (u32, u32))>,
    traces: Vec<Arc<Trace<C>>>,
    /// The largest factor of any threshold's frontier.
    inner: f64,
    /// The largest factor by which a bound is covered.
    cover: f64,
    weights: usize,
}

impl<C: CostVector> Walk<'_, C> {
    fn run(&mut self, solver: &mut Solver<'_, '_, C>) -> Result<()> {
        let Some(last) = self.thresholds.len().checked_sub(1) else {
            // Some node or factor is impossible whatever is chosen.
            return Ok(());
        };
        // Both factors multiply; each may take half.
        let half = (1.0 + self.request.epsilon).sqrt() - 1.0;
        let mut open = Vec::new();
        if let Some(front) = self.solve(solver, -1, last, half)? {
            open.push(Interval { low: -1, high: last, front });
        }
        while let Some(Interval { low, high, front }) = open.pop() {
            let cover = self.cover(&front, low, high);
            if solver.halted.is_some() {
                self.cover = self.cover.max(cover);
                continue;
            }
            let enough = self.request.epsilon > 0.0 && self.traces.len() >= MOST_THRESHOLDS;
            if enough || cover <= self.inner.max(1.0 + half) || low + 1 == high as isize {
                self.cover = self.cover.max(cover);
                continue;
            }
            let middle = ((low + high as isize) / 2).max(low + 1) as usize;
            if let Some(below) = self.solve(solver, low, middle, half)? {
                open.push(Interval { low, high: middle, front: below });
            } else if solver.halted.is_some() {
                self.cover = self.cover.max(cover);
                continue;
            }
            open.push(Interval { low: middle as isize, high, front });
        }
        Ok(())
    }

    /// Solves for one threshold; the answer must also bound thresholds down to above `low`.
    fn solve(
        &mut self,
        solver: &mut Solver<'_, '_, C>,
        low: isize,
        high: usize,
        epsilon: f64,
    ) -> Result<Option<Arc<Front<C>>>> {
        let least = self.thresholds[(low + 1) as usize];
        let Some(room) = self.cap.checked_sub(least) else {
            return Ok(None);
        };
        let mut view = View {
            strike: Some((self.peak.transient, self.thresholds[high])),
            ..self.request.view()
        };
        view.caps[self.resident] = view.caps[self.resident].min(room);
        let covered = self.covered(least, epsilon);
        let Some(front) = solver.front(&view, epsilon, &covered)? else {
            return Ok(None);
        };
        if front.points().is_empty() {
            return Ok(None);
        }
        self.inner = self.inner.max(front.factor());
        self.weights = self.weights.max(front.certificate.weights);
        let trace = self.traces.len() as u32;
        self.traces.push(Arc::clone(&front.trace));
        let threshold = self.thresholds[high];
        for (index, point) in front.points().iter().enumerate() {
            let key = self.key(point, threshold);
            if key.0[self.resident] <= self.cap {
                self.points.push((key, (trace, index as u32)));
            }
        }
        self.prune();
        Ok(Some(Arc::new(front)))
    }

    /// The points found so far as they cover solutions whose transient part is at least `least`: with
    /// the resident part that, times `1 + epsilon`, makes up their peak.
    fn covered(&self, least: u64, epsilon: f64) -> Vec<C> {
        let less = (least as f64 * (1.0 + epsilon)).floor() as u64;
        self.points
            .iter()
            .map(|(key, _)| {
                let mut point = key.0;
                point[self.resident] = point[self.resident].saturating_sub(less);
                C::from_slice(&point[..C::OBJECTIVES])
            })
            .collect()
    }

    fn key(&self, point: &C, threshold: u64) -> Key {
        let mut key = [0; OBJECTIVES];
        for (objective, key) in key.iter_mut().enumerate().take(C::OBJECTIVES) {
            *key = point.get(objective);
        }
        key[self.resident] += threshold;
        Wide(key)
    }

    /// Of equal points the one from the lower threshold stays: its true peak may be lower still.
    fn prune(&mut self) {
        self.points.sort_unstable();
        self.points.dedup_by_key(|(key, _)| *key);
        let mut keys: Vec<Key> = self.points.iter().map(|(key, _)| *key).collect();
        prune(&mut keys, &mut Scratch::new());
        let mut next = keys.iter().peekable();
        self.points.retain(|(key, _)| next.next_if_eq(&key).is_some());
    }

    /// The factor within which the points found cover everything in an interval.
    fn cover(&self, front: &Front<C>, low: isize, high: usize) -> f64 {
        let first = (low + 1) as usize;
        if first == high {
            return 1.0;
        }
        let least = self.thresholds[first];
        front
            .points()
            .iter()
            .map(|point| self.key(point, least))
            .filter(|key| key.0[self.resident] <= self.cap)
            .map(|key| self.cover_of(&key))
            .fold(1.0, f64::max)
    }

    /// The least factor of a found point over a bound.
    fn cover_of(&self, bound: &Key) -> f64 {
        let ratio =
            |key: &Key| (0..OBJECTIVES).map(|i| quotient(key.0[i], bound.0[i])).fold(1.0, f64::max);
        if C::OBJECTIVES <= 2 {
            // Sorted by the first objective, falling in the second: the factors of the two rise and
            // fall, so the best point is where they cross.
            let split = self.points.partition_point(|(key, _)| {
                quotient(key.0[0], bound.0[0]) <= quotient(key.0[1], bound.0[1])
            });
            let near = split.saturating_sub(1)..(split + 1).min(self.points.len());
            return near.map(|i| ratio(&self.points[i].0)).fold(f64::INFINITY, f64::min);
        }
        self.points.iter().map(|(key, _)| ratio(key)).fold(f64::INFINITY, f64::min)
    }

    fn finish(self, solver: &Solver<'_, '_, C>) -> Found<C> {
        let factor = if self.points.is_empty() && solver.halted.is_some() {
            f64::INFINITY
        } else {
            self.inner * self.cover
        };
        Found {
            origins: self.points.into_iter().map(|(_, origin)| origin).collect(),
            traces: self.traces,
            certificate: Certificate { a_priori: factor, certified: None, weights: self.weights },
        }
    }
}

/// How many times more `cost` is than `bound`, rounded up; 1 if it is not more.
fn quotient(cost: u64, bound: u64) -> f64 {
    if cost <= bound {
        1.0
    } else if bound == 0 {
        f64::INFINITY
    } else {
        cost as f64 / bound as f64 * (1.0 + 4.0 * f64::EPSILON)
    }
}

/// The transient values that a plan can have, rising: those of some alternative, and not below what
/// some node or factor costs at least. Empty if no plan is possible.
fn thresholds(graph: &CostGraph, transient: usize) -> Vec<u64> {
    let mut least = 0;
    for table in graph.used_tables() {
        match table.smallest(transient) {
            Some(smallest) => least = least.max(smallest),
            None => return Vec::new(),
        }
    }
    let objectives = graph.objectives();
    let mut values: Vec<u64> = graph
        .used_tables()
        .flat_map(|table| table.costs().iter().skip(transient).step_by(objectives))
        .copied()
        .filter(|&value| value >= least)
        .collect();
    values.push(least);
    values.sort_unstable();
    values.dedup();
    values
}
