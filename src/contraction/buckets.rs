//! What makes a dense graph narrow: nodes split into copies, [`split`], or held, [`hold`].
//!
//! Eliminating a node joins all tables that mention it, its bucket. Where that would be too large a
//! table, the bucket is cut into smaller ones (mini-buckets: Dechter and Rish, "Mini-buckets: a
//! general scheme for bounded inference", J. ACM 50(2), 2003), each of which eliminates a copy of the
//! node. The copies need not agree, so the result bounds the problem from below. Or some node of the
//! bucket is held to one configuration, so that tables need not list it: what is then left of the
//! problem are plans of it, but not all.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::ids::{FactorId, NodeId};
use crate::problem::CostGraph;

/// A graph whose nodes have copies.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// For each further node, whose copy it is. They are numbered after the graph's own.
    pub copies: Vec<NodeId>,
    /// For each factor its nodes or copies of them, in the order of its table's axes.
    pub scopes: Vec<Vec<NodeId>>,
}

/// Splits nodes so that they can be eliminated, one after the other, without a table of more than
/// `cells` cells, as far as those of the graph are within that.
///
/// # Complexity
///
/// Linear in the sizes of all buckets, which for a hub is the square of its neighbours' number.
pub(crate) fn split(graph: &CostGraph, cells: u128) -> Split {
    let mut buckets = Buckets::new(graph, cells);
    let mut order = Order::new(&mut buckets);
    while let Some((node, _)) = order.pop() {
        let neighbours = buckets.eliminate(node);
        order.update(&mut buckets, &neighbours);
    }
    buckets.split
}

/// Chooses nodes such that the others can be eliminated, one after the other, without a table of
/// more than `cells` cells.
///
/// # Arguments
///
/// * `weights`: for each node; where a node must be held, it is the heaviest of its bucket.
///
/// # Complexity
///
/// As [`split`].
pub(crate) fn hold(graph: &CostGraph, cells: u128, weights: &[u32]) -> Vec<NodeId> {
    let mut buckets = Buckets::new(graph, cells);
    let mut order = Order::new(&mut buckets);
    let mut held = Vec::new();
    while let Some((node, size)) = order.pop() {
        let neighbours = if size <= cells {
            buckets.eliminate(node)
        } else {
            let heaviest =
                buckets.scope(node).into_iter().rev().max_by_key(|&n| weights[n as usize]);
            let heaviest = heaviest.unwrap_or(node);
            held.push(NodeId(heaviest));
            let neighbours = buckets.remove(heaviest);
            if heaviest != node {
                order.close(heaviest);
                order.reopen(node);
            }
            neighbours
        };
        order.update(&mut buckets, &neighbours);
    }
    held
}

/// Nodes by the size of their buckets, the smallest first.
struct Order {
    heap: BinaryHeap<Reverse<(u128, u32)>>,
    size: Vec<u128>,
    open: Vec<bool>,
}

impl Order {
    fn new(buckets: &mut Buckets) -> Self {
        let nodes = buckets.dims.len();
        let size: Vec<u128> = (0..nodes as u32).map(|node| buckets.size(node)).collect();
        let heap = size.iter().zip(0..).map(|(&size, node)| Reverse((size, node))).collect();
        Self { heap, size, open: vec![true; nodes] }
    }

    /// The next node and the size of its bucket; it does not come again.
    fn pop(&mut self) -> Option<(u32, u128)> {
        while let Some(Reverse((size, node))) = self.heap.pop() {
            if self.open[node as usize] && size == self.size[node as usize] {
                self.open[node as usize] = false;
                return Some((node, size));
            }
        }
        None
    }

    fn close(&mut self, node: u32) {
        self.open[node as usize] = false;
    }

    /// Lets a node come again, at the latest when its bucket has another size.
    fn reopen(&mut self, node: u32) {
        self.open[node as usize] = true;
        self.heap.push(Reverse((self.size[node as usize], node)));
    }

