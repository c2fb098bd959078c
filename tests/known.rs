//! Points reached elsewhere, caps, peaks and `epsilon` together, against simpler solvers: enumeration
//! for small problems, one exact elimination over one objective more for larger ones, which goes
//! past everything that is made for two sums.

mod support;

use support::{
    Rng, all_costs, cover, front_of_pairs, key_of, larger, naive_front, problem_with, problems,
    rows, seen,
};
use tensoropt::{Aggregate, CostGraph, Error, Peak, Solution, SolveOptions, Status, Table, solve};

fn few() -> u64 {
    problems(1500)
}

fn some() -> u64 {
    few() / 5
}

const SUMS: [Aggregate; 2] = [Aggregate::Sum; 2];
const WITH_PEAK: [Aggregate; 3] = [Aggregate::Sum, Aggregate::Sum, Aggregate::Max];
const PEAK: Peak = Peak { resident: 1, transient: 2, cap: None };

/// What is asked, and the true answer.
struct Case {
    name: String,
    graph: CostGraph,
    /// Over the objectives that the user sees, within the caps.
    truth: Vec<Vec<u64>>,
    caps: Vec<Option<u64>>,
    peak: Option<Peak>,
    known: Vec<Vec<u64>>,
}

impl Case {
    /// Draws caps and known points that fit a problem, `costs` being all that may matter of it.
    fn new(seed: u64, graph: CostGraph, costs: &[Vec<u64>], peak: Option<Peak>) -> Self {
        let front = |points: Vec<Vec<u64>>| {
            if points.first().is_some_and(|p| p.len() == 2) {
                front_of_pairs(points)
            } else {
                naive_front(points)
            }
        };
        let mut rng = Rng::new(seed ^ 0xCA5E);
        let free = front(costs.iter().map(|cost| key_of(cost, peak)).collect());
        let mut cap = |objective: usize, percent| {
            let point = free.get(rng.below(free.len().max(1) as u64) as usize)?;
            rng.chance(percent).then(|| point[objective].saturating_sub(rng.below(2)))
        };
        // A peak has a cap of its own; the two parts of it are left free.
        let columns = free.first().map_or(0, Vec::len);
        let first = (0..columns).filter(|&i| peak.is_none_or(|peak| i != peak.resident));
        let mut caps = vec![None; graph.objectives()];
        for column in first {
            caps[objective_of(column, peak)] = cap(column, 30);
        }
        let peak = peak.map(|peak| Peak { cap: cap(peak.resident, 40), ..peak });
        let mut case =
            Self { name: format!("seed {seed}"), graph, truth: free, caps, peak, known: vec![] };
        let mut truth = std::mem::take(&mut case.truth);
        truth.retain(|point| case.allows(point));
        case.known = known_points(&truth, columns, &mut rng);
        case.truth = truth;
        case
    }

    /// Whether a point is within the caps.
    fn allows(&self, point: &[u64]) -> bool {
        let within = |i: usize, cost: u64| match self.peak {
            Some(peak) if peak.resident == i => peak.cap.is_none_or(|cap| cost <= cap),
            _ => self.caps[objective_of(i, self.peak)].is_none_or(|cap| cost <= cap),
        };
        point.iter().enumerate().all(|(i, &cost)| within(i, cost))
    }

    fn options(&self, epsilon: f64, threads: usize) -> SolveOptions {
        let mut options = SolveOptions::default().with_epsilon(epsilon).with_threads(threads);
        options.caps.clone_from(&self.caps);
        options.peak = self.peak;
        options.known.clone_from(&self.known);
        options
    }

    /// The known points that count.
    fn counting(&self) -> Vec<Vec<u64>> {
        self.known.iter().filter(|row| self.allows(row)).cloned().collect()
    }

    fn solve(&self, epsilon: f64) -> Solution {
        solve(&self.graph, &self.options(epsilon, 1)).unwrap()
    }

    /// With `epsilon` 0: exactly what is true and not known.
    fn assert_exact(&self) {
        let solution = self.solve(0.0);
        let known = self.counting();
        let new = |p: &&Vec<u64>| !known.iter().any(|known| dominates(known, p));
        let expected: Vec<Vec<u64>> = self.truth.iter().filter(new).cloned().collect();
        let mut found = seen(&solution, self.peak);
        found.sort();
        let Self { name, caps, peak, known, .. } = self;
        assert_eq!(found, expected, "{name}: caps {caps:?}, peak {peak:?}, known {known:?}");
        if !self.truth.is_empty() {
            assert_eq!(solution.status(), Status::Optimal, "{name}");
            assert!(solution.factor() <= 1.0, "{name}");
        } else if self.counting().is_empty() {
            assert_eq!(solution.status(), Status::Infeasible, "{name}");
        }
        self.assert_plans(&solution);
    }

