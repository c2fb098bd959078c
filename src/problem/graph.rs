//! The cost graph: [`CostGraph`].

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHasher};

use super::{Aggregate, Table};
use crate::error::{Error, Result};
use crate::ids::{FactorId, NodeId, TableId};

/// Nodes with configurations, and costs on them and between them.
///
/// # Example
///
/// ```
/// use tensoropt::{Aggregate, CostGraph, Table};
///
/// let mut graph = CostGraph::new(&[Aggregate::Sum, Aggregate::Sum])?;
/// let node = graph.add_table(Table::dense(&[2], 2, &[1, 8, 4, 2], None)?)?;
/// let edge = graph.add_table(Table::dense(&[2, 2], 2, &[0, 0, 1, 1, 1, 1, 0, 0], None)?)?;
/// let (a, b) = (graph.add_node(node)?, graph.add_node(node)?);
/// graph.add_factor(&[a, b], edge)?;
/// assert_eq!((graph.nodes(), graph.factors()), (2, 1));
/// # Ok::<(), tensoropt::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CostGraph {
    aggregates: Vec<Aggregate>,
    tables: Vec<Arc<Table>>,
    by_hash: FxHashMap<u64, Vec<TableId>>,
    nodes: Vec<TableId>,
    factors: Vec<(Box<[NodeId]>, TableId)>,
    /// The largest value that each objective can add up to.
    largest: Vec<u64>,
}

impl CostGraph {
    /// An empty graph whose costs have the given objectives.
    ///
    /// # Errors
    ///
    /// [`Error::Objectives`] unless there are 1 to 4.
    pub fn new(aggregates: &[Aggregate]) -> Result<Self> {
        if !(1..=4).contains(&aggregates.len()) {
            return Err(Error::Objectives { got: aggregates.len() });
        }
        Ok(Self {
            aggregates: aggregates.to_vec(),
            tables: Vec::new(),
            by_hash: FxHashMap::default(),
            nodes: Vec::new(),
            factors: Vec::new(),
            largest: vec![0; aggregates.len()],
        })
    }

    /// Adds a table, or finds it if an equal one is there.
    ///
    /// # Errors
    ///
    /// [`Error::Table`] if its objectives are not those of the graph.
    pub fn add_table(&mut self, table: Table) -> Result<TableId> {
        self.add_shared(Arc::new(table))
    }

    /// [`add_table`](Self::add_table) for one that another graph may have too.
    pub(super) fn add_shared(&mut self, table: Arc<Table>) -> Result<TableId> {
        if table.objectives() != self.aggregates.len() {
            return Err(Error::Table {
                what: format!(
                    "it has {} objectives, the graph has {}",
                    table.objectives(),
                    self.aggregates.len()
                ),
            });
        }
        let mut hasher = FxHasher::default();
        (table.dims(), table.offsets(), table.costs()).hash(&mut hasher);
        let same = self.by_hash.entry(hasher.finish()).or_default();
        if let Some(&id) = same.iter().find(|id| self.tables[id.index()] == table) {
            return Ok(id);
        }
        let id = TableId(next("tables", self.tables.len())?);
        same.push(id);
        self.tables.push(table);
        Ok(id)
    }

    /// Adds a node with as many configurations as its table has cells.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownTable`], [`Error::NodeShape`] unless the table has one axis, and
    /// [`Error::Overflow`] if the costs could then add up beyond 64 bits.
    pub fn add_node(&mut self, table: TableId) -> Result<NodeId> {
        let node = NodeId(next("nodes", self.nodes.len())?);
        let shape = self.table(table)?.dims();
        if shape.len() != 1 {
            return Err(Error::NodeShape { node, table, dims: shape.to_vec() });
        }
        self.add_largest(table, || node.to_string())?;
        self.nodes.push(table);
        Ok(node)
    }

    /// Adds costs between nodes: an edge if there are two. Several factors over the same nodes, in
    /// any order, are fine: they add up.
    ///
    /// # Arguments
    ///
    /// * `scope`: the nodes, each once.
    /// * `table`: one axis per node of the scope, in that order.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownTable`], [`Error::UnknownNode`], [`Error::EmptyScope`],
    /// [`Error::RepeatedNode`], [`Error::FactorShape`] if the axes do not fit the nodes, and
    /// [`Error::Overflow`] if the costs could then add up beyond 64 bits.
    pub fn add_factor(&mut self, scope: &[NodeId], table: TableId) -> Result<FactorId> {
        let factor = FactorId(next("factors", self.factors.len())?);
        if scope.is_empty() {
            return Err(Error::EmptyScope { factor });
        }
        if let Some(&node) = scope.iter().find(|node| node.index() >= self.nodes.len()) {
            return Err(Error::UnknownNode(node));
        }
        if let Some(i) = (1..scope.len()).find(|&i| scope[..i].contains(&scope[i])) {
            return Err(Error::RepeatedNode { factor, node: scope[i] });
        }
        let dims = self.table(table)?.dims();
        let configurations: Vec<u32> =
            scope.iter().map(|&node| self.configurations(node)).collect();
        if dims != configurations {
            let (scope, dims) = (scope.to_vec(), dims.to_vec());
            return Err(Error::FactorShape { factor, scope, configurations, table, dims });
        }
        self.add_largest(table, || factor.to_string())?;
        self.factors.push((scope.into(), table));
        Ok(factor)
    }

    /// How each objective adds up.
    #[must_use]
    pub fn aggregates(&self) -> &[Aggregate] {
        &self.aggregates
    }

