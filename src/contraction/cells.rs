//! A frontier for every cell of a table: [`Cells`].

use crate::frontier::CostVector;

/// Frontiers of all cells of a table, row-major, after each other in one allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cells<C> {
    pub dims: Box<[u32]>,
    /// Where each cell begins, and the end.
    pub starts: Vec<usize>,
    pub points: Vec<C>,
}

impl<C: CostVector> Cells<C> {
    /// The table without axes that holds the zero vector: neutral for sums.
    pub fn unit() -> Self {
        Self { dims: Box::new([]), starts: vec![0, 1], points: vec![C::ZERO] }
    }

    /// Number of cells.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// The frontier of a cell; empty if the cell is impossible.
    #[inline]
    pub fn cell(&self, cell: usize) -> &[C] {
        &self.points[self.starts[cell]..self.starts[cell + 1]]
    }

    /// Memory taken.
    pub fn bytes(&self) -> u64 {
        (size_of_val(&self.starts[..]) + size_of_val(&self.points[..])) as u64
    }

    /// Points per cell on average, at least a little above zero.
    pub fn density(&self) -> f64 {
        (self.points.len() as f64 / self.len() as f64).max(0.01)
    }
}

/// The step in row-major order for each axis.
pub(crate) fn strides(dims: &[u32]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis] as usize;
    }
    strides
}
