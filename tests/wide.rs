//! Graphs too dense for their tables: the answer is a frontier of plans with an honest factor.

mod support;

use support::{Rng, all_costs, cover, key_of, naive_front, rows};
use tensoropt::{Aggregate, CostGraph, Error, NodeId, Peak, Solution, SolveOptions, Status, Table};
use tensoropt::{contract, solve};

const SUMS: [Aggregate; 2] = [Aggregate::Sum; 2];
const WITH_PEAK: [Aggregate; 3] = [Aggregate::Sum, Aggregate::Sum, Aggregate::Max];
const PEAK: Peak = Peak { resident: 1, transient: 2, cap: None };

/// Cells of the largest table: one over two nodes.
const CELLS: usize = 9;

/// A clique, a grid, or a hub that all nodes of a ring know, of nodes with three configurations.
fn dense(seed: u64, aggregates: &[Aggregate]) -> CostGraph {
    let mut rng = Rng::new(seed ^ 0xDE45E);
    let (nodes, edges): (u32, Vec<[u32; 2]>) = match seed % 3 {
        0 => (6, (1..6).flat_map(|j| (0..j).map(move |i| [i, j])).collect()),
        1 => (
            9,
            (0..9)
                .flat_map(|i| {
                    [(i % 3 < 2, 1), (i < 6, 3)].map(|(inside, step)| (inside, [i, i + step]))
                })
                .filter(|(inside, _)| *inside)
                .map(|(_, edge)| edge)
                .collect(),
        ),
        _ => (8, (1..8).flat_map(|i| [[0, i], [i, i % 7 + 1]]).collect()),
    };
    let mut graph = CostGraph::new(aggregates).unwrap();
    let mut table = |dims: &[u32], graph: &mut CostGraph| {
        let cells: usize = dims.iter().product::<u32>() as usize;
        let impossible: Vec<bool> = (0..cells).map(|_| dims.len() > 1 && rng.chance(8)).collect();
        let mut costs = Vec::new();
        for _ in 0..cells {
            let share = rng.below(1000);
            for (objective, aggregate) in aggregates.iter().enumerate() {
                let base = if objective % 2 == 0 { share } else { 1000 - share };
                costs.push(match aggregate {
                    Aggregate::Sum => base + rng.below(300),
                    Aggregate::Max => rng.below(4) * 500,
                });
            }
        }
        graph
            .add_table(Table::dense(dims, aggregates.len(), &costs, Some(&impossible)).unwrap())
            .unwrap()
    };
    let ids: Vec<NodeId> = (0..nodes)
        .map(|_| {
            let own = table(&[3], &mut graph);
            graph.add_node(own).unwrap()
        })
        .collect();
    for [a, b] in edges {
        let between = table(&[3, 3], &mut graph);
        graph.add_factor(&[ids[a as usize], ids[b as usize]], between).unwrap();
    }
    graph
}

fn narrow() -> SolveOptions {
    let mut options = SolveOptions::default().with_threads(1);
    options.max_table_cells = CELLS;
    options
}

/// What the user sees of an answer.
fn shown(solution: &Solution, peak: Option<Peak>) -> Vec<Vec<u64>> {
    let objectives = solution.graph().objectives();
    rows(solution.costs(), objectives).iter().map(|cost| key_of(cost, peak)).collect()
}

/// Holds an answer against enumeration; returns by how much it misses the frontier.
fn check(name: &str, solution: &Solution, truth: &[Vec<u64>], peak: Option<Peak>) -> f64 {
    let found = shown(solution, peak);
    let plans = solution.plans().unwrap();
    assert_eq!(plans.len(), found.len(), "{name}");
    assert_eq!(naive_front(found.clone()).len(), found.len(), "{name}: a point is dominated");
    let missed = cover(truth, &found);
    assert!(missed <= solution.factor() * (1.0 + 1e-12), "{name}: {missed} of {solution:?}");
    match solution.status() {
        Status::Optimal => assert_eq!(naive_front(found), naive_front(truth.to_vec()), "{name}"),
        Status::Infeasible => assert!(truth.is_empty(), "{name}"),
        Status::Heuristic | Status::Epsilon => assert!(!found.is_empty(), "{name}"),
        other => panic!("{name}: {other}"),
    }
    missed
}

