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
//! are divided only where the bound is not covered, within `epsilon` if there is one. And what the
//! points found need in truth is mostly less than the threshold: above the largest of that, there is
//! nothing to be found either.

use std::sync::Arc;

use super::bounded;
use super::options::Peak;
use super::refine::{Found, Front, Request, Solver, in_truth, vectors};
use super::solution::Certificate;
use crate::contraction::leaf::View;
use crate::contraction::thinning::Reducer;
use crate::contraction::trace::Trace;
use crate::error::Result;
use crate::frontier::{CostVector, Scratch, Wide, prune};
use crate::problem::CostGraph;

/// Objectives beside the transient one, at most.
const OBJECTIVES: usize = 3;

/// With `epsilon`, thresholds solved for and sums looked at after which there are no more: what is
/// left uncovered is said in the factor.
const MOST_THRESHOLDS: usize = 6;
const ENOUGH: u64 = 100_000_000;

/// The part of epsilon that is spent on leaving out points of a threshold's frontier.
const TRIMMED: f64 = 0.125;

/// The objectives with the peak in the place of the resident part; unused ones are 0.
type Key = Wide<OBJECTIVES>;

/// Thresholds of the transient part in `(low, high]`, by index.
struct Interval<C: CostVector> {
    low: isize,
    high: usize,
    /// The frontier at `high`, and the factor within which it is one.
    front: Arc<Vec<C>>,
    factor: f64,
    /// The factor within which the points found cover `front` here, or more.
    cover: f64,
}

