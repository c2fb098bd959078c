//! What comes back: plans, rebuilt from the trace and checked against the problem.
//!
//! # The problem
//!
//! A point of the answer is a cost vector; the user wants the choices that cost it. Nothing is
//! stored for them but the tables of the contraction: at each step the pair of points that adds up
//! to a value is found again. `check` then adds the plan's costs up from the problem itself,
//! which knows nothing of eliminations, and compares.

use crate::contraction::Choice;
use crate::error::{Error, Result};
use crate::problem::CostGraph;

/// A complete choice and what it costs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// For each node its configuration.
    pub configurations: Vec<u32>,
    /// For each node the alternative taken among those of its configuration.
    pub node_alternatives: Vec<u32>,
    /// For each factor the alternative taken in the cell that its nodes' configurations select.
    pub factor_alternatives: Vec<u32>,
    /// The cost in each objective, added up from the problem's tables.
    pub cost: Vec<u64>,
}

/// Adds a choice up from the problem and compares it with the cost of its point.
///
/// # Errors
///
/// [`Error::Mismatch`] if they differ, or if the choice is incomplete or impossible.
pub(crate) fn check(
    graph: &CostGraph,
    index: usize,
    expected: &[u64],
    choice: Choice,
) -> Result<Plan> {
    let Choice { configurations, node_alternatives, factor_alternatives } = choice;
    match graph.cost(&configurations, &node_alternatives, &factor_alternatives) {
        Some(cost) if cost == expected => {
            Ok(Plan { configurations, node_alternatives, factor_alternatives, cost })
        }
        readded => Err(Error::Mismatch { index, expected: expected.to_vec(), readded }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Aggregate, Table};

    fn graph() -> CostGraph {
        let mut graph = CostGraph::new(&[Aggregate::Sum]).unwrap();
        let node = graph.add_table(Table::dense(&[2], 1, &[3, 5], None).unwrap()).unwrap();
        let edge = Table::dense(&[2, 2], 1, &[0, 1, 2, 9], Some(&[false, false, false, true]));
        let edge = graph.add_table(edge.unwrap()).unwrap();
        let (a, b) = (graph.add_node(node).unwrap(), graph.add_node(node).unwrap());
        graph.add_factor(&[a, b], edge).unwrap();
        graph
    }

    fn choice(configurations: [u32; 2]) -> Choice {
        Choice {
            configurations: configurations.into(),
            node_alternatives: vec![0; 2],
            factor_alternatives: vec![0],
        }
    }

    #[test]
    fn a_right_plan_passes() {
        assert_eq!(check(&graph(), 0, &[9], choice([0, 1])).unwrap().cost, [9]);
    }

    #[test]
    fn a_wrong_cost_is_found() {
        let error = check(&graph(), 7, &[8], choice([0, 1])).unwrap_err();
        let readded = Some(vec![9]);
        assert_eq!(error, Error::Mismatch { index: 7, expected: vec![8], readded });
    }

    #[test]
    fn an_impossible_plan_is_found() {
        let error = check(&graph(), 0, &[10], choice([1, 1])).unwrap_err();
        assert_eq!(error, Error::Mismatch { index: 0, expected: vec![10], readded: None });
    }

    #[test]
    fn an_incomplete_plan_is_found() {
        assert!(check(&graph(), 0, &[3], Choice::new(2, 1)).is_err());
    }
}
