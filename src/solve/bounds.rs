//! What the hull says before the search: [`Bounds`].
//!
//! # The problem
//!
//! The supported points of a frontier of two sums, those on its convex hull, are cheap: each is the
//! least solution under some weight vector, one sweep with scalars. They say a lot about the rest.
//! If a solution `z` is not covered within a factor `c` by the points known, `c z` lies strictly
//! below one of the inner corners `u` of their staircase, so `w . z < w . u / c` under every weight
//! `w`. So an alternative can be left out unless, under the weight that is sharpest for some
//! corner, a solution that uses it stays below `w . u / c`. With `c = 1` nothing of the frontier is
//! lost; with `c = 1 + epsilon`, what is lost is covered within `c` by the points known. The search
//! itself then runs on what is left, often a small part of the configurations and alternatives.
//!
//! This is the two-phase method of multi-objective optimization (Ulungu and Teghem 1995), with
//! marginals (Dechter's "mini-bucket" literature calls them min-marginals) in place of the
//! branch-and-bound of its second phase.

use std::ops::Range;

use std::sync::Arc;

use rayon::prelude::*;

use super::certificate::{Corner, corners, quotient};
use crate::contraction::guard::Target;
use crate::contraction::leaf::{Leaf, Marks};
use crate::contraction::marginal::{LANES, LARGEST, Lanes, Sums, Weights};
use crate::contraction::trace::{Source, Trace};
use crate::frontier::CostVector;

/// Weighted sums tried at most.
const WEIGHTS: usize = 256;

/// Cells of all tables by which solutions are told apart, at most.
const MOST_CELLS: usize = 1 << 15;

/// Groups of corners that partial solutions are held against, about.
const TARGETS: usize = 32;

/// Weights to either side of the sharpest one that are tried for a corner.
const NEAR: usize = 8;

/// More than conversions to floating point and a few operations err, relatively.
const ROUNDING: f64 = 16.0 * f64::EPSILON;

/// The hull of a problem: weights, the least sum under each, and the points behind them.
pub(crate) struct Bounds<C: CostVector> {
    /// Weights with their least weighted sums.
    pub bounds: Vec<(Weights, u64)>,
    /// Supported points within the caps: a frontier.
    pub supported: Vec<C>,
    caps: [u64; 2],
}

impl<C: CostVector> Bounds<C> {
    /// Walks along the hull: the two ends, then the normal of every edge found, until no edge hides
    /// a further vertex or there are enough.
    ///
    /// # Arguments
    ///
    /// * `trace`: an elimination of the problem, however thinned.
    /// * `largest`: bounds on what the two objectives can add up to.
    /// * `caps`: the largest values allowed in the two.
    ///
    /// Returns `None` if there is no solution, or weighted sums could leave the range.
    pub fn new(trace: &Trace<C>, largest: [u64; 2], caps: [u64; 2]) -> Option<Self> {
        if largest[0].checked_add(largest[1]).is_none_or(|sum| sum > LARGEST) {
            return None;
        }
        let mut bounds: Vec<(Weights, u64)> = Vec::new();
        let mut points: Vec<[u64; 2]> = Vec::new();
        let ends = [[1, 0], [0, 1], [LARGEST, 1], [1, LARGEST]];
        let mut open: Vec<Weights> = ends.iter().map(|&w| in_range(w, largest)).collect();
        while !open.is_empty() && bounds.len() < WEIGHTS {
            open.truncate(WEIGHTS - bounds.len());
            let found: Vec<(Option<u64>, Option<[u64; 2]>)> = open
                .par_chunks(LANES)
                .flat_map_iter(|weights| {
                    let sums = Sums::new(trace, weights);
                    let least = sums.least();
                    (0..weights.len()).map(|i| (least[i], sums.solution(i))).collect::<Vec<_>>()
                })
                .collect();
            for (&weights, (least, point)) in open.iter().zip(found) {
                bounds.push((weights, least?));
                points.extend(point);
            }
            points.sort_unstable();
            points.dedup();
            open = normals(&points)
                .into_iter()
                .map(|normal| in_range(normal, largest))
                .filter(|&w| w[0] > 0 && w[1] > 0)
                .filter(|w| bounds.iter().all(|(known, _)| known != w))
                .collect();
        }
        let mut supported: Vec<C> = points
            .iter()
            .filter(|point| point[0] <= caps[0] && point[1] <= caps[1])
            .map(|point| C::from_slice(point))
            .collect();
        crate::frontier::prune(&mut supported, &mut crate::frontier::Scratch::new());
        // By steepness: what is sharp for a corner are neighbours.
        let steep = |w: Weights, v: Weights| u128::from(w[0]) * u128::from(v[1]);
        bounds.sort_unstable_by(|(a, _), (b, _)| steep(*a, *b).cmp(&steep(*b, *a)).then(a.cmp(b)));
        Some(Self { bounds, supported, caps })
    }

