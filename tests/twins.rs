//! The solver against a naive one, on problems of all shapes that are too large to enumerate: exact,
//! with caps, with a peak, with points known before, and with `epsilon`.
//!
//! `TENSOROPT_PROBLEMS=20000` looks at as many instead of a few.

mod support;

use support::naive::{eliminate, pruned};
use support::{Rng, brute_force, cover, key_of, problem, problems, seen, table};
use tensoropt::{Aggregate, CostGraph, NodeId, Peak, Solution, SolveOptions, Status, solve};

const SHAPES: [&str; 10] = [
    "chain", "tree", "diamonds", "ladder", "star", "clique", "islands", "parallel", "sparse",
    "ring",
];

/// The pairs of nodes of a shape, and how many nodes there are.
fn edges(shape: &str, rng: &mut Rng) -> (u32, Vec<[u32; 2]>) {
    let n = 7 + rng.below(6) as u32;
    let chain = |from: u32, to: u32| (from + 1..to).map(|i| [i - 1, i]);
    match shape {
        "chain" => (n, chain(0, n).collect()),
        "tree" => (n, (1..n).map(|i| [rng.below(u64::from(i)) as u32, i]).collect()),
        "diamonds" => {
            let diamond = |o| [[o, o + 1], [o, o + 2], [o + 1, o + 3], [o + 2, o + 3]];
            (10, (0..3).flat_map(|i| diamond(3 * i)).collect())
        }
        "ladder" => {
            let rungs = (0..n / 2).map(|i| [2 * i, 2 * i + 1]);
            let sides = (1..n / 2).flat_map(|i| [[2 * i - 2, 2 * i], [2 * i - 1, 2 * i + 1]]);
            (n / 2 * 2, rungs.chain(sides).collect())
        }
        // A hub that all know, and neighbours that know each other now and then.
        "star" => {
            let leaves = (1..n).map(|i| [0, i]);
            (n, leaves.chain((2..n).filter(|i| i % 3 > 0).map(|i| [i - 1, i])).collect())
        }
        // Five that all know each other, and a tail.
        "clique" => {
            let all = (1..5).flat_map(|j| (0..j).map(move |i| [i, j]));
            (8, all.chain(chain(4, 8)).collect())
        }
        "islands" => (n, chain(0, 4).chain(chain(4, 6)).chain(chain(6, n)).collect()),
        // Every edge several times, in both directions.
        "parallel" => (n, chain(0, n).flat_map(|[a, b]| [[a, b], [b, a], [a, b]]).collect()),
        // A grid; most of its tables are mostly impossible, see below.
        "sparse" => {
            let right = (0..9).filter(|i| i % 3 < 2).map(|i| [i, i + 1]);
            (9, right.chain((0..6).map(|i| [i, i + 3])).collect())
        }
        _ => (n, (0..n).map(|i| [i, (i + 1) % n]).collect()),
    }
}

/// A problem of a shape that goes by the seed.
fn shaped(seed: u64, aggregates: &[Aggregate]) -> CostGraph {
    let mut rng = Rng::new(seed ^ 0x7414);
    let shape = SHAPES[(seed % SHAPES.len() as u64) as usize];
    let (nodes, edges) = edges(shape, &mut rng);
    // Of many objectives everything is worth having, unless there are few values.
    let largest = match aggregates.len() {
        1 | 2 => [4, 60, 5000, 1 << 40][rng.below(4) as usize],
        3 => 2 + rng.below(6),
        _ => 2 + rng.below(2),
    };
    let mut graph = CostGraph::new(aggregates).unwrap();
    let dims: Vec<u32> = (0..nodes).map(|_| 1 + rng.below(3) as u32).collect();
    let several = if rng.chance(30) { 40 } else { 0 };
    let holes = if shape == "sparse" { 35 } else { [0, 0, 10][rng.below(3) as usize] };
    // Few different tables, so that equal operations meet.
    let mut pool = Vec::new();
    let mut intern = |dims: &[u32], holes, graph: &mut CostGraph, rng: &mut Rng| {
        let same = pool.iter().find(|(shape, _)| shape == dims);
        if let Some(&(_, id)) = same.filter(|_| rng.chance(50)) {
            return id;
        }
        let table = table(dims, aggregates.len(), (largest, holes, several), rng);
        let id = graph.add_table(table).unwrap();
        pool.insert(0, (dims.to_vec(), id));
        id
    };
    for &dim in &dims {
        let table = intern(&[dim], 0, &mut graph, &mut rng);
        graph.add_node(table).unwrap();
    }
    for [a, b] in edges {
        let table = intern(&[dims[a as usize], dims[b as usize]], holes, &mut graph, &mut rng);
        graph.add_factor(&[NodeId(a), NodeId(b)], table).unwrap();
    }
    graph
}

fn any_aggregates(rng: &mut Rng) -> Vec<Aggregate> {
    let count = [1, 2, 2, 2, 3, 3, 4][rng.below(7) as usize];
    (0..count).map(|_| if rng.chance(25) { Aggregate::Max } else { Aggregate::Sum }).collect()
}

/// A problem, and all that may matter of it.
struct Twin {
    seed: u64,
    graph: CostGraph,
    truth: Vec<Vec<u64>>,
    rng: Rng,
}

