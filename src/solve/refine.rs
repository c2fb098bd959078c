//! From options to passes over the graph: [`run`].
//!
//! A pass is one elimination with cells thinned to a number of points. With `epsilon` there are
//! several, each with less thinning, until the factor proven is small enough or nothing was
//! thinned; a limit ends them with the best so far.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::Vectors;
use super::bounded;
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
use crate::contraction::leaf::View;
use crate::contraction::meter::{Halt, Meter};
use crate::contraction::thinning::{Reducer, Thinning};
use crate::contraction::trace::Trace;
use crate::error::{Error, Result};
use crate::frontier::{CostVector, Packed2, Scratch, Wide, prune, trim};
use crate::problem::{Aggregate, CostGraph};

/// Points per cell in the first pass with `epsilon`.
const FIRST_THIN: usize = 128;

/// Points per cell beyond which nothing is thinned.
const LAST_THIN: usize = 1 << 15;

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
        let status = match self.status {
            Status::Stopped => reason.unwrap_or(Status::Stopped),
            status => status,
        };
        Solution {
            graph: graph.clone(),
            threads: options.threads,
            status,
            certificate,
            factor: certificate.factor(),
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
    /// The largest value that the transient part of the peak may take.
    pub transient_cap: u64,
    pub epsilon: f64,
    /// Points reached elsewhere, over the objectives, within the caps.
    pub known: Vec<Vec<u64>>,
}

impl Request {
    fn new(graph: &CostGraph, options: &SolveOptions) -> Self {
        let transient = options.peak.map(|peak| peak.transient);
        let objectives: Vec<usize> =
            (0..graph.objectives()).filter(|&objective| Some(objective) != transient).collect();
        let caps: Vec<u64> = objectives.iter().map(|&objective| options.cap(objective)).collect();
        let most = |position: usize| match options.peak {
            Some(peak) if peak.resident == objectives[position] => peak.cap.unwrap_or(u64::MAX),
            _ => caps[position],
        };
        let within =
            |row: &&Vec<u64>| row.iter().enumerate().all(|(i, &cost)| cost <= caps[i].min(most(i)));
        let known = options.known.iter().filter(within).cloned().collect();
        let transient_cap = transient.map_or(u64::MAX, |transient| options.cap(transient));
        let (peak, epsilon) = (options.peak, options.epsilon);
        Self { objectives, caps, peak, transient_cap, epsilon, known }
    }

    /// One objective (or the peak), as low as it gets.
    fn least(objective: usize, peak: Option<Peak>) -> Self {
        let peak = peak.map(|peak| Peak { cap: None, ..peak });
        let (caps, known) = (vec![u64::MAX], Vec::new());
        let transient_cap = u64::MAX;
        Self { objectives: vec![objective], caps, peak, transient_cap, epsilon: 0.0, known }
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
    /// A frontier.
    pub points: Vec<C>,
    /// For each point its trace, and its index in the answer there.
    pub origins: Vec<(u32, u32)>,
    pub traces: Vec<Arc<Trace<C>>>,
    pub certificate: Certificate,
    /// Whether there is any solution, be it one that is covered without these points.
    pub feasible: bool,
}

impl<C: CostVector> Front<C> {
    /// All points of one elimination.
    pub fn of(trace: Arc<Trace<C>>, certificate: Certificate) -> Self {
        let points = trace.root().op.cells.cell(0).to_vec();
        let origins = (0..points.len() as u32).map(|index| (0, index)).collect();
        let feasible = !points.is_empty();
        Self { points, origins, traces: vec![trace], certificate, feasible }
    }

    /// Leaves out points that others cover within `1 + delta`, and returns the factor that it is.
    pub fn trim(&mut self, delta: f64, exact: Option<usize>) -> f64 {
        if delta <= 0.0 {
            return 1.0;
        }
        let all = std::mem::take(&mut self.points);
        self.points.clone_from(&all);
        let factor = trim(&mut self.points, delta, exact, &mut Scratch::new());
        let mut kept = self.points.iter().peekable();
        let origins = all.iter().zip(&self.origins);
        self.origins = origins
            .filter(|(point, _)| kept.next_if_eq(point).is_some())
            .map(|(_, &o)| o)
            .collect();
        factor
    }

