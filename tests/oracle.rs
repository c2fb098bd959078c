//! The solver against enumeration, on thousands of small random problems of all shapes.
//!
//! `TENSOROPT_PROBLEMS=20000` looks at as many instead of a few.

mod support;

use support::{Rng, all_costs, brute_force, naive_front, problem, problem_with, problems, rows};
use tensoropt::{
    Aggregate, CostGraph, NodeId, Peak, Solution, SolveOptions, Status, contract, solve,
};

fn count() -> u64 {
    problems(2000)
}

/// Compares point by point, says which are wrong and which are missing, and re-adds every plan.
fn assert_front(seed: u64, solution: &Solution, expected: &[Vec<u64>]) {
    let found = rows(solution.costs(), solution.graph().objectives());
    let wrong: Vec<_> = found.iter().filter(|p| !expected.contains(p)).collect();
    let missing: Vec<_> = expected.iter().filter(|p| !found.contains(p)).collect();
    assert!(
        wrong.is_empty() && missing.is_empty(),
        "seed {seed}: wrong {wrong:?}, missing {missing:?}"
    );
    assert_eq!(found.len(), expected.len(), "seed {seed}: a point is there twice");
    let status = if expected.is_empty() { Status::Infeasible } else { Status::Optimal };
    assert_eq!(solution.status(), status, "seed {seed}");
    for (point, plan) in solution.plans().unwrap().into_iter().enumerate() {
        assert_eq!(plan.cost, found[point], "seed {seed}");
    }
}

#[test]
fn equals_brute_force() {
    let mut points = 0;
    for seed in 0..count() {
        let graph = problem(seed);
        let expected = brute_force(&graph);
        points += expected.len();
        let solution = solve(&graph, &SolveOptions::default().with_threads(1)).unwrap();
        assert_front(seed, &solution, &expected);
    }
    assert!(points > 5 * count() as usize, "the problems are trivial: {points} points");
}

#[test]
fn same_bytes_for_any_number_of_threads() {
    for seed in (0..count()).step_by(10) {
        let graph = problem(seed);
        let answer = |threads| {
            let options = SolveOptions::default().with_threads(threads);
            let solution = solve(&graph, &options).unwrap();
            (solution.costs().to_vec(), solution.plans().unwrap(), solution.counters())
        };
        let one = answer(1);
        assert_eq!(one, answer(2), "seed {seed}");
        assert_eq!(one, answer(4), "seed {seed}");
    }
}

#[test]
fn caps_are_inclusive() {
    for seed in 0..count() / 4 {
        let graph = problem(seed);
        let all = brute_force(&graph);
        let mut rng = Rng::new(seed);
        // Caps from the frontier itself, so that some points lie exactly on them.
        let caps: Vec<Option<u64>> = (0..graph.objectives())
            .map(|objective| {
                let point = all.get(rng.below(all.len().max(1) as u64) as usize)?;
                rng.chance(60).then(|| point[objective].saturating_sub(rng.below(2)))
            })
            .collect();
        let expected: Vec<Vec<u64>> = all
            .into_iter()
            .filter(|p| p.iter().zip(&caps).all(|(&cost, cap)| cap.is_none_or(|cap| cost <= cap)))
            .collect();
        let options = SolveOptions::default().with_threads(1).with_caps(&caps);
        let solution = solve(&graph, &options).unwrap();
        assert_front(seed, &solution, &expected);
        if expected.is_empty() {
            check_least(seed, &graph, &solution, &caps);
        }
    }
}

fn check_least(seed: u64, graph: &CostGraph, solution: &Solution, caps: &[Option<u64>]) {
    let all = all_costs(graph);
    let capped: Vec<(usize, u64)> =
        caps.iter().enumerate().filter_map(|(i, cap)| Some((i, (*cap)?))).collect();
    assert_eq!(solution.least().len(), capped.len(), "seed {seed}");
    for (least, (objective, cap)) in solution.least().iter().zip(capped) {
        assert_eq!(least.cap, cap, "seed {seed}");
        assert_eq!(least.reachable, all.iter().map(|p| p[objective]).min(), "seed {seed}");
    }
}

/// With resident and transient part of a peak, by enumeration.
fn peak_front(graph: &CostGraph, peak: Peak) -> Vec<Vec<u64>> {
    let key = |cost: &Vec<u64>| -> Vec<u64> {
        let mut key = cost.clone();
        key[peak.resident] += key[peak.transient];
        key.remove(peak.transient);
        key
    };
    let all = all_costs(graph).iter().map(key).collect();
    let within = |p: &Vec<u64>| {
        peak.cap.is_none_or(|cap| {
            let resident = peak.resident - usize::from(peak.transient < peak.resident);
            p[resident] <= cap
        })
    };
    naive_front(all).into_iter().filter(within).collect()
}

