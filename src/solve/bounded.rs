//! Passes for two sums, over what is left of the problem once something is known: [`front`].
//!
//! # The problem
//!
//! The hull of the frontier is cheap ([`Bounds`]), and so are a few good points. A solution that is
//! not covered by them lies between the two: below a corner of the staircase of what is known, above
//! the hull. Passes look there only. Of the problem's tables they see the points that are part of
//! such solutions ([`Bounds::marks`]), and of partial solutions they keep those that can still become
//! one ([`Guard`]). Each pass leaves less for the next, which can afford to thin less.
//!
//! # What is proven
//!
//! Let `c` be the factor within which the known points may cover what is left out. A solution that
//! they do not cover within `c` passes all tests; what stands for it after thinning costs at most the
//! carried factor `f` times as much. Either that is found, or a later test leaves it out because the
//! known points cover it. So all is covered within `c f`.

use std::sync::Arc;

use super::bounds::Bounds;
use super::refine::{Front, Solver};
use super::solution::Certificate;
use crate::contraction::eliminate::{Limits, repeat};
use crate::contraction::guard::Guard;
use crate::contraction::leaf::{Leaf, View};
use crate::contraction::thinning::Thinning;
use crate::contraction::trace::{Source, Trace};
use crate::error::Result;
use crate::frontier::{CostVector, Scratch, prune};
use crate::ids::{FactorId, NodeId};
use crate::problem::CostGraph;

/// Points per cell in the pass that only shows the way to the bounds.
const ROUGH: usize = 8;

/// Points per cell in the passes after it.
const SIZES: [usize; 6] = [24, 128, 512, 2048, 8192, usize::MAX];

/// The first passes may see hulls only.
const ON_HULLS: usize = 3;

/// Sums of points looked at in all passes with `epsilon` together, about: then what is reached is
/// said.
const ENOUGH: f64 = 1.5e9;

/// The part of epsilon that may be lost to leaving out; the rest is for thinning.
const LEFT_OUT: f64 = 0.5;

/// What was found so far, with trace and index, and what was known before: a frontier.
struct Pool<C: CostVector> {
    points: Vec<(C, Option<(u32, u32)>)>,
    traces: Vec<Arc<Trace<C>>>,
}

impl<C: CostVector> Pool<C> {
    /// Adds the answer of a pass. Of equal points the first found stays.
    fn add(&mut self, trace: Arc<Trace<C>>, caps: &[u64]) {
        let number = self.traces.len() as u32;
        let found = trace.root().op.cells.cell(0).iter().enumerate();
        self.points.extend(
            found
                .filter(|(_, point)| (0..2).all(|i| point.get(i) <= caps[i]))
                .map(|(index, &point)| (point, Some((number, index as u32)))),
        );
        self.traces.push(trace);
        self.prune();
    }

    fn prune(&mut self) {
        self.points.sort_unstable();
        self.points.dedup_by_key(|(point, _)| *point);
        let mut kept = self.frontier();
        prune(&mut kept, &mut Scratch::new());
        let mut next = kept.iter().peekable();
        self.points.retain(|(point, _)| next.next_if_eq(&point).is_some());
    }

    fn frontier(&self) -> Vec<C> {
        self.points.iter().map(|(point, _)| *point).collect()
    }

    /// The points found, of the traces that they need.
    fn front(&self, certificate: Certificate) -> Front<C> {
        let mut front = Front {
            points: Vec::new(),
            origins: Vec::new(),
            traces: Vec::new(),
            certificate,
            // There is nothing to be bounded otherwise.
            feasible: true,
        };
        let mut numbers: Vec<Option<u32>> = vec![None; self.traces.len()];
        for &(point, origin) in &self.points {
            let Some((trace, index)) = origin else { continue };
            let number = *numbers[trace as usize].get_or_insert_with(|| {
                front.traces.push(Arc::clone(&self.traces[trace as usize]));
                front.traces.len() as u32 - 1
            });
            front.points.push(point);
            front.origins.push((number, index));
        }
        front
    }
}