impl Twin {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let graph = shaped(seed, &any_aggregates(&mut rng));
        let truth = eliminate(&graph);
        Self { seed, graph, truth, rng }
    }

    fn solve(&self, options: &SolveOptions) -> Solution {
        let solution = solve(&self.graph, options).unwrap();
        for (point, plan) in solution.plans().unwrap().iter().enumerate() {
            assert_eq!(plan.cost, solution.cost(point), "seed {}", self.seed);
        }
        solution
    }

    /// Exactly these points come back, in the order in which they are promised.
    fn assert_points(&self, options: &SolveOptions, expected: &[Vec<u64>]) {
        let solution = self.solve(options);
        let found = seen(&solution, options.peak);
        let seed = self.seed;
        assert_eq!(found, expected, "seed {seed}, {options:?}");
        let infeasible = expected.is_empty() && options.known.is_empty();
        let status = if infeasible { Status::Infeasible } else { Status::Optimal };
        assert!(solution.status() == status || expected.is_empty(), "seed {seed}");
        assert!(solution.factor() <= 1.0 || expected.is_empty(), "seed {seed}");
    }

    /// A cost of a true point, or a little less.
    fn level(&mut self, of: &[Vec<u64>], objective: usize) -> Option<u64> {
        let point = of.get(self.rng.below(of.len().max(1) as u64) as usize)?;
        Some(point[objective].saturating_sub(self.rng.below(2)))
    }

    fn exact(&mut self, options: &SolveOptions) {
        let truth = self.truth.clone();
        self.assert_points(options, &truth);
    }

    fn capped(&mut self, options: &SolveOptions) {
        let truth = self.truth.clone();
        let caps: Vec<Option<u64>> = (0..self.graph.objectives())
            .map(|i| if self.rng.chance(60) { self.level(&truth, i) } else { None })
            .collect();
        let within =
            |p: &&Vec<u64>| p.iter().zip(&caps).all(|(p, cap)| cap.is_none_or(|cap| *p <= cap));
        let expected: Vec<Vec<u64>> = truth.iter().filter(within).cloned().collect();
        self.assert_points(&options.clone().with_caps(&caps), &expected);
    }

    fn with_peak(&mut self, options: &SolveOptions) {
        let position = |aggregate| self.graph.aggregates().iter().position(|&a| a == aggregate);
        let (Some(resident), Some(transient)) =
            (position(Aggregate::Sum), position(Aggregate::Max))
        else {
            return;
        };
        let mut peak = Peak { resident, transient, cap: None };
        let keys = self.truth.iter().map(|cost| key_of(cost, Some(peak))).collect();
        let mut expected = pruned(keys);
        let column = resident - usize::from(transient < resident);
        if self.rng.chance(50) {
            peak.cap = self.level(&expected.clone(), column);
            expected.retain(|key| peak.cap.is_none_or(|cap| key[column] <= cap));
        }
        self.assert_points(&options.clone().with_peak(peak), &expected);
    }

    fn with_known(&mut self, options: &SolveOptions) {
        let some = self.truth.iter().filter(|_| self.rng.chance(40)).cloned();
        let mut known: Vec<Vec<u64>> = some.collect();
        for cost in known.iter_mut().flatten() {
            // Some a little better than what there is, some a little worse.
            *cost = (*cost + self.rng.below(3)).saturating_sub(1);
        }
        let covered = |p: &Vec<u64>| known.iter().any(|q| q.iter().zip(p).all(|(q, p)| q <= p));
        let expected: Vec<Vec<u64>> = self.truth.iter().filter(|p| !covered(p)).cloned().collect();
        self.assert_points(&options.clone().with_known(&known), &expected);
    }

    fn within_epsilon(&mut self, options: &SolveOptions) {
        let epsilon = [0.5, 0.1, 0.001][self.rng.below(3) as usize];
        let solution = self.solve(&options.clone().with_epsilon(epsilon));
        let (points, said, seed) = (seen(&solution, None), solution.factor(), self.seed);
        if self.truth.is_empty() {
            assert_eq!(solution.status(), Status::Infeasible, "seed {seed}");
            return;
        }
        let is = cover(&self.truth, &points);
        assert!(is <= said * (1.0 + 1e-12), "seed {seed}, {epsilon}: said {said}, is {is}");
        assert!(said <= (1.0 + epsilon) * (1.0 + 1e-12), "seed {seed}, {epsilon}: only {said}");
        assert!(cover(&points, &self.truth) <= 1.0, "seed {seed}: a point is too good");
    }
}

#[test]
fn the_naive_solver_is_right() {
    for seed in 0..problems(500) {
        let graph = problem(seed);
        assert_eq!(eliminate(&graph), brute_force(&graph), "seed {seed}");
    }
}

#[test]
fn equals_the_naive_solver() {
    let (mut points, mut largest, mut infeasible) = (0, 0, 0);
    let count = problems(500);
    for seed in 0..count {
        let mut twin = Twin::new(seed);
        let options = SolveOptions::default().with_threads(1);
        twin.exact(&options);
        match seed / SHAPES.len() as u64 % 4 {
            0 => twin.capped(&options),
            1 => twin.with_peak(&options),
            2 => twin.with_known(&options),
            _ => twin.within_epsilon(&options),
        }
        points += twin.truth.len();
        largest = largest.max(twin.truth.len());
        infeasible += u64::from(twin.truth.is_empty());
    }
    println!("{count} problems, {points} points, at most {largest}, {infeasible} infeasible");
    assert!(points as u64 > 5 * count && infeasible < count / 5, "{points}, {infeasible}");
}
