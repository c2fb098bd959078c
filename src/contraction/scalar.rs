//! Exact optima of weighted sums: [`optima`].

use std::collections::hash_map::Entry;

use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::engine::Op;
use super::trace::{Source, Trace};
use crate::frontier::CostVector;

/// No solution. Two of them add up without overflow, and so do the costs allowed below it.
const NONE: u64 = u64::MAX / 4;

/// Weights that go through the trace together.
const LANES: usize = 16;

/// A weight per objective.
pub(crate) type Weights = [u64; 2];

/// The largest sum of weighted costs that [`optima`] can take.
pub(crate) const LARGEST: u64 = NONE - 1;

/// For each weight vector the least weighted sum of any choice: one elimination with scalars along
/// the trace, whose tables hold the original costs at the leaves, so that neither thinning nor a
/// limit on the way has any influence.
///
/// The vectors must have two objectives that add up by sum, and weighted sums must stay below
/// [`LARGEST`]. `None` where there is no solution.
///
/// # Complexity
///
/// Per weight, one addition per configuration of the eliminated node and cell of each different
/// table.
pub(crate) fn optima<C: CostVector>(trace: &Trace<C>, weights: &[Weights]) -> Vec<Option<u64>> {
    let chunks: Vec<Vec<Option<u64>>> =
        weights.par_chunks(LANES).map(|chunk| sweep(trace, chunk)).collect();
    chunks.into_iter().flatten().collect()
}

fn sweep<C: CostVector>(trace: &Trace<C>, weights: &[Weights]) -> Vec<Option<u64>> {
    let mut lanes = [[0; 2]; LANES];
    lanes[..weights.len()].copy_from_slice(weights);
    // Tables by operation: repeated layers are computed once. Counted uses let them go early.
    let mut uses: FxHashMap<u32, u32> = FxHashMap::default();
    for instance in &trace.instances {
        if let Source::Join { left, right, .. } = instance.source {
            for operand in [left, right] {
                *uses.entry(trace.instances[operand].op.id).or_default() += 1;
            }
        }
    }
    let mut tables: FxHashMap<u32, Vec<[u64; LANES]>> = FxHashMap::default();
    let mut last = Vec::new();
    for instance in &trace.instances {
        let op = &instance.op;
        match &instance.source {
            Source::Join { left, right, spec, .. } => {
                let ids = [*left, *right].map(|operand| trace.instances[operand].op.id);
                if !tables.contains_key(&op.id) {
                    let (l, r) = (&tables[&ids[0]], &tables[&ids[1]]);
                    let made = (0..spec.cells())
                        .map(|cell| {
                            let (l0, r0) = spec.bases(cell);
                            let mut best = [NONE; LANES];
                            for k in 0..spec.inner as usize {
                                let l = &l[l0 + k * spec.inner_left];
                                let r = &r[r0 + k * spec.inner_right];
                                for lane in 0..LANES {
                                    best[lane] = best[lane].min(l[lane] + r[lane]);
                                }
                            }
                            best
                        })
                        .collect();
                    tables.insert(op.id, made);
                }
                for id in ids {
                    if let Entry::Occupied(mut left) = uses.entry(id) {
                        *left.get_mut() -= 1;
                        if *left.get() == 0 {
                            tables.remove(&id);
                        }
                    }
                }
            }
            _ => {
                tables.entry(op.id).or_insert_with(|| leaf(op, &lanes));
            }
        }
        if let Some(table) = tables.get(&op.id) {
            last = table.first().map_or(Vec::new(), |lanes| lanes.to_vec());
        }
    }
    last.truncate(weights.len());
    last.into_iter().map(|value| (value < NONE).then_some(value)).collect()
}

fn leaf<C: CostVector>(op: &Op<C>, lanes: &[Weights; LANES]) -> Vec<[u64; LANES]> {
    (0..op.cells.len())
        .map(|cell| {
            let mut best = [NONE; LANES];
            for point in op.cells.cell(cell) {
                let (x, y) = (point.get(0), point.get(1));
                for (best, [wx, wy]) in best.iter_mut().zip(lanes) {
                    *best = (*best).min(wx * x + wy * y);
                }
            }
            best
        })
        .collect()
}