    pub fn factor(&self) -> f64 {
        self.certificate.factor()
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
        self.engine.set_limit(view.limit());
        if self.two_sums(view) {
            if let Some(front) = bounded::front(self, view, epsilon, covered)? {
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
    pub fn pass(&mut self, view: &View, thinning: Thinning) -> Result<Option<Arc<Trace<C>>>> {
        self.engine.set_thinning(thinning);
        let limits = Limits::of(self.options);
        let trace = eliminate(self.graph, view, &[], limits, &mut self.engine);
        self.passed(trace)
    }

    /// The trace of a pass; nothing if it was halted.
    pub fn passed(
        &mut self,
        trace: std::result::Result<Trace<C>, Halt>,
    ) -> Result<Option<Arc<Trace<C>>>> {
        let trace = match trace {
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
        Front::of(trace, certificate)
    }

    pub fn given_factor(&self) -> f64 {
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
    /// In all objectives of the graph.
    pub costs: Vec<u64>,
    pub origins: Vec<(u32, u32)>,
    pub traces: Vec<Arc<Trace<C>>>,
    pub certificate: Certificate,
    /// Whether there was any solution, be it one that a known point dominates.
    pub feasible: bool,
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
    let proven = found.certificate.factor();
    let status = match solver.halted {
        _ if !found.feasible && solver.halted.is_none() => Status::Infeasible,
        _ if proven <= 1.0 => Status::Optimal,
        Some(halted) => halted,
        None => Status::Epsilon,
    };
    let traces = found.traces.drain(..).map(|trace| trace as Arc<dyn Expand>).collect();
    Ok(Answer {
        status,
        certificate: found.certificate,
        counters: solver.counters(),
        costs: found.costs,
        origins: found.origins,
        traces,
        least: Vec::new(),
    })
}

fn single<C: CostVector>(solver: &mut Solver<'_, '_, C>, request: &Request) -> Result<Found<C>> {
    let unproven = Certificate { a_priori: f64::INFINITY, certified: None, weights: 0 };
    let mut known = vectors::<C>(solver.graph, request, request.known.iter().map(Vec::as_slice));
    prune(&mut known, &mut Scratch::new());
    let Some(front) = solver.front(&request.view(), request.epsilon, &known)? else {
        return Ok(Found {
            costs: Vec::new(),
            origins: Vec::new(),
            traces: Vec::new(),
            certificate: unproven,
            feasible: false,
        });
    };
    let mut certificate = front.certificate;
    let new = |index: &usize| !known.iter().any(|known| known.dominates(&front.points[*index]));
    let chosen: Vec<usize> =
        chosen(solver, &front, &mut certificate).into_iter().filter(new).collect();
    let origins: Vec<(u32, u32)> = chosen.iter().map(|&index| front.origins[index]).collect();
    let costs = if C::OBJECTIVES == solver.graph.objectives() {
        let cost = |&index: &usize| (0..C::OBJECTIVES).map(move |i| (index, i));
        chosen.iter().flat_map(cost).map(|(index, i)| front.points[index].get(i)).collect()
    } else {
        // What was projected away comes from the plans.
        in_truth(solver.graph, &front.traces, &origins)?.concat()
    };
    Ok(Found { costs, origins, traces: front.traces, certificate, feasible: front.feasible })
}

/// Rows of costs as vectors. Those that cost more than any solution can say nothing and are left
/// out.
pub(crate) fn vectors<'r, C: CostVector>(
    graph: &CostGraph,
    request: &Request,
    rows: impl Iterator<Item = &'r [u64]>,
) -> Vec<C> {
    let largest: Vec<u64> = request.objectives.iter().map(|&i| graph.largest(i)).collect();
    rows.filter(|row| row.iter().zip(&largest).all(|(cost, largest)| cost <= largest))
        .map(C::from_slice)
        .collect()
}

/// The indices of all points, or of as many as are wanted.
fn chosen<C: CostVector>(
    solver: &Solver<'_, '_, C>,
    front: &Front<C>,
    certificate: &mut Certificate,
) -> Vec<usize> {
    let points = &front.points;
    let Some(most) = solver.options.max_points.filter(|&most| most < points.len()) else {
        return (0..points.len()).collect();
    };
    let mut kept = points.clone();
    let factor =
        Reducer::new().reduce(&mut kept, most, solver.engine.thinning.exact, &mut Scratch::new());
    certificate.a_priori *= factor;
    certificate.certified = certificate.certified.map(|certified| certified * factor);
    // Both are sorted, and what was kept is a part.
    let mut next = kept.iter().peekable();
    (0..points.len()).filter(|&i| next.next_if_eq(&&points[i]).is_some()).collect()
}

/// The cost vectors of points in all objectives of the graph, by their plans.
pub(crate) fn in_truth<C: CostVector>(
    graph: &CostGraph,
    traces: &[Arc<Trace<C>>],
    origins: &[(u32, u32)],
) -> Result<Vec<Vec<u64>>> {
    choices(graph, traces, origins)?
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
        .collect()
}
