//! Graphs made from a graph: nodes split into copies, or held to a configuration.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{CostGraph, Table};
use crate::error::Result;
use crate::ids::{FactorId, NodeId, TableId};

impl CostGraph {
    /// The same graph with further nodes that are copies of others and cost nothing, and with
    /// factors that name copies instead. Every plan of the graph is one of this graph too, at the
    /// same cost: that in which copies agree.
    ///
    /// # Arguments
    ///
    /// * `copies`: for each new node, whose copy it is.
    /// * `scopes`: for each factor its nodes, in the order of its table's axes.
    ///
    /// # Errors
    ///
    /// As [`add_node`](Self::add_node) and [`add_factor`](Self::add_factor).
    pub(crate) fn with_copies(&self, copies: &[NodeId], scopes: &[Vec<NodeId>]) -> Result<Self> {
        let mut split = Self::new(self.aggregates())?;
        let mut tables = Kept::new(self);
        for node in (0..self.nodes() as u32).map(NodeId) {
            let table = tables.id(self, &mut split, self.node_table_id(node))?;
            split.add_node(table)?;
        }
        for &node in copies {
            let free = split.add_table(free_of_cost(self.node_table(node))?)?;
            split.add_node(free)?;
        }
        for (factor, scope) in scopes.iter().enumerate() {
            let slot = self.factor_table_id(FactorId(factor as u32));
            let table = tables.id(self, &mut split, slot)?;
            split.add_factor(scope, table)?;
        }
        Ok(split)
    }

    /// The same graph with some nodes held to one configuration: its plans are those of the graph
    /// that choose them. Nodes and factors keep their numbers, and alternatives their positions.
    /// Factors no longer name nodes that are held, unless they name nothing else.
    ///
    /// # Arguments
    ///
    /// * `held`: for each node its configuration, if it is held.
    ///
    /// # Errors
    ///
    /// As [`add_node`](Self::add_node) and [`add_factor`](Self::add_factor).
    pub(crate) fn with_held(&self, held: &[Option<u32>]) -> Result<Self> {
        let mut narrow = Self::new(self.aggregates())?;
        let mut tables = Kept::new(self);
        for node in (0..self.nodes() as u32).map(NodeId) {
            let table = match held[node.index()] {
                None => tables.id(self, &mut narrow, self.node_table_id(node))?,
                Some(k) => narrow.add_table(only(self.node_table(node), &[Some(k)], &[0])?)?,
            };
            narrow.add_node(table)?;
        }
        let mut sliced: FxHashMap<(TableId, Vec<Option<u32>>), TableId> = FxHashMap::default();
        for factor in (0..self.factors() as u32).map(FactorId) {
            let scope = self.scope(factor);
            let chosen: Vec<Option<u32>> = scope.iter().map(|node| held[node.index()]).collect();
            let mut axes: Vec<usize> = (0..scope.len()).filter(|&i| chosen[i].is_none()).collect();
            let slot = self.factor_table_id(factor);
            let table = if axes.len() == scope.len() {
                tables.id(self, &mut narrow, slot)?
            } else {
                if axes.is_empty() {
                    axes.push(0);
                }
                match sliced.get(&(slot, chosen.clone())) {
                    Some(&table) => table,
                    None => {
                        let table = only(self.factor_table(factor), &chosen, &axes)?;
                        let table = narrow.add_table(table)?;
                        sliced.insert((slot, chosen), table);
                        table
                    }
                }
            };
            let scope: Vec<NodeId> = axes.iter().map(|&axis| scope[axis]).collect();
            narrow.add_factor(&scope, table)?;
        }
        Ok(narrow)
    }
}

/// Where tables of one graph lie in another that was given them; each is handed over once.
struct Kept(Vec<Option<TableId>>);

impl Kept {
    fn new(graph: &CostGraph) -> Self {
        Self(vec![None; graph.tables()])
    }

    fn id(&mut self, from: &CostGraph, to: &mut CostGraph, table: TableId) -> Result<TableId> {
        if let Some(id) = self.0[table.index()] {
            return Ok(id);
        }
        let id = to.add_shared(Arc::clone(from.shared(table)))?;
        self.0[table.index()] = Some(id);
        Ok(id)
    }
}

