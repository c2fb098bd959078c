//! What a solution says of its own quality, held against the exact frontier.

mod support;

use support::{Rng, cover, rows, seen};
use tensoropt::{
    Aggregate, CostGraph, NodeId, Peak, Solution, SolveOptions, Status, Table, contract, solve,
};

/// A cost table of anti-correlated objectives, so that frontiers are large.
fn table(dims: &[u32], aggregates: &[Aggregate], rng: &mut Rng) -> Table {
    let cells: u32 = dims.iter().product();
    let mut costs = Vec::new();
    for _ in 0..cells {
        let share = rng.below(10_000);
        for (objective, aggregate) in aggregates.iter().enumerate() {
            let base = if objective % 2 == 0 { share } else { 10_000 - share };
            costs.push(match aggregate {
                Aggregate::Sum => base + rng.below(3_000),
                Aggregate::Max => rng.below(12) * 2_000,
            });
        }
    }
    Table::dense(dims, aggregates.len(), &costs, None).unwrap()
}

/// `nodes` of `k` configurations in a chain, closed to a ring with skips if asked; `layers`
/// different tables in turn.
fn graph(
    seed: u64,
    nodes: u32,
    k: u32,
    layers: usize,
    skips: bool,
    aggregates: &[Aggregate],
) -> CostGraph {
    let mut rng = Rng::new(seed);
    let mut graph = CostGraph::new(aggregates).unwrap();
    let mut tables = |dims: &[u32], graph: &mut CostGraph| -> Vec<_> {
        (0..layers).map(|_| graph.add_table(table(dims, aggregates, &mut rng)).unwrap()).collect()
    };
    let (own, edge) = (tables(&[k], &mut graph), tables(&[k, k], &mut graph));
    let ids: Vec<NodeId> =
        (0..nodes as usize).map(|i| graph.add_node(own[i % layers]).unwrap()).collect();
    for i in 1..ids.len() {
        graph.add_factor(&[ids[i - 1], ids[i]], edge[i % layers]).unwrap();
        if skips && i % 3 == 0 {
            graph.add_factor(&[ids[i - 3], ids[i]], edge[(i + 1) % layers]).unwrap();
        }
    }
    if skips {
        graph.add_factor(&[ids[ids.len() - 1], ids[0]], edge[0]).unwrap();
    }
    graph
}

/// Holds a solution to its factor and its status, and its plans to their costs.
fn assert_holds(name: &str, exact: &Solution, approximate: &Solution, peak: Option<Peak>) {
    assert_eq!(exact.status(), Status::Optimal, "{name}");
    let (exact, points) = (seen(exact, peak), seen(approximate, peak));
    let truth = cover(&exact, &points);
    let said = approximate.factor();
    assert!(truth <= said * (1.0 + 1e-12), "{name}: said {said}, is {truth}");
    let status = if said <= 1.0 { Status::Optimal } else { Status::Epsilon };
    assert_eq!(approximate.status(), status, "{name}: factor {said}");
    // Nothing may be better than the exact frontier.
    assert!(cover(&points, &exact) <= 1.0, "{name}: a point is too good to be true");
    assert_eq!(approximate.plans().unwrap().len(), points.len(), "{name}");
}

const SUMS: [Aggregate; 2] = [Aggregate::Sum; 2];

#[test]
fn the_factor_holds() {
    let mut thinned = 0;
    for (seed, skips) in [(1, false), (2, true), (3, false), (4, true)] {
        let graph = graph(seed, 18, 5, 1 + seed as usize % 3, skips, &SUMS);
        let exact = solve(&graph, &SolveOptions::default().with_threads(2)).unwrap();
        for epsilon in [0.3, 0.03, 0.003] {
            let options = SolveOptions::default().with_threads(2).with_epsilon(epsilon);
            let solution = solve(&graph, &options).unwrap();
            assert_holds(&format!("seed {seed}, epsilon {epsilon}"), &exact, &solution, None);
            thinned += usize::from(solution.status() == Status::Epsilon);
            if epsilon >= 0.03 {
                let factor = solution.factor();
                assert!(factor <= 1.0 + epsilon, "seed {seed}: asked {epsilon}, got {factor}");
            }
        }
    }
    assert!(thinned >= 6, "hardly anything was thinned: {thinned}");
}

#[test]
fn the_factor_holds_with_a_maximum() {
    let aggregates = [Aggregate::Sum, Aggregate::Max, Aggregate::Sum];
    let graph = graph(5, 8, 4, 3, false, &aggregates);
    let exact = solve(&graph, &SolveOptions::default().with_threads(2)).unwrap();
    for epsilon in [0.5, 0.1] {
        let options = SolveOptions::default().with_threads(2).with_epsilon(epsilon);
        let solution = solve(&graph, &options).unwrap();
        assert_holds(&format!("epsilon {epsilon}"), &exact, &solution, None);
        assert!(solution.factor() <= 1.0 + epsilon);
    }
}

