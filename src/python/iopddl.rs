//! `IopddlProblem`: instances of a contest, and what an assignment costs by its rules.

use std::path::PathBuf;

use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::arrays::{Units, frozen_vector, indices};
use super::enter::reading;
use super::errors::problem;
use super::graph::CostGraph;
use super::iopddl_evaluation::IopddlEvaluation;
use crate::exchange::IopddlProblem as Instance;

/// An instance of the ASPLOS / EuroSys 2025 contest on intra-operator parallelism.
///
/// Every node takes one of its strategies, which has a cost and a usage of memory. An edge names
/// nodes and has a cost for each combination of their strategies. The usage of a node counts at
/// each point of time of its half-open interval. What is sought is the assignment of least cost
/// whose usage is within the limit at every point of time. Costs of 10**18 and above mean that
/// something is impossible.
///
/// Instances are read with `IopddlProblem.load`.
///
/// References
/// ----------
/// M. D. Moffitt and P. Fegade, "The ASPLOS 2025 / EuroSys 2025 Contest on Intra-Operator
/// Parallelism for Distributed Deep Learning", ASPLOS 2025, volume 3.
///
/// Examples
/// --------
/// >>> import json, tempfile, pathlib
/// >>> import tensoropt as to
/// >>> nodes = {"intervals": [[0, 9], [3, 5]], "costs": [[15], [10, 1]]}
/// >>> nodes["usages"] = [[30], [20, 40]]
/// >>> edges = {"nodes": [[0, 1]], "costs": [[7, 2]]}
/// >>> file = {"problem": {"name": "two", "usage_limit": 50, "nodes": nodes, "edges": edges}}
/// >>> with tempfile.TemporaryDirectory() as folder:
/// ...     path = pathlib.Path(folder) / "two.json"
/// ...     _ = path.write_text(json.dumps(file))
/// ...     problem = to.IopddlProblem.load(path)
/// >>> problem
/// <IopddlProblem: 'two', 2 nodes, 1 edges, usage limit 50>
/// >>> problem.evaluate([0, 1])
/// <IopddlEvaluation: cost 18, peak usage 70 at 3, over the limit>
/// >>> to.solve(problem.cost_graph()).costs.tolist()
/// [[18]]
#[pyclass(frozen, module = "tensoropt._native")]
pub(super) struct IopddlProblem {
    problem: Instance,
}

#[pymethods]
impl IopddlProblem {
    /// Read an instance from a file, compressed or not.
    ///
    /// Parameters
    /// ----------
    /// path : path-like
    /// max_bytes : int, default 2**30
    ///     The most bytes of text, counted after unpacking; bounds time and memory.
    ///
    /// Returns
    /// -------
    /// IopddlProblem
    ///
    /// Raises
    /// ------
    /// OSError
    ///     If the file cannot be read.
    /// FileFormatError
    ///     If it is no instance; names the place in the file.
    #[staticmethod]
    #[pyo3(signature = (path, *, max_bytes=None))]
    fn load(py: Python<'_>, path: PathBuf, max_bytes: Option<i64>) -> PyResult<Self> {
        let problem = reading(py, max_bytes, |options| Instance::load(&path, options))?;
        Ok(Self { problem })
    }

    /// The name of the instance.
    #[getter]
    fn name(&self) -> &str {
        self.problem.name()
    }

    /// The most memory that may be used at any point of time, or None.
    #[getter]
    fn usage_limit(&self) -> Option<u64> {
        self.problem.usage_limit()
    }

    /// Number of nodes.
    #[getter]
    fn num_nodes(&self) -> usize {
        self.problem.nodes()
    }

    /// Number of edges.
    #[getter]
    fn num_edges(&self) -> usize {
        self.problem.edges()
    }

    /// Return the cost of each strategy of a node, shape (strategies,).
    ///
    /// Raises
    /// ------
    /// ProblemError
    ///     If there is no such node.
    fn costs(&self, py: Python<'_>, node: i64) -> PyResult<Py<PyArray1<u64>>> {
        vector(py, self.problem.costs(self.node(node)?))
    }

    /// Return the usage of each strategy of a node, shape (strategies,).
    ///
    /// Raises
    /// ------
    /// ProblemError
    ///     If there is no such node.
    fn usages(&self, py: Python<'_>, node: i64) -> PyResult<Py<PyArray1<u64>>> {
        vector(py, self.problem.usages(self.node(node)?))
    }

    /// Return when a node's usage counts: from the first point of time up to the second.
    ///
    /// Raises
    /// ------
    /// ProblemError
    ///     If there is no such node.
    fn interval(&self, node: i64) -> PyResult<(u64, u64)> {
        let interval = self.problem.interval(self.node(node)?);
        Ok((interval.start, interval.end))
    }