    /// Looks at some nodes again, whose buckets are not what they were.
    fn update(&mut self, buckets: &mut Buckets, nodes: &[u32]) {
        for &node in nodes {
            let now = buckets.size(node);
            if self.open[node as usize] && now != self.size[node as usize] {
                self.size[node as usize] = now;
                self.heap.push(Reverse((now, node)));
            }
        }
    }
}

/// A table that there would be: the nodes that it mentions, sorted, and the factors in it.
#[derive(Debug)]
struct Scoped {
    nodes: Vec<u32>,
    factors: Vec<u32>,
}

struct Buckets {
    dims: Vec<u32>,
    cells: u128,
    tables: Vec<Option<Scoped>>,
    /// For each node the tables that mention it; may hold some that are gone.
    mentions: Vec<Vec<usize>>,
    split: Split,
}

impl Buckets {
    fn new(graph: &CostGraph, cells: u128) -> Self {
        let factors = (0..graph.factors() as u32).map(FactorId);
        let scopes = factors.map(|factor| graph.scope(factor).to_vec()).collect();
        let nodes = (0..graph.nodes() as u32).map(NodeId);
        let mut buckets = Self {
            dims: nodes.map(|node| graph.configurations(node)).collect(),
            cells,
            tables: Vec::new(),
            mentions: vec![Vec::new(); graph.nodes()],
            split: Split { copies: Vec::new(), scopes },
        };
        for factor in 0..graph.factors() {
            let mut nodes: Vec<u32> =
                buckets.split.scopes[factor].iter().map(|node| node.0).collect();
            nodes.sort_unstable();
            buckets.add(Scoped { nodes, factors: vec![factor as u32] });
        }
        buckets
    }

    fn add(&mut self, table: Scoped) {
        for &node in &table.nodes {
            self.mentions[node as usize].push(self.tables.len());
        }
        self.tables.push(Some(table));
    }

    fn bucket(&mut self, node: u32) -> &[usize] {
        let tables = &self.tables;
        let mentions = &mut self.mentions[node as usize];
        mentions.retain(|&table| tables[table].is_some());
        mentions
    }

    /// Cells of the table that eliminating a node makes, if it is not split.
    fn size(&mut self, node: u32) -> u128 {
        let scope = self.scope(node);
        self.size_without(&scope, node)
    }

    /// Combinations of configurations of some nodes, one of them left out.
    fn size_without(&self, nodes: &[u32], left_out: u32) -> u128 {
        let others = nodes.iter().filter(|&&node| node != left_out);
        let dims = others.map(|&node| u128::from(self.dims[node as usize]));
        dims.fold(1, u128::saturating_mul)
    }

