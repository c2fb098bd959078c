//! Random calls of the library, right and wrong ones.

use std::time::Duration;

use super::{Rng, brute_force, key_of, rows};
use tensoropt::{
    Aggregate, CostGraph, Error, FactorId, NodeId, Peak, Result, Solution, SolveOptions, Status,
    Table, TableId, contract, solve,
};

/// Numbers at which things break.
const COSTS: [u64; 10] = [0, 1, 2, 3, 17, 1000, u32::MAX as u64, 1 << 40, u64::MAX / 2, u64::MAX];
const DIMS: [u32; 8] = [0, 1, 2, 3, 2, 3, 1 << 16, u32::MAX];
const FACTORS: [f64; 7] = [1.0, 1.001, 2.0, 1e300, 0.5, f64::NAN, f64::INFINITY];
const EPSILONS: [f64; 9] = [0.0, 0.0, 0.0, 1e-9, 1e-3, 0.5, 1e300, -1.0, f64::NAN];

fn any<T: Copy>(of: &[T], rng: &mut Rng) -> T {
    of[rng.below(of.len() as u64) as usize]
}

/// Builds a graph by random calls, asks for answers with random options, and holds what comes back
/// to what was asked.
pub fn any_calls(seed: u64) {
    let mut rng = Rng::new(seed);
    let aggregates: Vec<Aggregate> = (0..rng.below(6))
        .map(|_| if rng.chance(30) { Aggregate::Max } else { Aggregate::Sum })
        .collect();
    let mut graph = match CostGraph::new(&aggregates) {
        Ok(graph) => graph,
        Err(error) => {
            assert!(!(1..=4).contains(&aggregates.len()), "{error}");
            return;
        }
    };
    for _ in 0..rng.below(24) {
        if let Err(error) = any_addition(&mut graph, &mut rng) {
            assert_refusal(seed, &error);
        }
    }
    let options = any_options(&graph, &mut rng);
    match solve(&graph, &options) {
        Ok(solution) => check(seed, &graph, &options, &solution),
        Err(error) => assert_refusal(seed, &error),
    }
    let keep: Vec<NodeId> =
        (0..rng.below(4)).map(|_| NodeId(rng.below(graph.nodes() as u64 + 1) as u32)).collect();
    match contract(&graph, &keep, &options) {
        Ok(block) => {
            assert_eq!(block.table().dims().len(), keep.len(), "seed {seed}");
            for cell in 0..block.table().cells() + 1 {
                let alternatives = if cell < block.table().cells() {
                    block.table().alternatives(cell).len()
                } else {
                    0
                };
                for alternative in 0..alternatives {
                    block.expand(cell, alternative).unwrap();
                }
                let error = block.expand(cell, alternatives).unwrap_err();
                assert!(matches!(error, Error::NoAlternative { .. }), "seed {seed}: {error}");
            }
        }
        Err(error) => assert_refusal(seed, &error),
    }
}

/// One line, and no fault of the library.
fn assert_refusal(seed: u64, error: &Error) {
    let message = error.to_string();
    assert!(!message.contains('\n'), "seed {seed}: {message}");
    let own = matches!(error, Error::Internal(_) | Error::Mismatch { .. });
    assert!(!own, "seed {seed}: {message}");
}

fn any_addition(graph: &mut CostGraph, rng: &mut Rng) -> Result<()> {
    let table = TableId(rng.below(graph.tables() as u64 + 1) as u32);
    match rng.below(10) {
        0..3 => {
            let table = any_table(graph, rng)?;
            graph.add_table(table).map(drop)
        }
        3..6 => graph.add_node(table).map(drop),
        6 => {
            // One that fits, so that graphs grow.
            let dims = [1 + rng.below(3) as u32];
            let table = good_table(&dims, graph.objectives(), rng)?;
            let table = graph.add_table(table)?;
            graph.add_node(table).map(drop)
        }
        7 => {
            let scope: Vec<NodeId> = (0..rng.below(4))
                .map(|_| NodeId(rng.below(graph.nodes() as u64 + 1) as u32))
                .collect();
            graph.add_factor(&scope, table).map(drop)
        }
        _ if graph.nodes() > 1 => {
            let [a, b] = [(); 2].map(|()| NodeId(rng.below(graph.nodes() as u64) as u32));
            let dims = [a, b].map(|node| graph.configurations(node));
            if u64::from(dims[0]) * u64::from(dims[1]) > 100 {
                return Ok(());
            }
            let table = good_table(&dims, graph.objectives(), rng)?;
            let table = graph.add_table(table)?;
            graph.add_factor(&[a, b], table).map(drop)
        }
        _ => Ok(()),
    }
}

