//! Exact Pareto frontiers of cost graphs.
//!
//! # The problem
//!
//! A system is made of parts, each with a few possible configurations. Every part has a cost that
//! depends on its configuration, and so has every connection, depending on the configurations at
//! its ends. Costs are vectors: time and memory, say. Which complete choices are worth having,
//! because no other is at least as good in everything and better in something? Their costs are the
//! *Pareto frontier*, and this crate finds all of it, or a part that provably comes within a factor
//! of all of it.
//!
//! The parts are the nodes of a [`CostGraph`], connections its factors. [`solve()`] returns a
//! [`Solution`]: points, a [`Status`] that says what they are worth, and a [`Plan`] for each.
//!
//! # A chain
//!
//! Three parts, two configurations each: fast and large, or slow and small. Changing the
//! configuration from one part to the next costs time.
//!
//! ```
//! use tensoropt::{Aggregate, CostGraph, SolveOptions, Status, Table, solve};
//!
//! let mut graph = CostGraph::new(&[Aggregate::Sum, Aggregate::Sum])?; // time, memory
//! let part = graph.add_table(Table::dense(&[2], 2, &[1, 8, 4, 2], None)?)?;
//! let change = [[0, 0], [1, 0], [1, 0], [0, 0]].concat();
//! let change = graph.add_table(Table::dense(&[2, 2], 2, &change, None)?)?;
//! let nodes = [graph.add_node(part)?, graph.add_node(part)?, graph.add_node(part)?];
//! for pair in nodes.windows(2) {
//!     graph.add_factor(pair, change)?;
//! }
//!
//! let solution = solve(&graph, &SolveOptions::default())?;
//! assert_eq!(solution.status(), Status::Optimal);
//! assert_eq!(solution.costs(), [3, 24, 7, 18, 10, 12, 12, 6]);
//! assert_eq!(solution.plan(0)?.configurations, [0, 0, 0]); // all fast
//! assert_eq!(solution.plan(3)?.configurations, [1, 1, 1]); // all small
//! # Ok::<(), tensoropt::Error>(())
//! ```
//!
//! # A skip connection
//!
//! Graphs may have any shape. Here the first part also feeds the last one, and that connection
//! offers two ways to be made, of which each point takes the one that suits it.
//!
//! ```
//! use tensoropt::{Aggregate, CostGraph, SolveOptions, Table, solve};
//!
//! let mut graph = CostGraph::new(&[Aggregate::Sum, Aggregate::Sum])?;
//! let part = graph.add_table(Table::dense(&[2], 2, &[1, 8, 4, 2], None)?)?;
//! let change = [[0, 0], [1, 0], [1, 0], [0, 0]].concat();
//! let change = graph.add_table(Table::dense(&[2, 2], 2, &change, None)?)?;
//! // Four cells, in each of them: keep (no time, 3 of memory) or fetch again (2 of time).
//! let skip = [[0, 3], [2, 0]].concat().repeat(4);
//! let skip = Table::with_alternatives(&[2, 2], 2, &[0, 2, 4, 6, 8], &skip)?;
//! let skip = graph.add_table(skip)?;
//! let nodes = [graph.add_node(part)?, graph.add_node(part)?, graph.add_node(part)?];
//! graph.add_factor(&[nodes[0], nodes[1]], change)?;
//! graph.add_factor(&[nodes[1], nodes[2]], change)?;
//! graph.add_factor(&[nodes[0], nodes[2]], skip)?;
//!
//! let solution = solve(&graph, &SolveOptions::default())?;
//! let fastest = solution.plan(0)?;
//! assert_eq!((fastest.cost, fastest.factor_alternatives), (vec![3, 27], vec![0, 0, 0]));
//! let leanest = solution.plan(solution.len() - 1)?;
//! assert_eq!((leanest.cost, leanest.factor_alternatives), (vec![14, 6], vec![0, 0, 1]));
//! # Ok::<(), tensoropt::Error>(())
//! ```
//!
//! # Guarantees
//!
//! * Costs are integers ([`units`] converts), so sums are exact and the answer depends neither on
//!   the order of elimination nor on the number of threads.
//! * What could overflow is refused when it is added.
//! * The answer is exact on every graph whose elimination fits the limits; with
//!   [`epsilon`](SolveOptions::epsilon) it covers the frontier within a factor that is proven.
//! * Every plan's cost is added up again from the problem.
//!
//! # Rooms
//!
//! [`frontier`] is the algebra of frontiers, [`problem`] what is asked, [`contraction`] the exact
//! elimination, [`mod@solve`] the driver, [`plan`] what comes back. With the feature `serde`,
//! `exchange` reads and writes files.

pub mod contraction;
pub mod error;
#[cfg(feature = "serde")]
pub mod exchange;
pub mod frontier;
pub mod ids;
pub mod plan;
pub mod problem;
#[cfg(feature = "python")]
mod python;
pub mod solve;
pub mod units;

pub use contraction::{Choice, Contraction, UNCHOSEN};
pub use error::{Error, Result};
pub use ids::{FactorId, NodeId, TableId};
pub use plan::Plan;
pub use problem::{Aggregate, CostGraph, Table};
pub use solve::{
    Certificate, Counters, Least, Peak, Progress, Quantity, Solution, SolveOptions, Status,
    StopToken, Watch, contract, contract_watched, solve, solve_watched,
};
