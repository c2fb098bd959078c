//! `CostGraph`: the problem, built from numpy arrays.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::arrays::{Units, table, table_with_alternatives};
use super::errors::{at, problem};
use crate::ids::{FactorId, NodeId, TableId};
use crate::{Aggregate, CostGraph as Graph};

/// A graph of choices with vector costs.
#[pyclass(module = "tensoropt._native")]
pub(super) struct CostGraph {
    /// Shared with running searches: a change while one runs copies the graph first.
    pub(super) graph: Arc<Graph>,
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

    /// Builds a graph of nodes and edges in one call.
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

    /// Adds a cost table and returns its id; an equal one is found again.
    #[pyo3(signature = (costs, impossible=None))]
    fn add_table(
        &mut self,
        costs: &Bound<'_, PyAny>,
        impossible: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u32> {
        self.intern(costs, impossible, "costs").map(|id| id.0)
    }

    /// Adds a table whose cells hold any number of alternatives and returns its id.
    fn add_table_with_alternatives(
        &mut self,
        shape: Vec<usize>,
        offsets: &Bound<'_, PyAny>,
        costs: &Bound<'_, PyAny>,
    ) -> PyResult<u32> {
        let objectives = self.graph.objectives();
        let table = table_with_alternatives(&shape, offsets, costs, &self.units, objectives)?;
        Ok(self.graph_mut().add_table(table)?.0)
    }

    /// Adds a node and returns its index.
    fn add_node(&mut self, table: i64) -> PyResult<u32> {
        let table = TableId(index(table, "table")?);
        Ok(self.graph_mut().add_node(table)?.0)
    }

    /// Adds costs over the configurations of some nodes and returns the factor's index.
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

    /// Number of configurations of a node.
    fn configurations(&self, node: i64) -> PyResult<u32> {
        let node = NodeId(index(node, "node")?);
        if node.index() < self.graph.nodes() {
            Ok(self.graph.configurations(node))
        } else {
            Err(crate::Error::UnknownNode(node).into())
        }
    }

    /// The nodes of a factor.
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
