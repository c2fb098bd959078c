//! From options to passes over the graph: [`run`].
//!
//! A pass is one elimination with cells thinned to a number of points. With `epsilon` there are
//! several, each with less thinning, until the factor proven is small enough or nothing was
//! thinned; a limit ends them with the best so far.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::Vectors;
use super::bounds::Bounds;
use super::certificate::certify;
use super::expand::choices;
use super::options::{Peak, SolveOptions};
use super::peak;
use super::solution::{Certificate, Least, Quantity, Solution};
use super::status::{Counters, Status};
use rayon::prelude::*;

use crate::contraction::Expand;
use crate::contraction::eliminate::{Limits, eliminate};
use crate::contraction::engine::Engine;
use crate::contraction::leaf::{Leaf, View};
use crate::contraction::meter::{Halt, Meter};
use crate::contraction::thinning::{Reducer, Thinning};
use crate::contraction::trace::{Source, Trace};
use crate::error::{Error, Result};
use crate::frontier::{CostVector, Packed2, Scratch, Wide, prune};
use crate::ids::{FactorId, NodeId};
use crate::problem::{Aggregate, CostGraph};

/// Points per cell in the first pass with `epsilon`.
const FIRST_THIN: usize = 128;

/// Points per cell beyond which nothing is thinned.
const LAST_THIN: usize = 1 << 15;

/// Points per cell in the pass that only shows the way to the bounds.
const ROUGH: usize = 8;

/// Points per cell in the passes over what the bounds leave.
const SIZES: [usize; 6] = [24, 128, 512, 2048, 8192, usize::MAX];

/// Sums of points looked at in a pass with `epsilon` after which there is no finer one.
const ENOUGH: f64 = 1e8;

/// The part of epsilon that is kept back for what a later pass loses of an earlier one's points.
const MARGIN: f64 = 0.1;

/// An answer before it is given to the user.
pub(crate) struct Answer {
    pub status: Status,
    pub certificate: Certificate,
    pub counters: Counters,
    pub costs: Vec<u64>,
    pub origins: Vec<(u32, u32)>,
    pub traces: Vec<Arc<dyn Expand>>,
    pub least: Vec<Least>,
}

impl Answer {
    /// Makes it the user's. `reason` is why the watching thread stopped the solve, if it did.
    pub fn into_solution(
        self,
        graph: &CostGraph,
        options: &SolveOptions,
        reason: Option<Status>,
    ) -> Solution {
        let certificate = self.certificate;
        let proven = certificate.certified.unwrap_or(f64::INFINITY).min(certificate.a_priori);
        let status = match self.status {
            Status::Stopped => reason.unwrap_or(Status::Stopped),
            status => status,
        };
        Solution {
            graph: graph.clone(),
            threads: options.threads,
            status,
            certificate,
            factor: proven,
            counters: self.counters,
            peak: options.peak,
            costs: self.costs,
            origins: self.origins,
            traces: self.traces,
            least: self.least,
        }
    }
}

/// What is solved for: some objectives of the graph, perhaps with a peak in the place of one.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The objectives in the vectors. With a peak the transient one is not among them, and the
    /// resident one stands for the peak.
    pub objectives: Vec<usize>,
    pub caps: Vec<u64>,
    pub peak: Option<Peak>,
    pub epsilon: f64,
}

impl Request {
    fn new(graph: &CostGraph, options: &SolveOptions) -> Self {
        let transient = options.peak.map(|peak| peak.transient);
        let objectives: Vec<usize> =
            (0..graph.objectives()).filter(|&objective| Some(objective) != transient).collect();
        let caps = objectives.iter().map(|&objective| options.cap(objective)).collect();
        Self { objectives, caps, peak: options.peak, epsilon: options.epsilon }
    }

    /// One objective (or the peak), as low as it gets.
    fn least(objective: usize, peak: Option<Peak>) -> Self {
        let peak = peak.map(|peak| Peak { cap: None, ..peak });
        Self { objectives: vec![objective], caps: vec![u64::MAX], peak, epsilon: 0.0 }
    }

    pub fn view(&self) -> View {
        View {
            objectives: self.objectives.clone(),
            strike: None,
            caps: self.caps.clone(),
            only: None,
            hulls: false,
        }
    }
}

