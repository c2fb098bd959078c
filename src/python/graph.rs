//! `CostGraph`: the problem, built from numpy arrays.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::arrays::{Units, table, table_with_alternatives};
use super::contraction::Contraction;
use super::enter::reading;
use super::errors::{at, problem};
use crate::exchange::{load_problem, save_problem};
use crate::ids::{FactorId, NodeId, TableId};
use crate::{Aggregate, CostGraph as Graph};

/// A graph of choices with vector costs.
///
/// Parameters
/// ----------
/// aggregate : sequence of {"sum", "max"}, optional
///     How each objective adds up over nodes and edges; one to four entries. The default is
///     ``("sum", "sum")``.
/// resolution : sequence of float, optional
///     The size of one step of each objective in the units of the costs, for example
///     ``(1e-9, 512)`` for seconds and bytes. Costs are rounded to the nearest number of steps,
///     once; everything after is exact. Without it costs are whole numbers, taken as they are.
///
/// Raises
/// ------
/// ProblemError
///     If there are not one to four objectives, an aggregate is unknown, or a resolution is not a
///     positive finite number.
///
/// Notes
/// -----
/// Cost arrays may be int64, uint64 or float64 (other integers and floats are converted). In a
/// float array ``inf`` marks an impossible entry; one infinite objective makes the whole cost
/// vector impossible. NaN and negative costs are refused.
///
/// Equal tables are held once, so a thousand equal layers cost one. A graph may be changed while
/// another thread solves it; that search goes on with the graph as it was.
///
/// Examples
/// --------
/// Two nodes of two configurations, and an edge that charges for disagreement:
///
/// >>> import tensoropt as to
/// >>> node = [[1, 8], [4, 2]]
/// >>> edge = [[[0, 0], [1, 1]], [[1, 1], [0, 0]]]
/// >>> graph = to.CostGraph.from_arrays([node, node], [(0, 1, edge)])
/// >>> result = to.solve(graph)
/// >>> result.costs.tolist()
/// [[2, 16], [6, 11], [8, 4]]
/// >>> result.assignments.tolist()
/// [[0, 0], [1, 0], [1, 1]]
#[pyclass(module = "tensoropt._native")]
pub(super) struct CostGraph {
    /// Shared with running searches: a change while one runs copies the graph first.
    graph: Arc<Graph>,
    pub(super) units: Units,
}

#[pymethods]
impl CostGraph {
    #[new]
    #[pyo3(signature = (aggregate=None, resolution=None))]
    fn new(aggregate: Option<Vec<String>>, resolution: Option<Vec<f64>>) -> PyResult<Self> {
        let aggregate = match aggregate {
            Some(names) => names.iter().map(|name| aggregate_of(name)).collect::<PyResult<_>>()?,
            None => vec![Aggregate::Sum; 2],
        };
        let units = Units::new(resolution, aggregate.len())?;
        Ok(Self { graph: Arc::new(Graph::new(&aggregate)?), units })
    }