/// The frontier of a view of two sums; nothing if the bounds say nothing, or it was halted before
/// any pass.
///
/// Solutions that the points in `covered` cover within `epsilon` need not be found.
pub(super) fn front<C: CostVector>(
    solver: &mut Solver<'_, '_, C>,
    view: &View,
    epsilon: f64,
    covered: &[C],
) -> Result<Option<Front<C>>> {
    let rough = Thinning { at_most: ROUGH, exact: None, budget: None };
    let hulls = View { hulls: true, ..view.clone() };
    let Some(base) = solver.pass(&hulls, rough)? else { return Ok(None) };
    let caps = [view.caps[0], view.caps[1]];
    let largest = [0, 1].map(|i| solver.graph.largest(view.objectives[i]));
    let Some(bounds) = Bounds::new(&base, largest, caps) else { return Ok(None) };
    if bounds.supported.is_empty() {
        return Ok(None);
    }
    // Thinning loses nothing in one objective, so it can stay within one cap. Within two it may lose
    // what it should cover, so that nothing is known a priori.
    let capped: Vec<usize> = (0..2).filter(|&i| view.caps[i] < u64::MAX).collect();
    let exact = capped.first().copied();
    let given = solver.given_factor();
    let left_out = left_out(given, epsilon);
    let leaves = leaves(solver, view);
    let slot = slots(solver.graph);
    let weights: Vec<_> = bounds.bounds.iter().map(|&(weights, _)| weights).collect();
    let mut guard = Guard::new(&base, &weights);
    let mut pool = Pool { points: covered.iter().map(|&p| (p, None)).collect(), traces: vec![] };
    pool.add(Arc::clone(&base), &caps);
    let vertices: usize = leaves.iter().flatten().map(|leaf| leaf.vertices()).sum();
    let begun = solver.engine.work.visited;
    let mut best: Option<Certificate> = None;
    let mut last: Option<(u64, f64)> = None;
    for (number, at_most) in SIZES.into_iter().enumerate() {
        let known = pool.frontier();
        if known.is_empty() {
            // No plan within both caps is known yet: nothing to bound from above.
            return Ok(None);
        }
        let marks = bounds.marks(&base, &known, left_out, &leaves, &slot);
        let marked = marks.iter().flatten().flatten().filter(|&&mark| mark).count();
        guard.aim(bounds.targets(&known, left_out));
        // The first passes may see hulls only: they are small, and what they give tells how much
        // of the rest is of no use.
        let on_hulls = number < ON_HULLS && 2 * vertices < marked;
        let shown = if on_hulls {
            hulls.clone()
        } else {
            View { only: Some(Arc::new(marks)), ..view.clone() }
        };
        // A frontier that is bent away from its hull may need far more points than anybody wants to
        // be proven.
        let size = if on_hulls { vertices } else { marked } as f64 * at_most as f64;
        let before = solver.engine.work.visited;
        if let Some((visited, last)) = last {
            let predicted = visited as f64 * size / last;
            if epsilon > 0.0 && (before - begun) as f64 + predicted > ENOUGH {
                break;
            }
        }
        solver.engine.set_thinning(Thinning { at_most, exact, budget: None });
        solver.engine.recount(pool.traces.iter().map(|trace| trace.bytes()).sum());
        let limits = Limits::of(solver.options);
        let trace = repeat(&base, solver.graph, &shown, &guard, limits, &mut solver.engine);
        let Some(trace) = solver.passed(trace)? else { break };
        last = Some((solver.engine.work.visited - before + 1, size.max(1.0)));
        let thinned = trace.root().op.factor;
        pool.add(trace, &caps);
        let mut certificate = Certificate { a_priori: f64::INFINITY, certified: None, weights: 0 };
        if !on_hulls && (capped.len() < 2 || thinned <= given) {
            // Of trimmed tables the factor is carried along with the rest.
            certificate.a_priori = (1.0 + left_out) * thinned.max(given);
        }
        if certificate.a_priori > 1.0 + epsilon {
            let factor = bounds.factor_by_cells(&base, &pool.frontier(), 1.0 + epsilon);
            certificate.certified = Some(factor * given);
            certificate.weights = bounds.bounds.len();
        }
        if best.as_ref().is_none_or(|best| certificate.factor() < best.factor()) {
            best = Some(certificate);
        }
        if certificate.factor() <= 1.0 + epsilon {
            break;
        }
    }
    Ok(best.map(|certificate| pool.front(certificate)))
}

/// What may be lost to leaving out, of a problem whose tables are within a `given` factor.
pub(super) fn left_out(given: f64, epsilon: f64) -> f64 {
    ((1.0 + epsilon) / given - 1.0).max(0.0) * LEFT_OUT
}

/// The tables of the problem in whole, by number.
fn leaves<C: CostVector>(solver: &mut Solver<'_, '_, C>, view: &View) -> Vec<Option<Arc<Leaf<C>>>> {
    let graph = solver.graph;
    let mut leaves: Vec<Option<Arc<Leaf<C>>>> = vec![None; graph.tables()];
    let nodes = (0..graph.nodes() as u32).map(NodeId);
    let factors = (0..graph.factors() as u32).map(FactorId);
    let used = nodes
        .map(|node| (graph.node_table_id(node), graph.node_table(node)))
        .chain(factors.map(|factor| (graph.factor_table_id(factor), graph.factor_table(factor))));
    for (id, table) in used {
        let slot = id.index();
        leaves[slot].get_or_insert_with(|| solver.engine.whole(table, slot, view));
    }
    leaves
}

/// Which of the problem's tables an instance of a trace is.
fn slots(graph: &CostGraph) -> impl Fn(&Source) -> Option<usize> + Sync {
    |source| match *source {
        Source::Node(node) => Some(graph.node_table_id(NodeId(node)).index()),
        Source::Factor(factor) => Some(graph.factor_table_id(FactorId(factor)).index()),
        Source::Unit | Source::Join { .. } => None,
    }
}
