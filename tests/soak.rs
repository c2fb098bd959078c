//! Whatever files and calls the library is given, it answers or says what is wrong: no panic, no
//! hang, no internal error.
//!
//! `TENSOROPT_SOAK=100000` tries as many of each kind instead of a few.

mod support;

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use support::calls::any_calls;
use support::json::{Change, Json};
use support::{Rng, problem};
use tensoropt::exchange::{
    FileError, IopddlProblem, ReadOptions, read_problem, read_solution, write_problem,
    write_solution,
};
use tensoropt::{CostGraph, Error, SolveOptions, solve};

/// No case should take longer than a blink.
const PATIENCE: Duration = Duration::from_secs(300);

fn cases() -> u32 {
    std::env::var("TENSOROPT_SOAK").ok().and_then(|n| n.parse().ok()).unwrap_or(1000)
}

/// Runs a case; ends the process if it hangs, which would otherwise say nothing at all.
fn watched(seed: u64, case: impl FnOnce()) {
    let (done, wait) = channel::<()>();
    let dog = std::thread::spawn(move || {
        if wait.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            eprintln!("seed {seed} hangs");
            std::process::abort();
        }
    });
    case();
    drop(done);
    dog.join().unwrap();
}

fn options() -> ReadOptions<'static> {
    ReadOptions::default().with_max_bytes(1 << 24)
}

/// The kinds of files.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Problem,
    Solution,
    Instance,
}

impl Kind {
    /// A good file.
    fn file(self, rng: &mut Rng) -> Vec<u8> {
        let mut file = Vec::new();
        let graph = problem(rng.below(500));
        let solve_options = SolveOptions::default().with_threads(1);
        match self {
            Self::Problem => write_problem(&mut file, &graph, None).unwrap(),
            Self::Solution => {
                write_solution(&mut file, &solve(&graph, &solve_options).unwrap(), None).unwrap();
            }
            Self::Instance => file = instance(rng).into_bytes(),
        }
        file
    }

    /// Reads a file, and does with what was read what a user might do next. Returns the complaint.
    fn read(self, file: &[u8]) -> Option<FileError> {
        match self {
            Self::Problem => match read_problem(file, options()) {
                Ok(stored) => {
                    let mut again = Vec::new();
                    write_problem(&mut again, &stored.value, stored.resolution.as_deref()).unwrap();
                    let again = read_problem(&again[..], options()).unwrap();
                    assert_eq!(again.resolution, stored.resolution);
                    assert_same(&again.value, &stored.value);
                    solve_a_little(&stored.value);
                    None
                }
                Err(error) => Some(error),
            },
            Self::Solution => match read_solution(file, options()) {
                Ok(stored) => {
                    assert_eq!(stored.value.plans().unwrap().len(), stored.value.len());
                    assert!(stored.value.factor() >= 1.0);
                    None
                }
                Err(error) => Some(error),
            },
            Self::Instance => match IopddlProblem::read(file, options()) {
                Ok(problem) => {
                    let evaluation = problem.evaluate(&vec![0; problem.nodes()]).unwrap();
                    assert_eq!(evaluation.peak_time.is_some(), evaluation.peak_usage > 0);
                    if let Ok(graph) = problem.cost_graph(None, &[]) {
                        solve_a_little(&graph);
                    }
                    None
                }
                Err(error) => Some(error),
            },
        }
    }
}

fn assert_same(one: &CostGraph, other: &CostGraph) {
    assert_eq!((one.nodes(), one.factors()), (other.nodes(), other.factors()));
    let nodes = (0..one.nodes() as u32).map(tensoropt::NodeId);
    assert!(nodes.into_iter().all(|node| one.node_table(node) == other.node_table(node)));
    for factor in (0..one.factors() as u32).map(tensoropt::FactorId) {
        assert_eq!(one.factor_table(factor), other.factor_table(factor));
        assert_eq!(one.scope(factor), other.scope(factor));
    }
}

/// Solves within tight limits, so that no problem takes long.
fn solve_a_little(graph: &CostGraph) {
    let mut options = SolveOptions::default().with_threads(1);
    (options.max_table_cells, options.work_limit) = (1 << 12, Some(20_000));
    match solve(graph, &options) {
        Ok(solution) => assert_eq!(solution.plans().unwrap().len(), solution.len()),
        Err(error) => assert!(
            matches!(error, Error::TableCells { .. } | Error::Bytes { .. } | Error::TooMany { .. }),
            "{error}"
        ),
    }
}

