//! Graphs too dense for an exact elimination: [`run`].
//!
//! # The problem
//!
//! Where nodes depend on each other too densely, no order of elimination has tables that fit. The
//! answer is then a frontier of plans that can be had, and a bound that says how far it may be from
//! the true one:
//!
//! * `bound`: nodes are split into copies until the graph is narrow
//!   ([`buckets`](crate::contraction::buckets)). Copies need not agree, so no plan is better than
//!   the frontier of that graph.
//! * `follow`: some nodes are held to what a plan of the bound chose for them. What is left is
//!   narrow, and its frontier consists of plans of the problem.
//! * `improve`: other nodes are held, as in a plan found so far.

use std::sync::Arc;

use super::expand::choices;
use super::options::{Peak, SolveOptions};
use super::refine::{self, Answer};
use super::solution::Certificate;
use super::status::{Counters, Status};
use crate::contraction::buckets::{hold, split};
use crate::contraction::meter::Meter;
use crate::contraction::{Choice, Expand};
use crate::error::{Error, Result};
use crate::ids::NodeId;
use crate::problem::CostGraph;

/// Cells of the tables that are aimed at; the next if eliminating needs larger ones all the same.
const CELLS: [u128; 4] = [1 << 13, 1 << 10, 1 << 7, 1];

/// Frontiers are not taken further than this: the bound is farther away.
const LEAST_EPSILON: f64 = 1e-3;

/// Plans of the bound that are followed.
const GUIDES: usize = 8;

/// Plans from which improvements start, for each choice of nodes that are held.
const STARTS: usize = 8;

/// Choices of nodes that are tried in a row without an improvement.
const PATIENCE: usize = 8;

/// Choices of nodes that are tried at most.
const TURNS: usize = 64;

/// Finds a frontier of plans, and how far the true one may be.
///
/// # Errors
///
/// [`Error::TableCells`] if a single factor is beyond the limit; as [`refine::run`] otherwise.
pub(crate) fn run(graph: &CostGraph, options: &SolveOptions, meter: &Meter) -> Result<Answer> {
    let mut search = Search {
        graph,
        options,
        meter,
        cells: 0,
        points: Vec::new(),
        traces: Vec::new(),
        counters: Counters::default(),
        halted: None,
    };
    let (relaxed, copies, bound) = search.bound()?;
    if bound.status == Status::Infeasible {
        return Ok(Answer { least: Vec::new(), ..bound });
    }
    let guides = search.guides(&relaxed, &copies, &bound)?;
    search.follow(&guides)?;
    search.improve(&guides)?;
    let rows: Vec<Vec<u64>> =
        bound.costs.chunks_exact(graph.objectives()).map(|cost| search.row(cost)).collect();
    Ok(search.answer(&rows, bound.certificate.factor()))
}

/// A plan of the problem.
struct Point {
    cost: Vec<u64>,
    /// What is compared: with a peak, that in the place of its two parts.
    row: Vec<u64>,
    origin: (u32, u32),
    configurations: Vec<u32>,
}

/// What a plan of the bound chooses, where copies may disagree with their node.
struct Guide {
    /// For each node what most of its copies want, itself included.
    by_most: Vec<u32>,
    /// For each node what its own costs speak for.
    by_own: Vec<u32>,
}

struct Search<'a> {
    graph: &'a CostGraph,
    options: &'a SolveOptions,
    meter: &'a Meter,
    /// Cells of the tables that are aimed at.
    cells: u128,
    /// None dominates another.
    points: Vec<Point>,
    traces: Vec<Arc<dyn Expand>>,
    counters: Counters,
    halted: Option<Status>,
}