/// The frontier over the request's objectives with the peak in the place of the resident part.
pub(crate) fn walk<C: CostVector>(
    solver: &mut Solver<'_, '_, C>,
    request: &Request,
    peak: Peak,
) -> Result<Found<C>> {
    let mut thresholds = thresholds(solver.graph, peak.transient);
    thresholds.retain(|&threshold| threshold <= request.transient_cap);
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
        rows: Vec::new(),
        // What was reached elsewhere is within the caps.
        feasible: !request.known.is_empty(),
        traces: Vec::new(),
        solved: 0,
        inner: 1.0,
        cover: 1.0,
        weights: 0,
    };
    walk.points = request.known.iter().map(|row| (of_row(row), None)).collect();
    walk.prune();
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
    /// Points found, with their rows, and points known before, without; a frontier.
    points: Vec<(Key, Option<u32>)>,
    /// For each point ever found its costs in all objectives, and its trace and index there.
    rows: Vec<(Vec<u64>, (u32, u32))>,
    /// Whether there was any solution.
    feasible: bool,
    traces: Vec<Arc<Trace<C>>>,
    /// Thresholds solved for.
    solved: usize,
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
        let begun = solver.engine.work.visited;
        let mut open = Vec::new();
        open.extend(self.solve(solver, -1, last, half)?);
        if open.is_empty() && solver.halted.is_some() {
            self.cover = f64::INFINITY;
        }
        // The interval that is covered worst goes first.
        while let Some(worst) = self.worst(&mut open) {
            let cover = open[worst].cover;
            let visited = solver.engine.work.visited - begun;
            let enough =
                self.request.epsilon > 0.0 && self.solved >= MOST_THRESHOLDS && visited > ENOUGH;
            if enough || solver.halted.is_some() || cover <= self.inner.max(1.0 + half) {
                self.cover = self.cover.max(cover);
                break;
            }
            let interval = open.swap_remove(worst);
            let (low, high) = (interval.low, interval.high);
            // A single threshold is solved for again, in the room that the cap leaves it.
            let single = low + 1 == high as isize;
            let middle = if single { high } else { self.middle(low, high) };
            let below = self.solve(solver, low, middle, half)?;
            if below.is_none() && solver.halted.is_some() {
                self.cover = self.cover.max(cover);
            }
            open.extend(below);
            if !single {
                open.push(Interval { low: middle as isize, ..interval });
            }
        }
        Ok(())
    }

    /// Where to divide an interval: about the middle of its values.
    fn middle(&self, low: isize, high: usize) -> usize {
        let first = (low + 1) as usize;
        let value = self.thresholds[first].midpoint(self.thresholds[high]);
        let above = self.thresholds.partition_point(|&threshold| threshold <= value);
        (above.max(1) - 1).clamp(first, high - 1)
    }

    /// The interval whose bound is covered worst.
    fn worst(&self, open: &mut [Interval<C>]) -> Option<usize> {
        loop {
            // Points come and covers fall, so a cover computed earlier is an upper bound.
            let worst =
                (0..open.len()).reduce(|a, b| if open[b].cover > open[a].cover { b } else { a })?;
            let cover = self.cover(&open[worst]);
            if cover >= open[worst].cover {
                return Some(worst);
            }
            open[worst].cover = cover;
        }
    }

    /// Solves for one threshold; the answer must also bound thresholds down to above `low`.
    ///
    /// Returns what its frontier bounds, up to the largest threshold that its points need in truth.
    fn solve(
        &mut self,
        solver: &mut Solver<'_, '_, C>,
        low: isize,
        high: usize,
        epsilon: f64,
    ) -> Result<Option<Interval<C>>> {
        let least = self.thresholds[(low + 1) as usize];
        let Some(room) = self.cap.checked_sub(least) else {
            return Ok(None);
        };
        let mut view = View {
            strike: Some((self.peak.transient, self.thresholds[high])),
            ..self.request.view()
        };
        view.caps[self.resident] = view.caps[self.resident].min(room);
        let trimmed = epsilon * TRIMMED;
        let slack = bounded::left_out(solver.given_factor(), epsilon - trimmed);
        let covered = self.covered(solver.graph, least, slack);
        let Some(mut front) = solver.front(&view, epsilon - trimmed, &covered)? else {
            return Ok(None);
        };
        if !front.feasible {
            return Ok(None);
        }
        self.solved += 1;
        let exact = (self.cap < u64::MAX).then_some(self.resident);
        // What the covered points stand for may have a transient part that much lower.
        let factor = front.factor().max(1.0 + slack) * front.trim(trimmed, exact);
        self.inner = self.inner.max(factor);
        self.weights = self.weights.max(front.certificate.weights);
        let (most, whole) = self.add(solver.graph, &front)?;
        // What lies above is covered by these points, unless some are beyond the cap of the peak while
        // what they stand for, which may cost less, is not.
        let top = if whole || factor <= 1.0 {
            let top = self.thresholds.partition_point(|&threshold| threshold < most);
            top.clamp((low + 1) as usize, high)
        } else {
            high
        };
        let front = Arc::new(front.points);
        Ok(Some(Interval { low, high: top, front, factor, cover: f64::INFINITY }))
    }

    /// Adds the points of a threshold's frontier with what they cost in truth; returns their largest
    /// transient part, and whether all are within the cap.
    fn add(&mut self, graph: &CostGraph, front: &Front<C>) -> Result<(u64, bool)> {
        let first = self.traces.len() as u32;
        self.traces.extend(front.traces.iter().cloned());
        let (mut most, mut whole) = (0, true);
        let costs = in_truth(graph, &front.traces, &front.origins)?;
        for ((point, row), &(trace, index)) in front.points.iter().zip(costs).zip(&front.origins) {
            let transient = row[self.peak.transient];
            most = most.max(transient);
            let key = self.key(point, transient);
            if key.0[self.resident] <= self.cap {
                self.feasible = true;
                self.points.push((key, Some(self.rows.len() as u32)));
                self.rows.push((row, (first + trace, index)));
            } else {
                whole = false;
            }
        }
        self.prune();
        Ok((most, whole))
    }

    /// The points found so far as they cover solutions whose transient part is at least `least`: with
    /// the resident part that, times `1 + slack`, makes up their peak.
    fn covered(&self, graph: &CostGraph, least: u64, slack: f64) -> Vec<C> {
        let less = if slack > 0.0 {
            (least as f64 * (1.0 + slack) * (1.0 - 4.0 * f64::EPSILON)) as u64
        } else {
            least
        };
        let rows: Vec<[u64; OBJECTIVES]> = self
            .points
            .iter()
            .map(|(key, _)| {
                let mut point = key.0;
                point[self.resident] = point[self.resident].saturating_sub(less);
                point
            })
            .collect();
        vectors(graph, self.request, rows.iter().map(|row| &row[..C::OBJECTIVES]))
    }

    fn key(&self, point: &C, threshold: u64) -> Key {
        let mut key = [0; OBJECTIVES];
        for (objective, key) in key.iter_mut().enumerate().take(C::OBJECTIVES) {
            *key = point.get(objective);
        }
        key[self.resident] += threshold;
        Wide(key)
    }

    /// Of equal points one known before stays, else the first found.
    fn prune(&mut self) {
        self.points.sort_unstable();
        self.points.dedup_by_key(|(key, _)| *key);
        let mut keys: Vec<Key> = self.points.iter().map(|(key, _)| *key).collect();
        prune(&mut keys, &mut Scratch::new());
        let mut next = keys.iter().peekable();
        self.points.retain(|(key, _)| next.next_if_eq(&key).is_some());
    }

    /// The factor within which the points found cover everything in an interval.
    fn cover(&self, interval: &Interval<C>) -> f64 {
        let first = (interval.low + 1) as usize;
        let least = self.thresholds[first];
        // Of a point that is beyond the cap here, there may be something within it that the point
        // stands for.
        let most = self.cap as f64 * (1.0 + 4.0 * f64::EPSILON);
        let within = |resident: u64| resident as f64 / interval.factor + least as f64 <= most;
        interval
            .front
            .iter()
            .map(|point| (point.get(self.resident), self.key(point, least)))
            .filter(|(resident, key)| match key.0[self.resident] <= self.cap {
                // At a single threshold a point is its own bound.
                true => first < interval.high,
                false => interval.factor > 1.0 && within(*resident),
            })
            .map(|(_, key)| self.cover_of(&key))
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

    fn finish(mut self, solver: &Solver<'_, '_, C>) -> Found<C> {
        let mut factor = if !self.feasible && solver.halted.is_some() {
            f64::INFINITY
        } else {
            self.inner * self.cover
        };
        self.points.retain(|(_, row)| row.is_some());
        if let Some(most) = solver.options.max_points.filter(|&most| most < self.points.len()) {
            let mut kept: Vec<Key> = self.points.iter().map(|(key, _)| *key).collect();
            factor *= Reducer::new().reduce(&mut kept, most, None, &mut Scratch::new());
            let mut next = kept.iter().peekable();
            self.points.retain(|(key, _)| next.next_if_eq(&key).is_some());
        }
        let rows: Vec<_> =
            self.points.iter().filter_map(|&(_, row)| self.rows.get(row? as usize)).collect();
        Found {
            costs: rows.iter().flat_map(|(costs, _)| costs).copied().collect(),
            origins: rows.iter().map(|&&(_, origin)| origin).collect(),
            traces: self.traces,
            feasible: self.feasible,
            certificate: Certificate { a_priori: factor, certified: None, weights: self.weights },
        }
    }
}

/// A row of costs as a key.
fn of_row(row: &[u64]) -> Key {
    let mut key = [0; OBJECTIVES];
    key[..row.len()].copy_from_slice(row);
    Wide(key)
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
