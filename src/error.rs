//! What can be wrong with a problem or a request: [`Error`].

use crate::ids::{FactorId, NodeId, TableId};

/// The result of every fallible function of the crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Bad input, a resource limit that makes an answer impossible, or a failed self-check.
///
/// Why a search stopped early is no error: see [`Status`](crate::Status).
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A graph needs between one and four objectives.
    #[error("a cost graph has 1 to 4 objectives, got {got}")]
    Objectives {
        /// The number asked for.
        got: usize,
    },
    /// A table whose parts do not fit together.
    #[error("bad cost table: {what}")]
    Table {
        /// What does not fit, with the numbers found and expected.
        what: String,
    },
    /// An identifier from another graph, or one that was never handed out.
    #[error("there is no table {0:?} in this graph: add it with add_table first")]
    UnknownTable(TableId),
    /// An identifier from another graph, or one that was never handed out.
    #[error("there is no {0} in this graph: add it with add_node first")]
    UnknownNode(NodeId),
    /// A node's table must have one axis.
    #[error(
        "{node} needs a table with one axis (its configurations), but {table} has axes {dims:?}"
    )]
    NodeShape {
        /// The node that would have been added.
        node: NodeId,
        /// Its table.
        table: TableId,
        /// The axes of the table.
        dims: Vec<u32>,
    },
    /// A factor's table must have one axis per node of its scope.
    #[error(
        "{factor} over {scope:?} with {configurations:?} configurations got {table} with axes \
         {dims:?}: expected one axis per node, as long as the node has configurations"
    )]
    FactorShape {
        /// The factor that would have been added.
        factor: FactorId,
        /// Its nodes.
        scope: Vec<NodeId>,
        /// The configurations of its nodes.
        configurations: Vec<u32>,
        /// Its table.
        table: TableId,
        /// The axes of the table.
        dims: Vec<u32>,
    },
    /// A factor that names no node.
    #[error("{factor} names no node: give it at least one")]
    EmptyScope {
        /// The factor that would have been added.
        factor: FactorId,
    },
    /// A factor that names one node twice.
    #[error(
        "{factor} names {node} twice: put the table's diagonal on the node itself, or use another \
         node"
    )]
    RepeatedNode {
        /// The factor that would have been added.
        factor: FactorId,
        /// The node named twice.
        node: NodeId,
    },
    /// The costs could add up beyond 64 bits.
    #[error(
        "objective {objective} could add up to {so_far} + {added} = {sum}, beyond 64 bits, when \
         {part} is added: use a coarser resolution"
    )]
    Overflow {
        /// The objective (or `resident + transient`, counted as the resident one).
        objective: usize,
        /// What was added last.
        part: String,
        /// The largest sum before.
        so_far: u64,
        /// The largest cost of the part added.
        added: u64,
        /// Their sum.
        sum: u128,
    },
    /// Node, factor, table and cell counts are limited to 32 bits.
    #[error("too many {what}: at most {limit}")]
    TooMany {
        /// What is too many.
        what: &'static str,
        /// The largest number allowed.
        limit: u64,
    },
    /// An option out of range, or options that contradict each other.
    #[error("option {option}: {what}")]
    Option {
        /// The option at fault.
        option: &'static str,
        /// What was given and what is expected.
        what: String,
    },
    /// An elimination would need a table beyond `max_table_cells`.
    #[error(
        "eliminating {node} needs a table of {cells} cells over {cluster:?}, more than \
         max_table_cells = {limit}: these nodes depend on each other too densely for an exact \
         answer; merge some, give them fewer configurations, or raise the limit"
    )]
    TableCells {
        /// The node to be eliminated.
        node: NodeId,
        /// The nodes whose configurations the table would list.
        cluster: Vec<NodeId>,
        /// The cells needed.
        cells: u128,
        /// The limit.
        limit: usize,
    },
    /// The frontiers of an elimination outgrew `max_bytes`.
    #[error(
        "the frontiers over {cluster:?} bring the solver to {bytes} bytes, more than max_bytes = \
         {limit}: raise the limit, or allow a larger epsilon"
    )]
    Bytes {
        /// The nodes whose configurations the table lists.
        cluster: Vec<NodeId>,
        /// Bytes needed.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A contraction that was stopped before its end: there is no part of a table.
    #[error("the contraction was stopped ({0}) before its table was complete")]
    Interrupted(crate::solve::Status),
    /// A point that does not exist.
    #[error("there is no point {index}: the solution has {points}")]
    NoPoint {
        /// The point asked for.
        index: usize,
        /// The number of points.
        points: usize,
    },
    /// A cell or alternative of a contraction that does not exist.
    #[error("the contraction has no alternative {alternative} in cell {cell}")]
    NoAlternative {
        /// The cell asked for.
        cell: usize,
        /// The alternative asked for.
        alternative: usize,
    },
    /// A choice for every node that does not fit the problem.
    #[error("bad assignment: {what}")]
    Assignment {
        /// What does not fit, with the numbers found and expected.
        what: String,
    },
    /// A cost that is no cost: not a number, or negative.
    #[error("{value} is no cost: expected a non-negative number, or infinity for impossible")]
    Cost {
        /// The value.
        value: f64,
    },
    /// A cost too large for its resolution.
    #[error("{value} is more than 64 bits at a resolution of {resolution}: use a coarser one")]
    TooLarge {
        /// The value.
        value: f64,
        /// The size of one step.
        resolution: f64,
    },
    /// A plan's cost, added up from the problem, is not the cost of its point.
    #[error(
        "self-check failed: the plan of point {index} costs {readded:?}, the point says \
         {expected:?}; please report this"
    )]
    Mismatch {
        /// The point.
        index: usize,
        /// The cost of the point.
        expected: Vec<u64>,
        /// The cost of the plan, or nothing if the plan is impossible.
        readded: Option<Vec<u64>>,
    },
    /// Something that the solver itself rules out has happened.
    #[error("internal error: {0}; please report this")]
    Internal(String),
}
