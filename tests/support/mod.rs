//! Random problems, and a solver too simple to be wrong.
#![allow(dead_code)] // Each test binary uses its own part.

pub mod calls;
pub mod json;
pub mod naive;

use tensoropt::{Aggregate, CostGraph, FactorId, NodeId, Peak, Solution, Table};

/// SplitMix64: small, seeded, the same everywhere.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0xD1B5_4A32_D192_ED03))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// The shapes of the graphs.
pub const SHAPES: [&str; 9] =
    ["chain", "tree", "diamonds", "ladder", "star", "clique", "islands", "random", "ring"];

fn edges(shape: &str, rng: &mut Rng) -> (u32, Vec<Vec<u32>>) {
    let pair = |a: u32, b: u32| vec![a, b];
    match shape {
        "chain" => {
            let n = 2 + rng.below(6) as u32;
            (n, (1..n).map(|i| pair(i - 1, i)).collect())
        }
        "tree" => {
            let n = 2 + rng.below(6) as u32;
            (n, (1..n).map(|i| pair(rng.below(u64::from(i)) as u32, i)).collect())
        }
        "diamonds" => {
            let mut edges = Vec::new();
            let count = 1 + rng.below(2) as u32;
            for i in 0..count {
                let o = 3 * i;
                edges.extend([(o, o + 1), (o, o + 2), (o + 1, o + 3), (o + 2, o + 3)]);
            }
            (3 * count + 1, edges.into_iter().map(|(a, b)| pair(a, b)).collect())
        }
        "ladder" => {
            let n = 2 + rng.below(2) as u32;
            let rungs = (0..n).map(|i| pair(2 * i, 2 * i + 1));
            let sides = (1..n).flat_map(|i| [pair(2 * i - 2, 2 * i), pair(2 * i - 1, 2 * i + 1)]);
            (2 * n, rungs.chain(sides).collect())
        }
        "star" => {
            let n = 3 + rng.below(5) as u32;
            let mut edges: Vec<_> = (1..n).map(|i| pair(0, i)).collect();
            // Some leaves know each other.
            edges.extend((2..n).filter(|i| i % 3 == 0).map(|i| pair(i, i - 1)));
            (n, edges)
        }
        "clique" => {
            let n = 3 + rng.below(3) as u32;
            (n, (1..n).flat_map(|j| (0..j).map(move |i| pair(i, j))).collect())
        }
        "ring" => {
            let n = 3 + rng.below(4) as u32;
            (n, (0..n).map(|i| pair(i, (i + 1) % n)).collect())
        }
        "islands" => (5, vec![pair(0, 1), pair(2, 3)]),
        _ => {
            let n = 1 + rng.below(6) as u32;
            let mut edges = Vec::new();
            for _ in 0..rng.below(8) {
                let size = 1 + rng.below(3);
                let mut scope: Vec<u32> = Vec::new();
                for _ in 0..size {
                    let node = rng.below(u64::from(n)) as u32;
                    if !scope.contains(&node) {
                        scope.push(node);
                    }
                }
                edges.push(scope);
            }
            (n, edges)
        }
    }
}

/// A table whose costs are below `largest`: so many percent of its cells are impossible, so many
/// have one to three alternatives.
pub fn table(
    dims: &[u32],
    objectives: usize,
    (largest, holes, several): (u64, u64, u64),
    rng: &mut Rng,
) -> Table {
    let cells: u32 = dims.iter().product();
    let (mut offsets, mut costs) = (vec![0], Vec::new());
    for _ in 0..cells {
        let alternatives = match (rng.chance(holes), rng.chance(several)) {
            (true, _) => 0,
            (false, true) => 1 + rng.below(3),
            (false, false) => 1,
        };
        for _ in 0..alternatives * objectives as u64 {
            costs.push(if rng.chance(15) { 0 } else { rng.below(largest) });
        }
        offsets.push((costs.len() / objectives) as u32);
    }
    Table::with_alternatives(dims, objectives, &offsets, &costs).unwrap()
}

/// A table of a small problem: some are sparse, some have alternatives in all cells.
fn any_table(dims: &[u32], objectives: usize, largest: u64, rng: &mut Rng) -> Table {
    let holes = if rng.chance(30) { 25 } else { 0 };
    let several = if rng.chance(30) { 100 } else { 0 };
    table(dims, objectives, (largest, holes, several), rng)
}

/// How many random problems to look at: `TENSOROPT_PROBLEMS`, or as many as CI can afford.
pub fn problems(afford: u64) -> u64 {
    std::env::var("TENSOROPT_PROBLEMS").ok().and_then(|n| n.parse().ok()).unwrap_or(afford)
}

/// A random problem small enough to enumerate.
pub fn problem(seed: u64) -> CostGraph {
    let mut rng = Rng::new(seed);
    let objectives = 1 + rng.below(4) as usize;
    let aggregates: Vec<Aggregate> = (0..objectives)
        .map(|_| if rng.chance(25) { Aggregate::Max } else { Aggregate::Sum })
        .collect();
    problem_with(seed, &aggregates)
}