#[test]
fn a_peak_is_exact() {
    let aggregates = [Aggregate::Sum, Aggregate::Sum, Aggregate::Max, Aggregate::Sum];
    for seed in 0..count() / 4 {
        let count = 2 + (seed % 3) as usize;
        // Resident first or second, transient in the middle or last.
        let mut used = aggregates[..count.max(3)].to_vec();
        if count == 2 {
            used.remove(0);
        }
        let graph = problem_with(seed, &used);
        let transient = used.iter().position(|a| *a == Aggregate::Max).unwrap();
        let mut peak = Peak { resident: transient - 1, transient, cap: None };
        for capped in [false, true] {
            if capped {
                let all = peak_front(&graph, peak);
                let resident = peak.resident;
                peak.cap = all.get(all.len() / 2).map(|p| p[resident]);
            }
            let expected = peak_front(&graph, peak);
            let options = SolveOptions::default().with_threads(1).with_peak(peak);
            let solution = solve(&graph, &options).unwrap();
            let keys: Vec<Vec<u64>> = rows(solution.costs(), used.len())
                .into_iter()
                .enumerate()
                .map(|(point, mut key)| {
                    key[peak.resident] += key[transient];
                    assert_eq!(solution.peak(point), Some(key[peak.resident]));
                    key.remove(transient);
                    key
                })
                .collect();
            assert_eq!(keys, expected, "seed {seed}, cap {:?}", peak.cap);
            assert_eq!(solution.plans().unwrap().len(), expected.len(), "seed {seed}");
        }
    }
}

#[test]
fn an_impossible_peak_says_the_least() {
    let aggregates = [Aggregate::Sum, Aggregate::Sum, Aggregate::Max];
    let mut checked = 0;
    for seed in 0..count() / 10 {
        let graph = problem_with(seed, &aggregates);
        let least = all_costs(&graph).iter().map(|p| p[1] + p[2]).min();
        let Some(below) = least.and_then(|least| least.checked_sub(1)) else {
            continue;
        };
        let peak = Peak { resident: 1, transient: 2, cap: Some(below) };
        let options = SolveOptions::default().with_threads(1).with_peak(peak);
        let solution = solve(&graph, &options).unwrap();
        assert_eq!(solution.status(), Status::Infeasible, "seed {seed}");
        assert_eq!(solution.least().len(), 1);
        assert_eq!(solution.least()[0].reachable, least, "seed {seed}");
        checked += 1;
    }
    assert!(checked > count() / 20);
}

#[test]
fn a_block_and_the_graph_around_it_are_the_whole() {
    for seed in 0..count() / 4 {
        let graph = problem(seed);
        let mut rng = Rng::new(seed + 1);
        let keep: Vec<NodeId> =
            (0..graph.nodes() as u32).filter(|_| rng.chance(40)).map(NodeId).collect();
        let options = SolveOptions::default().with_threads(1);
        let block = contract(&graph, &keep, &options).unwrap();
        let mut outer = CostGraph::new(graph.aggregates()).unwrap();
        let nodes: Vec<NodeId> = keep
            .iter()
            .map(|&node| {
                let table = outer.add_table(graph.node_table(node).clone()).unwrap();
                outer.add_node(table).unwrap()
            })
            .collect();
        for factor in (0..graph.factors() as u32).map(tensoropt::FactorId) {
            let scope = graph.scope(factor);
            if scope.iter().all(|node| keep.contains(node)) {
                let at = |node: &NodeId| nodes[keep.iter().position(|k| k == node).unwrap()];
                let scope: Vec<NodeId> = scope.iter().map(at).collect();
                let table = outer.add_table(graph.factor_table(factor).clone()).unwrap();
                outer.add_factor(&scope, table).unwrap();
            }
        }
        let inside = if keep.is_empty() {
            None
        } else {
            let table = outer.add_table(block.table().clone()).unwrap();
            Some(outer.add_factor(&nodes, table).unwrap())
        };
        let expected = brute_force(&graph);
        let Some(inside) = inside else {
            let found = rows(block.table().costs(), graph.objectives());
            assert_eq!(found, expected, "seed {seed}");
            continue;
        };
        let solution = solve(&outer, &options).unwrap();
        assert_front(seed, &solution, &expected);
        for plan in solution.plans().unwrap() {
            assert_whole(seed, &graph, &outer, &block, inside, &plan);
        }
    }
}

/// The outer plan and the block's choice together are a plan of the whole graph, at its cost.
fn assert_whole(
    seed: u64,
    graph: &CostGraph,
    outer: &CostGraph,
    block: &tensoropt::Contraction,
    inside: tensoropt::FactorId,
    plan: &tensoropt::Plan,
) {
    let at: Vec<u32> =
        outer.scope(inside).iter().map(|node| plan.configurations[node.index()]).collect();
    let cell = block.table().cell(&at).unwrap();
    let alternative = plan.factor_alternatives[inside.index()] as usize;
    let mut choice = block.expand(cell, alternative).unwrap();
    for (i, node) in block.keep().iter().enumerate() {
        assert_eq!(choice.configurations[node.index()], plan.configurations[i]);
        choice.node_alternatives[node.index()] = plan.node_alternatives[i];
    }
    let mut outside = plan.factor_alternatives.iter();
    for alternative in &mut choice.factor_alternatives {
        if *alternative == tensoropt::UNCHOSEN {
            *alternative = *outside.next().unwrap();
        }
    }
    let cost =
        graph.cost(&choice.configurations, &choice.node_alternatives, &choice.factor_alternatives);
    assert_eq!(cost.as_ref(), Some(&plan.cost), "seed {seed}");
}