    /// Return the nodes that an edge names.
    ///
    /// Raises
    /// ------
    /// ProblemError
    ///     If there is no such edge.
    fn scope<'py>(&self, py: Python<'py>, edge: i64) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.problem.scope(self.edge(edge)?))
    }

    /// Return the costs of an edge, one axis per node that it names.
    ///
    /// Raises
    /// ------
    /// ProblemError
    ///     If there is no such edge.
    fn edge_costs<'py>(&self, py: Python<'py>, edge: i64) -> PyResult<Bound<'py, PyAny>> {
        let edge = self.edge(edge)?;
        let scope = self.problem.scope(edge).iter();
        let shape: Vec<usize> = scope.map(|&node| self.problem.costs(node).len()).collect();
        let flat = frozen_vector(py, self.problem.edge_costs(edge).to_vec())?;
        Ok(flat.reshape(shape)?.into_any())
    }

    /// Tell what an assignment costs, and its peak usage.
    ///
    /// Parameters
    /// ----------
    /// assignment : int array of shape (nodes,)
    ///     The strategy of each node, such as a row of `Solution.assignments`.
    ///
    /// Returns
    /// -------
    /// IopddlEvaluation
    ///
    /// Raises
    /// ------
    /// ProblemError
    ///     If there is not one strategy per node, or a node has no such strategy.
    fn evaluate(&self, assignment: &Bound<'_, PyAny>) -> PyResult<IopddlEvaluation> {
        let assignment = indices(assignment, "assignment")?;
        Ok(IopddlEvaluation::from(self.problem.evaluate(&assignment)?))
    }

    /// Return the usage over time of an assignment.
    ///
    /// Parameters
    /// ----------
    /// assignment : int array of shape (nodes,)
    ///     The strategy of each node.
    ///
    /// Returns
    /// -------
    /// list of (int, int)
    ///     The points of time at which some node's usage begins or ends, ascending, and what is
    ///     used from there to the next one.
    ///
    /// Raises
    /// ------
    /// ProblemError
    ///     If there is not one strategy per node, or a node has no such strategy.
    fn usage_profile(&self, assignment: &Bound<'_, PyAny>) -> PyResult<Vec<(u64, u128)>> {
        let assignment = indices(assignment, "assignment")?;
        Ok(self.problem.usage_profile(&assignment)?)
    }

    /// Return the problem, or a part of it, without the limit on usage.
    ///
    /// With the limit as a cap on the usage at some points of time, the cost found is a lower bound
    /// on that of the whole problem, and its plan is a solution if the usage happens to fit at all
    /// times.
    ///
    /// Parameters
    /// ----------
    /// nodes : int array of shape (n,), optional
    ///     The nodes of the part, each once, in the order that they will have; all by default.
    ///     Edges to other nodes are left out.
    /// times : sequence of int, optional
    ///     Up to three points of time; each adds an objective, the usage then.
    ///
    /// Returns
    /// -------
    /// CostGraph
    ///     The first objective is the cost; impossible entries are impossible.
    ///
    /// Raises
    /// ------
    /// ProblemError
    ///     If a node is not there or named twice, there are too many times, or costs could add up
    ///     beyond 64 bits.
    #[pyo3(signature = (nodes=None, times=None))]
    fn cost_graph(
        &self,
        py: Python<'_>,
        nodes: Option<&Bound<'_, PyAny>>,
        times: Option<Vec<u64>>,
    ) -> PyResult<CostGraph> {
        let nodes = nodes.map(|nodes| indices(nodes, "nodes")).transpose()?;
        let times = times.unwrap_or_default();
        let graph = py.detach(|| self.problem.cost_graph(nodes.as_deref(), &times))?;
        let units = Units::new(None, graph.objectives())?;
        Ok(CostGraph::of(graph, units))
    }

    fn __repr__(&self) -> String {
        let limit = match self.problem.usage_limit() {
            Some(limit) => format!("usage limit {limit}"),
            None => "no usage limit".to_owned(),
        };
        format!(
            "<IopddlProblem: '{}', {} nodes, {} edges, {limit}>",
            self.problem.name(),
            self.problem.nodes(),
            self.problem.edges()
        )
    }
}

impl IopddlProblem {
    fn node(&self, node: i64) -> PyResult<u32> {
        within(node, self.problem.nodes(), "node")
    }

    fn edge(&self, edge: i64) -> PyResult<u32> {
        within(edge, self.problem.edges(), "edge")
    }
}

fn within(index: i64, count: usize, what: &str) -> PyResult<u32> {
    let found = u32::try_from(index).ok().filter(|&index| (index as usize) < count);
    found.ok_or_else(|| problem(format!("there is no {what} {index}: the problem has {count}")))
}

fn vector(py: Python<'_>, values: &[u64]) -> PyResult<Py<PyArray1<u64>>> {
    frozen_vector(py, values.to_vec()).map(Bound::unbind)
}