fn good_table(dims: &[u32], objectives: usize, rng: &mut Rng) -> Result<Table> {
    let cells: u32 = dims.iter().product();
    let mut offsets = vec![0];
    for _ in 0..cells {
        offsets.push(offsets[offsets.len() - 1] + any(&[0, 1, 1, 1, 1, 2, 3], rng));
    }
    let small = rng.chance(90);
    let count = offsets[cells as usize] as usize * objectives;
    let costs: Vec<u64> =
        (0..count).map(|_| if small { rng.below(30) } else { any(&COSTS, rng) }).collect();
    let table = Table::with_alternatives(dims, objectives, &offsets, &costs)?;
    if rng.chance(5) { table.with_factor(any(&FACTORS, rng)) } else { Ok(table) }
}

fn any_table(graph: &CostGraph, rng: &mut Rng) -> Result<Table> {
    let dims: Vec<u32> = (0..rng.below(4)).map(|_| any(&DIMS, rng)).collect();
    let objectives =
        if rng.chance(80) { graph.objectives() } else { any(&[0, 1, 2, 3, 4, 5, usize::MAX], rng) };
    let cells: u64 = dims.iter().fold(1, |cells: u64, &dim| cells.saturating_mul(dim.into()));
    // What fits is sometimes one too short or too long.
    let about = |n: u64, rng: &mut Rng| match rng.below(10) {
        0 => n.saturating_sub(1),
        1 => n + 1,
        _ => n,
    };
    let cells = cells.min(100);
    let per = objectives.min(5) as u64;
    let table = if rng.chance(50) {
        let costs: Vec<u64> = (0..about(cells * per, rng)).map(|_| any(&COSTS, rng)).collect();
        let gone: Vec<bool> = (0..about(cells, rng)).map(|_| rng.chance(20)).collect();
        Table::dense(&dims, objectives, &costs, rng.chance(50).then_some(&gone))?
    } else {
        let mut offsets = vec![u32::from(rng.chance(5))];
        for _ in 0..about(cells, rng) {
            let last = offsets[offsets.len() - 1];
            offsets.push(if rng.chance(2) {
                rng.next() as u32
            } else {
                last.saturating_add(rng.below(3) as u32)
            });
        }
        let count = u64::from(offsets[offsets.len() - 1]).min(300) * per;
        let costs: Vec<u64> = (0..about(count, rng)).map(|_| any(&COSTS, rng)).collect();
        Table::with_alternatives(&dims, objectives, &offsets, &costs)?
    };
    if rng.chance(20) { table.with_factor(any(&FACTORS, rng)) } else { Ok(table) }
}

fn any_options(graph: &CostGraph, rng: &mut Rng) -> SolveOptions {
    let objectives = graph.objectives();
    let mut options = SolveOptions::default().with_threads(1).with_epsilon(any(&EPSILONS, rng));
    if rng.chance(3) {
        options.threads = Some(any(&[0, 2, 3], rng));
    }
    if rng.chance(40) {
        let count = if rng.chance(95) { objectives } else { rng.below(6) as usize };
        options.caps = (0..count).map(|_| rng.chance(50).then(|| any_cap(graph, rng))).collect();
    }
    if rng.chance(30) {
        let mut index = || rng.below(objectives as u64 + 1) as usize;
        let (resident, transient) = (index(), index());
        let cap = rng.chance(50).then(|| any_cap(graph, rng));
        options.peak = Some(Peak { resident, transient, cap });
    }
    if rng.chance(20) {
        let count = objectives.saturating_sub(usize::from(options.peak.is_some()));
        options.known = (0..rng.below(4))
            .map(|_| {
                let count = if rng.chance(97) { count } else { rng.below(6) as usize };
                (0..count).map(|_| any_cap(graph, rng)).collect()
            })
            .collect();
    }
    options.max_table_cells = any(&[0, 1, 4, 64, 1 << 12, 1 << 12, 1 << 12], rng);
    options.heuristic = rng.chance(80);
    options.max_bytes = any(&[0, 100, 10_000, 1 << 24, 1 << 24, 1 << 24], rng);
    options.work_limit = any(&[Some(100_000), Some(100_000), Some(0), Some(10), Some(1000)], rng);
    options.time_limit = any(&[None, None, None, Some(Duration::ZERO), Some(Duration::MAX)], rng);
    options.max_points = any(&[None, None, None, None, Some(0), Some(1), Some(3)], rng);
    options
}

