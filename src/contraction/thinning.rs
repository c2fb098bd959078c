//! Fewer points in a cell, with a proven factor: [`Thinning`].

use crate::frontier::{CostVector, Scratch, thin};

/// How cells are thinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thinning {
    /// Points in a cell, about; `usize::MAX` for all.
    pub at_most: usize,
    /// An objective in which nothing may be lost.
    pub exact: Option<usize>,
}

/// A table without axes may keep this many times more points: there is only one such cell, and what
/// the answer loses is lost for good.
const ANSWER: usize = 16;

impl Thinning {
    /// Nothing is lost.
    pub const NONE: Self = Self { at_most: usize::MAX, exact: None };

    /// The points that a cell of a table with these axes may have.
    pub fn room(&self, axes: usize) -> usize {
        if axes == 0 { self.at_most.saturating_mul(ANSWER) } else { self.at_most }
    }
}

/// Buffers of [`reduce`].
#[derive(Debug)]
pub(crate) struct Reducer<C> {
    kept: Vec<C>,
    hull: Vec<C>,
}

impl<C: CostVector> Reducer<C> {
    pub fn new() -> Self {
        Self { kept: Vec::new(), hull: Vec::new() }
    }

    /// Thins a frontier to at most `at_most` points and returns the factor proven.
    ///
    /// With two objectives the vertices of the lower convex hull stay (every so many of them if
    /// they are more than half of what may stay). The hull of a sum is the sum of the hulls, so
    /// the optima of all weighted sums survive every step; what is dropped lies between them, and
    /// the factor proven afterwards is that much better.
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
        let hull = (0..self.hull.len()).step_by(every);
        self.kept.clear();
        self.kept.extend_from_slice(points);
        let rest = at_most.saturating_sub(hull.len()).max(2);
        let factor = thin(&mut self.kept, rest, exact, scratch);
        self.kept.extend(hull.map(|i| self.hull[i]));
        self.kept.sort_unstable();
        self.kept.dedup();
        std::mem::swap(points, &mut self.kept);
        factor
    }
}

/// The vertices of the lower left convex hull of a frontier in two objectives, in its order.
pub(crate) fn hull<C: CostVector>(points: &[C], hull: &mut Vec<C>) {
    let signed = |c: C, objective| i128::from(c.get(objective));
    hull.clear();
    for &point in points {
        while let [.., a, b] = hull[..] {
            // b stays if it lies strictly below the line from a to point.
            let run = |p: C| signed(p, 0) - signed(a, 0);
            let fall = |p: C| signed(a, 1) - signed(p, 1);
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
    fn keeps_the_hull_and_covers_the_rest() {
        // A convex curve, bent up between its vertices.
        let all: Vec<Packed2> = (0..1000u32)
            .map(|i| Packed2::new(1000 + i * i + i % 7, 1_000_000 - 1000 * i + (i % 10) * 90))
            .collect();
        let mut thinned = all.clone();
        let factor = Reducer::new().reduce(&mut thinned, 100, None, &mut Scratch::new());
        assert!(thinned.len() <= 100 && is_frontier(&thinned), "{}", thinned.len());
        let covers = |p: &Packed2| {
            thinned.iter().any(|q| {
                (0..2).all(|i| q.get(i) as f64 <= factor * p.get(i) as f64)
            })
        };
        assert!(factor > 1.0 && all.iter().all(covers));
        let mut vertices = Vec::new();
        hull(&all, &mut vertices);
        assert!(vertices.len() > 50 || vertices.iter().all(|v| thinned.contains(v)));
        assert!(thinned.contains(&all[0]) && thinned.contains(&all[999]));
    }
}