impl Search<'_> {
    /// Solves the graph whose nodes are split; returns that, whose the copies are, and its answer.
    fn bound(&mut self) -> Result<(CostGraph, Vec<NodeId>, Answer)> {
        let mut refused = None;
        for cells in CELLS {
            self.cells = cells.min(self.options.max_table_cells as u128);
            let split = split(self.graph, self.cells);
            let relaxed = self.graph.with_copies(&split.copies, &split.scopes)?;
            match self.solve(&relaxed, Vec::new()) {
                Ok(answer) => return Ok((relaxed, split.copies, answer)),
                Err(error @ Error::TableCells { .. }) => refused = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(refused.unwrap_or_else(|| Error::Internal("nothing was split".into())))
    }

    /// Solves a narrow graph with what is left of the work.
    fn solve(&mut self, graph: &CostGraph, known: Vec<Vec<u64>>) -> Result<Answer> {
        let options = SolveOptions {
            epsilon: self.options.epsilon.max(LEAST_EPSILON),
            known,
            work_limit: self
                .options
                .work_limit
                .map(|limit| limit.saturating_sub(self.counters.pairs)),
            max_points: None,
            ..self.options.clone()
        };
        let answer = refine::run(graph, &options, self.meter)?;
        self.counters = added(self.counters, answer.counters);
        if matches!(answer.status, Status::Stopped | Status::WorkLimit) {
            self.halted = Some(answer.status);
        }
        Ok(answer)
    }

    /// Some plans of the bound, from one end of its frontier to the other.
    fn guides(&self, relaxed: &CostGraph, copies: &[NodeId], bound: &Answer) -> Result<Vec<Guide>> {
        let origins: Vec<(u32, u32)> =
            spread(bound.origins.len(), GUIDES).map(|index| bound.origins[index]).collect();
        let nodes = self.graph.nodes();
        let guide = |plan: Choice| {
            let (by_own, of_copies) = plan.configurations.split_at(nodes);
            let mut votes: Vec<Vec<u32>> = by_own.iter().map(|&k| vec![k]).collect();
            for (node, &k) in copies.iter().zip(of_copies) {
                votes[node.index()].push(k);
            }
            let by_most = votes.iter().map(|votes| most_frequent(votes)).collect();
            Guide { by_most, by_own: by_own.to_vec() }
        };
        Ok(choices(relaxed, &bound.traces, &origins)?.into_iter().map(guide).collect())
    }

    /// Follows the bound's plans: nodes on which copies agree are held first.
    fn follow(&mut self, guides: &[Guide]) -> Result<()> {
        let mut weights = vec![0; self.graph.nodes()];
        for Guide { by_most, by_own } in guides {
            for (weight, (most, own)) in weights.iter_mut().zip(by_most.iter().zip(by_own)) {
                *weight += u32::from(most == own);
            }
        }
        let held = hold(self.graph, self.cells, &weights);
        for guide in guides {
            self.reach(&guide.by_most, &held)?;
            self.reach(&guide.by_own, &held)?;
        }
        Ok(())
    }

    /// Holds now these nodes, now those, to what a plan found so far chooses, and lets the others
    /// go: first those that were let go least often.
    fn improve(&mut self, guides: &[Guide]) -> Result<()> {
        let mut let_go = vec![0; self.graph.nodes()];
        let mut failures = 0;
        for turn in 0..TURNS {
            if failures == PATIENCE || self.halted.is_some() {
                break;
            }
            let held = hold(self.graph, self.cells, &let_go);
            let_go.iter_mut().for_each(|count| *count += 1);
            held.iter().for_each(|node| let_go[node.index()] -= 1);
            // Every turn begins at other points.
            let points = self.points.len();
            let mut starts: Vec<Vec<u32>> = (0..STARTS.min(points))
                .map(|i| (i * points / STARTS.min(points) + turn) % points)
                .map(|index| self.points[index].configurations.clone())
                .collect();
            if starts.is_empty() {
                starts = guides.iter().map(|guide| guide.by_most.clone()).collect();
            }
            failures += 1;
            for start in starts {
                if self.reach(&start, &held)? {
                    failures = 0;
                }
            }
        }
        Ok(())
    }

    /// Solves with some nodes held as in a plan; returns whether that gave anything new.
    fn reach(&mut self, plan: &[u32], held: &[NodeId]) -> Result<bool> {
        if self.halted.is_some() {
            return Ok(false);
        }
        let mut configurations = vec![None; self.graph.nodes()];
        for node in held {
            configurations[node.index()] = Some(plan[node.index()]);
        }
        let narrow = self.graph.with_held(&configurations)?;
        let known = self.known();
        let answer = match self.solve(&narrow, known) {
            // Another order than the one foreseen may need larger tables.
            Err(Error::TableCells { .. }) => {
                self.cells = (self.cells / 8).max(1);
                return Ok(false);
            }
            answer => answer?,
        };
        let plans = choices(&narrow, &answer.traces, &answer.origins)?;
        let first = self.traces.len() as u32;
        let mut found = false;
        let costs = answer.costs.chunks_exact(self.graph.objectives());
        for ((cost, &(trace, index)), plan) in costs.zip(&answer.origins).zip(plans) {
            let (row, configurations) = (self.row(cost), plan.configurations);
            let origin = (first + trace, index);
            found |= self.add(Point { cost: cost.to_vec(), row, origin, configurations });
        }
        if found {
            self.traces.extend(answer.traces);
        }
        Ok(found)
    }

    /// Adds a point unless another is as good, and drops those that are worse.
    fn add(&mut self, point: Point) -> bool {
        let given = self.options.known.iter();
        let mut better = self.points.iter().map(|other| &other.row).chain(given);
        if better.any(|row| dominates(row, &point.row)) {
            return false;
        }
        self.points.retain(|other| !dominates(&point.row, &other.row));
        let place = self.points.partition_point(|other| other.row < point.row);
        self.points.insert(place, point);
        true
    }

    /// What is reached so far, here or elsewhere.
    fn known(&self) -> Vec<Vec<u64>> {
        let rows = self.points.iter().map(|point| point.row.clone());
        rows.chain(self.options.known.iter().cloned()).collect()
    }

    /// What of a cost vector is compared.
    fn row(&self, cost: &[u64]) -> Vec<u64> {
        let Some(Peak { resident, transient, .. }) = self.options.peak else {
            return cost.to_vec();
        };
        let entry = |objective: usize| match objective == resident {
            true => cost[resident] + cost[transient],
            false => cost[objective],
        };
        (0..cost.len()).filter(|&objective| objective != transient).map(entry).collect()
    }

    /// The points, and the factor within which they cover what the bound allows.
    fn answer(mut self, bound: &[Vec<u64>], factor_of_bound: f64) -> Answer {
        if let Some(most) = self.options.max_points.filter(|&most| most < self.points.len()) {
            let mut kept = vec![false; self.points.len()];
            spread(self.points.len(), most).for_each(|index| kept[index] = true);
            let mut kept = kept.into_iter();
            self.points.retain(|_| kept.next() == Some(true));
        }
        let factor = cover(bound, &self.known()) * factor_of_bound;
        let status = match self.halted {
            _ if factor <= 1.0 => Status::Optimal,
            Some(halted) => halted,
            None if factor <= 1.0 + self.options.epsilon => Status::Epsilon,
            None => Status::Heuristic,
        };
        Answer {
            status,
            certificate: Certificate { a_priori: factor, certified: None, weights: 0 },
            counters: self.counters,
            costs: self.points.iter().flat_map(|point| point.cost.iter().copied()).collect(),
            origins: self.points.iter().map(|point| point.origin).collect(),
            traces: self.traces,
            least: Vec::new(),
        }
    }
}

/// Some of `count` indices, evenly spread from the first to the last.
fn spread(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let taken = most.min(count);
    (0..taken).map(move |i| if taken < 2 { 0 } else { i * (count - 1) / (taken - 1) })
}

fn dominates(a: &[u64], b: &[u64]) -> bool {
    a.iter().zip(b).all(|(a, b)| a <= b)
}

/// The entry that occurs most often; the first of several.
fn most_frequent(entries: &[u32]) -> u32 {
    let count = |entry: u32| entries.iter().filter(|&&other| other == entry).count();
    let mut best = entries[0];
    for &entry in &entries[1..] {
        if count(entry) > count(best) {
            best = entry;
        }
    }
    best
}

/// The least factor within which each row of `bound` is covered by one of `reached`.
fn cover(bound: &[Vec<u64>], reached: &[Vec<u64>]) -> f64 {
    let ratio = |a: u64, b: u64| match (a, b) {
        (a, b) if a <= b => 1.0,
        (_, 0) => f64::INFINITY,
        // Rounded up by more than the conversions err: what costs more is never equal.
        (a, b) => (a as f64 / b as f64).max(1.0) * (1.0 + 4.0 * f64::EPSILON),
    };
    let within = |row: &Vec<u64>, by: &Vec<u64>| {
        by.iter().zip(row).map(|(&a, &b)| ratio(a, b)).fold(1.0, f64::max)
    };
    let nearest = |row| reached.iter().map(|by| within(row, by)).fold(f64::INFINITY, f64::min);
    bound.iter().map(nearest).fold(1.0, f64::max)
}

fn added(a: Counters, b: Counters) -> Counters {
    Counters {
        passes: a.passes + b.passes,
        tables: a.tables + b.tables,
        reused: a.reused + b.reused,
        cells: a.cells + b.cells,
        pairs: a.pairs + b.pairs,
        visited: a.visited + b.visited,
        points: a.points + b.points,
        largest: a.largest.max(b.largest),
        peak_bytes: a.peak_bytes.max(b.peak_bytes),
    }
}
