//! Fewer points in a cell, with a proven factor: [`Thinning`].

use crate::frontier::{CostVector, Scratch, thin};

/// How cells are thinned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Thinning {
    /// Points in a cell, about; `usize::MAX` for all.
    pub at_most: usize,
    /// An objective in which nothing may be lost.
    pub exact: Option<usize>,
    /// What may be lost a priori, if cells are trimmed too.
    pub budget: Option<Budget>,
}

/// A factor that the answer must keep, spent evenly over the joins on the way to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Budget {
    pub epsilon: f64,
    /// Joins on the longest way from the problem's tables to the answer, about.
    pub height: u32,
}

/// A table without axes may keep this many times more points: there is only one such cell, and what
/// the answer loses is lost for good.
const ANSWER: usize = 16;

impl Thinning {
    /// Nothing is lost.
    pub const NONE: Self = Self { at_most: usize::MAX, exact: None, budget: None };

    /// What a join at some height may lose, given the factor of its operands; 0 for nothing.
    ///
    /// A trim multiplies the factor; sums and unions keep the larger one of their operands. So only
    /// the trims on one way count, and what an operand left unspent is there for the join.
    pub fn delta(&self, height: u32, carried: f64) -> f64 {
        self.budget.map_or(0.0, |budget| {
            let share = (f64::from(height) / f64::from(budget.height.max(1))).min(1.0);
            // A little below, so that the product cannot round above.
            let allowed = (1.0 + budget.epsilon).powf(share) * (1.0 - 4.0 * f64::EPSILON);
            (allowed / carried - 1.0).max(0.0)
        })
    }

    /// The points that a cell of a table with these axes may have.
    pub fn room(&self, axes: usize) -> usize {
        if axes == 0 { self.at_most.saturating_mul(ANSWER) } else { self.at_most }
    }
}

/// Thins frontiers, with buffers that are used again.
#[derive(Debug)]
pub(crate) struct Reducer<C> {
    kept: Vec<C>,
    hull: Vec<C>,
}

impl<C: CostVector> Reducer<C> {
    pub fn new() -> Self {
        Self { kept: Vec::new(), hull: Vec::new() }
    }

    /// Thins a frontier to about `at_most` points and returns the factor proven: every point
    /// dropped has one kept that is at most this many times as costly in every objective, and at
    /// most as costly in the `exact` one.
    ///
    /// With two objectives, what stays is chosen for its place near the lower convex hull. The hull
    /// of a sum is the sum of the hulls: points near them add up to points near it, and so the
    /// errors of many steps do not add up as they would with arbitrary covers of the same size.
    pub fn reduce(
        &mut self,
        points: &mut Vec<C>,
        at_most: usize,
        exact: Option<usize>,
        scratch: &mut Scratch<C>,
    ) -> f64 {
        if points.len() <= at_most {
            return 1.0;
        }
        if C::OBJECTIVES != 2 {
            return thin(points, at_most, exact, scratch);
        }
        hull(points, &mut self.hull);
        let every = self.hull.len().div_ceil((at_most / 2).max(1));
        let vertices = (0..self.hull.len()).step_by(every);
        let rest = at_most.saturating_sub(vertices.len()).max(2);
        self.kept.clear();
        let proven = if exact.is_none() {
            self.best_of_windows(points, rest);
            None
        } else {
            self.kept.extend_from_slice(points);
            Some(thin(&mut self.kept, rest, exact, scratch))
        };
        self.kept.extend(vertices.map(|i| self.hull[i]));
        self.kept.sort_unstable();
        self.kept.dedup();
        let factor = proven.unwrap_or_else(|| covered_within(points, &self.kept));
        std::mem::swap(points, &mut self.kept);
        factor
    }

    /// Divides the frontier into windows, keeps in each the point nearest to the hull, and both
    /// ends; in any order.
    ///
    /// Between two points that are kept, `a` and `b`, what is dropped may reach the corner
    /// `(b.x, a.y)`, and how far that lies above the hull is what can be lost: for small steps
    /// `1 / (x / dx + y / dy)` of the costs there. Windows are equally long in this measure: where
    /// the frontier is flat or steep, few points do.
    fn best_of_windows(&mut self, points: &[C], windows: usize) {
        let length: f64 = self.hull.windows(2).map(|w| Edge::new(w[0], w[1]).length).sum();
        let scale = windows as f64 / length.max(f64::MIN_POSITIVE);
        let mut edges = self.hull.windows(2).map(|w| (w[0], Edge::new(w[0], w[1]))).peekable();
        let Some((_, mut edge)) = edges.next() else {
            self.kept.push(points[0]);
            return;
        };
        let mut before = 0.0;
        let mut best = (0, f64::INFINITY, points[0]);
        for &point in points {
            while let Some((_, next)) = edges.next_if(|(a, _)| *a <= point) {
                before += edge.length;
                edge = next;
            }
            let (progress, gap) = edge.place(point);
            let window = ((before + edge.length * progress) * scale) as usize;
            if window != best.0 {
                self.kept.push(best.2);
                best = (window, gap, point);
            } else if gap < best.1 {
                best = (window, gap, point);
            }
        }
        self.kept.extend([best.2, points[0], points[points.len() - 1]]);
    }
}