    /// All nodes in a node's bucket, itself included if there is anything in it, sorted.
    fn scope(&mut self, node: u32) -> Vec<u32> {
        let bucket = self.bucket(node).to_vec();
        let all = bucket.iter().filter_map(|&table| self.tables[table].as_ref());
        let mut nodes: Vec<u32> = all.flat_map(|table| table.nodes.iter().copied()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Takes a node out of all tables; returns its neighbours.
    fn remove(&mut self, node: u32) -> Vec<u32> {
        let mut neighbours = self.scope(node);
        neighbours.retain(|&other| other != node);
        for table in self.bucket(node).to_vec() {
            if let Some(table) = &mut self.tables[table] {
                table.nodes.retain(|&other| other != node);
            }
        }
        self.mentions[node as usize].clear();
        neighbours
    }

    /// Eliminates a node, and further copies of it if need be; returns its neighbours.
    fn eliminate(&mut self, node: u32) -> Vec<u32> {
        let bucket = self.bucket(node).to_vec();
        let mut tables: Vec<Scoped> =
            bucket.into_iter().filter_map(|table| self.tables[table].take()).collect();
        // The largest first: small ones then find a place beside them.
        tables.sort_by_key(|table| Reverse(self.size_without(&table.nodes, node)));
        let mut joined: Vec<Scoped> = Vec::new();
        for table in tables {
            let place = joined.iter().position(|other| {
                self.size_without(&union(&other.nodes, &table.nodes), node) <= self.cells
            });
            match place {
                Some(place) => {
                    joined[place].nodes = union(&joined[place].nodes, &table.nodes);
                    joined[place].factors.extend(table.factors);
                }
                None => joined.push(table),
            }
        }
        let mut neighbours = Vec::new();
        for (number, mut table) in joined.into_iter().enumerate() {
            if number > 0 {
                self.copy(node, &table.factors);
            }
            table.nodes.retain(|&other| other != node);
            neighbours.extend_from_slice(&table.nodes);
            if !table.nodes.is_empty() {
                self.add(table);
            }
        }
        neighbours.sort_unstable();
        neighbours.dedup();
        neighbours
    }

    /// Makes a copy of a node and lets some factors name it instead.
    fn copy(&mut self, node: u32, factors: &[u32]) {
        let copy = NodeId((self.dims.len() + self.split.copies.len()) as u32);
        self.split.copies.push(NodeId(node));
        for &factor in factors {
            for named in &mut self.split.scopes[factor as usize] {
                if named.0 == node {
                    *named = copy;
                }
            }
        }
    }
}

/// Of two sorted lists without repetition, the sorted list of what is in either.
fn union(a: &[u32], b: &[u32]) -> Vec<u32> {
    let mut all = [a, b].concat();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Aggregate, Table};

    fn clique(nodes: u32, configurations: u32) -> CostGraph {
        let mut graph = CostGraph::new(&[Aggregate::Sum]).unwrap();
        let dims = [configurations, configurations];
        let zeros = vec![0; (configurations * configurations) as usize];
        let own = Table::dense(&dims[..1], 1, &zeros[..configurations as usize], None).unwrap();
        let own = graph.add_table(own).unwrap();
        let edge = graph.add_table(Table::dense(&dims, 1, &zeros, None).unwrap()).unwrap();
        let ids: Vec<NodeId> = (0..nodes).map(|_| graph.add_node(own).unwrap()).collect();
        for (i, &a) in ids.iter().enumerate() {
            for &b in &ids[i + 1..] {
                graph.add_factor(&[a, b], edge).unwrap();
            }
        }
        graph
    }

    #[test]
    fn what_is_narrow_stays_whole() {
        let split = split(&clique(4, 3), 27);
        assert_eq!(split.copies, []);
        assert_eq!(split.scopes[0], [NodeId(0), NodeId(1)]);
    }

    #[test]
    fn a_clique_is_split_into_what_fits() {
        let graph = clique(5, 3);
        for cells in [3, 9, 27] {
            let split = split(&graph, cells);
            assert!(!split.copies.is_empty(), "{cells}");
            // Every factor still names its own nodes or copies of them.
            for (factor, scope) in split.scopes.iter().enumerate() {
                let own = graph.scope(FactorId(factor as u32));
                let whose = scope.iter().map(|node| match node.index().checked_sub(5) {
                    Some(copy) => split.copies[copy],
                    None => *node,
                });
                assert_eq!(whose.collect::<Vec<_>>(), own);
            }
        }
    }

    #[test]
    fn the_heaviest_are_held() {
        let graph = clique(5, 3);
        assert_eq!(hold(&graph, 81, &[0; 5]), []);
        assert_eq!(hold(&graph, 27, &[0, 0, 1, 0, 0]), [NodeId(2)]);
        assert_eq!(hold(&graph, 9, &[1, 0, 2, 0, 0]), [NodeId(2), NodeId(0)]);
        // Of equal ones the first.
        assert_eq!(hold(&graph, 3, &[0; 5]), [NodeId(0), NodeId(1), NodeId(2)]);
        // A node that has no neighbours left takes one cell.
        assert_eq!(hold(&graph, 1, &[0; 5]).len(), 4);
    }

    #[test]
    fn more_cells_need_fewer_copies() {
        let graph = clique(5, 3);
        let count = |cells| split(&graph, cells).copies.len();
        assert!(count(3) > count(9) && count(9) > count(27) && count(81) == 0);
    }
}
