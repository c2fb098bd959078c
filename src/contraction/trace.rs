//! What was done, and the choices behind a point: [`Trace`], [`Choice`].

use std::sync::Arc;

use super::engine::{JoinSpec, Op};
use super::pair::find;
use crate::error::{Error, Result};
use crate::frontier::CostVector;

/// In a [`Choice`]: not chosen, because a node was kept or a factor left out.
pub const UNCHOSEN: u32 = u32::MAX;

/// Where a factor came from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// The table that adds nothing.
    Unit,
    /// A node's own costs.
    Node(u32),
    /// A factor of the problem.
    Factor(u32),
    /// Two earlier instances, and the node eliminated with their sum.
    Join {
        left: usize,
        right: usize,
        spec: Arc<JoinSpec>,
        eliminated: Option<u32>,
    },
}

/// A table at its place in the graph. Repeated layers have many instances of one table.
#[derive(Clone, Debug)]
pub(crate) struct Instance<C> {
    pub op: Arc<Op<C>>,
    pub scope: Vec<u32>,
    pub source: Source,
}

/// All instances, operands first; the last is the answer.
#[derive(Debug)]
pub(crate) struct Trace<C: CostVector> {
    pub algebra: C::Algebra,
    pub instances: Vec<Instance<C>>,
}

/// A configuration for every node and an alternative for every node's and factor's cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// For each node its configuration.
    pub configurations: Vec<u32>,
    /// For each node the alternative taken among those of its configuration.
    pub node_alternatives: Vec<u32>,
    /// For each factor the alternative taken in the cell that its nodes' configurations select.
    pub factor_alternatives: Vec<u32>,
}

impl Choice {
    /// Nothing chosen yet.
    pub(crate) fn new(nodes: usize, factors: usize) -> Self {
        Self {
            configurations: vec![UNCHOSEN; nodes],
            node_alternatives: vec![UNCHOSEN; nodes],
            factor_alternatives: vec![UNCHOSEN; factors],
        }
    }
}

impl<C: CostVector> Trace<C> {
    /// The answer.
    pub fn root(&self) -> &Instance<C> {
        self.instances.last().expect("a trace ends with its answer")
    }

    /// Writes the choices that give a point of the answer.
    ///
    /// # Complexity
    ///
    /// One search among the sums of a cell per instance; memory proportional to the depth.
    ///
    /// # Errors
    ///
    /// [`Error::Internal`] if a point is not a sum of its operands' points.
    pub fn expand(&self, cell: usize, point: usize, choice: &mut Choice) -> Result<()> {
        let mut open = vec![(self.instances.len() - 1, cell, point)];
        while let Some((instance, cell, point)) = open.pop() {
            let Instance { op, source, .. } = &self.instances[instance];
            let position = op.cells.starts[cell] + point;
            let (left, right, spec, eliminated) = match source {
                Source::Unit => continue,
                Source::Node(node) => {
                    choice.node_alternatives[*node as usize] = op.alternatives[position];
                    continue;
                }
                Source::Factor(factor) => {
                    choice.factor_alternatives[*factor as usize] = op.alternatives[position];
                    continue;
                }
                Source::Join { left, right, spec, eliminated } => (*left, *right, spec, eliminated),
            };
            let (l, r) = (&self.instances[left].op.cells, &self.instances[right].op.cells);
            let value = &op.cells.points[position];
            let found = find(&self.algebra, spec.terms(l, r, cell), value).ok_or_else(|| {
                Error::Internal(format!("{value:?} is no sum of the points it was made of"))
            })?;
            if let Some(node) = eliminated {
                choice.configurations[*node as usize] = found.term as u32;
            }
            let (base_l, base_r) = spec.bases(cell);
            open.push((left, base_l + found.term * spec.inner_left, found.left));
            open.push((right, base_r + found.term * spec.inner_right, found.right));
        }
        Ok(())
    }
}
