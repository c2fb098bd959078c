//! The ASPLOS / EuroSys 2025 contest on intra-operator parallelism: [`IopddlProblem`].

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use rustc_hash::FxHashMap;

use super::error::{FileError, Result};
use super::header::Object;
use super::input::{self, ReadOptions};
use super::iopddl_file::{FileIn, Interned, Ragged};
use crate::error::Error;
use crate::ids::{NodeId, TableId};
use crate::problem::{Aggregate, CostGraph, Table};

/// Costs of this size and above mean that a strategy, or a combination of strategies, is
/// impossible. Source: the contest's instances, which use 10^18 where XLA has an infinite cost.
pub const IMPOSSIBLE_COST: u64 = 1_000_000_000_000_000_000;

/// An instance of the ASPLOS / EuroSys 2025 contest on intra-operator parallelism.
///
/// Every node takes one of its strategies, which has a cost and a usage of memory. An edge names
/// nodes and has a cost for each combination of their strategies, row-major; several edges between
/// the same nodes add up. The usage of a node counts at each point of time of its interval, which
/// is half-open: `[lower, upper)`, and empty if both are equal. What is sought is the assignment of
/// least cost whose usage is within the limit at every point of time.
///
/// The usage over time is no sum that a [`CostGraph`] could hold: [`cost_graph`](Self::cost_graph)
/// gives the problem without it, or with the usage at a few points of time.
///
/// # References
///
/// M. D. Moffitt and P. Fegade, "The ASPLOS 2025 / EuroSys 2025 Contest on Intra-Operator
/// Parallelism for Distributed Deep Learning", ASPLOS 2025, volume 3.
///
/// # Example
///
/// ```
/// use tensoropt::exchange::{IopddlProblem, ReadOptions};
///
/// let file = r#"{"problem": {"name": "two nodes", "usage_limit": 50,
///     "nodes": {"intervals": [[0, 9], [3, 5]], "costs": [[15], [10, 1]],
///               "usages": [[30], [20, 40]]},
///     "edges": {"nodes": [[0, 1]], "costs": [[7, 2]]}}}"#;
/// let problem = IopddlProblem::read(file.as_bytes(), ReadOptions::default())?;
/// let cheap = problem.evaluate(&[0, 1])?;
/// assert_eq!((cheap.cost, cheap.peak_usage, cheap.within_limit), (18, 70, false));
/// let small = problem.evaluate(&[0, 0])?;
/// assert_eq!((small.cost, small.peak_usage, small.within_limit), (32, 50, true));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct IopddlProblem {
    name: String,
    usage_limit: Option<u64>,
    intervals: Vec<(u64, u64)>,
    costs: Ragged<u64>,
    usages: Ragged<u64>,
    scopes: Ragged<u32>,
    edge_costs: Interned,
    /// When a node's usage begins or ends, by time.
    events: Vec<Event>,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    time: u64,
    node: u32,
    begins: bool,
}

/// What an assignment costs by the rules of the contest.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IopddlEvaluation {
    /// The sum of the costs of all nodes and edges, impossible ones as they are in the file.
    pub cost: u128,
    /// The first node or edge, nodes before edges, whose cost means that the choice is impossible.
    pub impossible: Option<IopddlPart>,
    /// The largest usage at any point of time.
    pub peak_usage: u128,
    /// The first point of time with that usage; `None` if nothing is used at any time.
    pub peak_time: Option<u64>,
    /// Whether the peak is within the limit, if there is one.
    pub within_limit: bool,
}

impl IopddlEvaluation {
    /// Whether the assignment is a solution: nothing is impossible, and the usage within the limit.
    #[must_use]
    pub fn is_feasible(&self) -> bool {
        self.impossible.is_none() && self.within_limit
    }
}

/// A part of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IopddlPart {
    /// A node.
    Node(u32),
    /// An edge.
    Edge(u32),
}

impl fmt::Display for IopddlPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => write!(f, "node {node}"),
            Self::Edge(edge) => write!(f, "edge {edge}"),
        }
    }
}

impl IopddlProblem {
    /// Reads an instance from a file, compressed or not.
    ///
    /// # Errors
    ///
    /// [`FileError::Io`]; [`FileError::Format`] if the content is no instance, with the place;
    /// [`FileError::Stopped`].
    ///
    /// # Complexity
    ///
    /// Time proportional to the size of the unpacked text, memory to the nodes and to the different
    /// cost lists of edges.
    pub fn load(path: impl AsRef<Path>, options: ReadOptions) -> Result<Self> {
        input::load(path.as_ref(), |file: File| Self::read(file, options))
    }

