//! Least weighted sums, the solutions behind them, and what each alternative costs at the least:
//! [`Sums`].
//!
//! # The problem
//!
//! Under a weight vector a problem of two sums has one number per solution. Its least value bounds
//! every solution from below; the solution that reaches it is a point of the convex hull. And for
//! every alternative of every table there is a least value among the solutions that use it, its
//! *marginal*: where that is too large, no solution that uses the alternative is wanted, and it
//! can be left out of the search for the frontier.
//!
//! * [`Sums::new`]: one elimination with scalars along a trace, operands first.
//! * [`Sums::least`], [`Sums::solution`]: the least sum, and the point of a solution behind it.
//! * [`Sums::mark`]: marginals, by a second sweep from the answer back to the tables.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::leaf::{Leaf, Marks};
use super::trace::{Instance, Source, Trace};
use crate::frontier::CostVector;

/// No solution. Two of them add up without overflow, and so do the costs allowed below it.
const NONE: u64 = u64::MAX / 4;

/// Weights that go through a trace together.
pub(crate) const LANES: usize = 8;

/// A weight per objective.
pub(crate) type Weights = [u64; 2];

/// The largest sum of weighted costs that [`Sums`] can take.
pub(crate) const LARGEST: u64 = NONE - 1;

pub(crate) type Lanes = [u64; LANES];

/// The least weighted sums of all tables of a trace, for up to [`LANES`] weights.
pub(crate) struct Sums<'t, C: CostVector> {
    trace: &'t Trace<C>,
    weights: [Weights; LANES],
    used: usize,
    tables: FxHashMap<u32, Vec<Lanes>>,
}

impl<'t, C: CostVector> Sums<'t, C> {
    /// Sweeps from the tables to the answer.
    ///
    /// The vectors of the trace must have two objectives that add up by sum, and the weighted sums
    /// must not exceed [`LARGEST`]. The tables of the problem are read, not what was made of them,
    /// so neither thinning nor a limit on the way has any influence; of a table's cell the vertices
    /// of the hull are enough.
    ///
    /// # Complexity
    ///
    /// Per weight, one addition per configuration of the eliminated node and cell of each different
    /// table.
    pub fn new(trace: &'t Trace<C>, weights: &[Weights]) -> Self {
        let mut lanes = [[0; 2]; LANES];
        lanes[..weights.len()].copy_from_slice(weights);
        let mut sums =
            Self { trace, weights: lanes, used: weights.len(), tables: FxHashMap::default() };
        for instance in &trace.instances {
            let id = instance.op.id;
            if !sums.tables.contains_key(&id) {
                let table = sums.made(instance);
                sums.tables.insert(id, table);
            }
        }
        sums
    }

    fn made(&self, instance: &Instance<C>) -> Vec<Lanes> {
        let Source::Join { left, right, spec, .. } = &instance.source else {
            let cells = &instance.op.cells;
            let least = |cell| {
                let costs = cells.cell(cell).iter().map(|&point| self.weigh(point));
                costs.fold([NONE; LANES], |least, cost| lesser(&least, &cost))
            };
            return (0..cells.len()).map(least).collect();
        };
        let (l, r) = (self.table(*left), self.table(*right));
        (0..spec.cells())
            .map(|cell| {
                let (l0, r0) = spec.bases(cell);
                (0..spec.inner as usize).fold([NONE; LANES], |least, k| {
                    let (l, r) = (&l[l0 + k * spec.inner_left], &r[r0 + k * spec.inner_right]);
                    lesser(&least, &sum(l, r))
                })
            })
            .collect()
    }

    fn weigh(&self, point: C) -> Lanes {
        let (x, y) = (point.get(0), point.get(1));
        self.weights.map(|[wx, wy]| wx * x + wy * y)
    }

    fn table(&self, instance: usize) -> &[Lanes] {
        &self.tables[&self.trace.instances[instance].op.id]
    }

    /// The least weighted sum under each weight; `None` if there is no solution.
    pub fn least(&self) -> Vec<Option<u64>> {
        let root = self.table(self.trace.instances.len() - 1)[0];
        root[..self.used].iter().map(|&least| (least < NONE).then_some(least)).collect()
    }

    /// The point of a solution with the least sum under one weight.
    pub fn solution(&self, lane: usize) -> Option<[u64; 2]> {
        let root = self.trace.instances.len() - 1;
        if self.table(root)[0][lane] >= NONE {
            return None;
        }
        let mut total = [0; 2];
        let mut open = vec![(root, 0)];
        while let Some((instance, cell)) = open.pop() {
            let wanted = self.table(instance)[cell][lane];
            let Source::Join { left, right, spec, .. } = &self.trace.instances[instance].source
            else {
                let points = self.trace.instances[instance].op.cells.cell(cell);
                let point = points.iter().find(|&&point| self.weigh(point)[lane] == wanted)?;
                total[0] += point.get(0);
                total[1] += point.get(1);
                continue;
            };
            let (l, r) = (self.table(*left), self.table(*right));
            let (l0, r0) = spec.bases(cell);
            let at = |k: usize| (l0 + k * spec.inner_left, r0 + k * spec.inner_right);
            let k = (0..spec.inner as usize)
                .find(|&k| l[at(k).0][lane] + r[at(k).1][lane] == wanted)?;
            open.push((*left, at(k).0));
            open.push((*right, at(k).1));
        }
        Some(total)
    }

