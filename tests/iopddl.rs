//! The instances of the ASPLOS / EuroSys 2025 contest: evaluation by the rules, and small ones
//! solved by hand.

mod support;

use std::path::PathBuf;
use std::sync::OnceLock;

use support::Rng;
use tensoropt::exchange::{IMPOSSIBLE_COST, IopddlPart, IopddlProblem, ReadOptions};
use tensoropt::{Error, NodeId, SolveOptions, Status, solve};

fn read(text: &str) -> IopddlProblem {
    IopddlProblem::read(text.as_bytes(), ReadOptions::default()).unwrap()
}

/// A random instance as text: intervals that are empty or meet, edges in both directions, over
/// three nodes, parallel, and on one node twice.
fn instance(seed: u64) -> String {
    let mut rng = Rng::new(seed ^ 0x10DD1);
    let nodes = 2 + rng.below(4) as usize;
    let strategies: Vec<u64> = (0..nodes).map(|_| 1 + rng.below(3)).collect();
    let list = |values: Vec<u64>| format!("{values:?}");
    let cost = |rng: &mut Rng| if rng.chance(10) { IMPOSSIBLE_COST } else { rng.below(50) };
    let mut lists = [const { Vec::new() }; 5];
    let [intervals, costs, usages, scopes, edge_costs] = &mut lists;
    for &k in &strategies {
        let lower = rng.below(6);
        let upper = lower + rng.below(4);
        intervals.push(list(vec![lower, upper]));
        costs.push(list((0..k).map(|_| cost(&mut rng)).collect()));
        usages.push(list((0..k).map(|_| rng.below(9)).collect()));
    }
    for _ in 0..rng.below(6) {
        let scope: Vec<u64> = (0..1 + rng.below(3)).map(|_| rng.below(nodes as u64)).collect();
        let cells: u64 = scope.iter().map(|&node| strategies[node as usize]).product();
        edge_costs.push(list((0..cells).map(|_| cost(&mut rng)).collect()));
        scopes.push(list(scope));
    }
    let [intervals, costs, usages, scopes, edge_costs] = lists.map(|list| list.join(","));
    format!(
        r#"{{"problem":{{"name":"random {seed}","usage_limit":{},"nodes":{{
        "intervals":[{intervals}],"costs":[{costs}],"usages":[{usages}]}},
        "edges":{{"nodes":[{scopes}],"costs":[{edge_costs}]}}}}}}"#,
        5 + rng.below(20)
    )
}

fn assignments(problem: &IopddlProblem) -> Vec<Vec<u32>> {
    (0..problem.nodes() as u32).fold(vec![Vec::new()], |prefixes, node| {
        let strategies = problem.costs(node).len() as u32;
        let longer = |prefix: Vec<u32>| (0..strategies).map(move |k| [&prefix[..], &[k]].concat());
        prefixes.into_iter().flat_map(longer).collect()
    })
}

/// The rules word by word: sums of costs, and of usages at every point of time.
fn by_the_rules(problem: &IopddlProblem, chosen: &[u32]) -> (u128, bool, Vec<u64>) {
    let (mut cost, mut possible) = (0, true);
    let mut add = |value: u64| {
        cost += u128::from(value);
        possible &= value < 1_000_000_000_000_000_000;
    };
    for (node, &k) in chosen.iter().enumerate() {
        add(problem.costs(node as u32)[k as usize]);
    }
    for edge in 0..problem.edges() as u32 {
        let mut cell = 0;
        for &node in problem.scope(edge) {
            cell = cell * problem.costs(node).len() + chosen[node as usize] as usize;
        }
        add(problem.edge_costs(edge)[cell]);
    }
    let usage = |time: u64| -> u64 {
        let live = (0..problem.nodes() as u32).filter(|&node| {
            let interval = problem.interval(node);
            interval.start <= time && time < interval.end
        });
        live.map(|node| problem.usages(node)[chosen[node as usize] as usize]).sum()
    };
    (cost, possible, (0..12).map(usage).collect())
}