    /// Reads an instance, compressed or not.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn read(reader: impl Read, options: ReadOptions) -> Result<Self> {
        let FileIn { problem: Object(problem) } = input::document(reader, options)?;
        let (Object(nodes), Object(edges)) = (problem.nodes, problem.edges);
        let mut this = Self {
            name: problem.name,
            usage_limit: problem.usage_limit,
            intervals: nodes.intervals,
            costs: nodes.costs,
            usages: nodes.usages,
            scopes: edges.nodes,
            edge_costs: edges.costs,
            events: Vec::new(),
        };
        this.check_nodes()?;
        this.check_edges()?;
        this.events = events(&this.intervals);
        Ok(this)
    }

    fn check_nodes(&self) -> Result<()> {
        let nodes = self.costs.len();
        let lists = [("intervals", self.intervals.len()), ("usages", self.usages.len())];
        if let Some((name, length)) = lists.into_iter().find(|&(_, length)| length != nodes) {
            return Err(FileError::at(
                format!("problem.nodes.{name}"),
                format!(
                    "{length} entries, expected one per node ({nodes}, by problem.nodes.costs)"
                ),
            ));
        }
        if nodes >= u32::MAX as usize {
            return Err(FileError::at("problem.nodes", "more than 2^32 - 2 nodes"));
        }
        for node in 0..nodes {
            let (strategies, usages) = (self.costs.get(node).len(), self.usages.get(node).len());
            if strategies == 0 {
                let what = "no strategy: every node needs at least one";
                return Err(FileError::at(format!("problem.nodes.costs[{node}]"), what));
            }
            if usages != strategies {
                return Err(FileError::at(
                    format!("problem.nodes.usages[{node}]"),
                    format!("{usages} entries, expected one per strategy ({strategies})"),
                ));
            }
            let (lower, upper) = self.intervals[node];
            if lower > upper {
                return Err(FileError::at(
                    format!("problem.nodes.intervals[{node}]"),
                    format!("[{lower}, {upper}] ends before it begins: expected [lower, upper)"),
                ));
            }
        }
        Ok(())
    }

    fn check_edges(&self) -> Result<()> {
        let edges = self.scopes.len();
        if self.edge_costs.len() != edges {
            return Err(FileError::at(
                "problem.edges.costs",
                format!(
                    "{} entries, expected one per edge ({edges}, by problem.edges.nodes)",
                    self.edge_costs.len()
                ),
            ));
        }
        if edges >= u32::MAX as usize {
            return Err(FileError::at("problem.edges", "more than 2^32 - 2 edges"));
        }
        for edge in 0..edges {
            let scope = self.scopes.get(edge);
            let place = || format!("problem.edges.nodes[{edge}]");
            if scope.is_empty() {
                return Err(FileError::at(place(), "no node: an edge names at least one"));
            }
            if let Some(i) = scope.iter().position(|&node| node as usize >= self.costs.len()) {
                let (node, nodes) = (scope[i], self.costs.len());
                return Err(FileError::at(
                    format!("{}[{i}]", place()),
                    format!("there is no node {node}: the file has {nodes}, counted from 0"),
                ));
            }
            let strategies = scope.iter().map(|&node| self.costs.get(node as usize).len());
            let expected = strategies.fold(1u128, |cells, k| cells.saturating_mul(k as u128));
            let got = self.edge_costs.get(edge).len();
            if got as u128 != expected {
                return Err(FileError::at(
                    format!("problem.edges.costs[{edge}]"),
                    format!(
                        "{got} entries, expected {expected}, one for each combination of \
                         strategies of nodes {scope:?}"
                    ),
                ));
            }
        }
        Ok(())
    }

    /// The name of the instance; empty if the file has none.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The most memory that may be used at any point of time; `None` for any amount.
    #[must_use]
    pub fn usage_limit(&self) -> Option<u64> {
        self.usage_limit
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.costs.len()
    }

    /// Number of edges.
    #[must_use]
    pub fn edges(&self) -> usize {
        self.scopes.len()
    }

    /// The cost of each strategy of a node, as the file has it.
    ///
    /// # Panics
    ///
    /// If there is no such node; so do the other functions that take one.
    #[must_use]
    pub fn costs(&self, node: u32) -> &[u64] {
        self.costs.get(node as usize)
    }

    /// The usage of each strategy of a node.
    #[must_use]
    pub fn usages(&self, node: u32) -> &[u64] {
        self.usages.get(node as usize)
    }

    /// The points of time at which a node's usage counts.
    #[must_use]
    pub fn interval(&self, node: u32) -> Range<u64> {
        let (lower, upper) = self.intervals[node as usize];
        lower..upper
    }

    /// The nodes that an edge names.
    ///
    /// # Panics
    ///
    /// If there is no such edge.
    #[must_use]
    pub fn scope(&self, edge: u32) -> &[u32] {
        self.scopes.get(edge as usize)
    }

    /// The cost of each combination of strategies of an edge's nodes, row-major, as the file has
    /// it.
    ///
    /// # Panics
    ///
    /// If there is no such edge.
    #[must_use]
    pub fn edge_costs(&self, edge: u32) -> &[u64] {
        self.edge_costs.get(edge as usize)
    }

    /// What an assignment costs, and its peak usage.
    ///
    /// # Arguments
    ///
    /// * `assignment`: the strategy of each node.
    ///
    /// # Errors
    ///
    /// [`Error::Assignment`] if there is not one strategy per node, or a node has no such strategy.
    ///
    /// # Complexity
    ///
    /// Linear in nodes and edges.
    pub fn evaluate(&self, assignment: &[u32]) -> crate::Result<IopddlEvaluation> {
        let profile = self.usage_profile(assignment)?;
        let node_costs = (0..)
            .zip(assignment)
            .map(|(node, &strategy)| (IopddlPart::Node(node), self.costs(node)[strategy as usize]));
        let edge_costs = (0..self.edges() as u32).map(|edge| {
            let cell = self.scope(edge).iter().fold(0, |cell, &node| {
                cell * self.costs(node).len() + assignment[node as usize] as usize
            });
            (IopddlPart::Edge(edge), self.edge_costs(edge)[cell])
        });
        let (mut cost, mut impossible) = (0, None);
        for (part, value) in node_costs.chain(edge_costs) {
            cost += u128::from(value);
            if value >= IMPOSSIBLE_COST && impossible.is_none() {
                impossible = Some(part);
            }
        }
        // The first of equal peaks; times without any usage are no peak.
        let peak = profile.iter().filter(|step| step.1 > 0).rev().max_by_key(|step| step.1);
        let (peak_time, peak_usage) = peak.map_or((None, 0), |&(time, usage)| (Some(time), usage));
        let within_limit = self.usage_limit.is_none_or(|limit| peak_usage <= u128::from(limit));
        Ok(IopddlEvaluation { cost, impossible, peak_usage, peak_time, within_limit })
    }

    /// The usage over time of an assignment: the points of time at which some node's usage begins
    /// or ends, ascending, and what is used from there to the next one.
    ///
    /// # Errors
    ///
    /// As [`evaluate`](Self::evaluate).
    pub fn usage_profile(&self, assignment: &[u32]) -> crate::Result<Vec<(u64, u128)>> {
        self.check_assignment(assignment)?;
        let mut profile: Vec<(u64, u128)> = Vec::new();
        let mut usage = 0u128;
        for moment in self.events.chunk_by(|a, b| a.time == b.time) {
            // Ends come first, but what ends has begun before: nothing falls below zero.
            for event in moment {
                let strategy = assignment[event.node as usize] as usize;
                let own = u128::from(self.usages(event.node)[strategy]);
                usage = if event.begins { usage + own } else { usage - own };
            }
            profile.push((moment[0].time, usage));
        }
        Ok(profile)
    }

    fn check_assignment(&self, assignment: &[u32]) -> crate::Result<()> {
        let refuse = |what| Err(Error::Assignment { what });
        if assignment.len() != self.nodes() {
            return refuse(format!(
                "it has {} entries, expected a strategy for each of {} nodes",
                assignment.len(),
                self.nodes()
            ));
        }
        let bad = (0..).zip(assignment).find(|&(node, &k)| k as usize >= self.costs(node).len());
        match bad {
            None => Ok(()),
            Some((node, strategy)) => refuse(format!(
                "node {node} has no strategy {strategy}, it has {}, counted from 0",
                self.costs(node).len()
            )),
        }
    }

    /// The problem, or a part of it, without the limit on usage.
    ///
    /// The first objective is the cost. Each of `times` adds an objective: the usage at that point
    /// of time. With the limit as its cap the cost found is a lower bound on that of the whole
    /// problem, and its solution is one if the usage happens to fit at all times.
    ///
    /// # Arguments
    ///
    /// * `nodes`: the nodes of the part, each once, in the order that they will have; `None` for
    ///   all. Edges to other nodes are left out.
    /// * `times`: up to three points of time.
    ///
    /// # Errors
    ///
    /// [`Error::Objectives`] for too many times; [`Error::UnknownNode`], or [`Error::Option`] if a
    /// node is named twice; [`Error::Overflow`] if costs could add up beyond 64 bits.
    pub fn cost_graph(&self, nodes: Option<&[u32]>, times: &[u64]) -> crate::Result<CostGraph> {
        let mut graph = CostGraph::new(&vec![Aggregate::Sum; 1 + times.len()])?;
        let all: Vec<u32>;
        let nodes = match nodes {
            Some(nodes) => nodes,
            None => {
                all = (0..self.nodes() as u32).collect();
                &all
            }
        };
        let mut place: Vec<Option<NodeId>> = vec![None; self.nodes()];
        for &node in nodes {
            let slot = place.get_mut(node as usize).ok_or(Error::UnknownNode(NodeId(node)))?;
            if slot.is_some() {
                let what = format!("node {node} is named twice");
                return Err(Error::Option { option: "nodes", what });
            }
            let table = graph.add_table(self.node_table(node, times)?)?;
            *slot = Some(graph.add_node(table)?);
        }
        // Equal lists over nodes of equal sizes are one table.
        let mut tables: FxHashMap<(u32, Vec<u32>), TableId> = FxHashMap::default();
        for edge in 0..self.edges() as u32 {
            let inside: Option<Vec<NodeId>> =
                self.scope(edge).iter().map(|&node| place[node as usize]).collect();
            let Some(scope) = inside else { continue };
            let dims: Vec<u32> =
                self.scope(edge).iter().map(|&node| self.costs(node).len() as u32).collect();
            let simple = (1..scope.len()).all(|i| !scope[..i].contains(&scope[i]));
            if !simple {
                self.add_diagonal(&mut graph, edge, &scope, &dims, times.len())?;
                continue;
            }
            let key = (self.edge_costs.id(edge as usize), dims);
            let table = match tables.get(&key) {
                Some(&table) => table,
                None => {
                    let table = edge_table(&key.1, self.edge_costs(edge), times.len())?;
                    *tables.entry(key).or_insert(graph.add_table(table)?)
                }
            };
            graph.add_factor(&scope, table)?;
        }
        Ok(graph)
    }

    fn node_table(&self, node: u32, times: &[u64]) -> crate::Result<Table> {
        let (costs, usages) = (self.costs(node), self.usages(node));
        let live: Vec<bool> = times.iter().map(|time| self.interval(node).contains(time)).collect();
        let mut rows = Vec::with_capacity(costs.len() * (1 + times.len()));
        for (&cost, &usage) in costs.iter().zip(usages) {
            rows.push(cost);
            rows.extend(live.iter().map(|&live| if live { usage } else { 0 }));
        }
        Table::dense(&[costs.len() as u32], 1 + times.len(), &rows, Some(&impossible(costs)))
    }

    /// Adds an edge that names a node more than once: only equal strategies go together.
    fn add_diagonal(
        &self,
        graph: &mut CostGraph,
        edge: u32,
        scope: &[NodeId],
        dims: &[u32],
        times: usize,
    ) -> crate::Result<()> {
        let (mut once, mut shape) = (Vec::new(), Vec::new());
        for (&node, &dim) in scope.iter().zip(dims) {
            if !once.contains(&node) {
                once.push(node);
                shape.push(dim);
            }
        }
        // How far the cell moves in the edge's list with each strategy of each node.
        let mut strides = vec![0; once.len()];
        let mut stride = 1;
        for (node, &dim) in scope.iter().zip(dims).rev() {
            strides[once.iter().position(|other| other == node).unwrap_or_default()] += stride;
            stride *= dim as usize;
        }
        let mut cells = vec![0];
        for (&dim, stride) in shape.iter().zip(strides) {
            let next = |&cell: &usize| (0..dim as usize).map(move |k| cell + k * stride);
            cells = cells.iter().flat_map(next).collect();
        }
        let costs: Vec<u64> = cells.iter().map(|&cell| self.edge_costs(edge)[cell]).collect();
        let table = graph.add_table(edge_table(&shape, &costs, times)?)?;
        graph.add_factor(&once, table)?;
        Ok(())
    }
}

fn edge_table(dims: &[u32], costs: &[u64], times: usize) -> crate::Result<Table> {
    let zeros = std::iter::repeat_n(0, times);
    let rows: Vec<u64> =
        costs.iter().flat_map(|&cost| std::iter::once(cost).chain(zeros.clone())).collect();
    Table::dense(dims, 1 + times, &rows, Some(&impossible(costs)))
}

fn impossible(costs: &[u64]) -> Vec<bool> {
    costs.iter().map(|&cost| cost >= IMPOSSIBLE_COST).collect()
}

/// Begins and ends of all intervals that are not empty.
fn events(intervals: &[(u64, u64)]) -> Vec<Event> {
    let live = (0..).zip(intervals).filter(|(_, (lower, upper))| lower < upper);
    let mut events: Vec<Event> = live
        .flat_map(|(node, &(lower, upper))| {
            [(lower, true), (upper, false)].map(|(time, begins)| Event { time, node, begins })
        })
        .collect();
    events.sort_by_key(|event| (event.time, event.begins));
    events
}
