//! A part of a graph contracted to its boundary: [`Contraction`].

use std::sync::Arc;

use super::trace::{Choice, Trace};
use crate::error::{Error, Result};
use crate::frontier::CostVector;
use crate::ids::NodeId;
use crate::problem::{CostGraph, Table};

/// A graph contracted to a table over a few of its nodes.
///
/// The cell of a combination of the kept nodes' configurations holds the frontier of everything
/// else: of the other nodes' costs and of all factors that name at least one of them. The kept
/// nodes' own costs and the factors among kept nodes are **not** included: they belong to the
/// graph around it. The table is a factor like any other there, as often as the block occurs, and
/// [`expand`](Self::expand) gives the choices behind an alternative.
#[derive(Clone)]
pub struct Contraction {
    table: Table,
    keep: Vec<NodeId>,
    nodes: usize,
    factors: usize,
    trace: Arc<dyn Expand>,
}

impl Contraction {
    /// The table over the kept nodes, in the order in which they were named. If cells were thinned
    /// it carries the factor proven ([`Table::factor`]).
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The kept nodes, one per axis of the table.
    #[must_use]
    pub fn keep(&self) -> &[NodeId] {
        &self.keep
    }

    /// The factor within which the alternatives cover the true ones: 1 if they are exact.
    #[must_use]
    pub fn factor(&self) -> f64 {
        self.table.factor()
    }

    /// The choices behind an alternative of a cell.
    ///
    /// # Arguments
    ///
    /// * `cell`: row-major over the kept nodes ([`Table::cell`]).
    /// * `alternative`: position within the cell.
    ///
    /// # Returns
    ///
    /// The configurations of all nodes of the contracted graph (those of the kept nodes are the
    /// cell's), and the alternatives of the other nodes and of the factors included; [`UNCHOSEN`]
    /// for what is not included.
    ///
    /// [`UNCHOSEN`]: crate::UNCHOSEN
    ///
    /// # Errors
    ///
    /// [`Error::NoAlternative`].
    pub fn expand(&self, cell: usize, alternative: usize) -> Result<Choice> {
        let mut choice = Choice::new(self.nodes, self.factors);
        self.trace.expand(self.position(cell, alternative)?, &mut choice)?;
        self.write_kept(cell, &mut choice);
        Ok(choice)
    }

    /// [`expand`](Self::expand) for many cells and alternatives, on the threads of the pool that it
    /// is called in.
    pub(crate) fn expand_in_pool(&self, picks: &[(usize, usize)]) -> Result<Vec<Choice>> {
        let positions: Vec<u32> =
            picks.iter().map(|&(cell, pick)| self.position(cell, pick)).collect::<Result<_>>()?;
        let blank = Choice::new(self.nodes, self.factors);
        let mut choices = self.trace.expand_all(&positions, &blank)?;
        for (choice, &(cell, _)) in choices.iter_mut().zip(picks) {
            self.write_kept(cell, choice);
        }
        Ok(choices)
    }

    /// Where an alternative lies among those of all cells.
    fn position(&self, cell: usize, alternative: usize) -> Result<u32> {
        if cell >= self.table.cells() || alternative >= self.table.alternatives(cell).len() {
            return Err(Error::NoAlternative { cell, alternative });
        }
        Ok(self.table.offsets()[cell] + alternative as u32)
    }

    fn write_kept(&self, cell: usize, choice: &mut Choice) {
        let mut rest = cell;
        for (node, &dim) in self.keep.iter().zip(self.table.dims()).rev() {
            choice.configurations[node.index()] = (rest % dim as usize) as u32;
            rest /= dim as usize;
        }
    }
}

impl std::fmt::Debug for Contraction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contraction").field("keep", &self.keep).field("table", &self.table).finish()
    }
}

/// A trace of any vector type. Points are known by their position among all of the answer's.
pub(crate) trait Expand: Send + Sync {
    /// Writes the choices behind a point.
    fn expand(&self, position: u32, choice: &mut Choice) -> Result<()>;

    /// The choices behind many points, written over copies of `blank`; on the threads of the pool
    /// that it is called in.
    fn expand_all(&self, positions: &[u32], blank: &Choice) -> Result<Vec<Choice>>;
}

impl<C: CostVector> Expand for Trace<C> {
    fn expand(&self, position: u32, choice: &mut Choice) -> Result<()> {
        Trace::expand(self, position, choice)
    }

    fn expand_all(&self, positions: &[u32], blank: &Choice) -> Result<Vec<Choice>> {
        Trace::expand_all(self, positions, blank)
    }
}

/// The contraction that a trace over the kept nodes of a graph describes.
///
/// # Errors
///
/// [`Error::TooMany`] if the table would be beyond 32 bits.
pub(crate) fn contraction<C: CostVector>(
    graph: &CostGraph,
    keep: &[NodeId],
    trace: Trace<C>,
) -> Result<Contraction> {
    let op = &trace.root().op;
    let too_many = |_| Error::TooMany { what: "alternatives", limit: u64::from(u32::MAX) };
    let offsets: Vec<u32> = op
        .cells
        .starts
        .iter()
        .map(|&start| u32::try_from(start).map_err(too_many))
        .collect::<Result<_>>()?;
    let objectives = C::OBJECTIVES;
    let costs: Vec<u64> = op
        .cells
        .points
        .iter()
        .flat_map(|point| (0..objectives).map(|objective| point.get(objective)))
        .collect();
    let table = Table::with_alternatives(&op.cells.dims, objectives, &offsets, &costs)?
        .with_factor(op.factor)?;
    Ok(Contraction {
        table,
        keep: keep.to_vec(),
        nodes: graph.nodes(),
        factors: graph.factors(),
        trace: Arc::new(trace),
    })
}