/// A random problem with given objectives.
pub fn problem_with(seed: u64, aggregates: &[Aggregate]) -> CostGraph {
    let mut rng = Rng::new(seed ^ 0x5EED);
    let shape = SHAPES[(seed % SHAPES.len() as u64) as usize];
    // Few values make ties, large ones leave the packed path.
    let largest = [3, 12, 1000, 1 << 40][rng.below(4) as usize];
    let (nodes, scopes) = edges(shape, &mut rng);
    let mut graph = CostGraph::new(aggregates).unwrap();
    let most = if nodes > 6 { 2 } else { 3 };
    let mut dims = Vec::new();
    let mut pool: Vec<Table> = Vec::new();
    for _ in 0..nodes {
        let dim = 1 + rng.below(most) as u32;
        dims.push(dim);
        // Tables are shared now and then, so that equal operations meet.
        let shared = pool.iter().find(|table| table.dims() == [dim]).cloned();
        let own = match shared {
            Some(table) if rng.chance(50) => table,
            _ => any_table(&[dim], aggregates.len(), largest, &mut rng),
        };
        pool.push(own.clone());
        let id = graph.add_table(own).unwrap();
        graph.add_node(id).unwrap();
    }
    for mut scope in scopes {
        if rng.chance(30) {
            scope.reverse();
        }
        let shape: Vec<u32> = scope.iter().map(|&node| dims[node as usize]).collect();
        let shared = pool.iter().find(|table| table.dims() == shape).cloned();
        let own = match shared {
            Some(table) if rng.chance(50) => table,
            _ => any_table(&shape, aggregates.len(), largest, &mut rng),
        };
        pool.push(own.clone());
        let id = graph.add_table(own).unwrap();
        let scope: Vec<NodeId> = scope.into_iter().map(NodeId).collect();
        graph.add_factor(&scope, id).unwrap();
        if rng.chance(10) {
            graph.add_factor(&scope, id).unwrap();
        }
    }
    graph
}

/// Keeps the nondominated vectors, sorted: compares all pairs.
pub fn naive_front(mut points: Vec<Vec<u64>>) -> Vec<Vec<u64>> {
    points.sort();
    points.dedup();
    let dominated =
        |p: &Vec<u64>| points.iter().any(|q| q != p && q.iter().zip(p).all(|(a, b)| a <= b));
    points.iter().filter(|p| !dominated(p)).cloned().collect()
}

/// The cost vectors of all plans that may matter, by enumeration.
pub fn all_costs(graph: &CostGraph) -> Vec<Vec<u64>> {
    let dims: Vec<u32> =
        (0..graph.nodes() as u32).map(|n| graph.configurations(NodeId(n))).collect();
    let mut chosen = vec![0; dims.len()];
    let mut found = Vec::new();
    loop {
        found.extend(costs_of(graph, &chosen));
        if found.len() > 2000 {
            found = naive_front(found);
        }
        let Some(node) = (0..dims.len()).rev().find(|&n| chosen[n] + 1 < dims[n]) else {
            return found;
        };
        chosen[node] += 1;
        chosen[node + 1..].fill(0);
    }
}

/// The nondominated costs of one configuration over its alternatives.
fn costs_of(graph: &CostGraph, chosen: &[u32]) -> Vec<Vec<u64>> {
    let mut sums = vec![vec![0; graph.objectives()]];
    let mut add = |table: &Table, cell: usize| {
        let mut next = Vec::new();
        for sum in &sums {
            for cost in table.alternatives(cell) {
                let added = sum.iter().zip(cost).zip(graph.aggregates());
                next.push(
                    added
                        .map(|((&a, &b), aggregate)| match aggregate {
                            Aggregate::Sum => a + b,
                            Aggregate::Max => a.max(b),
                        })
                        .collect(),
                );
            }
        }
        sums = if next.len() > 8 { naive_front(next) } else { next };
    };
    for (node, &k) in chosen.iter().enumerate() {
        add(graph.node_table(NodeId(node as u32)), k as usize);
    }
    for factor in (0..graph.factors() as u32).map(FactorId) {
        let table = graph.factor_table(factor);
        let at: Vec<u32> = graph.scope(factor).iter().map(|node| chosen[node.index()]).collect();
        add(table, table.cell(&at).unwrap());
    }
    sums
}

/// The exact frontier by enumeration.
pub fn brute_force(graph: &CostGraph) -> Vec<Vec<u64>> {
    naive_front(all_costs(graph))
}

/// Points as rows.
pub fn rows(costs: &[u64], objectives: usize) -> Vec<Vec<u64>> {
    costs.chunks_exact(objectives).map(<[u64]>::to_vec).collect()
}

/// The shapes of [`larger`] problems.
pub const LARGER: [&str; 6] = ["chain", "tree", "diamonds", "ladder", "ring", "hub"];

