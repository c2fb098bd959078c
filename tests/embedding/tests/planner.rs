//! The planner's answers, held against trying everything.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use query_planner::operators::{Cost, Operator, moves};
use query_planner::{Plan, Planner, Query};
use tensoropt::{
    CostGraph, Error, Quantity, SolveOptions, Status, StopToken, Table, contract, solve,
    solve_watched,
};

/// Two tables joined, ordered on the way if that helps, and grouped; the first is used twice.
fn report() -> Query {
    let mut query = Query::new();
    let orders = query.step(Operator::Scan(2e6), &[]);
    let items = query.step(Operator::Scan(5e5), &[]);
    let (a, b) =
        (query.step(Operator::Order(2e6), &[orders]), query.step(Operator::Order(5e5), &[items]));
    let join = query.step(Operator::Join(2e6, 5e5), &[a, b]);
    let again = query.step(Operator::Join(2e6, 2e6), &[join, a]);
    query.step(Operator::Group(2e6, 1e4), &[again]);
    query
}

/// A stage that a pipeline repeats: order, join with a dimension table, order again.
fn stage() -> (Query, [usize; 2]) {
    let mut query = Query::new();
    let first = query.step(Operator::Order(1e5), &[]);
    let dimension = query.step(Operator::Scan(3e4), &[]);
    let ordered = query.step(Operator::Order(3e4), &[dimension]);
    let join = query.step(Operator::Join(1e5, 3e4), &[first, ordered]);
    let last = query.step(Operator::Order(1e5), &[join]);
    (query, [first, last])
}

/// A pipeline of stages, each a view or not.
fn pipeline(planner: &Planner, stages: usize) -> Query {
    let (query, ends) = stage();
    let view = Rc::new(planner.view(query, ends).unwrap());
    let mut pipeline = Query::new();
    let source = pipeline.step(Operator::Scan(1e5), &[]);
    let mut last = pipeline.step(Operator::Order(1e5), &[source]);
    for _ in 0..stages {
        let next = pipeline.step(Operator::Order(1e5), &[]);
        pipeline.view(&view, [last, next]);
        last = next;
    }
    pipeline.step(Operator::Group(1e5, 100.0), &[last]);
    pipeline
}

/// Time and peak of everything that can be done, in steps, without what is dominated.
fn everything(planner: &Planner, query: &[Operator], feeds: &[(usize, usize)]) -> Vec<[u64; 2]> {
    let methods: Vec<_> = query.iter().map(|operator| operator.methods()).collect();
    let mut found = BTreeSet::new();
    let mut chosen = vec![0; query.len()];
    loop {
        let costs = chosen.iter().zip(&methods).map(|(&k, methods)| methods[k].cost);
        let mut sums = BTreeSet::from([add(planner, [0; 3], costs)]);
        for &(from, to) in feeds {
            let (from_method, to_method) = (methods[from][chosen[from]], methods[to][chosen[to]]);
            let ways = moves(query[from].rows(), from_method.gives, to_method.needs);
            sums = ways
                .iter()
                .flat_map(|way| sums.iter().map(|&sum| add(planner, sum, [way.cost].into_iter())))
                .collect();
        }
        found.extend(sums.iter().map(|&[time, held, working]| [time, held + working]));
        let Some(step) = (0..chosen.len()).rev().find(|&i| chosen[i] + 1 < methods[i].len()) else {
            break;
        };
        chosen[step] += 1;
        chosen[step + 1..].fill(0);
    }
    let best = found.iter().scan(u64::MAX, |least, &[time, peak]| {
        let better = peak < *least;
        *least = peak.min(*least);
        Some(better.then_some([time, peak]))
    });
    best.flatten().collect()
}

fn add(planner: &Planner, sum: [u64; 3], costs: impl Iterator<Item = Cost>) -> [u64; 3] {
    costs.fold(sum, |[time, held, working], cost| {
        let [t, h, w] = planner.steps_of(cost).unwrap();
        [time + t, held + h, working.max(w)]
    })
}

fn in_steps(plans: &[Plan]) -> Vec<[u64; 2]> {
    let steps = |value: f64, unit: f64| (value / unit).round() as u64;
    plans.iter().map(|plan| [steps(plan.time_s, 1e-6), steps(plan.peak_bytes, 4096.0)]).collect()
}

/// The operators and feeds of [`report`] once more, for the enumeration.
const REPORT: [Operator; 7] = [
    Operator::Scan(2e6),
    Operator::Scan(5e5),
    Operator::Order(2e6),
    Operator::Order(5e5),
    Operator::Join(2e6, 5e5),
    Operator::Join(2e6, 2e6),
    Operator::Group(2e6, 1e4),
];
const FEEDS: [(usize, usize); 6] = [(0, 2), (1, 3), (2, 4), (3, 4), (4, 5), (2, 5)];