/// A table with the same possible cells, each at no cost.
fn free_of_cost(table: &Table) -> Result<Table> {
    let impossible: Vec<bool> =
        (0..table.cells()).map(|cell| table.alternatives(cell).len() == 0).collect();
    let costs = vec![0; table.cells() * table.objectives()];
    Table::dense(table.dims(), table.objectives(), &costs, Some(&impossible))
}

/// The part of a table where some axes are at a configuration.
///
/// # Arguments
///
/// * `chosen`: for each axis its configuration, or none.
/// * `axes`: those that the part has. Cells where one of them is not as chosen are empty.
fn only(table: &Table, chosen: &[Option<u32>], axes: &[usize]) -> Result<Table> {
    let dims: Vec<u32> = axes.iter().map(|&axis| table.dims()[axis]).collect();
    let cells: usize = dims.iter().map(|&dim| dim as usize).product();
    let (mut offsets, mut costs) = (vec![0u32], Vec::new());
    let mut at: Vec<u32> = chosen.iter().map(|k| k.unwrap_or(0)).collect();
    for cell in 0..cells {
        let mut rest = cell;
        for (&axis, &dim) in axes.iter().zip(&dims).rev() {
            at[axis] = (rest % dim as usize) as u32;
            rest /= dim as usize;
        }
        let as_chosen = axes.iter().all(|&axis| chosen[axis].is_none_or(|k| k == at[axis]));
        if let Some(source) = table.cell(&at).filter(|_| as_chosen) {
            costs.extend(table.alternatives(source).flatten());
        }
        offsets.push((costs.len() / table.objectives()) as u32);
    }
    Table::with_alternatives(&dims, table.objectives(), &offsets, &costs)?
        .with_factor(table.factor())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Aggregate;

    /// Two nodes of two and three configurations, one edge with an impossible cell.
    fn graph() -> CostGraph {
        let mut graph = CostGraph::new(&[Aggregate::Sum]).unwrap();
        let a = graph.add_table(Table::dense(&[2], 1, &[1, 2], None).unwrap()).unwrap();
        let b = graph.add_table(Table::dense(&[3], 1, &[10, 20, 30], None).unwrap()).unwrap();
        let gone = [false, false, true, false, false, false];
        let edge = Table::dense(&[2, 3], 1, &[100, 200, 0, 400, 500, 600], Some(&gone)).unwrap();
        let edge = graph.add_table(edge).unwrap();
        let (a, b) = (graph.add_node(a).unwrap(), graph.add_node(b).unwrap());
        graph.add_factor(&[a, b], edge).unwrap();
        graph
    }

    #[test]
    fn holding_a_node_leaves_the_plans_that_choose_it() {
        let held = graph().with_held(&[None, Some(2)]).unwrap();
        assert_eq!(held.scope(FactorId(0)), [NodeId(0)]);
        assert_eq!(held.factor_table(FactorId(0)).costs(), [600]);
        assert_eq!(held.factor_table(FactorId(0)).offsets(), [0, 0, 1]);
        assert_eq!(held.cost(&[1, 2], &[0, 0], &[0]), Some(vec![632]));
        assert_eq!(held.cost(&[1, 1], &[0, 0], &[0]), None);
    }

    #[test]
    fn a_factor_of_held_nodes_keeps_one_of_them() {
        let held = graph().with_held(&[Some(1), Some(0)]).unwrap();
        assert_eq!(held.scope(FactorId(0)), [NodeId(0)]);
        assert_eq!(held.cost(&[1, 0], &[0, 0], &[0]), Some(vec![412]));
        assert_eq!(held.cost(&[0, 0], &[0, 0], &[0]), None);
    }

    #[test]
    fn copies_that_agree_cost_what_the_node_does() {
        let split = graph().with_copies(&[NodeId(1)], &[vec![NodeId(0), NodeId(2)]]).unwrap();
        assert_eq!(split.nodes(), 3);
        assert_eq!(split.cost(&[1, 2, 2], &[0; 3], &[0]), Some(vec![632]));
        // They need not agree: then it may cost less than anything in truth.
        assert_eq!(split.cost(&[1, 0, 2], &[0; 3], &[0]), Some(vec![612]));
    }
}