    /// Build a graph of nodes and edges in one call.
    ///
    /// Parameters
    /// ----------
    /// nodes : sequence of array, each of shape (K_v, D)
    ///     The cost vector of each configuration of each node.
    /// edges : sequence of (u, v, array of shape (K_u, K_v, D)), optional
    ///     The cost vector of each pair of configurations of nodes `u` and `v`. Several edges
    ///     between the same nodes, in either direction, add up.
    /// aggregate : sequence of {"sum", "max"}, optional
    ///     How each objective adds up; ``("sum", "sum")`` by default.
    /// resolution : sequence of float, optional
    ///     The size of one step of each objective; see `CostGraph`.
    ///
    /// Returns
    /// -------
    /// CostGraph
    ///
    /// Raises
    /// ------
    /// ProblemError
    ///     If a shape does not fit, an edge names a node that is not there or one node twice, a
    ///     cost is NaN or negative, or costs could add up beyond 64 bits. The message names the
    ///     node or edge and the entry.
    #[staticmethod]
    #[pyo3(signature = (nodes, edges=None, aggregate=None, resolution=None))]
    fn from_arrays(
        nodes: Vec<Bound<'_, PyAny>>,
        edges: Option<Vec<Bound<'_, PyAny>>>,
        aggregate: Option<Vec<String>>,
        resolution: Option<Vec<f64>>,
    ) -> PyResult<Self> {
        let mut this = Self::new(aggregate, resolution)?;
        for (i, costs) in nodes.iter().enumerate() {
            let name = format!("nodes[{i}]");
            let id = this.intern(costs, None, &name)?;
            this.graph_mut().add_node(id).map_err(|error| at(&format!("{name}: "), error))?;
        }
        for (i, edge) in edges.unwrap_or_default().iter().enumerate() {
            let name = format!("edges[{i}]");
            let (u, v, costs): (i64, i64, Bound<'_, PyAny>) = edge.extract().map_err(|_| {
                problem(format!("{name}: expected (u, v, array) with node indices u and v"))
            })?;
            let scope = [NodeId(index(u, &name)?), NodeId(index(v, &name)?)];
            let id = this.intern(&costs, None, &name)?;
            let added = this.graph_mut().add_factor(&scope, id);
            added.map_err(|error| at(&format!("{name}: "), error))?;
        }
        Ok(this)
    }

    /// Add a cost table, or find an equal one.
    ///
    /// Parameters
    /// ----------
    /// costs : array of shape (K_1, ..., K_r, D)
    ///     A cost vector for each combination of configurations of `r` nodes.
    /// impossible : bool array of shape (K_1, ..., K_r), optional
    ///     Which combinations are impossible; their costs are ignored.
    ///
    /// Returns
    /// -------
    /// int
    ///     The id of the table in this graph.
    ///
    /// Raises
    /// ------
    /// ProblemError
    ///     If a shape does not fit or a cost is NaN or negative.
    #[pyo3(signature = (costs, impossible=None))]
    fn add_table(
        &mut self,
        costs: &Bound<'_, PyAny>,
        impossible: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u32> {
        self.intern(costs, impossible, "costs").map(|id| id.0)
    }

    /// Add a table whose cells hold any number of alternatives.
    ///
    /// Parameters
    /// ----------
    /// shape : sequence of int
    ///     Configurations of each node, (K_1, ..., K_r).
    /// offsets : int array of shape (K_1 * ... * K_r + 1,)
    ///     The index of each cell's first alternative, in row-major order, and the number of all
    ///     alternatives at the end. A cell without alternatives is impossible.
    /// costs : array of shape (alternatives, D)
    ///     The cost vectors.
    /// factor : float, default 1.0
    ///     The factor within which the alternatives cover the true ones, as those of a trimmed
    ///     `Contraction` do. `Solution.factor` includes it.
    ///
    /// Returns
    /// -------
    /// int
    ///     The id of the table in this graph.
    ///
    /// Raises
    /// ------
    /// ProblemError
    ///     If the offsets fall or do not match, a cost is NaN, negative or infinite, or the factor
    ///     is below 1.
    #[pyo3(signature = (shape, offsets, costs, factor=1.0))]
    fn add_table_with_alternatives(
        &mut self,
        shape: Vec<usize>,
        offsets: &Bound<'_, PyAny>,
        costs: &Bound<'_, PyAny>,
        factor: f64,
    ) -> PyResult<u32> {
        let objectives = self.graph.objectives();
        let table = table_with_alternatives(&shape, offsets, costs, &self.units, objectives)?
            .with_factor(factor)?;
        Ok(self.graph_mut().add_table(table)?.0)
    }

    /// Add the table of a contracted graph, to be used as a factor as often as it occurs.
    ///
    /// Parameters
    /// ----------
    /// contraction : Contraction
    ///     Of a graph with the same objectives and the same resolution.
    ///
    /// Returns
    /// -------
    /// int
    ///     The id of the table in this graph.
    ///
    /// Raises
    /// ------
    /// ProblemError
    ///     If objectives or resolution differ.
    fn add_contraction(&mut self, contraction: &Contraction) -> PyResult<u32> {
        if contraction.units != self.units {
            return Err(problem(format!(
                "the contraction has resolution {:?}, the graph has {:?}: give both the same",
                contraction.units.resolution(),
                self.units.resolution()
            )));
        }
        Ok(self.graph_mut().add_table(contraction.contraction.table().clone())?.0)
    }

    /// Add a node with as many configurations as its table has cells.
    ///
    /// Parameters
    /// ----------
    /// table : int
    ///     The id of a table of one axis.
    ///
    /// Returns
    /// -------
    /// int
    ///     The index of the node.
    ///
    /// Raises
    /// ------
    /// ProblemError
    ///     If there is no such table, it has more than one axis, or costs could now add up beyond
    ///     64 bits.
    fn add_node(&mut self, table: i64) -> PyResult<u32> {
        let table = TableId(index(table, "table")?);
        Ok(self.graph_mut().add_node(table)?.0)
    }

    /// Add costs over the configurations of some nodes; an edge if there are two.
    ///
    /// Parameters
    /// ----------
    /// scope : sequence of int
    ///     The nodes, each once.
    /// table : int
    ///     The id of a table with one axis per node, in that order.
    ///
    /// Returns
    /// -------
    /// int
    ///     The index of the factor.
    ///
    /// Raises
    /// ------
    /// ProblemError
    ///     If a node or the table is not there, a node is named twice, the shapes do not fit, or
    ///     costs could now add up beyond 64 bits.
    fn add_factor(&mut self, scope: Vec<i64>, table: i64) -> PyResult<u32> {
        let table = TableId(index(table, "table")?);
        let scope = node_ids(&scope, "scope")?;
        Ok(self.graph_mut().add_factor(&scope, table)?.0)
    }

    /// Number of nodes.
    #[getter]
    fn num_nodes(&self) -> usize {
        self.graph.nodes()
    }

    /// Number of factors; an edge is a factor of two nodes.
    #[getter]
    fn num_factors(&self) -> usize {
        self.graph.factors()
    }

    /// Number of different tables.
    #[getter]
    fn num_tables(&self) -> usize {
        self.graph.tables()
    }

    /// How each objective adds up: "sum" or "max".
    #[getter]
    fn aggregate<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(
            py,
            self.graph.aggregates().iter().map(|aggregate| match aggregate {
                Aggregate::Sum => "sum",
                Aggregate::Max => "max",
            }),
        )
    }

    /// The size of one step of each objective, or None.
    #[getter]
    fn resolution<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.units.resolution().map(|steps| PyTuple::new(py, steps)).transpose()
    }

    /// Return the number of configurations of a node.
    ///
    /// Raises
    /// ------
    /// ProblemError
    ///     If there is no such node.
    fn configurations(&self, node: i64) -> PyResult<u32> {
        let node = NodeId(index(node, "node")?);
        if node.index() < self.graph.nodes() {
            Ok(self.graph.configurations(node))
        } else {
            Err(crate::Error::UnknownNode(node).into())
        }
    }

    /// Return the nodes of a factor.
    ///
    /// Raises
    /// ------
    /// ProblemError
    ///     If there is no such factor.
    fn scope<'py>(&self, py: Python<'py>, factor: i64) -> PyResult<Bound<'py, PyTuple>> {
        let factor = FactorId(index(factor, "factor")?);
        if factor.index() >= self.graph.factors() {
            return Err(problem(format!(
                "there is no {factor} in this graph: it has {}",
                self.graph.factors()
            )));
        }
        PyTuple::new(py, self.graph.scope(factor).iter().map(|node| node.0))
    }

    /// Write the graph to a file, to be read with `load`.
    ///
    /// The file is JSON, compressed if the name ends in ``.gz``. It appears whole or not at all;
    /// equal graphs give equal bytes.
    ///
    /// Parameters
    /// ----------
    /// path : path-like
    ///
    /// Raises
    /// ------
    /// OSError
    ///     If the file cannot be written.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let (graph, units) = self.snapshot();
        Ok(py.detach(|| save_problem(&path, &graph, units.steps()))?)
    }

    /// Read a graph from a file that `save` wrote, compressed or not.
    ///
    /// Parameters
    /// ----------
    /// path : path-like
    /// max_bytes : int, default 2**30
    ///     The most bytes of text, counted after unpacking; bounds time and memory.
    ///
    /// Returns
    /// -------
    /// CostGraph
    ///     The same tables, nodes and factors under the same numbers, and the same resolution.
    ///
    /// Raises
    /// ------
    /// OSError
    ///     If the file cannot be read.
    /// FileFormatError
    ///     If it is damaged, or no graph that this release can read; names the place in the file.
    #[staticmethod]
    #[pyo3(signature = (path, *, max_bytes=None))]
    fn load(py: Python<'_>, path: PathBuf, max_bytes: Option<i64>) -> PyResult<Self> {
        let stored = reading(py, max_bytes, |options| load_problem(&path, options))?;
        Ok(Self::of(stored.value, Units::stored(stored.resolution)))
    }

    fn __repr__(&self) -> String {
        format!(
            "<CostGraph: {} nodes, {} factors, {} tables, {} objectives>",
            self.graph.nodes(),
            self.graph.factors(),
            self.graph.tables(),
            self.graph.objectives()
        )
    }
}