#[test]
fn the_factor_holds_within_a_cap() {
    for seed in [6, 7] {
        let graph = graph(seed, 16, 5, 2, seed == 7, &SUMS);
        let free = solve(&graph, &SolveOptions::default().with_threads(2)).unwrap();
        let cap = free.cost(free.len() / 3)[1];
        let capped = SolveOptions::default().with_threads(2).with_caps(&[None, Some(cap)]);
        let exact = solve(&graph, &capped).unwrap();
        assert!(exact.len() < free.len());
        let solution = solve(&graph, &capped.with_epsilon(0.03)).unwrap();
        assert_holds(&format!("seed {seed}"), &exact, &solution, None);
        assert!((0..solution.len()).all(|point| solution.cost(point)[1] <= cap));
    }
}

#[test]
fn the_factor_holds_for_a_peak() {
    let aggregates = [Aggregate::Sum, Aggregate::Sum, Aggregate::Max];
    for (seed, skips) in [(8, false), (9, true)] {
        let graph = graph(seed, 14, 4, 2, skips, &aggregates);
        let free = Peak { resident: 1, transient: 2, cap: None };
        let all = solve(&graph, &SolveOptions::default().with_threads(2).with_peak(free)).unwrap();
        for cap in [None, all.peak(all.len() / 3)] {
            let peak = Peak { cap, ..free };
            let options = SolveOptions::default().with_threads(2).with_peak(peak);
            let exact = solve(&graph, &options).unwrap();
            for epsilon in [0.1, 0.01] {
                let solution = solve(&graph, &options.clone().with_epsilon(epsilon)).unwrap();
                let name = format!("seed {seed}, cap {cap:?}, epsilon {epsilon}");
                assert_holds(&name, &exact, &solution, Some(peak));
            }
        }
    }
}

#[test]
fn a_number_of_points_is_kept() {
    let graph = graph(10, 16, 5, 2, false, &SUMS);
    let exact = solve(&graph, &SolveOptions::default().with_threads(1)).unwrap();
    let mut options = SolveOptions::default().with_threads(1);
    options.max_points = Some(20);
    let solution = solve(&graph, &options).unwrap();
    assert!(solution.len() <= 20 && exact.len() > 100, "{} of {}", solution.len(), exact.len());
    assert_holds("20 points", &exact, &solution, None);
}

#[test]
fn same_bytes_for_any_number_of_threads() {
    let graph = graph(11, 24, 6, 3, true, &SUMS);
    let answer = |threads| {
        let options = SolveOptions::default().with_threads(threads).with_epsilon(0.01);
        let solution = solve(&graph, &options).unwrap();
        (
            solution.costs().to_vec(),
            solution.factor().to_bits(),
            solution.counters(),
            solution.plans().unwrap(),
        )
    };
    let one = answer(1);
    assert_eq!(one, answer(2));
    assert_eq!(one, answer(4));
}

#[test]
fn a_block_covers_its_cells() {
    let graph = graph(12, 9, 4, 2, false, &[Aggregate::Sum, Aggregate::Sum, Aggregate::Max]);
    let keep = [NodeId(0), NodeId(8)];
    let exact = contract(&graph, &keep, &SolveOptions::default().with_threads(2)).unwrap();
    assert_eq!(exact.factor(), 1.0);
    let options = SolveOptions::default().with_threads(2).with_epsilon(0.1);
    let rough = contract(&graph, &keep, &options).unwrap();
    assert!((1.0..=1.1).contains(&rough.factor()), "{}", rough.factor());
    assert!(rough.table().costs().len() < exact.table().costs().len(), "nothing was trimmed");
    for cell in 0..exact.table().cells() {
        let points = |table: &Table| -> Vec<Vec<u64>> {
            table.alternatives(cell).map(<[u64]>::to_vec).collect()
        };
        let truth = cover(&points(exact.table()), &points(rough.table()));
        assert!(truth <= rough.factor() * (1.0 + 1e-12), "cell {cell}: {truth}");
    }
    // A solution that uses the block says that it is not exact.
    let mut outer = CostGraph::new(graph.aggregates()).unwrap();
    let own = outer.add_table(graph.node_table(NodeId(0)).clone()).unwrap();
    let ends = [outer.add_node(own).unwrap(), outer.add_node(own).unwrap()];
    let block = outer.add_table(rough.table().clone()).unwrap();
    outer.add_factor(&ends, block).unwrap();
    let solution = solve(&outer, &SolveOptions::default().with_threads(1)).unwrap();
    assert_eq!(solution.status(), Status::Epsilon);
    assert_eq!(solution.factor(), rough.factor());
}

#[test]
fn the_check_can_fail() {
    let graph = graph(13, 8, 4, 2, false, &SUMS);
    let exact = solve(&graph, &SolveOptions::default().with_threads(1)).unwrap();
    let points = rows(exact.costs(), 2);
    assert_eq!(cover(&points, &points), 1.0);
    assert!(cover(&points, &points[1..]) > 1.0, "a missing point is not noticed");
}