#[test]
fn every_assignment_costs_what_the_rules_say() {
    for seed in 0..150 {
        let problem = read(&instance(seed));
        for chosen in assignments(&problem) {
            let (cost, possible, usage) = by_the_rules(&problem, &chosen);
            let found = problem.evaluate(&chosen).unwrap();
            let peak = *usage.iter().max().unwrap();
            assert_eq!((found.cost, found.impossible.is_none()), (cost, possible));
            assert_eq!(found.peak_usage, u128::from(peak));
            let first = usage.iter().position(|&u| u == peak).map(|time| time as u64);
            assert_eq!(found.peak_time, first.filter(|_| peak > 0));
            assert_eq!(found.within_limit, peak <= problem.usage_limit().unwrap());
            assert_eq!(found.is_feasible(), possible && found.within_limit);
            let profile = problem.usage_profile(&chosen).unwrap();
            for (time, &expected) in (0..).zip(&usage) {
                let step = profile.iter().rev().find(|step| step.0 <= time);
                assert_eq!(step.map_or(0, |step| step.1), u128::from(expected), "time {time}");
            }
        }
    }
}

#[test]
fn without_the_limit_the_least_cost_is_found() {
    for seed in 0..150 {
        let problem = read(&instance(seed));
        let times = [seed % 8];
        let possible: Vec<Vec<u32>> = assignments(&problem)
            .into_iter()
            .filter(|chosen| by_the_rules(&problem, chosen).1)
            .collect();
        let least = possible.iter().map(|chosen| by_the_rules(&problem, chosen).0).min();
        let graph = problem.cost_graph(None, &[]).unwrap();
        let solution = solve(&graph, &SolveOptions::default().with_threads(1)).unwrap();
        match least {
            None => assert_eq!(solution.status(), Status::Infeasible),
            Some(least) => {
                let plan = solution.plan(0).unwrap();
                let found = problem.evaluate(&plan.configurations).unwrap();
                assert_eq!((u128::from(plan.cost[0]), found.cost), (least, least));
                assert_eq!(found.impossible, None);
            }
        }
        // With the usage at one time as the second objective: the whole frontier.
        let pairs = possible.iter().map(|chosen| {
            let (cost, _, usage) = by_the_rules(&problem, chosen);
            vec![cost as u64, usage[times[0] as usize]]
        });
        let graph = problem.cost_graph(None, &times).unwrap();
        let solution = solve(&graph, &SolveOptions::default().with_threads(1)).unwrap();
        assert_eq!(support::rows(solution.costs(), 2), support::naive_front(pairs.collect()));
    }
}

#[test]
fn a_part_leaves_its_surroundings_out() {
    let text = r#"{"problem":{"nodes":{"intervals":[[0,1],[0,1],[0,1]],"costs":[[1,2],[5],[3]],
        "usages":[[1,2],[5],[3]]},"edges":{"nodes":[[0,1],[1,2],[2,0]],
        "costs":[[7,8],[9],[10,11]]}}}"#;
    let problem = read(text);
    assert_eq!((problem.name(), problem.usage_limit()), ("", None));
    assert!(problem.evaluate(&[1, 0, 0]).unwrap().is_feasible());
    let part = problem.cost_graph(Some(&[2, 0]), &[0]).unwrap();
    assert_eq!((part.nodes(), part.factors(), part.objectives()), (2, 1, 2));
    assert_eq!(part.node_table(NodeId(1)).costs(), [1, 1, 2, 2]);
    assert_eq!(part.factor_table(tensoropt::FactorId(0)).costs(), [10, 0, 11, 0]);
}

#[test]
fn bad_requests_are_named() {
    let problem = read(&instance(1));
    let nodes = problem.nodes();
    let error = problem.evaluate(&vec![0; nodes + 1]).unwrap_err();
    assert!(error.to_string().contains("expected a strategy for each"), "{error}");
    let mut chosen = vec![0; nodes];
    chosen[1] = 99;
    let error = problem.evaluate(&chosen).unwrap_err();
    assert!(error.to_string().contains("node 1 has no strategy 99"), "{error}");
    assert_eq!(problem.usage_profile(&chosen).unwrap_err(), error);
    let twice = problem.cost_graph(Some(&[0, 0]), &[]).unwrap_err();
    assert!(twice.to_string().contains("node 0 is named twice"), "{twice}");
    let unknown = problem.cost_graph(Some(&[99]), &[]).unwrap_err();
    assert_eq!(unknown, Error::UnknownNode(NodeId(99)));
    let many = problem.cost_graph(None, &[0, 1, 2, 3]).unwrap_err();
    assert_eq!(many, Error::Objectives { got: 5 });
}