/// A problem too large to enumerate, with long frontiers: some cells have several alternatives, a
/// few different tables take turns, and a maximum has few values, often 0.
pub fn larger(seed: u64, aggregates: &[Aggregate]) -> CostGraph {
    let mut rng = Rng::new(seed ^ 0x1A46E);
    let shape = LARGER[(seed % LARGER.len() as u64) as usize];
    let nodes = 9 + rng.below(4) as u32;
    let pair = |a: u32, b: u32| [a, b];
    let edges: Vec<[u32; 2]> = match shape {
        "chain" => (1..nodes).map(|i| pair(i - 1, i)).collect(),
        "tree" => (1..nodes).map(|i| pair(rng.below(u64::from(i)) as u32, i)).collect(),
        "diamonds" => (0..(nodes - 1) / 3)
            .map(|i| 3 * i)
            .flat_map(|o| [pair(o, o + 1), pair(o, o + 2), pair(o + 1, o + 3), pair(o + 2, o + 3)])
            .collect(),
        "ladder" => (1..nodes).flat_map(|i| [pair(i - 1, i), pair(i.max(2) - 2, i)]).collect(),
        "ring" => (0..nodes).map(|i| pair(i, (i + 1) % nodes)).collect(),
        _ => (1..nodes).map(|i| pair(0, i)).chain([pair(1, 2), pair(3, 4)]).collect(),
    };
    let k = if shape == "ladder" { 3 } else { 3 + rng.below(2) as u32 };
    let scale = [40, 2_000, 1 << 33][rng.below(3) as usize];
    let few = rng.chance(50);
    let layers = 1 + rng.below(3) as usize;
    let mut graph = CostGraph::new(aggregates).unwrap();
    let mut tables = |dims: &[u32], graph: &mut CostGraph| -> Vec<_> {
        (0..layers)
            .map(|layer| {
                let still = few && layer > 0;
                let table = against(dims, aggregates, (scale, still), &mut rng);
                graph.add_table(table).unwrap()
            })
            .collect()
    };
    let (own, between) = (tables(&[k], &mut graph), tables(&[k, k], &mut graph));
    let ids: Vec<NodeId> =
        (0..nodes as usize).map(|i| graph.add_node(own[i % layers]).unwrap()).collect();
    for (i, [a, b]) in edges.into_iter().enumerate().filter(|(_, [a, b])| a != b) {
        graph.add_factor(&[ids[a as usize], ids[b as usize]], between[i % layers]).unwrap();
    }
    graph
}

/// A table of objectives that work against each other; in a `still` one all maxima are 0.
fn against(
    dims: &[u32],
    aggregates: &[Aggregate],
    (scale, still): (u64, bool),
    rng: &mut Rng,
) -> Table {
    let cells: u32 = dims.iter().product();
    let (mut offsets, mut costs) = (vec![0], Vec::new());
    for _ in 0..cells {
        for _ in 0..1 + rng.below(4) / 3 {
            let share = rng.below(scale);
            for (objective, aggregate) in aggregates.iter().enumerate() {
                let base = if objective % 2 == 0 { share } else { scale - share };
                costs.push(match aggregate {
                    Aggregate::Sum => base + rng.below(scale / 4),
                    Aggregate::Max if still || rng.chance(40) => 0,
                    Aggregate::Max => rng.below(6) * scale,
                });
            }
        }
        offsets.push((costs.len() / aggregates.len()) as u32);
    }
    Table::with_alternatives(dims, aggregates.len(), &offsets, &costs).unwrap()
}

/// The nondominated pairs, sorted, by one sweep.
pub fn front_of_pairs(mut points: Vec<Vec<u64>>) -> Vec<Vec<u64>> {
    points.sort();
    let mut least = None;
    points.retain(|p| {
        let lower = least.is_none_or(|least| p[1] < least);
        if lower {
            least = Some(p[1]);
        }
        lower
    });
    points
}

/// The least factor within which `points` cover `exact`.
pub fn cover(exact: &[Vec<u64>], points: &[Vec<u64>]) -> f64 {
    let quotient = |a: u64, b: u64| if a <= b { 1.0 } else { a as f64 / b as f64 };
    let over =
        |p: &[u64], q: &[u64]| p.iter().zip(q).map(|(&p, &q)| quotient(q, p)).fold(1.0, f64::max);
    exact
        .iter()
        .map(|p| points.iter().map(|q| over(p, q)).fold(f64::INFINITY, f64::min))
        .fold(1.0, f64::max)
}

/// A cost vector as a user sees it: with a peak, resident and transient part are one.
pub fn key_of(cost: &[u64], peak: Option<Peak>) -> Vec<u64> {
    let mut key = cost.to_vec();
    if let Some(peak) = peak {
        key[peak.resident] += key[peak.transient];
        key.remove(peak.transient);
    }
    key
}

/// The points that a user sees.
pub fn seen(solution: &Solution, peak: Option<Peak>) -> Vec<Vec<u64>> {
    rows(solution.costs(), solution.graph().objectives()).iter().map(|p| key_of(p, peak)).collect()
}
