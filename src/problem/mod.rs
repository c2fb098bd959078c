//! What is asked: a graph of choices with vector costs.
//!
//! # The problem
//!
//! There are nodes; each takes one of its configurations. Costs are vectors of up to four
//! objectives, given by tables: one per node, and one per *factor*, which names a few nodes (two,
//! for an edge) and has a cell for each combination of their configurations. A cell holds any
//! number of *alternatives*: none (the combination is impossible), one (it has a cost), or several
//! (something remains to be chosen, for example how a tensor is redistributed). Choosing a
//! configuration for every node and an alternative in every cell that these select makes a *plan*;
//! its cost adds up, objective by objective, by sum or by maximum ([`Aggregate`]). The Pareto
//! frontier of all plans is what [`solve`](crate::solve()) finds.
//!
//! [`CostGraph`] checks everything when it is added: shapes, identifiers, and that no sum can
//! overflow. Tables are interned, so that a thousand equal layers hold one copy.

mod derive;
mod graph;
mod table;

pub use graph::CostGraph;
pub use table::Table;

/// How an objective adds up over the parts of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aggregate {
    /// The sum of all parts, such as time.
    Sum,
    /// The largest part, such as transient memory.
    Max,
}

impl Aggregate {
    /// Adds two costs up.
    #[inline]
    #[must_use]
    pub fn combine(self, a: u64, b: u64) -> u64 {
        match self {
            Self::Sum => a + b,
            Self::Max => a.max(b),
        }
    }
}