impl CostGraph {
    /// A graph that was made elsewhere.
    pub(super) fn of(graph: Graph, units: Units) -> Self {
        Self { graph: Arc::new(graph), units }
    }

    /// The graph as it is now, whatever is added to it later.
    pub(super) fn snapshot(&self) -> (Arc<Graph>, Units) {
        (self.graph.clone(), self.units.clone())
    }

    fn graph_mut(&mut self) -> &mut Graph {
        Arc::make_mut(&mut self.graph)
    }

    fn intern(
        &mut self,
        costs: &Bound<'_, PyAny>,
        impossible: Option<&Bound<'_, PyAny>>,
        name: &str,
    ) -> PyResult<TableId> {
        let table = table(costs, impossible, name, &self.units, self.graph.objectives())?;
        self.graph_mut().add_table(table).map_err(|error| at(&format!("{name}: "), error))
    }
}

/// An index as the crate holds it; Python's negative ones count from nowhere here.
fn index(value: i64, name: &str) -> PyResult<u32> {
    u32::try_from(value)
        .map_err(|_| problem(format!("{name}: index {value} is not from 0 to 2**32 - 1")))
}

/// Node indices as the crate holds them.
pub(super) fn node_ids(values: &[i64], name: &str) -> PyResult<Vec<NodeId>> {
    values.iter().map(|&value| index(value, name).map(NodeId)).collect()
}

fn aggregate_of(name: &str) -> PyResult<Aggregate> {
    match name {
        "sum" => Ok(Aggregate::Sum),
        "max" => Ok(Aggregate::Max),
        _ => Err(problem(format!("aggregate {name:?} is unknown, expected \"sum\" or \"max\""))),
    }
}
