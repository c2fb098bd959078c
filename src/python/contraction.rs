//! `contract` and `Contraction`: a part of a graph as a table over its boundary.

use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::arrays::{ChoiceMatrix, Units, frozen_vector, indices};
use super::enter::enter;
use super::errors::problem;
use super::graph::{CostGraph, node_ids};
use super::options::Arguments;
use super::solution::Choices;

/// Eliminate all nodes but a few: a block that occurs often is contracted once.
///
/// Parameters
/// ----------
/// graph : CostGraph
///     The block.
/// keep : sequence of int
///     The nodes at its boundary, each once.
/// epsilon, threads, caps, time_limit_s, work_limit, max_table_cells, max_bytes, progress
///     As in `solve`; `caps` hold for the costs included.
///
/// Returns
/// -------
/// Contraction
///
/// Raises
/// ------
/// ProblemError
///     If a kept node is not there or named twice, or an option is out of range.
/// LimitError
///     If the table or an intermediate one is larger than a limit allows, or a time or work limit
///     is reached: half a block has no use.
///
/// Examples
/// --------
/// A chain of two edges becomes one:
///
/// >>> import tensoropt as to
/// >>> node, edge = [[0, 1], [1, 0]], [[[0, 0], [2, 2]], [[2, 2], [0, 0]]]
/// >>> chain = to.CostGraph.from_arrays([node] * 3, [(0, 1, edge), (1, 2, edge)])
/// >>> from tensoropt._native import contract
/// >>> block = contract(chain, keep=[0, 2])
/// >>> block.shape, block.offsets.tolist()
/// ((2, 2), [0, 1, 3, 5, 6])
/// >>> outer = to.CostGraph()
/// >>> ends = [outer.add_node(outer.add_table(node)) for _ in range(2)]
/// >>> outer.add_factor(ends, outer.add_contraction(block))
/// 0
/// >>> to.solve(outer).costs.tolist() == to.solve(chain).costs.tolist()
/// True
#[pyfunction]
#[pyo3(signature = (
    graph, keep, epsilon=0.0, threads=None, caps=None, *, time_limit_s=None, work_limit=None,
    max_table_cells=None, max_bytes=None, progress=None
))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
pub(super) fn contract(
    py: Python<'_>,
    graph: PyRef<'_, CostGraph>,
    keep: Vec<i64>,
    epsilon: f64,
    threads: Option<i64>,
    caps: Option<Vec<Option<f64>>>,
    time_limit_s: Option<f64>,
    work_limit: Option<i64>,
    max_table_cells: Option<i64>,
    max_bytes: Option<i64>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Contraction> {
    let max_points = None;
    let arguments = Arguments {
        epsilon,
        threads,
        caps,
        max_table_cells,
        max_bytes,
        work_limit,
        time_limit_s,
        max_points,
    };
    let options = arguments.options(&graph.units)?;
    let keep = node_ids(&keep, "keep")?;
    let (graph, units) = graph.snapshot();
    let contraction =
        enter(py, progress, |watch| crate::contract_watched(&graph, &keep, &options, watch))?;
    let (nodes, factors, threads) = (graph.nodes(), graph.factors(), options.threads);
    Ok(Contraction { contraction, units, nodes, factors, threads })
}

/// A graph contracted to a table over a few of its nodes.
///
/// The costs of the kept nodes, and of factors among kept nodes only, are not included: they belong
/// to the graph around it.
#[pyclass(frozen, module = "tensoropt._native")]
pub(super) struct Contraction {
    pub(super) contraction: crate::Contraction,
    pub(super) units: Units,
    nodes: usize,
    factors: usize,
    threads: Option<usize>,
}

#[pymethods]
impl Contraction {
    /// The kept nodes, one per axis of the table.
    #[getter]
    fn keep<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.contraction.keep().iter().map(|node| node.0))
    }

    /// The number of configurations of each kept node.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.contraction.table().dims())
    }

    /// The index of each cell's first alternative and their number, shape (cells + 1,).
    #[getter]
    fn offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<u32>>> {
        frozen_vector(py, self.contraction.table().offsets().to_vec())
    }

    /// Cost vectors of all alternatives, shape (alternatives, D); as `Solution.costs`.
    #[getter]
    fn costs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let table = self.contraction.table();
        self.units.decode(py, table.costs(), table.objectives())
    }

    /// The proven factor of its cells' frontiers: 1.0 if they are exact.
    #[getter]
    fn factor(&self) -> f64 {
        self.contraction.factor()
    }

    /// Return the choices behind alternatives of cells.
    ///
    /// Parameters
    /// ----------
    /// cells : int array of shape (m,)
    ///     Row-major over the kept nodes, as `numpy.ravel_multi_index` gives them.
    /// alternatives : int array of shape (m,)
    ///     The position of an alternative within its cell.
    ///
    /// Returns
    /// -------
    /// assignments : int array of shape (m, nodes)
    ///     The configuration of each node of the contracted graph, kept ones included.
    /// node_alternatives : int array of shape (m, nodes)
    ///     The alternative taken in each node's cell; -1 for kept nodes.
    /// alternatives : int array of shape (m, factors)
    ///     The alternative taken in each factor's cell; -1 for factors among kept nodes only.
    ///
    /// Raises
    /// ------
    /// ProblemError
    ///     If there is no such cell or alternative, or the lengths differ.
    fn expand(
        &self,
        py: Python<'_>,
        cells: &Bound<'_, PyAny>,
        alternatives: &Bound<'_, PyAny>,
    ) -> PyResult<(ChoiceMatrix, ChoiceMatrix, ChoiceMatrix)> {
        let (cells, alternatives) =
            (indices(cells, "cells")?, indices(alternatives, "alternatives")?);
        if cells.len() != alternatives.len() {
            return Err(problem(format!(
                "cells has length {}, alternatives {}: expected one alternative per cell",
                cells.len(),
                alternatives.len()
            )));
        }
        let pairs = cells.iter().zip(&alternatives);
        let picks: Vec<_> = pairs.map(|(&cell, &pick)| (cell as usize, pick as usize)).collect();
        let choices = py.detach(|| self.contraction.expand_many(&picks, self.threads))?;
        let choices = Choices::new(py, &choices, self.nodes, self.factors)?;
        Ok((choices.assignments, choices.node_alternatives, choices.alternatives))
    }

    fn __repr__(&self) -> String {
        let table = self.contraction.table();
        format!(
            "<Contraction: nodes {:?}, shape {:?}, {} alternatives, factor {}>",
            self.contraction.keep().iter().map(|node| node.0).collect::<Vec<_>>(),
            table.dims(),
            table.costs().len() / table.objectives(),
            table.factor()
        )
    }
}
