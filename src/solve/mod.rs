//! The driver: from a graph and options to a [`Solution`].
//!
//! # The problem
//!
//! Contraction gives the exact frontier if it may take its time. Users want an answer within
//! limits, on their threads, that they can interrupt, and that says what it is worth:
//!
//! * [`options`](SolveOptions): what is asked, and the limits.
//! * [`pool`](self): an owned pool; the calling thread watches clock and caller.
//! * `bounds`: with two sums, what the hull of the frontier leaves of the problem; `bounded`: passes
//!   over that.
//! * [`certificate`](Certificate): with `epsilon`, cells are thinned and the factor that results is
//!   proven afterwards; where it is too large, the solve is repeated with less thinning.
//! * [`peak`](Peak): an objective that adds up by maximum is taken apart by thresholds.
//! * `wide`: graphs too dense for an exact elimination.
//! * [`status`](Status): why it ended.

mod bounded;
mod bounds;
mod certificate;
mod expand;
mod options;
mod peak;
mod pool;
mod refine;
mod solution;
mod status;
mod wide;

use std::time::Instant;

pub use options::{Peak, SolveOptions};
pub use solution::{Certificate, Least, Quantity, Solution};
pub use status::{Counters, Progress, Status, StopToken, Watch};

use crate::contraction::Contraction;
use crate::contraction::contraction;
use crate::contraction::eliminate::{Limits, eliminate};
use crate::contraction::engine::Engine;
use crate::contraction::leaf::View;
use crate::contraction::meter::{Halt, Meter};
use crate::contraction::thinning::{Budget, Thinning};
use crate::error::{Error, Result};
use crate::frontier::{CostVector, Packed2, Wide, WideAlgebra};
use crate::ids::NodeId;
use crate::problem::{Aggregate, CostGraph};

/// Finds the Pareto frontier of a cost graph.
///
/// # Arguments
///
/// * `graph`: the problem.
/// * `options`: precision, limits, threads.
///
/// # Returns
///
/// The frontier, sorted lexicographically, with a status that says whether it is exact, and with
/// the plans behind it. Without a time limit the result is the same, byte for byte, for any number
/// of threads.
///
/// # Errors
///
/// [`Error::Option`] for options out of range; [`Error::Bytes`] if the frontiers outgrow their
/// limit; [`Error::TableCells`] if the graph is too dense for an exact elimination and the options
/// do not allow another answer.
///
/// # Complexity
///
/// With at most `K` configurations and frontiers of at most `F` points, a chain of `n` nodes takes
/// `O(n K^2 F)` sums, a graph of treewidth `w` takes `O(n K^(w+1))` unions of sums.
pub fn solve(graph: &CostGraph, options: &SolveOptions) -> Result<Solution> {
    solve_watched(graph, options, &mut StopToken::new())
}

/// [`solve`], watched by the calling thread, which may stop it.
///
/// # Errors
///
/// As [`solve`].
pub fn solve_watched(
    graph: &CostGraph,
    options: &SolveOptions,
    watch: &mut dyn Watch,
) -> Result<Solution> {
    options.validate(graph)?;
    let deadline = options.time_limit.and_then(|limit| Instant::now().checked_add(limit));
    let pool = pool::pool(options.threads)?;
    let meter = Meter::default();
    let job = || match refine::run(graph, options, &meter) {
        Err(Error::TableCells { .. }) if options.heuristic => wide::run(graph, options, &meter),
        answer => answer,
    };
    let (answer, reason) = pool::supervise(&pool, &meter, deadline, watch, job)?;
    answer.map(|answer| answer.into_solution(graph, options, reason))
}

/// Contracts a graph to a table over a few of its nodes, exactly or within `epsilon`.
///
/// # Arguments
///
/// * `graph`: the block.
/// * `keep`: its boundary, each node once.
/// * `options`: limits, threads, and `epsilon`: with it every cell is covered within a factor of at
///   most `1 + epsilon`, which the table carries, and is trimmed on the way. Caps hold for what the
///   table includes. A peak is not looked at: the table keeps all objectives.
///
/// # Errors
///
/// As [`solve`]; [`Error::UnknownNode`] or [`Error::Option`] for a bad boundary.
///
/// # Example
///
/// ```
/// use tensoropt::{Aggregate, CostGraph, SolveOptions, Table, contract};
///
/// let mut block = CostGraph::new(&[Aggregate::Sum])?;
/// let free = block.add_table(Table::dense(&[2], 1, &[0, 0], None)?)?;
/// let edge = block.add_table(Table::dense(&[2, 2], 1, &[0, 3, 3, 0], None)?)?;
/// let [a, b, c] = [block.add_node(free)?, block.add_node(free)?, block.add_node(free)?];
/// block.add_factor(&[a, b], edge)?;
/// block.add_factor(&[b, c], edge)?;
/// let contracted = contract(&block, &[a, c], &SolveOptions::default())?;
/// assert_eq!(contracted.table().dims(), [2, 2]);
/// assert_eq!(contracted.table().costs(), [0, 3, 3, 0]);
/// assert_eq!(contracted.expand(3, 0)?.configurations, [1, 1, 1]);
/// # Ok::<(), tensoropt::Error>(())
/// ```
pub fn contract(graph: &CostGraph, keep: &[NodeId], options: &SolveOptions) -> Result<Contraction> {
    contract_watched(graph, keep, options, &mut StopToken::new())
}