    /// With `epsilon`: known and returned points together hold the factor.
    fn assert_covers(&self, epsilon: f64) {
        let solution = self.solve(epsilon);
        let (points, known) = (seen(&solution, self.peak), self.counting());
        let (caps, cap) = (&self.caps, self.peak.and_then(|peak| peak.cap));
        let name = format!("{}, epsilon {epsilon}, caps {caps:?}, peak {cap:?}", self.name);
        if self.truth.is_empty() {
            assert!(points.is_empty(), "{name}");
            return;
        }
        assert_ne!(solution.status(), Status::Infeasible, "{name}");
        let both = [&points[..], &known[..]].concat();
        let (truth, said) = (cover(&self.truth, &both), solution.factor());
        assert!(truth <= said * (1.0 + 1e-12), "{name}: said {said}, is {truth}");
        assert!(cover(&points, &self.truth) <= 1.0, "{name}: a point is too good to be true");
        for point in &points {
            assert!(self.allows(point), "{name}: {point:?} is above a cap");
            let by = known.iter().find(|known| dominates(known, point));
            assert!(by.is_none(), "{name}: {point:?} is returned, known is {by:?}");
        }
        self.assert_plans(&solution);
    }

    fn assert_plans(&self, solution: &Solution) {
        let costs = rows(solution.costs(), self.graph.objectives());
        let plans: Vec<Vec<u64>> =
            solution.plans().unwrap().into_iter().map(|plan| plan.cost).collect();
        assert_eq!(plans, costs, "{}", self.name);
    }
}

/// The objective of the graph that a column of the answer is.
fn objective_of(column: usize, peak: Option<Peak>) -> usize {
    column + usize::from(peak.is_some_and(|peak| peak.transient <= column))
}

fn dominates(a: &[u64], b: &[u64]) -> bool {
    a.iter().zip(b).all(|(a, b)| a <= b)
}

/// Points about the true ones, some better, some worse, and now and then nonsense.
fn known_points(truth: &[Vec<u64>], columns: usize, rng: &mut Rng) -> Vec<Vec<u64>> {
    let share = [0, 10, 50, 100][rng.below(4) as usize];
    let mut known: Vec<Vec<u64>> = Vec::new();
    for point in truth {
        if !rng.chance(share) {
            continue;
        }
        let kind = rng.below(4);
        let near = |&cost: &u64, rng: &mut Rng| match kind {
            0 | 1 => cost,
            2 => cost + rng.below(3) * (1 + cost / 100),
            _ => cost - cost.min(rng.below(3)),
        };
        known.push(point.iter().map(|cost| near(cost, rng)).collect());
    }
    if rng.chance(10) {
        known.push(vec![u64::MAX; columns]);
        known.push(vec![1 << 62; columns]);
    }
    if rng.chance(10) {
        let mut row = vec![u64::MAX; columns];
        row[rng.below(columns.max(1) as u64) as usize % columns.max(1)] = 0;
        known.push(row);
    }
    if rng.chance(3) {
        known.push(vec![0; columns]);
    }
    // The order is the caller's.
    let turn = rng.below(known.len().max(1) as u64) as usize;
    known.rotate_left(turn);
    known
}

fn small(seed: u64) -> Option<Case> {
    let (aggregates, peak): (&[Aggregate], _) = match seed % 5 {
        0 | 1 => (&SUMS, None),
        2 | 3 => (&WITH_PEAK, Some(PEAK)),
        // Three objectives as they are, and one beside the two parts of a peak and another.
        _ if seed % 2 == 0 => (&WITH_PEAK, None),
        _ => (&[Aggregate::Sum, Aggregate::Sum, Aggregate::Max, Aggregate::Sum], Some(PEAK)),
    };
    let graph = problem_with(seed, aggregates);
    let costs = all_costs(&graph);
    (!costs.is_empty()).then(|| Case::new(seed, graph, &costs, peak))
}

fn larger_case(seed: u64) -> Case {
    let peak = (seed / 6 % 2 == 1).then_some(PEAK);
    let graph = larger(seed, if peak.is_some() { &WITH_PEAK } else { &SUMS });
    // Three objectives at once are neither bounded nor taken apart.
    let beside = beside(&graph);
    let all = solve(&beside, &SolveOptions::default().with_threads(2)).unwrap();
    let costs: Vec<Vec<u64>> = rows(all.costs(), 3)
        .into_iter()
        .map(|mut cost| {
            cost.truncate(graph.objectives());
            cost
        })
        .collect();
    Case::new(seed, graph, &costs, peak)
}

/// The graph with three objectives: if there are two, the third is a sum of nothing.
fn beside(graph: &CostGraph) -> CostGraph {
    let mut aggregates = graph.aggregates().to_vec();
    aggregates.resize(3, Aggregate::Sum);
    let mut wider = CostGraph::new(&aggregates).unwrap();
    let widen = |table: &Table| {
        let costs: Vec<u64> = table
            .costs()
            .chunks_exact(table.objectives())
            .flat_map(|cost| cost.iter().copied().chain([0]).take(3).collect::<Vec<_>>())
            .collect();
        Table::with_alternatives(table.dims(), 3, table.offsets(), &costs).unwrap()
    };
    for node in (0..graph.nodes() as u32).map(tensoropt::NodeId) {
        let id = wider.add_table(widen(graph.node_table(node))).unwrap();
        wider.add_node(id).unwrap();
    }
    for factor in (0..graph.factors() as u32).map(tensoropt::FactorId) {
        let id = wider.add_table(widen(graph.factor_table(factor))).unwrap();
        wider.add_factor(graph.scope(factor), id).unwrap();
    }
    wider
}