/// A random instance of the contest on intra-operator parallelism.
fn instance(rng: &mut Rng) -> String {
    fn list(out: &mut String, n: u64, mut item: impl FnMut(&mut String)) {
        out.push('[');
        for i in 0..n {
            if i > 0 {
                out.push(',');
            }
            item(out);
        }
        out.push(']');
    }
    let number = |rng: &mut Rng| match rng.below(8) {
        0 => 1_000_000_000_000_000_000,
        1 => 0,
        _ => rng.below(1000),
    };
    let strategies: Vec<u64> = (0..1 + rng.below(5)).map(|_| 1 + rng.below(3)).collect();
    let nodes = strategies.len() as u64;
    let mut text = String::from("{\"problem\":{\"name\":\"random\",");
    if rng.chance(50) {
        write!(text, "\"usage_limit\":{},", rng.below(2000)).unwrap();
    }
    text += "\"nodes\":{\"intervals\":";
    list(&mut text, nodes, |out| {
        let begin = rng.below(20);
        write!(out, "[{begin},{}]", begin + rng.below(10)).unwrap();
    });
    for name in ["costs", "usages"] {
        write!(text, ",\"{name}\":").unwrap();
        let mut each = strategies.iter();
        list(&mut text, nodes, |out| {
            list(out, *each.next().unwrap(), |out| write!(out, "{}", number(rng)).unwrap());
        });
    }
    let edges: Vec<(u64, u64)> = (1..nodes).map(|node| (rng.below(node), node)).collect();
    text += "},\"edges\":{\"nodes\":";
    let mut each = edges.iter();
    list(&mut text, edges.len() as u64, |out| {
        let (a, b) = each.next().unwrap();
        write!(out, "[{a},{b}]").unwrap();
    });
    text += ",\"costs\":";
    let mut each = edges.iter();
    list(&mut text, edges.len() as u64, |out| {
        let &(a, b) = each.next().unwrap();
        let cells = strategies[a as usize] * strategies[b as usize];
        list(out, cells, |out| write!(out, "{}", number(rng)).unwrap());
    });
    text + "}}}"
}

/// A complaint is one line of bounded length that says something.
fn assert_complaint(error: &FileError) -> String {
    let message = error.to_string();
    assert!(!message.contains('\n') && message.len() < 4000, "{message}");
    assert!(message.chars().filter(|c| c.is_alphabetic()).count() > 10, "{message:?}");
    message
}

fn packed(text: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(rng.below(10) as u32));
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// Turns, cuts or repeats bytes of a file, that of its gzip frame included.
fn damage(file: &mut Vec<u8>, rng: &mut Rng) {
    let at = rng.below(file.len().max(1) as u64) as usize;
    let end = (at + rng.below(64) as usize).min(file.len());
    match rng.below(6) {
        _ if file.is_empty() => file.push(rng.next() as u8),
        0 | 1 => file[at] ^= 1 << rng.below(8),
        2 => file.truncate(at),
        3 => drop(file.drain(at..end)),
        4 => {
            let piece = file[at..end].to_vec();
            file.splice(at..at, piece);
        }
        // Lengths and check sums are at the ends.
        _ => {
            let byte = if rng.chance(50) { rng.below(12) } else { 1 + rng.below(9) } as usize;
            let byte = if rng.chance(50) { byte } else { file.len().saturating_sub(byte) };
            if let Some(byte) = file.get_mut(byte) {
                *byte = rng.next() as u8;
            }
        }
    }
}

/// The documents as trees, with their files written again.
fn tree(kind: Kind, rng: &mut Rng) -> Json {
    Json::parse(std::str::from_utf8(&kind.file(rng)).unwrap())
}

fn text(tree: &Json) -> String {
    let mut text = String::new();
    tree.write(&mut text);
    text
}

/// One change, and where it is refused, a complaint that names the place.
fn one_change(kind: Kind, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut tree = tree(kind, &mut rng);
    let Change { what, names } = tree.change(&mut rng);
    if let Some(error) = kind.read(text(&tree).as_bytes()) {
        let message = assert_complaint(&error);
        let named = names.is_empty() || names.iter().any(|name| message.contains(name.as_str()));
        assert!(named, "{kind:?}, seed {seed}, {what}: {names:?} are not in {message:?}");
        assert!(matches!(error, FileError::Format { .. }), "{message}");
    }
}

/// Many changes, of bytes too, inside or around gzip.
fn many_changes(kind: Kind, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut tree = tree(kind, &mut rng);
    for _ in 0..rng.below(4) {
        tree.change(&mut rng);
    }
    let mut file = text(&tree).into_bytes();
    if rng.chance(30) {
        damage(&mut file, &mut rng);
    }
    if rng.chance(40) {
        file = packed(&file, &mut rng);
    }
    for _ in 0..rng.below(4) {
        damage(&mut file, &mut rng);
    }
    if let Some(error) = kind.read(&file) {
        assert_complaint(&error);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_changed_file_is_read_or_the_change_is_named(seed in any::<u64>()) {
        for kind in [Kind::Problem, Kind::Solution, Kind::Instance] {
            watched(seed, || one_change(kind, seed));
        }
    }

    #[test]
    fn a_damaged_file_is_read_or_refused(seed in any::<u64>()) {
        for kind in [Kind::Problem, Kind::Solution, Kind::Instance] {
            watched(seed, || many_changes(kind, seed));
        }
    }

    #[test]
    fn any_calls_are_answered_or_refused(seed in any::<u64>()) {
        watched(seed, || any_calls(seed));
    }
}

#[test]
fn good_files_are_read() {
    for seed in 0..50 {
        for kind in [Kind::Problem, Kind::Solution, Kind::Instance] {
            let mut rng = Rng::new(seed);
            let tree = tree(kind, &mut rng);
            let file = packed(text(&tree).as_bytes(), &mut rng);
            assert!(kind.read(&file).is_none(), "{kind:?} {seed}");
        }
    }
}
