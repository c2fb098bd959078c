//! Plans database queries: which method for each operator, which way for rows between them.
//!
//! A query is a graph of operators. Each can be run by a few methods, which want their input rows
//! to lie in some way and leave their output in some way; where these differ, rows are moved. Time
//! adds up, memory that is held until the query ends (hash tables, spooled rows) adds up too, and
//! of the memory that an operator works in only the largest counts. Nobody knows in advance how
//! much memory a query will be granted, so the planner wants every plan that is worth having.
//!
//! * [`operators`]: what operators and moves cost, in seconds and bytes.
//! * [`Query`]: the operators and who feeds whom. A [`View`] is a query used inside others: it is
//!   contracted once, however often it occurs.
//! * [`Planner`]: the costs as a [`CostGraph`](tensoropt::CostGraph), and the solver's points as
//!   [`Plan`]s.

pub mod operators;
mod planner;
mod query;

pub use planner::{Plan, Planner};
pub use query::{Query, View};