    /// Marks every point of the problem's tables that is part of a solution whose weighted sum is
    /// below the limit under some weight.
    ///
    /// # Complexity
    ///
    /// As [`Sums::new`], but for every instance of a table, not only for different ones.
    ///
    /// # Arguments
    ///
    /// * `leaves`: the tables of the problem, in full: the trace may have seen their hulls only.
    /// * `slot`: which of them an instance of the trace is.
    pub fn mark(
        &self,
        limits: &[u64],
        leaves: &[Option<Arc<Leaf<C>>>],
        slot: impl Fn(&Source) -> Option<usize>,
    ) -> Marks {
        let mut limit = [0; LANES];
        limit[..limits.len()].copy_from_slice(limits);
        let mut marks: Marks = leaves
            .iter()
            .map(|leaf| leaf.as_ref().map(|leaf| vec![false; leaf.cells.points.len()]))
            .collect();
        self.back(&limit, |index, rest| {
            let Some(slot) = slot(&self.trace.instances[index].source) else { return };
            let (Some(leaf), Some(marks)) = (&leaves[slot], &mut marks[slot]) else { return };
            let table = self.table(index);
            for cell in 0..leaf.cells.len() {
                if below(&sum(&rest[cell], &table[cell]), &limit) {
                    let marks = &mut marks[leaf.cells.starts[cell]..];
                    for (&point, mark) in leaf.cells.cell(cell).iter().zip(marks) {
                        *mark = *mark || below(&sum(&rest[cell], &self.weigh(point)), &limit);
                    }
                }
            }
        });
        marks
    }

    /// The least weighted sums among the solutions that go through each cell of tables made on the
    /// way, nearest to the answer first, as long as these have no more than `most` cells together:
    /// by the place of the table in the trace.
    pub fn through(&self, most: usize) -> Vec<(usize, Vec<Lanes>)> {
        let (mut found, mut cells) = (Vec::new(), 0);
        self.back(&[NONE; LANES], |index, rest| {
            let table = self.table(index);
            let is_join = matches!(self.trace.instances[index].source, Source::Join { .. });
            if is_join && table.len() > 1 && cells + table.len() <= most {
                cells += table.len();
                found.push((index, rest.iter().zip(table).map(|(a, b)| sum(a, b)).collect()));
            }
        });
        found
    }

    /// The least weighted sums that the rest of the problem adds to each cell of some instances.
    pub fn rests(&self, wanted: impl Fn(usize) -> bool) -> Vec<(usize, Vec<Lanes>)> {
        let mut found = Vec::new();
        self.back(&[NONE; LANES], |index, rest| {
            if wanted(index) {
                found.push((index, rest.to_vec()));
            }
        });
        found
    }

    /// Sweeps from the answer back to the tables: for every instance what the rest of the problem
    /// adds to each of its cells at the least, exact where the sum with the cell is below `limit`.
    fn back(&self, limit: &Lanes, mut visit: impl FnMut(usize, &[Lanes])) {
        let instances = &self.trace.instances;
        let mut outside: Vec<Option<Vec<Lanes>>> = vec![None; instances.len()];
        outside[instances.len() - 1] = Some(vec![[0; LANES]]);
        for index in (0..instances.len()).rev() {
            let Some(rest) = outside[index].take() else { continue };
            visit(index, &rest);
            let Source::Join { left, right, spec, .. } = &instances[index].source else {
                continue;
            };
            let (table, l, r) = (self.table(index), self.table(*left), self.table(*right));
            let taken = |slot: &mut Option<Vec<Lanes>>, length: usize| {
                slot.take().unwrap_or_else(|| vec![[NONE; LANES]; length])
            };
            // An instance is an operand once, but for the table that adds nothing: that has no
            // alternatives to mark.
            let mut for_left = taken(&mut outside[*left], l.len());
            let mut for_right = taken(&mut outside[*right], r.len());
            for cell in 0..spec.cells() {
                if !below(&sum(&rest[cell], &table[cell]), limit) {
                    continue;
                }
                let (l0, r0) = spec.bases(cell);
                for k in 0..spec.inner as usize {
                    let (li, ri) = (l0 + k * spec.inner_left, r0 + k * spec.inner_right);
                    for_left[li] = lesser(&for_left[li], &sum(&rest[cell], &r[ri]));
                    for_right[ri] = lesser(&for_right[ri], &sum(&rest[cell], &l[li]));
                }
            }
            outside[*left] = Some(for_left);
            outside[*right] = Some(for_right);
        }
    }
}

#[inline]
fn sum(a: &Lanes, b: &Lanes) -> Lanes {
    // Both may be `NONE`, and what is added to a sum of such must not overflow either.
    std::array::from_fn(|lane| (a[lane] + b[lane]).min(NONE))
}

#[inline]
fn lesser(a: &Lanes, b: &Lanes) -> Lanes {
    std::array::from_fn(|lane| a[lane].min(b[lane]))
}

#[inline]
fn below(cost: &Lanes, limit: &Lanes) -> bool {
    (0..LANES).any(|lane| cost[lane] < limit[lane])
}