fn report_frontier(planner: &Planner) -> Vec<[u64; 2]> {
    everything(planner, &REPORT, &[&FEEDS[..], &[(5, 6)]].concat())
}

#[test]
fn all_plans_worth_having_are_found() {
    let planner = Planner::new().unwrap();
    let plans = planner.plans(&report(), None, |_| true).unwrap();
    let expected = report_frontier(&planner);
    assert_eq!(in_steps(&plans), expected);
    assert!(expected.len() >= 5, "time and memory are worth trading: {expected:?}");
    let (fastest, leanest) = (&plans[0], &plans[plans.len() - 1]);
    assert!(fastest.methods.contains(&"hash join") && fastest.moves.contains(&"spool and send"));
    assert!(
        !leanest.methods.contains(&"hash join") && !leanest.methods.contains(&"sort in memory")
    );
}

#[test]
fn a_grant_of_memory_is_kept() {
    let planner = Planner::new().unwrap();
    let all = report_frontier(&planner);
    for [_, pages] in &all {
        // Half a page more than a plan needs is just enough for it.
        let grant = (*pages as f64 + 0.5) * 4096.0;
        let plans = planner.plans(&report(), Some(grant), |_| true).unwrap();
        let fit: Vec<[u64; 2]> = all.iter().copied().filter(|[_, peak]| peak <= pages).collect();
        assert_eq!(in_steps(&plans), fit);
    }
}

#[test]
fn too_small_a_grant_says_what_would_do() {
    let planner = Planner::new().unwrap();
    let least = report_frontier(&planner).last().unwrap()[1];
    let graph = planner.graph(&report()).unwrap();
    let options = planner.options(Some(4096.0)).unwrap();
    let solution = solve(&graph, &options).unwrap();
    assert_eq!(solution.status(), Status::Infeasible);
    assert!(solution.is_empty());
    let [said] = solution.least() else { panic!("one quantity is capped") };
    assert_eq!((said.quantity, said.cap, said.reachable), (Quantity::Peak, 1, Some(least)));
}

#[test]
fn caps_hold_for_single_objectives() {
    let planner = Planner::new().unwrap();
    let graph = planner.graph(&report()).unwrap();
    let all = solve(&graph, &SolveOptions::default()).unwrap();
    let middle = all.cost(all.len() / 2).to_vec();
    let caps = [Some(middle[0]), None, Some(middle[2])];
    let capped = solve(&graph, &SolveOptions::default().with_caps(&caps)).unwrap();
    let within = |cost: &[u64]| cost[0] <= middle[0] && cost[2] <= middle[2];
    let expected: Vec<&[u64]> =
        (0..all.len()).map(|point| all.cost(point)).filter(|cost| within(cost)).collect();
    let found: Vec<&[u64]> = (0..capped.len()).map(|point| capped.cost(point)).collect();
    assert_eq!(found, expected);
    assert!(found.contains(&&middle[..]) && found.len() < all.len());
}

#[test]
fn equal_operators_share_a_table() {
    let planner = Planner::new().unwrap();
    let query = pipeline(&planner, 8).inlined();
    let graph = planner.graph(&query).unwrap();
    assert_eq!(graph.nodes(), 3 + 8 * 4);
    let different: BTreeSet<String> = (0..graph.nodes() as u32)
        .map(|n| format!("{:?}", graph.node_table(tensoropt::NodeId(n))))
        .collect();
    let feeds: BTreeSet<String> = (0..graph.factors() as u32)
        .map(|f| format!("{:?}", graph.factor_table(tensoropt::FactorId(f))))
        .collect();
    assert_eq!(graph.tables(), different.len() + feeds.len());
    assert!(graph.tables() < 16, "{} tables", graph.tables());
}

#[test]
fn a_view_is_planned_once_and_used_many_times() {
    let planner = Planner::new().unwrap();
    for stages in [1, 3] {
        let query = pipeline(&planner, stages);
        let flat = query.inlined();
        let (plans, whole) = (
            planner.plans(&query, None, |_| true).unwrap(),
            planner.plans(&flat, None, |_| true).unwrap(),
        );
        assert_eq!(in_steps(&plans), in_steps(&whole));
        assert!(plans.len() >= 5 && plans[0].methods.len() == flat.len());
        for plan in &plans {
            assert_eq!(price(&planner, &flat, plan), in_steps(std::slice::from_ref(plan))[0]);
        }
    }
}

