//! What partial solutions can still come to: [`Guard`].
//!
//! # The problem
//!
//! A point in the cell of a table that an elimination makes is a part of solutions, and under every
//! weight vector the rest of the problem adds a known least sum to it (a marginal, see
//! [`Sums`](super::marginal)). What is wanted are solutions strictly below some *target* in every
//! weighted sum. A point that cannot come below any of them can be dropped, and a cell from which
//! no target is in reach need not be computed. Label-setting methods call this pruning by bound
//! sets.
//!
//! A target has limits for a few weights that lie next to each other, those that are sharp for it.

use super::trace::{Source, Trace};
use crate::contraction::marginal::{LANES, Sums, Weights};
use crate::frontier::CostVector;

use rayon::prelude::*;
use rustc_hash::FxHashMap;

/// Numbers held for all cells, at most; beyond that fewer weights are used.
const MOST: usize = 1 << 23;

/// Limits on weighted sums, exclusive, for weights that lie next to each other.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// The first of the weights.
    pub first: usize,
    /// Which of them rules out most, counted from the first.
    pub sharpest: usize,
    pub limits: Vec<u64>,
}

/// The least sums that the rest of the problem adds, for the tables made on the way.
pub(crate) struct Guard {
    weights: Vec<Weights>,
    /// For each instance of a trace, cell by cell, one sum per weight; `None` for tables of the
    /// problem, and for those that stand in several places.
    rests: Vec<Option<Vec<u64>>>,
    targets: Vec<Target>,
}

impl Guard {
    /// Sweeps a trace for the sums.
    ///
    /// # Arguments
    ///
    /// * `trace`: the elimination that is to be repeated.
    /// * `weights`: in the order that targets refer to.
    pub fn new<C: CostVector>(trace: &Trace<C>, weights: &[Weights]) -> Self {
        let mut places: FxHashMap<u32, usize> = FxHashMap::default();
        for instance in &trace.instances {
            *places.entry(instance.op.id).or_default() += 1;
        }
        let alone = |index: usize| {
            let instance = &trace.instances[index];
            matches!(instance.source, Source::Join { .. }) && places[&instance.op.id] == 1
        };
        let cells: usize = (0..trace.instances.len())
            .filter(|&index| alone(index))
            .map(|index| trace.instances[index].op.cells.len())
            .sum();
        let mut rests: Vec<Option<Vec<u64>>> = vec![None; trace.instances.len()];
        if cells * weights.len() <= MOST {
            let swept: Vec<Vec<(usize, Vec<[u64; LANES]>)>> = weights
                .par_chunks(LANES)
                .map(|weights| Sums::new(trace, weights).rests(alone))
                .collect();
            for (number, chunk) in swept.into_iter().enumerate() {
                let lanes = (weights.len() - number * LANES).min(LANES);
                for (index, cells) in chunk {
                    let rests =
                        rests[index].get_or_insert_with(|| vec![0; cells.len() * weights.len()]);
                    for (cell, sums) in cells.iter().enumerate() {
                        let at = cell * weights.len() + number * LANES;
                        rests[at..at + lanes].copy_from_slice(&sums[..lanes]);
                    }
                }
            }
        }
        Self { weights: weights.to_vec(), rests, targets: Vec::new() }
    }

    /// Sets what solutions must come below.
    pub fn aim(&mut self, targets: Vec<Target>) {
        self.targets = targets;
    }

    /// The guard of an instance's table; `None` if everything in it is kept.
    pub fn table(&self, instance: usize) -> Option<TableGuard<'_>> {
        let rests = self.rests[instance].as_deref()?;
        Some(TableGuard { guard: self, rests })
    }
}

/// A [`Guard`] at one table.
#[derive(Clone, Copy)]
pub(crate) struct TableGuard<'g> {
    guard: &'g Guard,
    rests: &'g [u64],
}

impl<'g> TableGuard<'g> {
    /// What is left of the targets for points of a cell; `None` if no target is in reach.
    pub fn cell(&self, cell: usize) -> Option<CellGuard<'g>> {
        let weights = self.guard.weights.len();
        let rests = &self.rests[cell * weights..(cell + 1) * weights];
        let left = |target: &Target| -> Option<Target> {
            let rests = &rests[target.first..];
            let limits: Option<Vec<u64>> = target
                .limits
                .iter()
                .zip(rests)
                .map(|(limit, rest)| limit.checked_sub(*rest).filter(|&left| left > 0))
                .collect();
            Some(Target { first: target.first, sharpest: target.sharpest, limits: limits? })
        };
        let targets: Vec<Target> = self.guard.targets.iter().filter_map(left).collect();
        (!targets.is_empty()).then_some(CellGuard { weights: &self.guard.weights, targets })
    }
}

/// A [`Guard`] at one cell.
pub(crate) struct CellGuard<'g> {
    weights: &'g [Weights],
    targets: Vec<Target>,
}