    /// The factor within which points cover every solution.
    ///
    /// Solutions are told apart by the cell of some table on the way that they go through, and each
    /// kind has a hull of its own. That helps where one decision is large, such as how a tied
    /// parameter is kept, and bends the frontier away from its hull.
    ///
    /// # Arguments
    ///
    /// * `trace`: the one that the bounds come from.
    /// * `points`: a frontier.
    /// * `enough`: corners that are within this factor are left as they are.
    pub fn factor_by_cells(&self, trace: &Trace<C>, points: &[C], enough: f64) -> f64 {
        if points.is_empty() {
            return f64::INFINITY;
        }
        let mut factor: f64 = 1.0;
        let mut open: Vec<(Corner, usize, f64)> = Vec::new();
        for corner in corners(points, self.caps) {
            let (sharpest, known) = self.sharpest(corner);
            if known <= enough {
                factor = factor.max(known);
            } else {
                open.push((corner, sharpest, known));
            }
        }
        if open.is_empty() {
            return factor;
        }
        let tables = self.tables(trace);
        open.par_iter()
            .map(|&(corner, sharpest, known)| {
                let near = self.near(corner, sharpest);
                tables.iter().fold(known, |best, table| {
                    if best <= enough {
                        return best;
                    }
                    best.min(near.worst_cell(table, best))
                })
            })
            .reduce(|| factor, f64::max)
    }

    /// For some tables on the way, those nearest to the answer first, the least weighted sum of the
    /// solutions through each cell.
    fn tables(&self, trace: &Trace<C>) -> Vec<Through> {
        let swept: Vec<Vec<(usize, Vec<Lanes>)>> = self
            .bounds
            .par_chunks(LANES)
            .map(|bounds| {
                let weights: Vec<Weights> = bounds.iter().map(|&(weights, _)| weights).collect();
                Sums::new(trace, &weights).through(MOST_CELLS)
            })
            .collect();
        let row = |table: usize, cell: usize| -> Vec<f64> {
            let lanes = swept.iter().flat_map(|chunk| chunk[table].1[cell]);
            lanes.take(self.bounds.len()).map(|sum| sum as f64).collect()
        };
        (0..swept[0].len())
            .into_par_iter()
            .map(|table| {
                Through::new((0..swept[0][table].1.len()).map(|cell| row(table, cell)).collect())
            })
            .collect()
    }

    /// The weights about as steep as the sharpest one of a corner, and what they make of it.
    fn near(&self, corner: Corner, sharpest: usize) -> Near {
        let range = sharpest.saturating_sub(NEAR)..(sharpest + NEAR + 1).min(self.bounds.len());
        let parts = self.bounds[range.clone()]
            .iter()
            .map(|(weights, _)| {
                let part = |i: usize| weights[i] as f64 * corner.value[i] as f64;
                let sum =
                    |cap: bool| (0..2).filter(|&i| corner.is_cap[i] == cap).map(part).sum::<f64>();
                (1.0 / sum(false), sum(true))
            })
            .collect();
        Near { sharpest, range, parts }
    }

