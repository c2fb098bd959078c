//! What was done, and the choices behind a point: [`Trace`], [`Choice`].

use std::sync::Arc;

use rayon::prelude::*;
use rustc_hash::FxHashMap;

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
    Join { left: usize, right: usize, spec: Arc<JoinSpec>, eliminated: Option<u32> },
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

/// Where in the two operands of a join a point came from: the configuration of the eliminated node,
/// and a position among all points of either operand's table.
#[derive(Clone, Copy, Debug)]
struct Origin {
    term: u32,
    left: u32,
    right: u32,
}

impl<C: CostVector> Trace<C> {
    /// The answer.
    pub fn root(&self) -> &Instance<C> {
        self.instances.last().expect("a trace ends with its answer")
    }

    /// Bytes of the frontiers that it made.
    pub fn bytes(&self) -> u64 {
        let made = self.instances.iter().filter(|i| matches!(i.source, Source::Join { .. }));
        let different: FxHashMap<u32, u64> =
            made.map(|instance| (instance.op.id, instance.op.cells.bytes())).collect();
        different.values().sum()
    }

    /// The choices that give each of some points of the answer, by position among all of its
    /// points. Cells that many of them go through, and tables that occur often, are searched once.
    ///
    /// # Arguments
    ///
    /// * `positions`: of the points.
    /// * `blank`: what the choices are written over.
    ///
    /// # Errors
    ///
    /// [`Error::Internal`] if a point is not a sum of its operands' points.
    pub fn expand_all(&self, positions: &[u32], blank: &Choice) -> Result<Vec<Choice>> {
        let origins = self.origins(positions)?;
        let expand = |&position: &u32| {
            let mut choice = blank.clone();
            self.follow(position, &mut choice, |instance, position| {
                Ok(origins[&instance.op.id][&position])
            })?;
            Ok(choice)
        };
        positions.par_iter().map(expand).collect()
    }

    /// Writes the choices that give one point of the answer.
    ///
    /// # Complexity
    ///
    /// One search among the sums of a cell per instance; memory proportional to the depth.
    ///
    /// # Errors
    ///
    /// [`Error::Internal`] if a point is not a sum of its operands' points.
    pub fn expand(&self, position: u32, choice: &mut Choice) -> Result<()> {
        self.follow(position, choice, |instance, position| self.origin(instance, position))
    }

    /// For every table, the origins of those of its points that the given points are made of.
    fn origins(&self, positions: &[u32]) -> Result<FxHashMap<u32, FxHashMap<u32, Origin>>> {
        let mut origins: FxHashMap<u32, FxHashMap<u32, Origin>> = FxHashMap::default();
        let mut wanted: Vec<Vec<u32>> = vec![Vec::new(); self.instances.len()];
        wanted[self.instances.len() - 1] = positions.to_vec();
        for (index, instance) in self.instances.iter().enumerate().rev() {
            let mut positions = std::mem::take(&mut wanted[index]);
            let Source::Join { left, right, .. } = instance.source else { continue };
            positions.sort_unstable();
            positions.dedup();
            let known = origins.entry(instance.op.id).or_default();
            let unknown: Vec<u32> = positions
                .iter()
                .copied()
                .filter(|position| !known.contains_key(position))
                .collect();
            let found: Vec<Origin> = unknown
                .par_iter()
                .map(|&position| self.origin(instance, position))
                .collect::<Result<_>>()?;
            known.extend(unknown.into_iter().zip(found));
            for position in &positions {
                wanted[left].push(known[position].left);
                wanted[right].push(known[position].right);
            }
        }
        Ok(origins)
    }

    /// Finds the pair of points that a point of a join is the sum of.
    fn origin(&self, instance: &Instance<C>, position: u32) -> Result<Origin> {
        let op = &instance.op;
        let Source::Join { left, right, spec, .. } = &instance.source else {
            return Err(lost(op, position));
        };
        let (l, r) = (&self.instances[*left].op.cells, &self.instances[*right].op.cells);
        let cell = op.cells.starts.partition_point(|&start| start <= position as usize) - 1;
        let point = &op.cells.points[position as usize];
        let found =
            find(&self.algebra, spec.terms(l, r, cell), point).ok_or_else(|| lost(op, position))?;
        let (base_l, base_r) = spec.bases(cell);
        let (cell_l, cell_r) =
            (base_l + found.term * spec.inner_left, base_r + found.term * spec.inner_right);
        Ok(Origin {
            term: found.term as u32,
            left: (l.starts[cell_l] + found.left) as u32,
            right: (r.starts[cell_r] + found.right) as u32,
        })
    }

    /// Goes from a point of the answer to the problem's tables and writes what is chosen there.
    fn follow(
        &self,
        position: u32,
        choice: &mut Choice,
        origin: impl Fn(&Instance<C>, u32) -> Result<Origin>,
    ) -> Result<()> {
        let mut open = vec![(self.instances.len() - 1, position)];
        while let Some((instance, position)) = open.pop() {
            let instance = &self.instances[instance];
            let op = &instance.op;
            match &instance.source {
                Source::Unit => {}
                Source::Node(node) => {
                    choice.node_alternatives[*node as usize] = op.alternatives[position as usize];
                }
                Source::Factor(factor) => {
                    choice.factor_alternatives[*factor as usize] =
                        op.alternatives[position as usize];
                }
                Source::Join { left, right, eliminated, .. } => {
                    let origin = origin(instance, position)?;
                    if let Some(node) = eliminated {
                        choice.configurations[*node as usize] = origin.term;
                    }
                    open.extend([(*left, origin.left), (*right, origin.right)]);
                }
            }
        }
        Ok(())
    }
}

fn lost<C: CostVector>(op: &Op<C>, position: u32) -> Error {
    let point = op.cells.points.get(position as usize);
    Error::Internal(format!("{point:?} is no sum of the points it was made of"))
}
