//! Files of problems and solutions: what is read is what was written.

mod support;

use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;

use support::{Rng, SHAPES, problem};
use tensoropt::exchange::{
    FileError, ReadOptions, Stored, load_problem, load_solution, read_problem, read_solution,
    save_problem, save_solution, write_problem, write_solution,
};
use tensoropt::units::Resolution;
use tensoropt::{
    Aggregate, CostGraph, FactorId, NodeId, Peak, Solution, SolveOptions, Status, Table, TableId,
    solve,
};

fn text(graph: &CostGraph, resolution: Option<&[Resolution]>) -> Vec<u8> {
    let mut file = Vec::new();
    write_problem(&mut file, graph, resolution).unwrap();
    file
}

fn read(file: &[u8]) -> Result<Stored<CostGraph>, FileError> {
    read_problem(file, ReadOptions::default())
}

fn solution_text(solution: &Solution, resolution: Option<&[Resolution]>) -> Vec<u8> {
    let mut file = Vec::new();
    write_solution(&mut file, solution, resolution).unwrap();
    file
}

/// Everything that a graph says about itself.
fn assert_same(a: &CostGraph, b: &CostGraph) {
    assert_eq!(a.aggregates(), b.aggregates());
    assert_eq!((a.nodes(), a.factors(), a.tables()), (b.nodes(), b.factors(), b.tables()));
    for id in (0..a.tables() as u32).map(TableId) {
        assert_eq!(a.table(id).unwrap(), b.table(id).unwrap());
    }
    for node in (0..a.nodes() as u32).map(NodeId) {
        assert_eq!(a.node_table_id(node), b.node_table_id(node));
    }
    for factor in (0..a.factors() as u32).map(FactorId) {
        assert_eq!(a.scope(factor), b.scope(factor));
        assert_eq!(a.factor_table_id(factor), b.factor_table_id(factor));
    }
    for objective in 0..a.objectives() {
        assert_eq!(a.largest(objective), b.largest(objective));
    }
}

/// An empty folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tensoropt-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&self.0)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn random_problems_come_back() {
    for seed in 0..300 {
        let graph = problem(seed);
        let file = text(&graph, None);
        let back = read(&file).unwrap();
        assert_same(&graph, &back.value);
        assert_eq!(back.resolution, None);
        assert_eq!(text(&back.value, None), file, "seed {seed} ({})", SHAPES[seed as usize % 9]);
    }
}

#[test]
fn extremes_come_back() {
    let mut graph = CostGraph::new(&[Aggregate::Max, Aggregate::Sum]).unwrap();
    let wide = Table::with_alternatives(&[3], 2, &[0, 0, 2, 3], &[u64::MAX, 0, 1, 2, 3, 4]);
    let factor = 1.0 + f64::EPSILON;
    let wide = graph.add_table(wide.unwrap().with_factor(factor).unwrap()).unwrap();
    // One that nothing uses, and one where nothing is possible.
    graph.add_table(Table::dense(&[1], 2, &[7, 7], None).unwrap()).unwrap();
    let never = Table::dense(&[3, 3], 2, &[0; 18], Some(&[true; 9])).unwrap();
    let never = graph.add_table(never).unwrap();
    let nodes = [graph.add_node(wide).unwrap(), graph.add_node(wide).unwrap()];
    graph.add_factor(&[nodes[1], nodes[0]], never).unwrap();
    let resolution = [0.1 + 0.2, f64::MIN_POSITIVE].map(|step| Resolution::new(step).unwrap());

    let back = read(&text(&graph, Some(&resolution))).unwrap();
    assert_same(&graph, &back.value);
    assert_eq!(back.resolution.as_deref(), Some(&resolution[..]));
    assert_eq!(back.value.node_table(nodes[0]).factor(), factor);

    let empty = CostGraph::new(&[Aggregate::Sum]).unwrap();
    assert_same(&empty, &read(&text(&empty, None)).unwrap().value);
}

#[test]
fn equal_tables_are_stored_once() {
    let graph = problem(3);
    let table = graph.node_table(NodeId(0)).clone();
    let mut many = CostGraph::new(graph.aggregates()).unwrap();
    let id = many.add_table(table).unwrap();
    let one = text(&many, None).len();
    for _ in 0..1000 {
        many.add_node(id).unwrap();
    }
    assert!(text(&many, None).len() < one + 2000);
}

