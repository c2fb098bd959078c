//! Files: problems and solutions as versioned JSON, and the instances of a contest.
//!
//! # The problem
//!
//! A planner writes a problem down, another machine solves it, a third looks at the answer. What is
//! read must be what was written, to the last bit, and a file that is not what it says it is must
//! be refused with a message that names the place, without a panic and within bounds.
//!
//! * [`save_problem`], [`load_problem`], [`save_solution`], [`load_solution`]: files, replaced as a
//!   whole or not at all; compressed if the name ends in `.gz`, unpacked if the content is gzip.
//! * [`write_problem`], [`read_problem`], [`write_solution`], [`read_solution`]: streams.
//! * [`IopddlProblem`]: the instances of the ASPLOS / EuroSys 2025 contest on intra-operator
//!   parallelism, and what an assignment costs by its rules.
//! * [`FileError`]: what can be wrong with a file, and where.
//!
//! # The format
//!
//! One JSON object. `format` and `version` come first; fields that are unknown are refused, so that
//! nothing is lost silently. Whole numbers go up to 2^64 - 1: a reader that holds numbers as
//! doubles loses costs beyond 2^53.
//!
//! ```text
//! {"format": "tensoropt-problem", "version": 1, "problem": {
//!   "aggregate": ["sum", "max"],              one entry per objective
//!   "resolution": [1e-9, 512.0],              the size of one step of each; absent for none
//!   "tables": [{
//!     "shape": [2, 3],                        configurations of each node
//!     "alternatives": [1, 1, 0, 2, 1, 1],     per cell, row-major; 0 is impossible; absent for 1
//!     "costs": [5, 0, ...],                   one vector per alternative, cell after cell
//!     "factor": 1.01}],                       what the alternatives cover; absent for 1
//!   "nodes": [0, 0, 1],                       the table of each
//!   "factors": [{"scope": [0, 1], "table": 2}]}}
//!
//! {"format": "tensoropt-solution", "version": 1, "problem": {...},
//!   "status": "optimal", "factor": 1.0,       "infinity" if nothing is proven
//!   "certificate": {"a_priori": 1.0, "certified": null, "weights": 0},
//!   "peak": {"resident": 1, "transient": 2, "cap": null},             absent for none
//!   "least": [{"quantity": "peak", "cap": 9, "reachable": 12}],       quantity: or an objective
//!   "counters": {"passes": 1, ...},
//!   "points": [{"costs": [3, 24], "configurations": [0, 0, 1],
//!     "node_alternatives": [0, 0, 0],         absent where all are 0
//!     "factor_alternatives": [1]}]}           absent where all are 0
//! ```
//!
//! A solution holds its problem: when it is read, every plan's cost is added up again from the
//! tables. Counters leave out the bytes, which belong to one run on one machine, so that equal
//! answers make equal files.
//!
//! # Example
//!
//! ```
//! use tensoropt::exchange::{ReadOptions, read_problem, write_problem};
//! use tensoropt::{Aggregate, CostGraph, Table};
//!
//! let mut graph = CostGraph::new(&[Aggregate::Sum])?;
//! let table = graph.add_table(Table::dense(&[2], 1, &[3, 5], None)?)?;
//! graph.add_node(table)?;
//! let mut file = Vec::new();
//! write_problem(&mut file, &graph, None)?;
//! let stored = read_problem(&file[..], ReadOptions::default())?;
//! assert_eq!(stored.value.node_table(tensoropt::NodeId(0)).costs(), [3, 5]);
//!
//! let cut = read_problem(&file[..50], ReadOptions::default()).unwrap_err();
//! assert!(cut.to_string().contains("cut short"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod header;
mod input;
mod iopddl;
mod iopddl_file;
mod numbers;
mod output;
mod problem;
mod solution;

pub use error::FileError;
pub use input::ReadOptions;
pub use iopddl::{IMPOSSIBLE_COST, IopddlEvaluation, IopddlPart, IopddlProblem};
pub use problem::{load_problem, read_problem, save_problem, write_problem};
pub use solution::{load_solution, read_solution, save_solution, write_solution};

use crate::units::Resolution;

/// What was read, and the units it is in.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stored<T> {
    /// The problem or solution.
    pub value: T,
    /// The size of one step of each objective, if the file says so.
    pub resolution: Option<Vec<Resolution>>,
}
