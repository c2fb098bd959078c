//! Fixed work on sequential paths. `instructions NAME` does it once; without a name it lists what
//! there is. `tools/instructions.py` counts the instructions.

#[path = "../../../problems/mod.rs"]
mod problems;

use std::hint::black_box;
use std::process::ExitCode;

use problems::{Numbers, PEAK, chain, grid, hub, ladder, transformer};
use tensoropt::frontier::{
    CostVector, Packed2, Scratch, Term, Wide, WideAlgebra, Work, prune, thin, union_of_sums,
};
use tensoropt::{CostGraph, NodeId, SolveOptions, contract, solve};

/// What can be counted. Each is a few ten million instructions, of which starting the process and
/// making the problem are a small part.
const ALL: [(&str, fn()); 12] = [
    ("prune_two", || pruned::<Packed2>(100_000)),
    ("prune_three", || pruned::<Wide<3>>(30_000)),
    ("prune_four", || pruned::<Wide<4>>(4_000)),
    ("sum_small", || summed::<Packed2>(&(), 16, 400)),
    ("sum_two", || summed::<Packed2>(&(), 1_000, 4)),
    ("sum_three", || summed::<Wide<3>>(&WideAlgebra::SUM, 120, 4)),
    ("thin_two", thinned),
    ("chain_exact", || solved(&chain(20, 8, 2), &SolveOptions::default())),
    ("chain_epsilon", || solved(&chain(60, 8, 4), &SolveOptions::default().with_epsilon(1e-2))),
    ("width_two", || {
        solved(&ladder(6, 4), &SolveOptions::default());
        solved(&hub(8, 4), &SolveOptions::default());
        solved(&grid(2, 5, 4), &SolveOptions::default());
    }),
    ("peak", || {
        let options = SolveOptions::default().with_peak(PEAK).with_epsilon(1e-2);
        solved(&transformer(2, 4), &options);
    }),
    ("block", block),
];

fn vectors<C: CostVector>(count: usize, numbers: &mut Numbers) -> Vec<C> {
    let scale = 1 << 28;
    let vector = |numbers: &mut Numbers| {
        let parts: Vec<u64> = (0..C::OBJECTIVES).map(|_| 1 + numbers.below(scale)).collect();
        let sum: u64 = parts.iter().sum();
        // Near a plane on which nothing is dominated.
        let costs = parts.iter().map(|part| part * scale / sum + numbers.below(scale / 1000));
        C::from_slice(&costs.collect::<Vec<u64>>())
    };
    (0..count).map(|_| vector(numbers)).collect()
}

fn pruned<C: CostVector>(count: usize) {
    let mut points: Vec<C> = vectors(count, &mut Numbers::new(1));
    prune(&mut points, &mut Scratch::new());
    assert!(black_box(points.len()) > 10);
}

fn summed<C: CostVector>(algebra: &C::Algebra, size: usize, times: usize) {
    let mut numbers = Numbers::new(2);
    let mut scratch = Scratch::new();
    let mut front = || {
        let mut points: Vec<C> = vectors(size, &mut numbers);
        prune(&mut points, &mut scratch);
        points
    };
    let sides: Vec<(Vec<C>, Vec<C>)> = (0..4).map(|_| (front(), front())).collect();
    let terms: Vec<Term<'_, C>> = sides.iter().map(|(left, right)| Term { left, right }).collect();
    let (mut out, mut scratch, mut work) = (Vec::new(), Scratch::new(), Work::default());
    for _ in 0..times {
        union_of_sums(algebra, black_box(&terms), None, &mut out, &mut scratch, &mut work);
    }
    assert!(black_box(out.len()) > 10);
}

fn thinned() {
    let mut scratch = Scratch::new();
    let mut points: Vec<Packed2> = vectors(100_000, &mut Numbers::new(3));
    prune(&mut points, &mut scratch);
    for _ in 0..100 {
        let mut copy = points.clone();
        thin(&mut copy, 64, None, &mut scratch);
        assert!(black_box(copy.len()) <= 64);
    }
}

fn solved(graph: &CostGraph, options: &SolveOptions) {
    let solution = solve(graph, &options.clone().with_threads(1)).unwrap();
    assert!(solution.plans().unwrap().len() > 10);
}

fn block() {
    let graph = ladder(6, 4);
    let ends = [NodeId(0), NodeId(graph.nodes() as u32 - 1)];
    let block = contract(&graph, &ends, &SolveOptions::default().with_threads(1)).unwrap();
    assert!(block.table().costs().len() > 100);
}

fn main() -> ExitCode {
    let Some(wanted) = std::env::args().nth(1) else {
        ALL.iter().for_each(|(name, _)| println!("{name}"));
        return ExitCode::SUCCESS;
    };
    let Some((_, work)) = ALL.iter().find(|(name, _)| *name == wanted) else {
        eprintln!("there is no {wanted}: run without a name for a list");
        return ExitCode::FAILURE;
    };
    work();
    ExitCode::SUCCESS
}