/// Solves, and for an infeasible problem finds out what the caps would have to be.
pub(crate) fn run(graph: &CostGraph, options: &SolveOptions, meter: &Meter) -> Result<Answer> {
    let request = Request::new(graph, options);
    let mut answer = answer(graph, options, &request, meter)?;
    if answer.status != Status::Infeasible {
        return Ok(answer);
    }
    let mut capped: Vec<(Quantity, u64, Request)> = (0..graph.objectives())
        .filter(|&objective| options.cap(objective) < u64::MAX)
        .map(|objective| {
            let quantity = Quantity::Objective(objective);
            (quantity, options.cap(objective), Request::least(objective, None))
        })
        .collect();
    if let Some((peak, cap)) = options.peak.and_then(|peak| Some((peak, peak.cap?))) {
        capped.push((Quantity::Peak, cap, Request::least(peak.resident, Some(peak))));
    }
    for (quantity, cap, request) in capped {
        let found = self::answer(graph, options, &request, meter)?;
        let reachable = found.costs.chunks_exact(graph.objectives()).next().map(|cost| {
            match (quantity, options.peak) {
                (Quantity::Objective(objective), _) => cost[objective],
                (Quantity::Peak, Some(peak)) => cost[peak.resident] + cost[peak.transient],
                (Quantity::Peak, None) => unreachable!("a peak is capped only if there is one"),
            }
        });
        answer.least.push(Least { quantity, cap, reachable });
    }
    Ok(answer)
}

fn answer(
    graph: &CostGraph,
    options: &SolveOptions,
    request: &Request,
    meter: &Meter,
) -> Result<Answer> {
    match Vectors::of(graph, &request.view()) {
        Vectors::Packed => answer_as::<Packed2>((), graph, options, request, meter),
        Vectors::One(a) => answer_as::<Wide<1>>(a, graph, options, request, meter),
        Vectors::Two(a) => answer_as::<Wide<2>>(a, graph, options, request, meter),
        Vectors::Three(a) => answer_as::<Wide<3>>(a, graph, options, request, meter),
        Vectors::Four(a) => answer_as::<Wide<4>>(a, graph, options, request, meter),
    }
}

/// Points and what is proven of them.
pub(crate) struct Front<C: CostVector> {
    pub trace: Arc<Trace<C>>,
    pub certificate: Certificate,
}

impl<C: CostVector> Front<C> {
    pub fn points(&self) -> &[C] {
        self.trace.root().op.cells.cell(0)
    }

    pub fn factor(&self) -> f64 {
        let certified = self.certificate.certified.unwrap_or(f64::INFINITY);
        certified.min(self.certificate.a_priori)
    }
}

/// Passes over one graph that share what they compute.
pub(crate) struct Solver<'a, 'm, C: CostVector> {
    pub graph: &'a CostGraph,
    pub options: &'a SolveOptions,
    pub engine: Engine<'m, C>,
    pub passes: u64,
    /// Why the passes were halted, once they were.
    pub halted: Option<Status>,
}

impl<'a, 'm, C: CostVector> Solver<'a, 'm, C> {
    fn new(
        algebra: C::Algebra,
        graph: &'a CostGraph,
        options: &'a SolveOptions,
        meter: &'m Meter,
    ) -> Self {
        let mut engine = Engine::new(algebra, meter);
        engine.work_limit = options.work_limit;
        Self { graph, options, engine, passes: 0, halted: None }
    }

    /// The frontier of a view within `epsilon`, or as near as it came before it was halted;
    /// nothing if it came nowhere.
    ///
    /// Solutions that the points in `covered` cover within `epsilon` need not be.
    pub fn front(&mut self, view: &View, epsilon: f64, covered: &[C]) -> Result<Option<Front<C>>> {
        self.engine.limit = view.limit();
        if self.two_sums(view) {
            if let Some(front) = self.front_within_bounds(view, epsilon, covered)? {
                return Ok(Some(front));
            }
            if self.halted.is_some() {
                return Ok(None);
            }
        }
        let capped: Vec<usize> =
            (0..view.caps.len()).filter(|&i| view.caps[i] < u64::MAX).collect();
        let exact = capped.first().copied();
        let mut best: Option<Front<C>> = None;
        let mut at_most = self.first_thinning(epsilon, capped.len());
        while let Some(trace) = self.pass(view, Thinning { at_most, exact, budget: None })? {
            let front = self.prove(trace, view, epsilon);
            let factor = front.factor();
            if best.as_ref().is_none_or(|best| factor < best.factor()) {
                best = Some(front);
            }
            if factor <= 1.0 + epsilon || at_most == usize::MAX {
                break;
            }
            at_most = next_thinning(at_most, factor, epsilon);
        }
        Ok(best)
    }

