//! Cost tables: [`Table`].

use crate::error::{Error, Result};

/// Costs of every combination of configurations of a few nodes.
///
/// Cells lie in row-major order: the last axis is the fastest. Every cell holds a list of
/// alternatives, each a cost vector; a cell without alternatives is impossible. An alternative is
/// known by its position within its cell, as the caller gave it.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    dims: Box<[u32]>,
    objectives: usize,
    /// Where each cell's alternatives begin, and the end: `cells + 1` numbers.
    offsets: Box<[u32]>,
    /// Alternatives after each other, `objectives` costs each.
    costs: Box<[u64]>,
    factor: f64,
}

impl Table {
    /// A table with one cost vector per cell.
    ///
    /// # Arguments
    ///
    /// * `dims`: configurations of each node, one axis per node.
    /// * `objectives`: costs per vector.
    /// * `costs`: the cost vectors of all cells, row-major, `cells * objectives` numbers.
    /// * `impossible`: for each cell whether it is impossible (its costs are then ignored); `None`
    ///   if every cell is possible.
    ///
    /// # Errors
    ///
    /// [`Error::Table`] if the lengths do not fit, an axis is empty, or there are no objectives;
    /// [`Error::TooMany`] beyond 2^32 - 1 cells.
    ///
    /// # Example
    ///
    /// ```
    /// use tensoropt::Table;
    ///
    /// // Two configurations against two, one objective, one impossible combination.
    /// let table = Table::dense(&[2, 2], 1, &[5, 0, 3, 4], Some(&[false, true, false, false]))?;
    /// assert_eq!(table.alternatives(1).count(), 0);
    /// assert_eq!(table.alternatives(2).next(), Some(&[3][..]));
    /// # Ok::<(), tensoropt::Error>(())
    /// ```
    pub fn dense(
        dims: &[u32],
        objectives: usize,
        costs: &[u64],
        impossible: Option<&[bool]>,
    ) -> Result<Self> {
        let cells = count_cells(dims)?;
        check_objectives(objectives)?;
        check_length("costs", costs.len(), cells * objectives, "cells * objectives")?;
        let Some(impossible) = impossible else {
            let offsets = (0..=cells as u32).collect();
            return Ok(Self::new(dims, objectives, offsets, costs.into()));
        };
        check_length("impossible", impossible.len(), cells, "cells")?;
        let mut offsets = Vec::with_capacity(cells + 1);
        offsets.push(0);
        let mut kept = Vec::with_capacity(costs.len());
        for (cost, &gone) in costs.chunks_exact(objectives).zip(impossible) {
            if !gone {
                kept.extend_from_slice(cost);
            }
            offsets.push((kept.len() / objectives) as u32);
        }
        Ok(Self::new(dims, objectives, offsets.into(), kept.into()))
    }

    /// A table with any number of alternatives per cell.
    ///
    /// # Arguments
    ///
    /// * `dims`: configurations of each node, one axis per node.
    /// * `objectives`: costs per vector.
    /// * `offsets`: for each cell the index of its first alternative, and at the end the number of
    ///   all alternatives: `cells + 1` numbers, from 0, never falling.
    /// * `costs`: the cost vectors of all alternatives, `offsets[cells] * objectives` numbers.
    ///
    /// # Errors
    ///
    /// As [`Table::dense`], and [`Error::Table`] if `offsets` falls somewhere or does not begin
    /// with 0.
    pub fn with_alternatives(
        dims: &[u32],
        objectives: usize,
        offsets: &[u32],
        costs: &[u64],
    ) -> Result<Self> {
        let cells = count_cells(dims)?;
        check_objectives(objectives)?;
        check_length("offsets", offsets.len(), cells + 1, "cells + 1")?;
        if offsets[0] != 0 {
            return Err(bad(format!("offsets begin with {}, expected 0", offsets[0])));
        }
        if let Some(cell) = offsets.windows(2).position(|w| w[0] > w[1]) {
            return Err(bad(format!("offsets fall after cell {cell}")));
        }
        let alternatives = offsets[cells] as usize;
        check_length(
            "costs",
            costs.len(),
            alternatives * objectives,
            "the last offset * objectives",
        )?;
        Ok(Self::new(dims, objectives, offsets.into(), costs.into()))
    }

