//! How the problem shrinks: exact elimination of variables on tables of frontiers.
//!
//! # The problem
//!
//! A cost graph stands for a sum of factors over the configurations of its nodes, and what is
//! wanted is the frontier of that sum over all configurations. Eliminating a node replaces the
//! factors that mention it by one factor over its neighbours, whose cell for each combination of
//! their configurations is the frontier of everything the node could do:
//!
//! ```text
//! new(x) = prune( union over k of  left(x, k) (+) right(x, k) )
//! ```
//!
//! Doing so for every node leaves one frontier: the answer, exact on every graph. The cost depends
//! on the order and on the sizes of the tables that arise.
//!
//! * `cells`: a frontier for every cell of a table.
//! * `leaf`: the cells of a problem's tables, seen through a `View`.
//! * `engine`: the one operation above, for all cells, in parallel, each different one computed
//!   once; repeated layers are equal operations on equal tables.
//! * `order`: which node goes next.
//! * `eliminate`: the loop.
//! * `trace`: what was done, and from it the choices behind any point of the answer.
//! * `pair`: the pair of points behind a sum.
//! * `thinning`: fewer points, with a proven factor.
//! * `marginal`: least weighted sums, and what is left of the tables once much is known.
//! * `guard`: what partial solutions can still come to, and which can be dropped for it.
//! * `scalar`: exact optima of weighted sums along the same trace.
//! * `buckets`: nodes split into copies, where exact elimination would be too wide.
//! * `block`: contraction of a part of a graph to a table over its boundary.

mod block;
pub(crate) mod buckets;
pub(crate) mod cells;
pub(crate) mod eliminate;
pub(crate) mod engine;
pub(crate) mod guard;
pub(crate) mod leaf;
pub(crate) mod marginal;
pub(crate) mod meter;
pub(crate) mod order;
mod pair;
pub(crate) mod scalar;
pub(crate) mod thinning;
pub(crate) mod trace;

pub use block::Contraction;
pub(crate) use block::{Expand, contraction};
pub use trace::{Choice, UNCHOSEN};