#[test]
fn what_is_known_is_left_out_exactly() {
    let (mut covered, mut new) = (0, 0);
    for seed in 0..few() {
        let Some(case) = small(seed) else { continue };
        case.assert_exact();
        let known = case.counting();
        let points = case.truth.iter().filter(|p| known.iter().any(|known| dominates(known, p)));
        covered += points.count();
        new += seen(&case.solve(0.0), case.peak).len();
    }
    assert!(covered > 1000 && new > 1000, "hardly anything is tested: {covered}, {new}");
}

#[test]
fn known_and_returned_points_hold_the_factor() {
    for seed in 0..few() {
        let Some(case) = small(seed) else { continue };
        for epsilon in [1e-3, 0.05, 0.5] {
            case.assert_covers(epsilon);
        }
    }
}

#[test]
fn long_frontiers_hold_too() {
    let (mut points, mut most) = (0, 0);
    for seed in 0..some() {
        let case = larger_case(seed);
        case.assert_exact();
        for epsilon in [1e-3, 0.05] {
            case.assert_covers(epsilon);
        }
        points += case.truth.len();
        most = most.max(case.truth.len());
    }
    assert!(points > 40 * some() as usize && most > 200, "short frontiers: {points}, {most}");
}

/// Found by looking at 20,000: with both objectives capped, no plan on the hull is within both caps.
#[test]
fn two_caps_that_leave_nothing_on_the_hull() {
    small(15_815).expect("the problem has answers").assert_exact();
    for seed in [1773, 2015] {
        let case = larger_case(seed);
        assert!(case.truth.is_empty(), "seed {seed}: nothing is within the caps");
        case.assert_exact();
        case.assert_covers(0.05);
    }
}

#[test]
fn same_bytes_for_any_number_of_threads() {
    for seed in (0..some()).step_by(7) {
        let case = larger_case(seed);
        for epsilon in [0.0, 0.05] {
            let answer = |threads| {
                let solution = solve(&case.graph, &case.options(epsilon, threads)).unwrap();
                let plans = solution.plans().unwrap();
                (solution.costs().to_vec(), plans, solution.factor().to_bits(), solution.counters())
            };
            let one = answer(1);
            assert_eq!(one, answer(2), "{}", case.name);
            assert_eq!(one, answer(4), "{}", case.name);
        }
    }
}

#[test]
fn everything_known_is_no_infeasibility() {
    for seed in 0..60 {
        let mut case = larger_case(seed);
        if case.truth.is_empty() {
            continue;
        }
        case.known.clone_from(&case.truth);
        for epsilon in [0.0, 0.05] {
            let solution = case.solve(epsilon);
            assert!(solution.is_empty(), "{}: {} points", case.name, solution.len());
            let status = if epsilon > 0.0 && solution.factor() > 1.0 {
                Status::Epsilon
            } else {
                Status::Optimal
            };
            assert_eq!(solution.status(), status, "{}, epsilon {epsilon}", case.name);
            assert!(solution.least().is_empty(), "{}", case.name);
        }
    }
}

#[test]
fn a_halt_is_said_whatever_is_known() {
    let mut halted = 0;
    for seed in 0..48 {
        let case = larger_case(seed);
        for limit in [1, 300, 3_000] {
            let mut options = case.options(0.0, 1);
            options.work_limit = Some(limit);
            let solution = solve(&case.graph, &options).unwrap();
            halted += usize::from(solution.status() == Status::WorkLimit);
            let both = [seen(&solution, case.peak), case.counting()].concat();
            let (truth, said) = (cover(&case.truth, &both), solution.factor());
            let name = format!("{}, work limit {limit}", case.name);
            assert!(truth <= said * (1.0 + 1e-12), "{name}: said {said}, is {truth}");
            if said > 1.0 {
                assert_eq!(solution.status(), Status::WorkLimit, "{name}");
            }
        }
    }
    assert!(halted > 48, "hardly anything was halted: {halted}");
}

#[test]
fn rows_of_another_length_are_refused() {
    let refuse = |graph: &CostGraph, options: SolveOptions, expected: &str| {
        let error = solve(graph, &options).expect_err("a row of another length is taken");
        assert!(matches!(error, Error::Option { option: "known", .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    };
    let plain = larger(0, &SUMS);
    let known = |rows: &[Vec<u64>]| SolveOptions::default().with_threads(1).with_known(rows);
    refuse(&plain, known(&[vec![1, 2], vec![1]]), "expected 2 entries in every row, row 1 has 1");
    refuse(&plain, known(&[vec![1, 2, 3]]), "row 0 has 3");
    let peaked = larger(6, &WITH_PEAK);
    refuse(&peaked, known(&[vec![1, 2, 3]]).with_peak(PEAK), "expected 2 entries");
    refuse(&peaked, known(&[vec![1, 2]]), "expected 3 entries");
}
