//! Exact optima of weighted sums: [`optima`].

use std::collections::hash_map::Entry;

use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::engine::{JoinSpec, Op};
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

/// For each weight vector and each configuration of the node eliminated last, the least weighted
/// sum of any choice: one elimination with scalars along the trace, whose tables hold the original
/// costs at the leaves, so that neither thinning nor a limit on the way has any influence.
///
/// The vectors must have two objectives that add up by sum, and weighted sums must stay below
/// [`LARGEST`]. `None` where there is no solution. If the trace ends without an elimination there
/// is one entry for all solutions.
///
/// # Complexity
///
/// Per weight, one addition per configuration of the eliminated node and cell of each different
/// table.
pub(crate) fn optima<C: CostVector>(
    trace: &Trace<C>,
    weights: &[Weights],
) -> Vec<Vec<Option<u64>>> {
    let chunks: Vec<Vec<Vec<Option<u64>>>> =
        weights.par_chunks(LANES).map(|chunk| sweep(trace, chunk)).collect();
    chunks.into_iter().flatten().collect()
}

/// A value for each weight of a chunk.
type Lanes = [u64; LANES];

fn sweep<C: CostVector>(trace: &Trace<C>, weights: &[Weights]) -> Vec<Vec<Option<u64>>> {
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
    let mut tables: FxHashMap<u32, Vec<Lanes>> = FxHashMap::default();
    let mut last = Vec::new();
    for (index, instance) in trace.instances.iter().enumerate() {
        let op = &instance.op;
        let Source::Join { left, right, spec, .. } = &instance.source else {
            tables.entry(op.id).or_insert_with(|| leaf(op, &lanes));
            continue;
        };
        let ids = [*left, *right].map(|operand| trace.instances[operand].op.id);
        let (l, r) = (&tables[&ids[0]], &tables[&ids[1]]);
        let known = tables.contains_key(&op.id);
        if index + 1 == trace.instances.len() {
            last = terms(spec, l, r, 0).collect();
        } else if !known {
            let made =
                (0..spec.cells()).map(|cell| terms(spec, l, r, cell).fold([NONE; LANES], least));
            let made = made.collect();
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
    if last.is_empty() {
        // The answer is a table of the problem, or the empty sum.
        last =
            trace.instances.last().and_then(|root| tables.remove(&root.op.id)).unwrap_or_default();
    }
    let value = |lane: usize, term: &Lanes| (term[lane] < NONE).then_some(term[lane]);
    (0..weights.len()).map(|lane| last.iter().map(|term| value(lane, term)).collect()).collect()
}

/// The sums of a cell, one per configuration of the eliminated node.
fn terms<'a>(
    spec: &'a JoinSpec,
    left: &'a [Lanes],
    right: &'a [Lanes],
    cell: usize,
) -> impl Iterator<Item = Lanes> + 'a {
    let (l, r) = spec.bases(cell);
    (0..spec.inner as usize).map(move |k| {
        let (l, r) = (&left[l + k * spec.inner_left], &right[r + k * spec.inner_right]);
        std::array::from_fn(|lane| (l[lane] + r[lane]).min(NONE))
    })
}

fn least(a: Lanes, b: Lanes) -> Lanes {
    std::array::from_fn(|lane| a[lane].min(b[lane]))
}

fn leaf<C: CostVector>(op: &Op<C>, lanes: &[Weights; LANES]) -> Vec<Lanes> {
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