    /// One elimination; nothing if it was halted.
    fn pass(&mut self, view: &View, thinning: Thinning) -> Result<Option<Arc<Trace<C>>>> {
        self.engine.set_thinning(thinning);
        let limits = Limits::of(self.options);
        let trace = match eliminate(self.graph, view, &[], limits, &mut self.engine) {
            Ok(trace) => Arc::new(trace),
            Err(Halt::Error(error)) => return Err(error),
            Err(Halt::Stopped) => {
                self.halted = Some(Status::Stopped);
                return Ok(None);
            }
            Err(Halt::Work) => {
                self.halted = Some(Status::WorkLimit);
                return Ok(None);
            }
        };
        self.passes += 1;
        self.engine.meter().passes.store(self.passes, Relaxed);
        Ok(Some(trace))
    }

    fn two_sums(&self, view: &View) -> bool {
        view.objectives.len() == 2
            && view.objectives.iter().all(|&i| self.graph.aggregates()[i] == Aggregate::Sum)
    }

    /// [`Solver::front`] for two sums, in passes over what the bounds leave of the tables; nothing
    /// if they say nothing, or it was halted before any pass.
    fn front_within_bounds(
        &mut self,
        view: &View,
        epsilon: f64,
        covered: &[C],
    ) -> Result<Option<Front<C>>> {
        let rough = Thinning { at_most: ROUGH, exact: None, budget: None };
        let hulls = View { hulls: true, ..view.clone() };
        let Some(base) = self.pass(&hulls, rough)? else { return Ok(None) };
        let largest = [0, 1].map(|i| self.graph.largest(view.objectives[i]));
        let Some(bounds) = Bounds::new(&base, largest, [view.caps[0], view.caps[1]]) else {
            return Ok(None);
        };
        // Thinning loses nothing in one objective, so it can stay within one cap. Within two it
        // may lose what it should cover, so that nothing is known a priori.
        let capped: Vec<usize> = (0..2).filter(|&i| view.caps[i] < u64::MAX).collect();
        let exact = capped.first().copied();
        if bounds.supported.is_empty() {
            return Ok(None);
        }
        let given = self.given_factor();
        let margin = epsilon * MARGIN;
        let leaves = self.leaves(view);
        let graph = self.graph;
        let slot = |source: &Source| match *source {
            Source::Node(node) => Some(graph.node_table_id(NodeId(node)).index()),
            Source::Factor(factor) => Some(graph.factor_table_id(FactorId(factor)).index()),
            Source::Unit | Source::Join { .. } => None,
        };
        let mut known = bounds.supported.clone();
        let rough = base.root().op.cells.cell(0).iter();
        known.extend(rough.filter(|p| (0..2).all(|i| p.get(i) <= view.caps[i])));
        known.extend_from_slice(covered);
        let mut best: Option<Front<C>> = None;
        let mut last: Option<(u64, f64)> = None;
        for (number, at_most) in SIZES.into_iter().enumerate() {
            prune(&mut known, &mut Scratch::new());
            // The first pass sees hulls only: they are small, and what they give tells how much of
            // the rest is of no use.
            let shown = if number == 0 {
                hulls.clone()
            } else {
                let marks = bounds.marks(&base, &known, epsilon - margin, &leaves, slot);
                View { only: Some(Arc::new(marks)), ..view.clone() }
            };
            let size = weight(&shown, &leaves) * at_most.min(1 << 20) as f64;
            // A frontier that is bent away from its hull may need far more points than anybody
            // wants to be proven: then what is reached is said.
            if let Some((effort, before)) = last {
                if epsilon > 0.0 && effort as f64 * size / before > ENOUGH {
                    break;
                }
            }
            let visited = self.engine.work.visited;
            let Some(trace) = self.pass(&shown, Thinning { at_most, exact, budget: None })? else {
                break;
            };
            last = Some((self.engine.work.visited - visited + 1, size));
            let points = trace.root().op.cells.cell(0);
            let mut a_priori = f64::INFINITY;
            if number > 0 {
                // What was left out is covered by a known point, and that by a point found or, if
                // it is not this problem's own, by where it was found.
                let mut by = [points, covered].concat();
                prune(&mut by, &mut Scratch::new());
                let own: Vec<C> = known.iter().copied().filter(|p| !covered.contains(p)).collect();
                let again = covered_within(&own, &by);
                let left_out = if epsilon > 0.0 { 1.0 + epsilon - margin } else { 1.0 };
                let thinned = trace.root().op.factor;
                if capped.len() < 2 || thinned <= given {
                    a_priori = (left_out * again * given).max(thinned);
                }
            }
            let mut certificate = Certificate { a_priori, certified: None, weights: 0 };
            if a_priori > 1.0 + epsilon {
                let enough = 1.0 + epsilon - margin;
                certificate.certified = Some(bounds.factor_by_cells(&base, points, enough) * given);
                certificate.weights = bounds.bounds.len();
            }
            known.extend(points.iter().filter(|p| (0..2).all(|i| p.get(i) <= view.caps[i])));
            let front = Front { trace, certificate };
            let factor = front.factor();
            if best.as_ref().is_none_or(|best| factor < best.factor()) {
                best = Some(front);
            }
            if factor <= 1.0 + epsilon {
                break;
            }
        }
        Ok(best)
    }