#[test]
fn factors_are_honest_and_frontiers_near() {
    let (mut heuristic, mut hit, mut worst) = (0, 0, 1.0f64);
    for seed in 0..60 {
        for (aggregates, peak) in [(&SUMS[..], None), (&WITH_PEAK[..], Some(PEAK))] {
            let name = format!("seed {seed}, {} objectives", aggregates.len());
            let graph = dense(seed, aggregates);
            let truth =
                naive_front(all_costs(&graph).iter().map(|cost| key_of(cost, peak)).collect());
            let mut options = narrow();
            options.peak = peak;
            let solution = solve(&graph, &options).unwrap();
            let missed = check(&name, &solution, &truth, peak);
            if !truth.is_empty() {
                heuristic += usize::from(solution.status() == Status::Heuristic);
                hit += usize::from(missed < 1.002);
                worst = worst.max(missed);
            }
        }
    }
    println!("heuristic {heuristic}, frontier found {hit}, worst {worst}");
    assert!(heuristic > 100, "the limit binds");
    // Tables over two nodes are next to nothing for these graphs.
    assert!(hit > 10, "some frontiers are found whole");
    assert!(worst < 1.2, "{worst}");
}

#[test]
fn caps_hold_and_what_none_can_keep_is_infeasible() {
    let mut infeasible = 0;
    for seed in 0..60 {
        let graph = dense(seed, &SUMS);
        let all = naive_front(all_costs(&graph));
        let Some(cap) = all.get(all.len() / 3).map(|point| point[1]) else { continue };
        let least = all.iter().map(|point| point[1]).min().unwrap();
        for cap in [cap, least - 1, 0] {
            let truth: Vec<_> = all.iter().filter(|point| point[1] <= cap).cloned().collect();
            let mut options = narrow();
            options.caps = vec![None, Some(cap)];
            let solution = solve(&graph, &options).unwrap();
            assert!(shown(&solution, None).iter().all(|point| point[1] <= cap));
            infeasible += usize::from(solution.status() == Status::Infeasible);
            if solution.status() == Status::Heuristic && solution.is_empty() {
                assert_eq!(solution.factor(), f64::INFINITY);
            } else {
                check(&format!("seed {seed}, cap {cap}"), &solution, &truth, None);
            }
        }
    }
    assert!(infeasible > 50, "{infeasible}");
}

#[test]
fn known_points_count_and_are_not_returned() {
    for seed in 0..40 {
        let graph = dense(seed, &SUMS);
        let truth = naive_front(all_costs(&graph));
        let known: Vec<Vec<u64>> = truth.iter().step_by(2).cloned().collect();
        let solution = solve(&graph, &narrow().with_known(&known)).unwrap();
        let found = shown(&solution, None);
        for point in &found {
            let covered = known.iter().any(|k| k.iter().zip(point).all(|(k, p)| k <= p));
            assert!(!covered, "seed {seed}: {point:?} is known");
        }
        let together = [known, found].concat();
        assert!(cover(&truth, &together) <= solution.factor() * (1.0 + 1e-12), "seed {seed}");
    }
}

#[test]
fn any_number_of_threads_gives_the_same() {
    for seed in 0..12 {
        let graph = dense(seed, &WITH_PEAK);
        let answers = [1, 2, 4].map(|threads| {
            let solution = solve(&graph, &narrow().with_peak(PEAK).with_threads(threads)).unwrap();
            let plans = solution.plans().unwrap();
            (solution.status(), solution.factor(), solution.counters(), plans)
        });
        for (status, factor, mut counters, plans) in answers.iter().cloned() {
            counters.peak_bytes = answers[0].2.peak_bytes;
            assert_eq!((status, factor, counters, plans), answers[0], "seed {seed}");
        }
    }
}

#[test]
fn limits_hold() {
    for seed in 0..12 {
        let graph = dense(seed, &SUMS);
        let whole = solve(&graph, &narrow()).unwrap();
        let mut options = narrow();
        options.max_points = Some(2);
        let few = solve(&graph, &options).unwrap();
        assert!(few.len() <= 2 && few.factor() >= whole.factor(), "seed {seed}");
        let mut options = narrow();
        options.work_limit = Some(whole.counters().pairs / 3);
        let hurried = solve(&graph, &options).unwrap();
        assert_eq!(hurried.status(), Status::WorkLimit, "seed {seed}");
        assert!(hurried.factor() >= whole.factor(), "seed {seed}");
    }
}

#[test]
fn whoever_wants_nothing_but_the_exact_frontier_gets_an_error() {
    let graph = dense(0, &SUMS);
    let refused = solve(&graph, &narrow().with_heuristic(false));
    assert!(matches!(refused, Err(Error::TableCells { .. })), "{refused:?}");
    // A contraction is a part of a problem: it has no answer that is not exact.
    let refused = contract(&graph, &[NodeId(0)], &narrow());
    assert!(matches!(refused, Err(Error::TableCells { .. })), "{refused:?}");
}