fn any_cap(graph: &CostGraph, rng: &mut Rng) -> u64 {
    let largest = graph.largest(rng.below(graph.objectives() as u64) as usize);
    match rng.below(4) {
        0 => any(&COSTS, rng),
        _ => largest / (1 + rng.below(4)),
    }
}

/// Holds an answer to what was asked.
fn check(seed: u64, graph: &CostGraph, options: &SolveOptions, solution: &Solution) {
    let plans = solution.plans().unwrap();
    let found = rows(solution.costs(), graph.objectives());
    assert_eq!(plans.len(), found.len(), "seed {seed}");
    assert!(solution.factor() >= 1.0, "seed {seed}: factor {}", solution.factor());
    // Thinning may keep a few more: ends and corners.
    let most = options.max_points.map(|most| most + most / 10 + 8);
    assert!(most.is_none_or(|most| found.len() <= most), "seed {seed}: {} points", found.len());
    for (point, (plan, cost)) in plans.iter().zip(&found).enumerate() {
        assert_eq!(&plan.cost, cost, "seed {seed}");
        let caps = options.caps.iter().zip(cost);
        assert!(
            caps.into_iter().all(|(cap, cost)| cap.is_none_or(|cap| *cost <= cap)),
            "seed {seed}"
        );
        if let Some(Peak { resident, transient, cap }) = options.peak {
            let peak = cost[resident] + cost[transient];
            assert_eq!(solution.peak(point), Some(peak), "seed {seed}");
            assert!(cap.is_none_or(|cap| peak <= cap), "seed {seed}");
        }
    }
    let seen: Vec<Vec<u64>> = found.iter().map(|cost| key_of(cost, options.peak)).collect();
    for (i, p) in seen.iter().enumerate() {
        let better = |q: &Vec<u64>| q.iter().zip(p).all(|(q, p)| q <= p);
        let rival = (0..seen.len()).find(|&j| j != i && better(&seen[j]));
        assert_eq!(rival, None, "seed {seed}: {p:?} is dominated");
    }
    if matches!(solution.status(), Status::Optimal | Status::Infeasible) {
        check_exact(seed, graph, options, &seen);
    }
}

/// Holds an exact answer to enumeration, where that is quick and simple.
fn check_exact(seed: u64, graph: &CostGraph, options: &SolveOptions, seen: &[Vec<u64>]) {
    let configurations =
        (0..graph.nodes() as u32).map(|node| u64::from(graph.configurations(NodeId(node))));
    let plans = configurations.fold(1, u64::saturating_mul);
    let inexact = graph.used_tables().any(|table| table.factor() > 1.0);
    let alternatives = (0..graph.factors() as u32).map(FactorId).count();
    let capped_peak = options.peak.is_some() && !options.caps.is_empty();
    if plans > 2000 || alternatives > 12 || inexact || capped_peak || !options.known.is_empty() {
        return;
    }
    let within = |cost: &Vec<u64>| {
        let caps = options.caps.iter().zip(cost);
        caps.into_iter().all(|(cap, cost)| cap.is_none_or(|cap| *cost <= cap))
    };
    let within_peak = |cost: &Vec<u64>| match options.peak {
        Some(Peak { resident, transient, cap: Some(cap) }) => {
            cost[resident] + cost[transient] <= cap
        }
        _ => true,
    };
    let all = brute_force(graph).into_iter().filter(|cost| within(cost) && within_peak(cost));
    let keys: Vec<Vec<u64>> = all.map(|cost| key_of(&cost, options.peak)).collect();
    assert_eq!(seen, super::naive_front(keys), "seed {seed}");
}
