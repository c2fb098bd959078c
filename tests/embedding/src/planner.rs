//! From queries to cost graphs, and from points to plans.

use std::ops::ControlFlow;

use tensoropt::units::Resolution;
use tensoropt::{
    Aggregate, CostGraph, NodeId, Peak, Progress, Result, Solution, SolveOptions, Table, UNCHOSEN,
    contract, solve_watched,
};

use crate::operators::{Cost, Method, Operator, moves};
use crate::query::{Query, View};

/// Time, memory held, memory worked in.
const OBJECTIVES: [Aggregate; 3] = [Aggregate::Sum, Aggregate::Sum, Aggregate::Max];

/// Turns queries into plans.
#[derive(Clone, Debug)]
pub struct Planner {
    microsecond: Resolution,
    page: Resolution,
    options: SolveOptions,
}

/// A way to run a query.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Seconds.
    pub time_s: f64,
    /// Bytes needed at the same time.
    pub peak_bytes: f64,
    /// The method of each operator, those of views after those of the query.
    pub methods: Vec<&'static str>,
    /// The way of the rows of each feed, those of views after those of the query.
    pub moves: Vec<&'static str>,
}

impl Planner {
    /// A planner of microseconds and pages of 4 KiB.
    ///
    /// # Errors
    ///
    /// None that can happen: the resolutions are positive.
    pub fn new() -> Result<Self> {
        let (microsecond, page) = (Resolution::new(1e-6)?, Resolution::new(4096.0)?);
        Ok(Self { microsecond, page, options: SolveOptions::default().with_threads(1) })
    }

    /// The costs of a query: time and memory held, and memory worked in.
    ///
    /// # Errors
    ///
    /// What the cost graph refuses: costs that are no costs, views that do not fit.
    pub fn graph(&self, query: &Query) -> Result<CostGraph> {
        let mut graph = CostGraph::new(&OBJECTIVES)?;
        let mut nodes = Vec::new();
        for operator in &query.steps {
            let methods = operator.methods();
            let mut costs = Vec::new();
            for method in &methods {
                costs.extend(self.steps_of(method.cost)?);
            }
            let table = Table::dense(&[methods.len() as u32], OBJECTIVES.len(), &costs, None)?;
            // Equal operators have equal tables, of which the graph keeps one.
            let table = graph.add_table(table)?;
            nodes.push(graph.add_node(table)?);
        }
        for &(from, to) in &query.feeds {
            let table = graph.add_table(self.feed(query.steps[from], query.steps[to])?)?;
            graph.add_factor(&[nodes[from], nodes[to]], table)?;
        }
        for place in &query.views {
            let table = graph.add_table(place.view.block.table().clone())?;
            graph.add_factor(&place.between.map(|step| nodes[step]), table)?;
        }
        Ok(graph)
    }

    /// Every combination of two operators' methods, and the ways between them as alternatives.
    fn feed(&self, from: Operator, to: Operator) -> Result<Table> {
        let (gives, needs) = (from.methods(), to.methods());
        let (mut offsets, mut costs) = (vec![0], Vec::new());
        for (give, need) in pairs(&gives, &needs) {
            for way in moves(from.rows(), give.gives, need.needs) {
                costs.extend(self.steps_of(way.cost)?);
            }
            offsets.push((costs.len() / OBJECTIVES.len()) as u32);
        }
        let dims = [gives.len() as u32, needs.len() as u32];
        Table::with_alternatives(&dims, OBJECTIVES.len(), &offsets, &costs)
    }

    /// A cost in whole steps of the resolutions.
    ///
    /// # Errors
    ///
    /// If a cost is negative, not a number or too large.
    pub fn steps_of(&self, cost: Cost) -> Result<[u64; 3]> {
        let steps = |unit: Resolution, value| Ok(unit.encode(value)?.unwrap_or(u64::MAX));
        Ok([
            steps(self.microsecond, cost.time_s)?,
            steps(self.page, cost.held_bytes)?,
            steps(self.page, cost.working_bytes)?,
        ])
    }

    /// What the solver is asked: time against peak memory, at most so many bytes of it.
    ///
    /// # Errors
    ///
    /// If the grant is negative or not a number.
    pub fn options(&self, grant_bytes: Option<f64>) -> Result<SolveOptions> {
        let cap = match grant_bytes {
            // Memory granted is rounded down: a page more than granted is too much.
            Some(bytes) => self.page.encode((bytes / 4096.0).floor() * 4096.0)?,
            None => None,
        };
        Ok(self.options.clone().with_peak(Peak { resident: 1, transient: 2, cap }))
    }

    /// All plans worth having that stay within a grant of memory; fewer if `go_on` said no.
    ///
    /// # Errors
    ///
    /// As [`graph`](Self::graph).
    pub fn plans(
        &self,
        query: &Query,
        grant_bytes: Option<f64>,
        mut go_on: impl FnMut(f64) -> bool,
    ) -> Result<Vec<Plan>> {
        let mut watch = |progress: &Progress| match go_on(progress.fraction) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        };
        let graph = self.graph(query)?;
        let solution = solve_watched(&graph, &self.options(grant_bytes)?, &mut watch)?;
        (0..solution.len()).map(|point| self.plan(query, &solution, point)).collect()
    }

    /// A point of a solution as a plan.
    fn plan(&self, query: &Query, solution: &Solution, point: usize) -> Result<Plan> {
        let plan = solution.plan(point)?;
        let mut methods = plan.configurations.clone();
        let (own, inside) = plan.factor_alternatives.split_at(query.feeds.len());
        let mut ways = own.to_vec();
        for (place, &alternative) in query.views.iter().zip(inside) {
            let View { ends, block, .. } = place.view.as_ref();
            let at = place.between.map(|step| plan.configurations[step]);
            let cell = block.table().cell(&at).expect("the plan's configurations exist");
            let choice = block.expand(cell, alternative as usize)?;
            let inner = choice.configurations.iter().enumerate();
            methods.extend(inner.filter(|(step, _)| !ends.contains(step)).map(|(_, &k)| k));
            debug_assert!(!choice.factor_alternatives.contains(&UNCHOSEN));
            ways.extend(choice.factor_alternatives);
        }
        let flat = query.inlined();
        let method = |step: usize| flat.steps[step].methods()[methods[step] as usize];
        let moves = flat.feeds.iter().zip(&ways).map(|(&(from, to), &way)| {
            let rows = flat.steps[from].rows();
            moves(rows, method(from).gives, method(to).needs)[way as usize].name
        });
        Ok(Plan {
            time_s: self.microsecond.decode(plan.cost[0]),
            peak_bytes: self.page.decode(solution.peak(point).expect("the options name a peak")),
            methods: (0..flat.len()).map(|step| method(step).name).collect(),
            moves: moves.collect(),
        })
    }

    /// Plans a query up to its first and last step, to be used in other queries.
    ///
    /// # Errors
    ///
    /// As [`graph`](Self::graph), and if the steps are not there or the same.
    pub fn view(&self, query: Query, ends: [usize; 2]) -> Result<View> {
        let keep = ends.map(|step| NodeId(step as u32));
        let block = contract(&self.graph(&query)?, &keep, &self.options)?;
        Ok(View { query, ends, block })
    }
}

fn pairs<'a>(
    gives: &'a [Method],
    needs: &'a [Method],
) -> impl Iterator<Item = (&'a Method, &'a Method)> {
    gives.iter().flat_map(move |give| needs.iter().map(move |need| (give, need)))
}