    /// The tables of the problem in full, by number.
    fn leaves(&self, view: &View) -> Vec<Option<Leaf<C>>> {
        let mut leaves: Vec<Option<Leaf<C>>> = (0..self.graph.tables()).map(|_| None).collect();
        let nodes = (0..self.graph.nodes() as u32).map(NodeId);
        let factors = (0..self.graph.factors() as u32).map(FactorId);
        let used = nodes
            .map(|node| (self.graph.node_table_id(node), self.graph.node_table(node)))
            .chain(factors.map(|factor| {
                (self.graph.factor_table_id(factor), self.graph.factor_table(factor))
            }));
        for (id, table) in used {
            leaves[id.index()].get_or_insert_with(|| Leaf::new(table, view));
        }
        leaves
    }

    /// How many points cells are thinned to in the first pass.
    ///
    /// Limits want something early, so they get a coarse pass too. Thinning loses nothing in one
    /// objective, so it can stay within one cap, but not within two.
    fn first_thinning(&self, epsilon: f64, caps: usize) -> usize {
        let hurried = self.options.work_limit.is_some() || self.options.time_limit.is_some();
        let thinning = caps <= 1 && C::OBJECTIVES > 1 && (epsilon > 0.0 || hurried);
        if thinning { FIRST_THIN } else { usize::MAX }
    }

    /// Proves a factor, a posteriori if the one carried along is not good enough.
    fn prove(&self, trace: Arc<Trace<C>>, view: &View, epsilon: f64) -> Front<C> {
        let a_priori = trace.root().op.factor;
        let mut certificate = Certificate { a_priori, certified: None, weights: 0 };
        let sums = view.objectives.len() == 2
            && view.objectives.iter().all(|&i| self.graph.aggregates()[i] == Aggregate::Sum);
        if sums && a_priori > 1.0 + epsilon {
            let largest = [0, 1].map(|i| self.graph.largest(view.objectives[i]));
            let caps = [view.caps[0], view.caps[1]];
            // Thinned tables of the problem itself are beyond what the optima can see.
            let given = self.given_factor();
            if let Some((factor, weights)) = certify(&trace, largest, caps) {
                certificate.certified = Some(factor * given);
                certificate.weights = weights;
            }
        }
        Front { trace, certificate }
    }

    fn given_factor(&self) -> f64 {
        self.graph.used_tables().map(|table| table.factor()).fold(1.0, f64::max)
    }

    pub fn counters(&self) -> Counters {
        let work = self.engine.work;
        Counters {
            passes: self.passes,
            tables: self.engine.computed,
            reused: self.engine.reused,
            cells: work.calls,
            pairs: work.pairs,
            visited: work.visited,
            points: work.points,
            largest: work.peak,
            peak_bytes: self.engine.peak_bytes,
        }
    }
}

/// How many points cells are thinned to after a pass that proved `factor`. What is lost falls about
/// as the number rises.
fn next_thinning(at_most: usize, factor: f64, epsilon: f64) -> usize {
    let wanted = 1.25 * (factor - 1.0) / epsilon;
    // An infinite or undefined quotient ends at the upper bound.
    let times = if wanted < 8.0 { wanted.max(2.0) } else { 8.0 };
    let next = (at_most as f64 * times) as usize;
    if next > LAST_THIN { usize::MAX } else { next }
}

/// Points of an answer, each with where it came from, before their costs are complete.
pub(crate) struct Found<C: CostVector> {
    pub origins: Vec<(u32, u32)>,
    pub traces: Vec<Arc<Trace<C>>>,
    pub certificate: Certificate,
}