    /// Number of objectives.
    #[must_use]
    pub fn objectives(&self) -> usize {
        self.aggregates.len()
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Number of factors.
    #[must_use]
    pub fn factors(&self) -> usize {
        self.factors.len()
    }

    /// Number of different tables.
    #[must_use]
    pub fn tables(&self) -> usize {
        self.tables.len()
    }

    /// The configurations of a node.
    ///
    /// # Panics
    ///
    /// If the node is not of this graph.
    #[must_use]
    pub fn configurations(&self, node: NodeId) -> u32 {
        self.node_table(node).dims()[0]
    }

    /// The table of a node.
    ///
    /// # Panics
    ///
    /// If the node is not of this graph.
    #[must_use]
    pub fn node_table(&self, node: NodeId) -> &Table {
        &self.tables[self.nodes[node.index()].index()]
    }

    /// The identifier of a node's table.
    ///
    /// # Panics
    ///
    /// If the node is not of this graph.
    #[must_use]
    pub fn node_table_id(&self, node: NodeId) -> TableId {
        self.nodes[node.index()]
    }

    /// The nodes that a factor names.
    ///
    /// # Panics
    ///
    /// If the factor is not of this graph.
    #[must_use]
    pub fn scope(&self, factor: FactorId) -> &[NodeId] {
        &self.factors[factor.index()].0
    }

    /// The table of a factor.
    ///
    /// # Panics
    ///
    /// If the factor is not of this graph.
    #[must_use]
    pub fn factor_table(&self, factor: FactorId) -> &Table {
        &self.tables[self.factors[factor.index()].1.index()]
    }

    /// The identifier of a factor's table.
    ///
    /// # Panics
    ///
    /// If the factor is not of this graph.
    #[must_use]
    pub fn factor_table_id(&self, factor: FactorId) -> TableId {
        self.factors[factor.index()].1
    }

    /// A table by its identifier.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownTable`].
    pub fn table(&self, table: TableId) -> Result<&Table> {
        self.tables.get(table.index()).map(Arc::as_ref).ok_or(Error::UnknownTable(table))
    }

    /// A table that another graph may have too.
    pub(super) fn shared(&self, table: TableId) -> &Arc<Table> {
        &self.tables[table.index()]
    }

    /// The tables that some node or factor uses, each once.
    pub fn used_tables(&self) -> impl Iterator<Item = &Table> {
        let mut used = vec![false; self.tables.len()];
        for id in self.nodes.iter().chain(self.factors.iter().map(|(_, id)| id)) {
            used[id.index()] = true;
        }
        self.tables.iter().zip(used).filter(|(_, used)| *used).map(|(table, _)| table.as_ref())
    }

    /// A bound on what an objective can add up to: the largest costs of all parts, aggregated.
    ///
    /// # Panics
    ///
    /// If there is no such objective.
    #[must_use]
    pub fn largest(&self, objective: usize) -> u64 {
        self.largest[objective]
    }

    /// The cost of a complete choice, added up from the tables.
    ///
    /// # Arguments
    ///
    /// * `configurations`: one per node.
    /// * `node_alternatives`, `factor_alternatives`: the alternative taken in the cell that each
    ///   node's or factor's configurations select.
    ///
    /// # Returns
    ///
    /// The cost vector, or `None` if an array has the wrong length or names a configuration or
    /// alternative that does not exist.
    #[must_use]
    pub fn cost(
        &self,
        configurations: &[u32],
        node_alternatives: &[u32],
        factor_alternatives: &[u32],
    ) -> Option<Vec<u64>> {
        if configurations.len() != self.nodes.len()
            || node_alternatives.len() != self.nodes.len()
            || factor_alternatives.len() != self.factors.len()
        {
            return None;
        }
        let mut total = vec![0; self.objectives()];
        let mut add = |table: TableId, chosen: &[u32], alternative: u32| {
            let table = &self.tables[table.index()];
            let cost = table.alternatives(table.cell(chosen)?).nth(alternative as usize)?;
            for ((total, &cost), aggregate) in total.iter_mut().zip(cost).zip(&self.aggregates) {
                *total = aggregate.combine(*total, cost);
            }
            Some(())
        };
        for (node, &table) in self.nodes.iter().enumerate() {
            add(table, &configurations[node..=node], node_alternatives[node])?;
        }
        let mut chosen = Vec::new();
        for ((scope, table), &alternative) in self.factors.iter().zip(factor_alternatives) {
            chosen.clear();
            chosen.extend(scope.iter().map(|node| configurations[node.index()]));
            add(*table, &chosen, alternative)?;
        }
        Some(total)
    }

    /// Raises the largest possible sums by those of a table, or refuses it.
    fn add_largest(&mut self, table: TableId, part: impl Fn() -> String) -> Result<()> {
        let mut raised = self.largest.clone();
        let table = self.table(table)?;
        for (objective, so_far) in raised.iter_mut().enumerate() {
            let added = table.largest(objective);
            *so_far = match self.aggregates[objective] {
                Aggregate::Max => added.max(*so_far),
                Aggregate::Sum => so_far.checked_add(added).ok_or_else(|| Error::Overflow {
                    objective,
                    part: part(),
                    so_far: *so_far,
                    added,
                    sum: u128::from(*so_far) + u128::from(added),
                })?,
            };
        }
        self.largest = raised;
        Ok(())
    }
}

fn next(what: &'static str, count: usize) -> Result<u32> {
    u32::try_from(count)
        .ok()
        .filter(|&count| count < u32::MAX)
        .ok_or(Error::TooMany { what, limit: u64::from(u32::MAX) - 1 })
}