    /// The weight that rules out most below a corner, and the factor beyond which it does.
    fn sharpest(&self, corner: Corner) -> (usize, f64) {
        let factors = self.bounds.iter().map(|bound| quotient(corner, bound));
        factors.enumerate().fold((0, f64::INFINITY), |best, (i, factor)| {
            if factor < best.1 { (i, factor) } else { best }
        })
    }

    /// What solutions lie below that the known points do not cover within `1 + epsilon`: the corners
    /// of their staircase that the hull leaves, with the weights about the sharpest one of each.
    /// Neighbours with the same sharpest weight are merged until there are not too many.
    pub fn targets(&self, known: &[C], epsilon: f64) -> Vec<Target> {
        let open: Vec<(usize, Corner)> = corners(known, self.caps)
            .map(|corner| (self.sharpest(corner), corner))
            .filter(|((_, factor), _)| *factor > 1.0 + epsilon)
            .map(|((sharpest, _), corner)| (sharpest, corner))
            .collect();
        let most = open.len().div_ceil(TARGETS);
        open.chunk_by(|(a, _), (b, _)| a == b)
            .flat_map(|same| same.chunks(most))
            .map(|corners| {
                let sharpest = corners[0].0;
                let first = sharpest.saturating_sub(NEAR);
                let near = &self.bounds[first..(sharpest + NEAR + 1).min(self.bounds.len())];
                let limit = |weights| {
                    let reaches =
                        corners.iter().map(|&(_, corner)| reach(corner, weights, epsilon));
                    reaches.fold(0, u64::max)
                };
                let limits = near.iter().map(|&(weights, _)| limit(weights)).collect();
                Target { first, sharpest: sharpest - first, limits }
            })
            .collect()
    }

    /// Marks the points of the problem's tables without which something would be lost.
    ///
    /// # Arguments
    ///
    /// * `trace`: the one that the bounds come from.
    /// * `known`: points that solutions have: a frontier, not empty.
    /// * `epsilon`: what may be lost.
    /// * `leaves`, `slot`: as for [`Sums::mark`].
    ///
    /// Solutions with a supported point are always kept.
    pub fn marks(
        &self,
        trace: &Trace<C>,
        known: &[C],
        epsilon: f64,
        leaves: &[Option<Arc<Leaf<C>>>],
        slot: impl Fn(&Source) -> Option<usize> + Sync,
    ) -> Marks {
        // Above the least sum itself, so that the solutions that have it stay.
        let mut limits: Vec<u64> = self.bounds.iter().map(|&(_, least)| least + 1).collect();
        for corner in corners(known, self.caps) {
            let (weight, _) = self.sharpest(corner);
            let limit = &mut limits[weight];
            *limit = (*limit).max(reach(corner, self.bounds[weight].0, epsilon));
        }
        let either = |all: Marks, marks: Marks| -> Marks {
            all.into_iter()
                .zip(marks)
                .map(|(all, marks)| {
                    let mut all = all?;
                    all.iter_mut().zip(marks?).for_each(|(all, mark)| *all |= mark);
                    Some(all)
                })
                .collect()
        };
        self.bounds
            .par_chunks(LANES)
            .zip(limits.par_chunks(LANES))
            .map(|(bounds, limits)| {
                let weights: Vec<Weights> = bounds.iter().map(|&(weights, _)| weights).collect();
                Sums::new(trace, &weights).mark(limits, leaves, &slot)
            })
            .reduce_with(either)
            .unwrap_or_default()
    }
}