    fn new(dims: &[u32], objectives: usize, offsets: Box<[u32]>, costs: Box<[u64]>) -> Self {
        Self { dims: dims.into(), objectives, offsets, costs, factor: 1.0 }
    }

    /// Declares that the alternatives cover the true ones only up to a factor, as those of a
    /// trimmed [`Contraction`](crate::Contraction) do. The factor of a solution includes it.
    ///
    /// # Errors
    ///
    /// [`Error::Table`] unless `factor` is finite and at least 1.
    pub fn with_factor(mut self, factor: f64) -> Result<Self> {
        if !(factor.is_finite() && factor >= 1.0) {
            return Err(bad(format!("factor is {factor}, expected a finite number >= 1")));
        }
        self.factor = factor;
        Ok(self)
    }

    /// Configurations of each node.
    #[must_use]
    pub fn dims(&self) -> &[u32] {
        &self.dims
    }

    /// Costs per vector.
    #[must_use]
    pub fn objectives(&self) -> usize {
        self.objectives
    }

    /// Number of cells.
    #[must_use]
    pub fn cells(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The factor within which the alternatives cover the true ones: 1 if they are exact.
    #[must_use]
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// The cell of a combination of configurations, or `None` if there is none.
    #[must_use]
    pub fn cell(&self, configurations: &[u32]) -> Option<usize> {
        if configurations.len() != self.dims.len() {
            return None;
        }
        configurations
            .iter()
            .zip(&self.dims)
            .try_fold(0, |cell, (&k, &dim)| (k < dim).then_some(cell * dim as usize + k as usize))
    }

    /// The cost vectors of a cell's alternatives.
    ///
    /// # Panics
    ///
    /// If there is no such cell.
    pub fn alternatives(&self, cell: usize) -> impl ExactSizeIterator<Item = &[u64]> + Clone {
        let range = self.offsets[cell] as usize..self.offsets[cell + 1] as usize;
        self.costs[range.start * self.objectives..range.end * self.objectives]
            .chunks_exact(self.objectives)
    }

    /// The first alternative of every cell, and the end.
    #[must_use]
    pub fn offsets(&self) -> &[u32] {
        &self.offsets
    }

    /// The cost vectors of all alternatives, cell after cell.
    #[must_use]
    pub fn costs(&self) -> &[u64] {
        &self.costs
    }

    /// The largest cost in an objective; 0 if every cell is impossible.
    #[must_use]
    pub fn largest(&self, objective: usize) -> u64 {
        self.costs.iter().skip(objective).step_by(self.objectives).copied().max().unwrap_or(0)
    }

    /// The smallest cost in an objective, or `None` if every cell is impossible.
    #[must_use]
    pub fn smallest(&self, objective: usize) -> Option<u64> {
        self.costs.iter().skip(objective).step_by(self.objectives).copied().min()
    }
}

fn count_cells(dims: &[u32]) -> Result<usize> {
    if let Some(axis) = dims.iter().position(|&dim| dim == 0) {
        return Err(bad(format!(
            "axis {axis} of {dims:?} is empty: every node needs a configuration"
        )));
    }
    dims.iter()
        .try_fold(1u32, |cells, &dim| cells.checked_mul(dim))
        .filter(|&cells| cells < u32::MAX)
        .map(|cells| cells as usize)
        .ok_or(Error::TooMany { what: "cells in a table", limit: u64::from(u32::MAX) - 1 })
}

fn check_objectives(objectives: usize) -> Result<()> {
    if (1..=4).contains(&objectives) { Ok(()) } else { Err(Error::Objectives { got: objectives }) }
}

fn check_length(name: &str, got: usize, expected: usize, meaning: &str) -> Result<()> {
    if got == expected {
        Ok(())
    } else {
        Err(bad(format!("{name} has length {got}, expected {expected} ({meaning})")))
    }
}

fn bad(what: String) -> Error {
    Error::Table { what }
}