/// [`contract`], watched by the calling thread, which may stop it.
///
/// # Errors
///
/// As [`contract`]; [`Error::Interrupted`] if it was stopped, by the caller or a limit.
pub fn contract_watched(
    graph: &CostGraph,
    keep: &[NodeId],
    options: &SolveOptions,
    watch: &mut dyn Watch,
) -> Result<Contraction> {
    options.validate(graph)?;
    for (i, node) in keep.iter().enumerate() {
        if node.index() >= graph.nodes() {
            return Err(Error::UnknownNode(*node));
        }
        if keep[..i].contains(node) {
            return Err(Error::Option { option: "keep", what: format!("{node} is named twice") });
        }
    }
    let deadline = options.time_limit.and_then(|limit| Instant::now().checked_add(limit));
    let pool = pool::pool(options.threads)?;
    let meter = Meter::default();
    let view = View::all(graph, options);
    let job = || match Vectors::of(graph, &view) {
        Vectors::Packed => contract_as::<Packed2>((), graph, keep, &view, options, &meter),
        Vectors::One(a) => contract_as::<Wide<1>>(a, graph, keep, &view, options, &meter),
        Vectors::Two(a) => contract_as::<Wide<2>>(a, graph, keep, &view, options, &meter),
        Vectors::Three(a) => contract_as::<Wide<3>>(a, graph, keep, &view, options, &meter),
        Vectors::Four(a) => contract_as::<Wide<4>>(a, graph, keep, &view, options, &meter),
    };
    let (answer, reason) = pool::supervise(&pool, &meter, deadline, watch, job)?;
    answer.map_err(|halt| match (halt, reason) {
        (Halt::Error(error), _) => error,
        (Halt::Work, _) => Error::Interrupted(Status::WorkLimit),
        (Halt::Stopped, reason) => Error::Interrupted(reason.unwrap_or(Status::Stopped)),
    })
}

fn contract_as<C: CostVector>(
    algebra: C::Algebra,
    graph: &CostGraph,
    keep: &[NodeId],
    view: &View,
    options: &SolveOptions,
    meter: &Meter,
) -> std::result::Result<Contraction, Halt> {
    let mut engine = Engine::<C>::new(algebra, meter);
    engine.set_limit(view.limit());
    engine.work_limit = options.work_limit;
    let limits = Limits::of(options);
    if options.epsilon > 0.0 {
        // A pass that keeps next to nothing tells how long the ways are.
        engine.set_thinning(Thinning { at_most: 1, ..Thinning::NONE });
        let height = eliminate(graph, view, keep, limits, &mut engine)?.root().op.height;
        let budget = Some(Budget { epsilon: options.epsilon, height });
        engine.set_thinning(Thinning { budget, ..Thinning::NONE });
    }
    let trace = eliminate(graph, view, keep, limits, &mut engine)?;
    Ok(contraction(graph, keep, trace)?)
}

impl Limits {
    fn of(options: &SolveOptions) -> Self {
        Self { cells: options.max_table_cells, bytes: options.max_bytes }
    }
}

impl View {
    /// All objectives of a graph, with their caps.
    fn all(graph: &CostGraph, options: &SolveOptions) -> Self {
        let objectives: Vec<usize> = (0..graph.objectives()).collect();
        let caps = objectives.iter().map(|&objective| options.cap(objective)).collect();
        Self { objectives, strike: None, caps, only: None, hulls: false }
    }

    /// The caps as a limit, if there are any.
    fn limit<C: CostVector>(&self) -> Option<C> {
        self.caps.iter().any(|&cap| cap < u64::MAX).then(|| C::limit(&self.caps))
    }
}

/// The vector type that a view of a problem needs.
pub(crate) enum Vectors {
    /// Two sums below 2^32.
    Packed,
    /// One objective.
    One(WideAlgebra<1>),
    /// Two.
    Two(WideAlgebra<2>),
    /// Three.
    Three(WideAlgebra<3>),
    /// Four.
    Four(WideAlgebra<4>),
}

impl Vectors {
    pub(crate) fn of(graph: &CostGraph, view: &View) -> Self {
        let max = |i: usize| graph.aggregates()[view.objectives[i]] == Aggregate::Max;
        let small = |i: usize| graph.largest(view.objectives[i]) <= u64::from(u32::MAX);
        match view.objectives.len() {
            2 if (0..2).all(|i| small(i) && !max(i)) => Self::Packed,
            1 => Self::One(WideAlgebra { max: std::array::from_fn(max) }),
            2 => Self::Two(WideAlgebra { max: std::array::from_fn(max) }),
            3 => Self::Three(WideAlgebra { max: std::array::from_fn(max) }),
            _ => Self::Four(WideAlgebra { max: std::array::from_fn(max) }),
        }
    }
}