impl CellGuard<'_> {
    /// Limits, inclusive, that every wanted point keeps in each objective by itself.
    pub fn corner(&self) -> [u64; 2] {
        let mut corner = [0; 2];
        for target in &self.targets {
            for (objective, most) in corner.iter_mut().enumerate() {
                let alone = target
                    .limits
                    .iter()
                    .zip(&self.weights[target.first..])
                    .filter(|(_, weights)| weights[objective] > 0)
                    .map(|(left, weights)| (left - 1) / weights[objective]);
                *most = (*most).max(alone.min().unwrap_or(u64::MAX));
            }
        }
        corner
    }

    /// Drops the points that cannot come below any target.
    pub fn keep<C: CostVector>(&self, points: &mut Vec<C>) {
        // Neighbours mostly reach the same targets.
        let mut last = 0;
        points.retain(|point| {
            let below = |target: &Target| {
                let weights = &self.weights[target.first..];
                let test = |i: usize| {
                    let [x, y] = weights[i];
                    // In range: weights were scaled for the largest sums there are.
                    x * point.get(0) + y * point.get(1) < target.limits[i]
                };
                test(target.sharpest) && (0..target.limits.len()).all(test)
            };
            let found =
                (last..self.targets.len()).chain(0..last).find(|&i| below(&self.targets[i]));
            last = found.unwrap_or(last);
            found.is_some()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontier::Packed2;

    const WEIGHTS: [Weights; 4] = [[1, 0], [3, 1], [1, 2], [0, 1]];

    fn target(first: usize, sharpest: usize, limits: &[u64]) -> Target {
        Target { first, sharpest, limits: limits.to_vec() }
    }

    fn cell(targets: Vec<Target>) -> CellGuard<'static> {
        CellGuard { weights: &WEIGHTS, targets }
    }

    /// All points of a square, and those of them that a guard keeps.
    fn kept(guard: &CellGuard<'_>) -> Vec<[u64; 2]> {
        let square = (0..30).flat_map(|x| (0..30).map(move |y| Packed2::from_slice(&[x, y])));
        let mut points: Vec<Packed2> = square.collect();
        guard.keep(&mut points);
        points.iter().map(|point| [point.get(0), point.get(1)]).collect()
    }

    #[test]
    fn a_corner_is_as_far_as_a_target_reaches() {
        assert_eq!(cell(vec![target(0, 0, &[5, 100, 100, 9])]).corner(), [4, 8]);
        // A sum of both bounds each by itself.
        assert_eq!(cell(vec![target(1, 0, &[10, 9])]).corner(), [3, 4]);
        // Of several targets the farthest counts.
        let two = cell(vec![target(0, 0, &[5, 16]), target(2, 1, &[7, 3])]);
        assert_eq!(two.corner(), [6, 15]);
        // What no weight sees has no limit.
        assert_eq!(cell(vec![target(0, 0, &[5])]).corner(), [4, u64::MAX]);
    }

    #[test]
    fn a_point_is_kept_if_it_is_below_some_target_under_all_its_weights() {
        let targets = [
            target(0, 1, &[20, 31, 25]),
            target(1, 0, &[12, 40, 18]),
            target(3, 0, &[2]),
            target(2, 1, &[1, 1]),
        ];
        let below = |[x, y]: [u64; 2], target: &Target| {
            let weights = &WEIGHTS[target.first..];
            weights.iter().zip(&target.limits).all(|([v, w], limit)| v * x + w * y < *limit)
        };
        for mask in 1..1 << targets.len() {
            let some = (0..targets.len()).filter(|i| mask >> i & 1 == 1);
            let some: Vec<Target> = some.map(|i| targets[i].clone()).collect();
            let guard = cell(some.clone());
            let square = (0..30).flat_map(|x| (0..30).map(move |y| [x, y]));
            let expected: Vec<[u64; 2]> =
                square.filter(|&point| some.iter().any(|target| below(point, target))).collect();
            let found = kept(&guard);
            assert_eq!(found, expected, "{some:?}");
            let corner = guard.corner();
            assert!(found.iter().all(|p| p[0] <= corner[0] && p[1] <= corner[1]), "{some:?}");
        }
    }

    #[test]
    fn a_cell_has_what_the_rest_leaves() {
        let guard = Guard {
            weights: WEIGHTS.to_vec(),
            rests: vec![None, Some(vec![1, 4, 3, 1, 9, 9, 9, 9])],
            targets: vec![target(0, 0, &[5, 16]), target(1, 1, &[9, 3])],
        };
        assert!(guard.table(0).is_none(), "a table without rests is not guarded");
        let table = guard.table(1).unwrap();
        // The second target is used up by the rest: nothing strictly below it is left.
        let cell = table.cell(0).unwrap();
        assert_eq!(cell.targets.len(), 1);
        assert_eq!(cell.targets[0].limits, [4, 12]);
        assert!(table.cell(1).is_none(), "no target is in reach");
    }
}
