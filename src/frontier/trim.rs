//! Fewer points, with a proven factor: [`trim`] and [`thin`].
//!
//! A cover of a frontier is a part of it in which every point of the whole has one that is at most
//! `1 + delta` times it in every objective. Covers compose: sums, maxima and unions of covers keep
//! the larger factor, a cover of a cover multiplies them.

use super::point::CostVector;
use super::scratch::Scratch;
use super::space::Profile;

/// [`thin`] is content with one point less than asked for in this many, or with a delta this
/// close to the least (as a factor).
const SLACK: usize = 32;
const CLOSE: f64 = 1.01;
/// How far [`thin`] looks beyond the deltas it has tried, as a factor.
const FAR: f64 = 1e6;
/// Covers this many times too large are not counted to the end.
const COUNTED: usize = 8;
/// With this delta everything but zero covers everything but zero.
const LOOSEST: f64 = 1e20;

/// Thins a frontier to a cover: every point dropped has one kept that is at most `1 + delta` times
/// it in every objective, and at most it in the `exact` objective if one is named.
///
/// With two objectives the cover is the smallest there is (a greedy sweep); with three and four it
/// is small, and exact in objective 0 if none is named.
///
/// # Arguments
///
/// * `points`: a frontier; stays one, and becomes a subset of what it was.
/// * `delta`: at least 0. With 0 nothing is dropped.
/// * `exact`: an objective in which nothing may be lost (one under a cap, for example).
///
/// # Returns
///
/// The factor actually proven, rounded up: at least 1, at most `1 + delta` up to rounding.
///
/// # Complexity
///
/// `O(k log(n / k))` comparisons for `k` of `n` points kept with two objectives, `O(n log n)` above.
///
/// # Panics
///
/// If `delta` is negative or not a number, or `exact` is not an objective.
///
/// # Example
///
/// ```
/// use tensoropt::frontier::{Packed2, Scratch, trim};
///
/// let mut points = vec![Packed2::new(100, 9), Packed2::new(101, 7), Packed2::new(200, 0)];
/// let factor = trim(&mut points, 0.05, Some(1), &mut Scratch::new());
/// assert_eq!(points, [Packed2::new(101, 7), Packed2::new(200, 0)]);
/// assert!(1.01 <= factor && factor < 1.0100001);
/// ```
pub fn trim<C: CostVector>(
    points: &mut Vec<C>,
    delta: f64,
    exact: Option<usize>,
    scratch: &mut Scratch<C>,
) -> f64 {
    assert!(delta >= 0.0, "delta is {delta}, expected a number of at least 0");
    let buffers = &mut scratch.covers;
    buffers.order(points, exact);
    // Without a bound on its size there is always a cover: all points.
    let factor = buffers.cover(points, delta, exact, usize::MAX).unwrap_or(1.0);
    buffers.keep(points);
    factor
}

/// Thins a frontier to at most `at_most` points, with as small a factor as it finds.
///
/// A cost of zero is covered by nothing but zero, so that up to `2^(D-1)` points may have to stay
/// whatever `at_most` says; the factor is always finite.
///
/// # Arguments
///
/// * `points`: a frontier; stays one, and becomes a subset of what it was.
/// * `at_most`: the number of points wanted. A smaller frontier is left as it is.
/// * `exact`: an objective in which nothing may be lost (one under a cap, for example).
///
/// # Returns
///
/// The factor proven, at least 1, rounded up: every point dropped has one kept that is at most
/// this many times it in every objective, and at most it in the `exact` objective.
///
/// # Complexity
///
/// About ten times [`trim`].
///
/// # Panics
///
/// If `exact` is not an objective.
pub fn thin<C: CostVector>(
    points: &mut Vec<C>,
    at_most: usize,
    exact: Option<usize>,
    scratch: &mut Scratch<C>,
) -> f64 {
    if points.len() <= at_most {
        return 1.0;
    }
    let at_most = at_most.max(1 << (C::OBJECTIVES - 1));
    let buffers = &mut scratch.covers;
    buffers.order(points, exact);
    // The least delta lies above `low`, and not above `high`.
    let (mut low, mut high): (f64, f64) = (0.0, LOOSEST);
    let mut delta = 1e-3;
    for attempt in 1.. {
        let full = buffers.cover(points, delta, exact, COUNTED * at_most).is_none();
        let count = buffers.kept.len();
        if full || count > at_most {
            low = delta;
        } else {
            high = delta;
        }
        let enough = at_most - at_most / SLACK..=at_most;
        if enough.contains(&count) || high <= low * CLOSE || high <= f64::EPSILON {
            break;
        }
        // The size goes with the inverse of delta, or of its square where frontiers are surfaces.
        let ratio = count as f64 / at_most as f64;
        let guess = delta * if C::OBJECTIVES > 2 { ratio.sqrt() } else { ratio };
        let floor = if low > 0.0 { low } else { high / FAR };
        let ceiling = if high < LOOSEST { high } else { LOOSEST.min(low * FAR) };
        // Guesses may creep along: now and then, halve.
        let inside = low < guess && guess < high && attempt % 3 > 0;
        delta = if inside { guess } else { (floor * ceiling).sqrt() };
    }
    trim(points, high, exact, scratch)
}