fn answer_as<C: CostVector>(
    algebra: C::Algebra,
    graph: &CostGraph,
    options: &SolveOptions,
    request: &Request,
    meter: &Meter,
) -> Result<Answer> {
    let mut solver = Solver::<C>::new(algebra, graph, options, meter);
    let mut found = match request.peak {
        Some(peak) => peak::walk(&mut solver, request, peak)?,
        None => single(&mut solver, request)?,
    };
    let proven =
        found.certificate.certified.unwrap_or(f64::INFINITY).min(found.certificate.a_priori);
    let status = match solver.halted {
        _ if found.origins.is_empty() && solver.halted.is_none() => Status::Infeasible,
        _ if proven <= 1.0 => Status::Optimal,
        Some(halted) => halted,
        None => Status::Epsilon,
    };
    let costs = costs(graph, request, &found)?;
    let traces = found.traces.drain(..).map(|trace| trace as Arc<dyn Expand>).collect();
    Ok(Answer {
        status,
        certificate: found.certificate,
        counters: solver.counters(),
        costs,
        origins: found.origins,
        traces,
        least: Vec::new(),
    })
}

fn single<C: CostVector>(solver: &mut Solver<'_, '_, C>, request: &Request) -> Result<Found<C>> {
    let unproven = Certificate { a_priori: f64::INFINITY, certified: None, weights: 0 };
    let Some(front) = solver.front(&request.view(), request.epsilon, &[])? else {
        return Ok(Found { origins: Vec::new(), traces: Vec::new(), certificate: unproven });
    };
    let mut certificate = front.certificate;
    let indices = chosen(solver, &front, &mut certificate);
    Ok(Found {
        origins: indices.into_iter().map(|index| (0, index)).collect(),
        traces: vec![front.trace],
        certificate,
    })
}

/// The indices of all points, or of as many as are wanted.
fn chosen<C: CostVector>(
    solver: &Solver<'_, '_, C>,
    front: &Front<C>,
    certificate: &mut Certificate,
) -> Vec<u32> {
    let points = front.points();
    let Some(most) = solver.options.max_points.filter(|&most| most < points.len()) else {
        return (0..points.len() as u32).collect();
    };
    let mut kept = points.to_vec();
    let factor =
        Reducer::new().reduce(&mut kept, most, solver.engine.thinning.exact, &mut Scratch::new());
    certificate.a_priori *= factor;
    certificate.certified = certificate.certified.map(|certified| certified * factor);
    // Both are sorted, and what was kept is a part.
    let mut next = kept.iter().peekable();
    let kept = (0..points.len()).filter(|&i| next.next_if_eq(&&points[i]).is_some());
    kept.map(|i| i as u32).collect()
}

/// The cost vectors of all points in all objectives of the graph.
fn costs<C: CostVector>(
    graph: &CostGraph,
    request: &Request,
    found: &Found<C>,
) -> Result<Vec<u64>> {
    let objectives = graph.objectives();
    if request.objectives.len() == objectives {
        let point = |&(trace, index): &(u32, u32)| {
            found.traces[trace as usize].root().op.cells.cell(0)[index as usize]
        };
        let cost = |point: C| (0..objectives).map(move |objective| point.get(objective));
        return Ok(found.origins.iter().map(point).flat_map(cost).collect());
    }
    // What was projected away comes from the plans.
    let rows: Result<Vec<Vec<u64>>> = choices(graph, &found.traces, &found.origins)?
        .par_iter()
        .map(|choice| {
            graph
                .cost(
                    &choice.configurations,
                    &choice.node_alternatives,
                    &choice.factor_alternatives,
                )
                .ok_or_else(|| Error::Internal("a plan is impossible".into()))
        })
        .collect();
    Ok(rows?.concat())
}

/// Points of the tables that a view shows.
fn weight<C: CostVector>(view: &View, leaves: &[Option<Leaf<C>>]) -> f64 {
    let shown = |(slot, leaf): (usize, &Option<Leaf<C>>)| match (&view.only, leaf) {
        (_, None) => 0,
        (Some(only), _) => only[slot].iter().flatten().filter(|&&mark| mark).count(),
        (None, Some(leaf)) => leaf.vertices(),
    };
    leaves.iter().enumerate().map(shown).sum::<usize>().max(1) as f64
}

/// The factor within which some points cover others, both sorted frontiers of two objectives.
fn covered_within<C: CostVector>(points: &[C], by: &[C]) -> f64 {
    let quotient = |a: u64, b: u64| match b {
        _ if a <= b => 1.0,
        0 => f64::INFINITY,
        _ => a as f64 / b as f64 * (1.0 + 4.0 * f64::EPSILON),
    };
    let factor = |p: &C, q: &C| quotient(q.get(0), p.get(0)).max(quotient(q.get(1), p.get(1)));
    points
        .iter()
        .map(|p| {
            let next = by.partition_point(|q| q.get(0) <= p.get(0));
            let near = next.saturating_sub(1)..(next + 1).min(by.len());
            by[near].iter().map(|q| factor(p, q)).fold(f64::INFINITY, f64::min)
        })
        .fold(1.0, f64::max)
}