#[test]
fn the_first_impossible_part_is_named() {
    let big = IMPOSSIBLE_COST;
    let problem = read(&format!(
        r#"{{"problem":{{"nodes":{{"intervals":[[0,0],[0,0]],"costs":[[0,{big}],[0,{}]],
        "usages":[[9,9],[9,9]]}},"edges":{{"nodes":[[0,1]],"costs":[[0,{big},0,{big}]]}}}}}}"#,
        big - 1
    ));
    let part = |chosen: [u32; 2]| problem.evaluate(&chosen).unwrap().impossible;
    assert_eq!(part([0, 0]), None);
    assert_eq!(part([0, 1]), Some(IopddlPart::Edge(0)));
    assert_eq!(part([1, 1]), Some(IopddlPart::Node(0)));
    let both = problem.evaluate(&[1, 1]).unwrap();
    assert_eq!(both.cost, 3 * u128::from(big) - 1);
    assert_eq!((both.peak_usage, both.peak_time), (0, None), "empty intervals use nothing");
}

/// The published instances beside the repository, if they are there; read once.
fn published() -> Option<&'static [(&'static str, IopddlProblem)]> {
    static INSTANCES: OnceLock<Option<Vec<(&str, IopddlProblem)>>> = OnceLock::new();
    INSTANCES.get_or_init(load_published).as_deref()
}

fn load_published() -> Option<Vec<(&'static str, IopddlProblem)>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/data/iopddl");
    if !folder.is_dir() {
        eprintln!("skipped: no instances at {}", folder.display());
        return None;
    }
    let load = |name: &'static str| {
        let path = folder.join(format!("asplos-2025-iopddl-{name}.json.gz"));
        (name, IopddlProblem::load(path, ReadOptions::default()).unwrap())
    };
    Some(["A", "G", "M", "S"].map(load).into())
}

#[test]
fn the_published_instances_are_read_and_evaluated() {
    let Some(instances) = published() else { return };
    // Nodes and edges: the contest's table of benchmarks. Limits, costs and peaks of the first
    // strategies: an independent program (Python, by the rules word by word).
    for ((name, problem), expected) in instances.iter().zip(EXPECTED) {
        let first = vec![0; problem.nodes()];
        let cheapest: Vec<u32> = (0..problem.nodes() as u32)
            .map(|node| {
                let costs = problem.costs(node);
                (0..costs.len()).min_by_key(|&k| costs[k]).unwrap() as u32
            })
            .collect();
        let rows = [first, cheapest].map(|chosen| {
            let found = problem.evaluate(&chosen).unwrap();
            (found.cost, found.peak_usage, found.peak_time)
        });
        let sizes = (problem.nodes(), problem.edges(), problem.usage_limit().unwrap());
        assert_eq!(problem.name(), format!("asplos-2025-iopddl-{name}"));
        assert_eq!((sizes, rows), expected, "{name}");
    }
}

type Row = (u128, u128, Option<u64>);
const EXPECTED: [((usize, usize, u64), [Row; 2]); 4] = [
    (
        (34_932, 54_801, 472_141_920),
        [
            (6_916_000_000_020_231_139_720, 2_149_598_636, Some(16_566)),
            (14_977_000_000_021_919_217_413, 1_302_696_300, Some(24_286)),
        ],
    ),
    (
        (816, 1_023, 14_392_528),
        [
            (9_000_000_002_307_013_723, 80_075_852, Some(215)),
            (157_000_000_026_435_273_688, 76_264_736, Some(104)),
        ],
    ),
    (
        (32_894, 47_067, 24_616_128_512),
        [
            (5_504_860_803_348, 94_764_750_072, Some(4_187)),
            (7_068_000_001_599_647_981_948, 60_180_239_720, Some(4_193)),
        ],
    ),
    (
        (28_526, 38_826, 300_736_672),
        [
            (664_000_000_021_762_841_437, 2_192_810_580, Some(13_352)),
            (6_742_000_000_016_235_078_612, 1_105_858_460, Some(26_369)),
        ],
    ),
];

#[test]
fn parts_of_the_published_instances_are_solved() {
    let Some(instances) = published() else { return };
    for (name, problem) in instances {
        // The first nodes: a piece that contracts exactly.
        let part: Vec<u32> = (0..60.min(problem.nodes() as u32)).collect();
        let graph = problem.cost_graph(Some(&part), &[]).unwrap();
        let solution = solve(&graph, &SolveOptions::default()).unwrap();
        assert_eq!((solution.status(), solution.len()), (Status::Optimal, 1), "{name}");
        let whole = problem.cost_graph(None, &[]).unwrap();
        assert_eq!((whole.nodes(), whole.factors()), (problem.nodes(), problem.edges()));
    }
}