/// An edge of the hull, prepared for the points above it.
struct Edge {
    /// In the measure of the windows.
    length: f64,
    /// Where it begins.
    start: [f64; 2],
    /// Per unit of cost in each objective: half of the way along the edge.
    along: [f64; 2],
    /// Per unit of cost in each objective: height above the edge, relative to the costs there.
    above: [f64; 2],
}

impl Edge {
    fn new<C: CostVector>(a: C, b: C) -> Self {
        let (x, y) = ([a.get(0) as f64, b.get(0) as f64], [a.get(1) as f64, b.get(1) as f64]);
        let (run, fall) = (x[1] - x[0], y[0] - y[1]);
        // The logarithm of a quotient, to second order; bounded where the lesser cost is 0.
        let (log_x, log_y) = (2.0 * run / (x[0] + x[1]), 2.0 * fall / (y[0] + y[1]));
        let level = fall * x[0] + run * y[0];
        Self {
            length: log_x * log_y / (log_x + log_y),
            start: [x[0], y[0]],
            along: [0.5 / run, -0.5 / fall],
            above: [fall / level, run / level],
        }
    }

    /// How far along the edge a point lies, 0 to 1, and how far above it.
    #[inline]
    fn place<C: CostVector>(&self, point: C) -> (f64, f64) {
        let x = point.get(0) as f64 - self.start[0];
        let y = point.get(1) as f64 - self.start[1];
        (self.along[0] * x + self.along[1] * y, self.above[0] * x + self.above[1] * y)
    }
}

/// The factor within which some of a frontier's points, both ends among them, cover all of it: two
/// objectives; rounded up.
fn covered_within<C: CostVector>(points: &[C], kept: &[C]) -> f64 {
    let quotient = |a: u64, b: u64| match b {
        0 if a > 0 => f64::INFINITY,
        0 => 1.0,
        _ => a as f64 / b as f64 * (1.0 + 4.0 * f64::EPSILON),
    };
    let (mut next, mut factor) = (0, 1.0f64);
    for point in points {
        if kept.get(next) == Some(point) {
            next += 1;
        } else if next > 0 && next < kept.len() {
            // Its neighbours: the one before costs more of the second, the one after of the first.
            let before = quotient(kept[next - 1].get(1), point.get(1));
            let after = quotient(kept[next].get(0), point.get(0));
            factor = factor.max(before.min(after));
        }
    }
    factor
}

/// The vertices of the lower left convex hull of a frontier in two objectives, in its order.
pub(crate) fn hull<C: CostVector>(points: &[C], hull: &mut Vec<C>) {
    hull.clear();
    for &point in points {
        while let [.., a, b] = hull[..] {
            // b stays if it lies strictly below the line from a to point.
            let run = |p: C| u128::from(p.get(0) - a.get(0));
            let fall = |p: C| u128::from(a.get(1) - p.get(1));
            if fall(b) * run(point) > fall(point) * run(b) {
                break;
            }
            hull.pop();
        }
        hull.push(point);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontier::{Packed2, is_frontier};

    fn points(coordinates: &[[u32; 2]]) -> Vec<Packed2> {
        coordinates.iter().map(|&[x, y]| Packed2::new(x, y)).collect()
    }

    #[test]
    fn the_hull_of_a_staircase() {
        let mut found = Vec::new();
        hull(&points(&[[0, 10], [1, 9], [2, 4], [5, 3], [6, 0]]), &mut found);
        assert_eq!(found, points(&[[0, 10], [2, 4], [6, 0]]));
    }

    #[test]
    fn what_is_dropped_is_covered() {
        // A convex curve, bent up between its vertices.
        let all: Vec<Packed2> = (0..1000u32)
            .map(|i| Packed2::new(1000 + i * i + i % 7, 1_000_000 - 1000 * i + (i % 10) * 90))
            .collect();
        let mut thinned = all.clone();
        let factor = Reducer::new().reduce(&mut thinned, 100, None, &mut Scratch::new());
        assert!(thinned.len() <= 110 && is_frontier(&thinned), "{}", thinned.len());
        let covers = |p: &Packed2| {
            thinned.iter().any(|q| (0..2).all(|i| q.get(i) as f64 <= factor * p.get(i) as f64))
        };
        assert!(factor > 1.0 && all.iter().all(covers));
        assert!(thinned.contains(&all[0]) && thinned.contains(&all[999]));
    }
}