/// A bound, exclusive, on the weighted sums of solutions that lie below a corner by more than
/// `1 + epsilon`.
fn reach(corner: Corner, weights: Weights, epsilon: f64) -> u64 {
    let (mut scaled, mut fixed) = (0u128, 0u128);
    for ((&w, u), is_cap) in weights.iter().zip(corner.value).zip(corner.is_cap) {
        let part = u128::from(w) * u128::from(u);
        if is_cap { fixed += part } else { scaled += part }
    }
    if epsilon > 0.0 {
        // Rounded up by more than the conversion and the division err.
        scaled = (scaled as f64 / (1.0 + epsilon) * (1.0 + 4.0 * f64::EPSILON)).ceil() as u128;
    }
    u64::try_from(scaled + fixed + 1).unwrap_or(LARGEST).min(LARGEST)
}

/// Normals of the edges of the lower left convex hull of sorted points.
fn normals(points: &[[u64; 2]]) -> Vec<Weights> {
    let mut hull: Vec<[u64; 2]> = Vec::new();
    for &point in points {
        if hull.last().is_some_and(|last| last[1] <= point[1]) {
            continue;
        }
        while let [.., a, b] = hull[..] {
            let run = |p: [u64; 2]| u128::from(p[0] - a[0]);
            let fall = |p: [u64; 2]| u128::from(a[1] - p[1]);
            if fall(b) * run(point) > fall(point) * run(b) {
                break;
            }
            hull.pop();
        }
        hull.push(point);
    }
    hull.windows(2).map(|edge| [edge[0][1] - edge[1][1], edge[1][0] - edge[0][0]]).collect()
}

/// Weights scaled down until no weighted sum leaves the range; that only blunts a bound.
fn in_range(mut weights: Weights, largest: [u64; 2]) -> Weights {
    let sum = |w: Weights| {
        u128::from(w[0]) * u128::from(largest[0]) + u128::from(w[1]) * u128::from(largest[1])
    };
    while sum(weights) > u128::from(LARGEST) {
        weights = weights.map(|w| if w > 1 { w / 2 } else { w });
        if weights.iter().all(|&w| w <= 1) {
            break;
        }
    }
    weights
}
/// The least weighted sums of the solutions through each cell of a table.
struct Through {
    /// One row of weights per cell, in the order of the bounds.
    cells: Vec<Vec<f64>>,
    /// For each weight, the cell with the least sum.
    least: Vec<usize>,
}

impl Through {
    fn new(cells: Vec<Vec<f64>>) -> Self {
        let weights = cells.first().map_or(0, Vec::len);
        let least = |weight: usize| {
            let smaller = |best: usize, cell: usize| match cells[cell][weight] < cells[best][weight]
            {
                true => cell,
                false => best,
            };
            (1..cells.len()).fold(0, smaller)
        };
        let least = (0..weights).map(least).collect();
        Self { cells, least }
    }
}

/// The weights that are tried for a corner.
struct Near {
    sharpest: usize,
    range: Range<usize>,
    /// For each of them, the part of a sum that grows with the factor, inverted, and the part that
    /// does not.
    parts: Vec<(f64, f64)>,
}

impl Near {
    /// The largest factor below which some cell of a table leaves the corner; `best` or more if it
    /// is no less than that.
    fn worst_cell(&self, table: &Through, best: f64) -> f64 {
        let mut worst: f64 = 1.0;
        // The cell that leaves most at the sharpest weight is likely to leave most of all.
        let first = table.least.get(self.sharpest).map(|&cell| &table.cells[cell]);
        for row in first.into_iter().chain(&table.cells) {
            let rest =
                row[self.range.clone()].iter().zip(&self.parts).map(|(sum, (inverse, fixed))| {
                    // Rounded down by more than the conversions err.
                    (sum * (1.0 - ROUNDING) - fixed * (1.0 + ROUNDING)) * inverse
                });
            worst = worst.max((1.0 + ROUNDING) / rest.fold(0.0, f64::max));
            if worst >= best {
                break;
            }
        }
        worst
    }
}