/// Buffers of this module.
#[derive(Debug, Default)]
pub(super) struct Covers {
    /// The points in the order in which they are looked at.
    order: Vec<u32>,
    /// The points of the cover, in any order.
    kept: Vec<u32>,
    profile: Profile,
    /// Values of one objective, then the starts of its groups.
    values: [Vec<u64>; 4],
    /// Cell and exact cost of each point.
    cells: Vec<([u32; 3], u64, u32)>,
}

impl Covers {
    /// Prepares what does not depend on delta.
    fn order<C: CostVector>(&mut self, points: &[C], exact: Option<usize>) {
        if let Some(exact) = exact {
            assert!(
                exact < C::OBJECTIVES,
                "exact objective {exact} does not exist, expected one below {}",
                C::OBJECTIVES
            );
        }
        self.order.clear();
        if C::OBJECTIVES == 3 {
            self.order.extend(0..points.len() as u32);
            let exact = exact.unwrap_or(0);
            // Stable: equal costs stay in lexicographic order.
            self.order.sort_by_key(|&i| points[i as usize].get(exact));
        }
    }

    /// Chooses a cover; its factor, or `None` if it would hold more than `at_most` points.
    fn cover<C: CostVector>(
        &mut self,
        points: &[C],
        delta: f64,
        exact: Option<usize>,
        at_most: usize,
    ) -> Option<f64> {
        self.kept.clear();
        match (C::OBJECTIVES, exact) {
            (1, _) => {
                self.kept.extend(0..points.len() as u32);
                Some(1.0)
            }
            (2, None) => self.cover_both(points, delta, at_most),
            (2, Some(1)) => self.cover_one(points.len(), |i| points[i].get(0), delta, at_most),
            (2, _) => {
                let last = points.len().wrapping_sub(1);
                let costs = |i: usize| points[last - i].get(1);
                let factor = self.cover_one(points.len(), costs, delta, at_most)?;
                self.kept.iter_mut().for_each(|i| *i = last as u32 - *i);
                Some(factor)
            }
            (3, _) => self.cover_in_order(points, delta, exact.unwrap_or(0), at_most),
            _ => self.cover_by_cells(points, delta, exact.unwrap_or(0), at_most),
        }
    }

    /// Keeps the chosen points, in their order.
    fn keep<C: CostVector>(&mut self, points: &mut Vec<C>) {
        self.kept.sort_unstable();
        for (to, &from) in self.kept.iter().enumerate() {
            points[to] = points[from as usize];
        }
        points.truncate(self.kept.len());
    }

    /// Two objectives, one exact. The other one ascends from point to point, and a point covers
    /// those before it as far as its cost is within their reach: take the last that covers the
    /// first one uncovered.
    fn cover_one(
        &mut self,
        count: usize,
        cost: impl Fn(usize) -> u64,
        delta: f64,
        at_most: usize,
    ) -> Option<f64> {
        let (mut factor, mut first) = (1.0, 0);
        while first < count {
            if self.kept.len() == at_most {
                return None;
            }
            let end = reach(cost(first), delta);
            let last = gallop(first, count, |i| cost(i) <= end);
            factor = f64::max(factor, ratio(cost(last), cost(first)));
            self.kept.push(last as u32);
            first = last + 1;
        }
        Some(factor)
    }