/// A plan's time and peak from the names of its methods and moves.
fn price(planner: &Planner, flat: &Query, plan: &Plan) -> [u64; 2] {
    let graph = planner.graph(flat).unwrap();
    let methods: Vec<u32> = (0..flat.len()).map(|step| position(flat, step, plan)).collect();
    let ways: Vec<u32> = (0..graph.factors())
        .map(|feed| u32::from(plan.moves[feed] == "send as they come"))
        .collect();
    let cost = graph.cost(&methods, &vec![0; flat.len()], &ways).expect("the plan is possible");
    [cost[0], cost[1] + cost[2]]
}

fn position(flat: &Query, step: usize, plan: &Plan) -> u32 {
    let methods = flat.operator(step).methods();
    methods.iter().position(|method| method.name == plan.methods[step]).unwrap() as u32
}

#[test]
fn progress_is_told_and_a_search_can_be_stopped() {
    // Enough work for the watch to be asked, however fast the machine: hundreds of stages of
    // random-looking costs.
    let mut graph = CostGraph::new(&[tensoropt::Aggregate::Sum; 3]).unwrap();
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % 1000
    };
    let costs: Vec<u64> = (0..64)
        .flat_map(|_| {
            let (a, b) = (next(), next());
            [a, b, 2000 - a - b]
        })
        .collect();
    let own = graph.add_table(Table::dense(&[8], 3, &[0; 24], None).unwrap()).unwrap();
    let between = graph.add_table(Table::dense(&[8, 8], 3, &costs, None).unwrap()).unwrap();
    let nodes: Vec<_> = (0..2000).map(|_| graph.add_node(own).unwrap()).collect();
    for pair in nodes.windows(2) {
        graph.add_factor(pair, between).unwrap();
    }

    let mut ticks = 0;
    let mut watch = |progress: &tensoropt::Progress| {
        assert!((0.0..=1.0).contains(&progress.fraction));
        ticks += 1;
        if ticks < 3 {
            std::ops::ControlFlow::Continue(())
        } else {
            std::ops::ControlFlow::Break(())
        }
    };
    let options = SolveOptions::default().with_threads(1);
    let solution = solve_watched(&graph, &options, &mut watch).unwrap();
    assert_eq!(solution.status(), Status::Stopped);
    assert_eq!(ticks, 3);
    assert_eq!(solution.plans().unwrap().len(), solution.len());

    let mut token = StopToken::new();
    let other = token.clone();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        other.stop();
    });
    let solution = solve_watched(&graph, &options, &mut token).unwrap();
    stopper.join().unwrap();
    assert_eq!(solution.status(), Status::Stopped);

    // A planner that is told to stop has no plan to show that it did not find.
    let planner = Planner::new().unwrap();
    let plans = planner.plans(&report(), None, |_| false).unwrap();
    let all = report_frontier(&planner);
    assert!(
        in_steps(&plans).iter().all(|[time, peak]| all.iter().any(|[t, p]| t <= time && p <= peak))
    );
}

#[test]
fn mistakes_are_named() {
    let planner = Planner::new().unwrap();
    let mut graph = planner.graph(&report()).unwrap();
    let table = graph.node_table_id(tensoropt::NodeId(0));
    let scope = [tensoropt::NodeId(0), tensoropt::NodeId(1)];
    let error = graph.add_factor(&scope, table).unwrap_err();
    assert!(matches!(&error, Error::FactorShape { dims, .. } if dims == &[2]), "{error}");
    let error = contract(&graph, &[tensoropt::NodeId(99)], &SolveOptions::default()).unwrap_err();
    assert!(matches!(error, Error::UnknownNode(node) if node.index() == 99));

    let mut query = Query::new();
    query.step(Operator::Scan(f64::NAN), &[]);
    assert!(matches!(planner.graph(&query), Err(Error::Cost { value }) if value.is_nan()));
    let mut query = Query::new();
    query.step(Operator::Scan(1e40), &[]);
    let error = planner.graph(&query).unwrap_err();
    assert!(error.to_string().contains("coarser"), "{error}");

    // A view whose ends are other operators than the steps that it is put between.
    let (stage, ends) = stage();
    let view = Rc::new(planner.view(stage, ends).unwrap());
    let mut query = Query::new();
    let scan = query.step(Operator::Scan(1e5), &[]);
    let group = query.step(Operator::Group(1e5, 10.0), &[]);
    query.view(&view, [scan, group]);
    let error = planner.graph(&query).unwrap_err();
    assert!(matches!(error, Error::FactorShape { ref dims, .. } if dims == &[3, 3]), "{error}");
}
