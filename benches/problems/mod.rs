//! Seeded cost graphs to measure with: the same on every machine.
#![allow(dead_code)] // Each target uses its own part.

use tensoropt::{Aggregate, CostGraph, NodeId, Peak, Table, TableId};

/// SplitMix64.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % n
    }
}

/// Largest cost of a cell.
const LARGEST: u64 = 1000;

/// A cost graph that is built edge by edge, with a few tables that take turns.
struct Builder {
    graph: CostGraph,
    own: Vec<TableId>,
    between: Vec<TableId>,
}

impl Builder {
    /// Two sums that work against each other; `k` configurations, `layers` tables of each kind.
    fn new(k: u32, layers: usize, seed: u64) -> Self {
        let mut numbers = Numbers::new(seed);
        let mut graph = CostGraph::new(&[Aggregate::Sum; 2]).unwrap();
        let mut tables = |dims: &[u32]| -> Vec<TableId> {
            let cells: u32 = dims.iter().product();
            let mut table = || {
                let costs: Vec<u64> = (0..cells)
                    .flat_map(|_| {
                        let x = numbers.below(LARGEST);
                        [x + numbers.below(LARGEST / 10), LARGEST - x + numbers.below(LARGEST / 10)]
                    })
                    .collect();
                graph.add_table(Table::dense(dims, 2, &costs, None).unwrap()).unwrap()
            };
            (0..layers).map(|_| table()).collect()
        };
        let (own, between) = (tables(&[k]), tables(&[k, k]));
        Self { graph, own, between }
    }

    fn nodes(&mut self, count: u32) -> Vec<NodeId> {
        let mut next = (0..count as usize).map(|i| self.own[i % self.own.len()]);
        let nodes = (0..count).map(|_| self.graph.add_node(next.next().unwrap()).unwrap());
        nodes.collect()
    }

    fn edges(mut self, edges: impl Iterator<Item = (NodeId, NodeId)>) -> CostGraph {
        for (i, (a, b)) in edges.enumerate() {
            self.graph.add_factor(&[a, b], self.between[i % self.between.len()]).unwrap();
        }
        self.graph
    }
}

/// A chain.
pub fn chain(nodes: u32, k: u32, layers: usize) -> CostGraph {
    let mut builder = Builder::new(k, layers, 1);
    let nodes = builder.nodes(nodes);
    builder.edges(nodes.windows(2).map(|w| (w[0], w[1])))
}

/// Two chains with rungs between them: width 2.
pub fn ladder(rungs: u32, k: u32) -> CostGraph {
    let mut builder = Builder::new(k, 2, 2);
    let nodes = builder.nodes(2 * rungs);
    let sides = nodes.windows(3).map(|w| (w[0], w[2]));
    builder.edges(sides.chain(nodes.chunks(2).map(|w| (w[0], w[1]))))
}

/// A chain all of whose nodes know a hub: width 2, and the hub has all the neighbours.
pub fn hub(leaves: u32, k: u32) -> CostGraph {
    let mut builder = Builder::new(k, 2, 3);
    let nodes = builder.nodes(leaves + 1);
    let spokes = nodes[1..].iter().map(|&leaf| (nodes[0], leaf));
    builder.edges(spokes.chain(nodes[1..].windows(2).map(|w| (w[0], w[1]))))
}

/// Nodes that all know each other.
pub fn clique(nodes: u32, k: u32) -> CostGraph {
    let mut builder = Builder::new(k, 3, 4);
    let nodes = builder.nodes(nodes);
    let pairs = (1..nodes.len()).flat_map(|j| (0..j).map(move |i| (i, j)));
    builder.edges(pairs.map(|(i, j)| (nodes[i], nodes[j])))
}

/// A grid: its width is the shorter side.
pub fn grid(rows: u32, columns: u32, k: u32) -> CostGraph {
    let mut builder = Builder::new(k, 2, 5);
    let nodes = builder.nodes(rows * columns);
    let at = |row: u32, column: u32| nodes[(row * columns + column) as usize];
    let all = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
    let right =
        all.clone().filter(|&(_, c)| c + 1 < columns).map(|(r, c)| (at(r, c), at(r, c + 1)));
    let down = all.filter(|&(r, _)| r + 1 < rows).map(|(r, c)| (at(r, c), at(r + 1, c)));
    builder.edges(right.chain(down))
}

/// The peak of [`transformer`].
pub const PEAK: Peak = Peak { resident: 1, transient: 2, cap: None };

/// What a search over a model of equal layers looks like: operators in a chain with skip
/// connections, a mask that all layers read, first and last operator tied to one weight. Time and
/// memory that stays add up, of the memory that comes and goes the largest counts. Layouts are few,
/// so that tables have equal rows, and moving between some of them can be done in two ways.
pub fn transformer(layers: u32, k: u32) -> CostGraph {
    const OPERATORS: usize = 6;
    let mut numbers = Numbers::new(6);
    let mut graph = CostGraph::new(&[Aggregate::Sum, Aggregate::Sum, Aggregate::Max]).unwrap();
    let layouts = 4.min(k);
    let mut operator = |weight: u64| {
        let costs: Vec<u64> = (0..k)
            .flat_map(|_| {
                let split = 1 + numbers.below(16);
                let time = weight * 4000 / split + weight * numbers.below(200);
                [time, weight * 300 * split + numbers.below(500), numbers.below(8) * 1000]
            })
            .collect();
        Table::dense(&[k], 3, &costs, None).unwrap()
    };
    let tables: Vec<Table> = [1, 6, 4, 2, 8, 8, 3].map(&mut operator).into();
    // How a configuration leaves its output, and how it wants its input.
    let layout = |k: u32| k % layouts;
    let (mut offsets, mut costs) = (vec![0], Vec::new());
    for (from, to) in (0..k).flat_map(|from| (0..k).map(move |to| (from, to))) {
        let (from, to) = (u64::from(layout(from)), u64::from(layout(to) * 5 % layouts));
        match from.abs_diff(to) {
            0 => costs.extend([0, 0, 0]),
            1 => costs.extend([700 + 40 * from, 0, 500]),
            // Keep what was gathered, or gather again.
            way => costs.extend([900 * way, 350, 2000, 1900 * way, 0, 2000]),
        }
        offsets.push((costs.len() / 3) as u32);
    }
    let moved = Table::with_alternatives(&[k, k], 3, &offsets, &costs).unwrap();
    let moved = graph.add_table(moved).unwrap();
    let ids: Vec<TableId> =
        tables.into_iter().map(|table| graph.add_table(table).unwrap()).collect();
    let [weight, mask] = [OPERATORS, 0].map(|i| graph.add_node(ids[i]).unwrap());
    let mut last = graph.add_node(ids[0]).unwrap();
    graph.add_factor(&[weight, last], moved).unwrap();
    for _ in 0..layers {
        let mut skipped = last;
        for (operator, &table) in ids[..OPERATORS].iter().enumerate() {
            let node = graph.add_node(table).unwrap();
            graph.add_factor(&[last, node], moved).unwrap();
            match operator {
                // Attention reads the mask.
                2 => drop(graph.add_factor(&[mask, node], moved).unwrap()),
                // A residual sum after attention and one after the rest.
                3 | 5 => {
                    graph.add_factor(&[skipped, node], moved).unwrap();
                    skipped = node;
                }
                _ => {}
            }
            last = node;
        }
    }
    graph.add_factor(&[last, weight], moved).unwrap();
    graph
}