#[test]
fn a_table_that_is_given_twice_is_one() {
    let file = r#"{"format": "tensoropt-problem", "version": 1, "problem": {"aggregate": ["sum"],
        "tables": [{"shape": [1], "costs": [4]}, {"shape": [1], "costs": [4]},
                   {"shape": [1], "costs": [5]}],
        "nodes": [1, 2], "factors": []}}"#;
    let graph = read(file.as_bytes()).unwrap().value;
    assert_eq!((graph.tables(), graph.node_table_id(NodeId(0)).0), (2, 0));
    assert_eq!(graph.node_table(NodeId(1)).costs(), [5]);
}

#[test]
fn solutions_come_back_with_their_plans() {
    let mut seen = [false; 4];
    for seed in 0..120 {
        let graph = problem(seed);
        let mut options = SolveOptions::default().with_threads(1);
        if seed % 3 == 0 {
            options.epsilon = 0.3;
        }
        if seed % 4 == 0 {
            options = options.with_caps(&vec![Some(2); graph.objectives()]);
        }
        if seed % 5 == 0 {
            options.work_limit = Some(20);
        }
        let sum = graph.aggregates().iter().position(|&a| a == Aggregate::Sum);
        let max = graph.aggregates().iter().position(|&a| a == Aggregate::Max);
        if let (Some(resident), Some(transient)) = (sum, max) {
            options.peak = Some(Peak { resident, transient, cap: None });
        }
        let solution = solve(&graph, &options).unwrap();
        seen[match solution.status() {
            Status::Optimal => 0,
            Status::Epsilon => 1,
            Status::Infeasible => 2,
            _ => 3,
        }] = true;
        check_solution(&solution);
    }
    assert_eq!(seen, [true; 4], "optimal, epsilon, infeasible, other");
}

#[test]
fn heuristic_solutions_come_back() {
    let mut options = SolveOptions::default().with_threads(1);
    options.max_table_cells = 4;
    let solutions = (0..200).filter_map(|seed| solve(&problem(seed), &options).ok());
    let found = solutions.filter(|solution| solution.status() == Status::Heuristic);
    assert!(found.inspect(check_solution).count() > 0);
}

fn check_solution(solution: &Solution) {
    let file = solution_text(solution, None);
    let back = read_solution(&file[..], ReadOptions::default()).unwrap().value;
    assert_same(solution.graph(), back.graph());
    assert_eq!(back.status(), solution.status());
    assert_eq!(back.factor(), solution.factor());
    assert_eq!(back.certificate(), solution.certificate());
    assert_eq!(back.costs(), solution.costs());
    assert_eq!(back.least(), solution.least());
    assert_eq!(back.plans().unwrap(), solution.plans().unwrap());
    for point in 0..solution.len() {
        assert_eq!(back.plan(point).unwrap(), solution.plan(point).unwrap());
        assert_eq!(back.peak(point), solution.peak(point));
    }
    let mut counters = back.counters();
    counters.peak_bytes = solution.counters().peak_bytes;
    assert_eq!(counters, solution.counters());
    assert_eq!(solution_text(&back, None), file);
}

#[test]
fn threads_do_not_change_the_bytes() {
    for seed in 0..20 {
        let graph = problem(seed);
        let files = [1, 2, 4].map(|threads| {
            let options = SolveOptions::default().with_threads(threads);
            solution_text(&solve(&graph, &options).unwrap(), None)
        });
        assert_eq!(files[0], files[1]);
        assert_eq!(files[0], files[2]);
    }
}

#[test]
fn a_changed_plan_is_found() {
    let solutions = (0..).map(|seed| solve(&problem(seed), &SolveOptions::default()).unwrap());
    let solution = solutions.into_iter().find(|solution| !solution.is_empty()).unwrap();
    let cost = solution.cost(0)[0];
    let file = String::from_utf8(solution_text(&solution, None)).unwrap();
    let changed = file.replacen(
        &format!("\"points\":[{{\"costs\":[{cost}"),
        &format!("\"points\":[{{\"costs\":[{}", cost + 1),
        1,
    );
    assert_ne!(changed, file);
    let error = read_solution(changed.as_bytes(), ReadOptions::default()).unwrap_err();
    assert!(error.to_string().starts_with("points[0]: its plan costs"), "{error}");
}