    /// Two objectives, none exact. As above, but a point also covers those after it whose other
    /// cost reaches up to its own.
    fn cover_both<C: CostVector>(
        &mut self,
        points: &[C],
        delta: f64,
        at_most: usize,
    ) -> Option<f64> {
        let (mut factor, mut first) = (1.0, 0);
        while first < points.len() {
            if self.kept.len() == at_most {
                return None;
            }
            let end = reach(points[first].get(0), delta);
            let kept = gallop(first, points.len(), |i| points[i].get(0) <= end);
            let height = points[kept].get(1);
            let last = gallop(kept, points.len(), |i| height <= reach(points[i].get(1), delta));
            factor = f64::max(factor, ratio(points[kept].get(0), points[first].get(0)));
            factor = f64::max(factor, ratio(height, points[last].get(1)));
            self.kept.push(kept as u32);
            first = last + 1;
        }
        Some(factor)
    }

    /// Three objectives: in the order of the exact one, keep what nothing kept so far covers.
    fn cover_in_order<C: CostVector>(
        &mut self,
        points: &[C],
        delta: f64,
        exact: usize,
        at_most: usize,
    ) -> Option<f64> {
        let (second, third) = if exact == 0 { (1, 2) } else { (0, 3 - exact) };
        self.profile.clear();
        let mut factor = 1.0;
        for &i in &self.order {
            let (y, z) = (points[i as usize].get(second), points[i as usize].get(third));
            match self.profile.lowest(reach(y, delta)) {
                Some((cover_y, cover_z)) if cover_z <= reach(z, delta) => {
                    factor = f64::max(factor, ratio(cover_y, y));
                    factor = f64::max(factor, ratio(cover_z, z));
                }
                _ if self.kept.len() == at_most => return None,
                _ => {
                    self.kept.push(i);
                    self.profile.insert(y, z);
                }
            }
        }
        Some(factor)
    }

    /// Any number of objectives: groups the values of each but the exact one, and keeps the point
    /// that is least in the exact one for each combination of groups.
    fn cover_by_cells<C: CostVector>(
        &mut self,
        points: &[C],
        delta: f64,
        exact: usize,
        at_most: usize,
    ) -> Option<f64> {
        let others = || (0..C::OBJECTIVES).filter(|&k| k != exact);
        for k in others() {
            group(points.iter().map(|point| point.get(k)), delta, &mut self.values[k]);
        }
        self.cells.clear();
        self.cells.extend(points.iter().enumerate().map(|(i, point)| {
            let mut cell = [0; 3];
            for (group, k) in cell.iter_mut().zip(others()) {
                let cost = point.get(k);
                *group = self.values[k].partition_point(|&start| start <= cost) as u32;
            }
            (cell, point.get(exact), i as u32)
        }));
        self.cells.sort_unstable();
        let mut factor = 1.0;
        for run in self.cells.chunk_by(|a, b| a.0 == b.0) {
            if self.kept.len() == at_most {
                return None;
            }
            let cover = run[0].2;
            self.kept.push(cover);
            for &(_, _, i) in run {
                for k in others() {
                    let (kept, dropped) =
                        (points[cover as usize].get(k), points[i as usize].get(k));
                    factor = f64::max(factor, ratio(kept, dropped));
                }
            }
        }
        Some(factor)
    }
}

/// The largest cost that is at most `1 + delta` times a cost.
#[inline]
fn reach(cost: u64, delta: f64) -> u64 {
    // The cast rounds down and saturates.
    cost.saturating_add((cost as f64 * delta) as u64)
}

/// How many times `dropped` the cost `kept` is, at least 1, rounded up.
#[inline]
fn ratio(kept: u64, dropped: u64) -> f64 {
    if kept <= dropped {
        return 1.0;
    }
    // Two conversions, a division and a product are each off by half a unit at most.
    kept as f64 / dropped as f64 * (1.0 + 4.0 * f64::EPSILON)
}

/// The last index from `from` on (below `end`) that satisfies a predicate, which holds at `from`
/// and up to some index.
#[inline]
fn gallop(from: usize, end: usize, holds: impl Fn(usize) -> bool) -> usize {
    let mut step = 1;
    while from + step < end && holds(from + step) {
        step *= 2;
    }
    let (mut low, mut high) = (from + step / 2, (from + step).min(end));
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// Cuts values into groups whose members are within each other's reach; writes where groups start.
fn group(values: impl Iterator<Item = u64>, delta: f64, starts: &mut Vec<u64>) {
    starts.clear();
    starts.extend(values);
    starts.sort_unstable();
    let mut end = None;
    starts.retain(|&value| {
        let begins = end.is_none_or(|end| value > end);
        if begins {
            end = Some(reach(value, delta));
        }
        begins
    });
}