#[test]
fn files_are_compressed_by_name_and_unpacked_by_content() {
    let folder = Folder::new("names");
    let graph = problem(7);
    let steps = vec![Resolution::new(512.0).unwrap(); graph.objectives()];
    let (plain, packed) = (folder.0.join("p.json"), folder.0.join("p.json.gz"));
    save_problem(&plain, &graph, Some(&steps)).unwrap();
    save_problem(&packed, &graph, Some(&steps)).unwrap();
    let bytes = fs::read(&packed).unwrap();
    assert_eq!(bytes[..2], [0x1f, 0x8b]);
    assert_eq!(fs::read(&plain).unwrap(), text(&graph, Some(&steps)));
    save_problem(&packed, &graph, Some(&steps)).unwrap();
    assert_eq!(fs::read(&packed).unwrap(), bytes, "no time in the file");

    let renamed = folder.0.join("renamed");
    fs::rename(&packed, &renamed).unwrap();
    for path in [&plain, &renamed] {
        let back = load_problem(path, ReadOptions::default()).unwrap();
        assert_same(&graph, &back.value);
        assert_eq!(back.resolution.as_deref(), Some(&steps[..]));
    }

    let solution = solve(&graph, &SolveOptions::default()).unwrap();
    let path = folder.0.join("s.json.gz");
    save_solution(&path, &solution, Some(&steps)).unwrap();
    let back = load_solution(&path, ReadOptions::default()).unwrap();
    assert_eq!(back.value.costs(), solution.costs());
    assert_eq!(back.resolution, Some(steps));
    assert_eq!(folder.names(), ["p.json", "renamed", "s.json.gz"], "nothing is left behind");
}

#[test]
fn what_cannot_be_written_leaves_the_old_file() {
    let folder = Folder::new("old");
    let graph = problem(2);
    let path = folder.0.join("p.json");
    save_problem(&path, &graph, None).unwrap();
    let before = fs::read(&path).unwrap();
    let wrong = vec![Resolution::new(1.0).unwrap(); graph.objectives() + 1];
    let error = save_problem(&path, &graph, Some(&wrong)).unwrap_err().to_string();
    assert!(error.contains("p.json: problem.resolution: "), "{error}");
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(folder.names(), ["p.json"]);

    let nowhere = folder.0.join("no").join("p.json");
    assert!(matches!(save_problem(&nowhere, &graph, None), Err(FileError::Io { .. })));
    assert!(matches!(save_problem(&folder.0, &graph, None), Err(FileError::Io { .. })));
    assert!(matches!(load_problem(&nowhere, ReadOptions::default()), Err(FileError::Io { .. })));
    assert!(matches!(load_problem(&folder.0, ReadOptions::default()), Err(FileError::Io { .. })));
}

#[cfg(unix)]
#[test]
fn a_link_stays_a_link() {
    let folder = Folder::new("link");
    let (target, link) = (folder.0.join("target.json"), folder.0.join("link.json"));
    fs::write(&target, "old").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    save_problem(&link, &problem(0), None).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_same(&load_problem(&target, ReadOptions::default()).unwrap().value, &problem(0));
}

#[test]
fn reading_can_be_stopped() {
    let mut graph = CostGraph::new(&[Aggregate::Sum]).unwrap();
    let mut rng = Rng::new(1);
    let costs: Vec<u64> = (0..1_000_000).map(|_| rng.below(1 << 40)).collect();
    graph.add_table(Table::dense(&[1_000_000], 1, &costs, None).unwrap()).unwrap();
    let file = text(&graph, None);
    let mut looks = Vec::new();
    let mut watch = |bytes: u64| {
        looks.push(bytes);
        if looks.len() == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let stopped = read_problem(&file[..], ReadOptions::default().with_watch(&mut watch));
    assert!(matches!(stopped, Err(FileError::Stopped { .. })));
    assert_eq!(looks.len(), 3);
    assert!(looks.is_sorted() && looks[2] < file.len() as u64);
}
