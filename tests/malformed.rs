//! Files that are not what they say they are: an error that names the place, never a panic.
//!
//! `TENSOROPT_SOAK=100000` tries as many random changes instead of a few.

mod support;

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use support::{Rng, problem};
use tensoropt::exchange::{
    FileError, IopddlProblem, ReadOptions, read_problem, read_solution, write_problem,
    write_solution,
};
use tensoropt::{SolveOptions, solve};

const PROBLEM: &str = r#"{"format":"tensoropt-problem","version":1,"problem":{
"aggregate":["sum","max"],"resolution":[1e-9,512.0],
"tables":[{"shape":[2],"costs":[1,2,3,4]},
{"shape":[2,2],"alternatives":[1,0,2,1],"costs":[1,2,3,4,5,6,7,8],"factor":1.5}],
"nodes":[0,0],"factors":[{"scope":[0,1],"table":1}]}}"#;

const IOPDDL: &str = r#"{"problem":{"name":"a","usage_limit":50,
"nodes":{"intervals":[[0,9],[3,5]],"costs":[[15],[10,1]],"usages":[[30],[20,40]]},
"edges":{"nodes":[[0,1]],"costs":[[7,2]]}}}"#;

/// What is said of a text.
fn complaint(text: &str) -> String {
    message(read_problem(text.as_bytes(), ReadOptions::default()).err())
}

fn message(error: Option<FileError>) -> String {
    let Some(error @ FileError::Format { .. }) = error else { panic!("expected a complaint") };
    let message = error.to_string();
    assert!(!message.contains('\n') && message.len() < 2000, "{message}");
    message
}

/// Replaces a piece of a text by another, expects a complaint, and looks for words in it.
fn expect(text: &str, read: fn(&str) -> String, changes: &[(&str, &str, &[&str])]) {
    for (old, new, words) in changes {
        assert_eq!(text.matches(old).count(), 1, "{old} must occur once");
        let message = read(&text.replacen(old, new, 1));
        for word in *words {
            assert!(message.contains(word), "{old} -> {new}: {word:?} is not in {message:?}");
        }
    }
}

#[test]
fn the_examples_are_well_formed() {
    read_problem(PROBLEM.as_bytes(), ReadOptions::default()).unwrap();
    IopddlProblem::read(IOPDDL.as_bytes(), ReadOptions::default()).unwrap();
}

#[test]
fn headers_are_checked() {
    let other = "\"tensoropt-strategy\"";
    let changes: &[(&str, &str, &[&str])] = &[
        ("\"version\":1,", "", &["missing field `version`"]),
        ("\"format\":\"tensoropt-problem\",", "", &["missing field `format`"]),
        ("\"tensoropt-problem\"", other, &["format: ", "tensoropt-strategy", "expected"]),
        ("\"version\":1", "\"version\":2", &["version: version 2", "use a newer release"]),
        ("\"version\":1", "\"version\":0", &["version: version 0", "reads 1 to 1"]),
        ("\"version\":1", "\"version\":\"1\"", &["version: ", "string \"1\"", "a whole number"]),
        ("\"version\":1", "\"version\":1,\"version\":1", &["duplicate field `version`"]),
        ("\"version\":1", "\"version\":1,\"x\":[[]]", &["unknown field `x`", "line 1"]),
    ];
    expect(PROBLEM, complaint, changes);
}

#[test]
fn problems_are_checked() {
    let changes: &[(&str, &str, &[&str])] = &[
        ("[\"sum\",\"max\"]", "[]", &["problem.aggregate: ", "1 to 4 objectives, got 0"]),
        ("\"max\"]", "\"min\"]", &["problem.aggregate[1]: ", "`min`", "`sum` or `max`"]),
        ("[\"sum\",\"max\"]", "[\"sum\"]", &["problem.resolution: 2 entries, expected one per"]),
        ("512.0", "0", &["problem.resolution[1]: ", "positive finite number, got 0"]),
        ("512.0", "1e999", &["problem.resolution", "number out of range"]),
        (
            "{\"shape\":[2],\"costs\":[1,2,3,4]}",
            "[[2],[1,2,3,4]]",
            &["problem.tables[0]: ", "an object"],
        ),
        ("\"shape\":[2],", "", &["problem.tables[0]: missing field `shape`"]),
        ("\"shape\":[2],", "\"shape\":[0],", &["problem.tables[0]: ", "axis 0", "is empty"]),
        ("\"shape\":[2],", "\"shape\":[3],", &["problem.tables[0]: ", "length 4, expected 6"]),
        (
            "\"shape\":[2],",
            "\"shape\":[4294967294,4294967294,4294967294],",
            &["problem.tables[0]: too many cells in a table"],
        ),
        ("\"shape\":[2],", "\"shape\":[4294967294],", &["problem.tables[0]: ", "has length 4"]),
        (
            "\"shape\":[2],",
            "\"shape\":[4294967295],",
            &["problem.tables[0].shape[0]: ", "4294967295", "from 0 to 2^32 - 2"],
        ),
        ("[1,2,3,4]}", "[1,2,3]}", &["problem.tables[0]: ", "length 3, expected 4"]),
        ("[1,2,3,4]}", "[1,2,-3,4]}", &["problem.tables[0].costs[2]: ", "`-3`", "2^64 - 1"]),
        ("[1,2,3,4]}", "[1,2,3.5,4]}", &["problem.tables[0].costs[2]: ", "`3.5`"]),
        ("[1,2,3,4]}", "[1,2,null,4]}", &["problem.tables[0].costs[2]: ", "null"]),
        ("[1,2,3,4]}", "[1,2,[3],4]}", &["problem.tables[0].costs[2]: ", "sequence"]),
        ("[1,2,3,4]}", "7}", &["problem.tables[0].costs: ", "expected a list"]),
        (
            "[1,2,3,4]}",
            "[1,2,18446744073709551616,4]}",
            &["problem.tables[0].costs[2]: ", "2^64 - 1", "line 3"],
        ),
        (
            "[1,2,3,4]}",
            "[18446744073709551615,2,3,4]}",
            &["problem.nodes[1]: objective 0 could add up to", "coarser resolution"],
        ),
        ("[1,0,2,1]", "[1,0,2]", &["problem.tables[1].alternatives: 3 entries, expected one"]),
        ("[1,0,2,1]", "[1,1,2,1]", &["problem.tables[1]: ", "length 8, expected 10"]),
        (
            "[1,0,2,1]",
            "[4294967294,0,2,1]",
            &["problem.tables[1].alternatives: more than 2^32 - 1 alternatives"],
        ),
        ("\"factor\":1.5", "\"factor\":0.5", &["problem.tables[1]: ", "0.5", ">= 1"]),
        ("\"nodes\":[0,0]", "\"nodes\":[0,2]", &["problem.nodes[1]: there is no table 2", "has 2"]),
        (
            "\"nodes\":[0,0]",
            "\"nodes\":[0,1]",
            &["problem.nodes[1]: node 1 needs a table with one"],
        ),
        ("\"nodes\":[0,0]", "\"nodes\":[0]", &["problem.factors[0].scope[1]: there is no node 1"]),
        ("\"table\":1", "\"table\":2", &["problem.factors[0].table: there is no table 2"]),
        ("\"table\":1", "\"table\":0", &["problem.factors[0]: ", "expected one axis per node"]),
        ("[0,1],\"table\"", "[0,0],\"table\"", &["problem.factors[0]: ", "names node 0 twice"]),
        ("[0,1],\"table\"", "[],\"table\"", &["problem.factors[0]: ", "names no node"]),
        (",\"table\":1", "", &["problem.factors[0]: missing field `table`"]),
    ];
    expect(PROBLEM, complaint, changes);
}

#[test]
fn instances_are_checked() {
    let read = |text: &str| message(IopddlProblem::read(text.as_bytes(), <_>::default()).err());
    let changes: &[(&str, &str, &[&str])] = &[
        ("[3,5]]", "[5,3]]", &["problem.nodes.intervals[1]: [5, 3] ends before it begins"]),
        ("[3,5]]", "[3,5,7]]", &["problem.nodes.intervals[1]", "trailing"]),
        ("[3,5]]", "[3]]", &["problem.nodes.intervals[1]", "invalid length 1"]),
        (",[3,5]]", "]", &["problem.nodes.intervals: 1 entries, expected one per node (2"]),
        ("[10,1]", "[]", &["problem.nodes.costs[1]: no strategy"]),
        ("[20,40]", "[20]", &["problem.nodes.usages[1]: 1 entries, expected one per strategy (2)"]),
        ("[20,40]", "[20,-1]", &["problem.nodes.usages[1][1]: ", "`-1`"]),
        ("[[0,1]]", "[[0,2]]", &["problem.edges.nodes[0][1]: there is no node 2"]),
        ("[[0,1]]", "[[]]", &["problem.edges.nodes[0]: no node"]),
        ("[[0,1]]", "[[0,1],[1,0]]", &["problem.edges.costs: 1 entries, expected one per edge (2"]),
        ("[7,2]", "[7,2,3]", &["problem.edges.costs[0]: 3 entries, expected 2", "[0, 1]"]),
        ("\"usage_limit\":50", "\"usage_limit\":\"a\"", &["problem.usage_limit: "]),
        ("\"edges\"", "\"sides\"", &["problem: missing field `edges`"]),
    ];
    expect(IOPDDL, read, changes);
}

#[test]
fn what_is_no_json_is_said_so() {
    assert!(complaint("").contains("ends too early"));
    assert!(complaint("hello").contains("no valid JSON"));
    assert!(complaint("[1]").contains("expected an object with named fields"));
    assert!(complaint(&format!("{PROBLEM} x")).contains("trailing characters"));
    for end in 0..PROBLEM.len() {
        assert!(complaint(&PROBLEM[..end]).contains("cut short"));
    }
}

#[test]
fn deep_nesting_is_refused() {
    for open in ["[", "{\"a\":", "{\"problem\":"] {
        let deep = open.repeat(1_000_000);
        complaint(&deep);
        message(IopddlProblem::read(deep.as_bytes(), ReadOptions::default()).err());
    }
    // Fields that are passed over may be deep; they end with the file.
    let deep = format!("{{\"problem\":{{\"other\":{}", "[".repeat(1_000_000));
    message(IopddlProblem::read(deep.as_bytes(), ReadOptions::default()).err());
}

#[test]
fn long_quotes_are_shortened() {
    let name = "x".repeat(1 << 20);
    complaint(&PROBLEM.replace("tensoropt-problem", &name));
    complaint(&PROBLEM.replace("\"nodes\"", &format!("\"{name}\\n\"")));
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn damaged_gzip_is_said_so() {
    let good = packed(PROBLEM.as_bytes());
    let read = |bytes: &[u8]| read_problem(bytes, ReadOptions::default());
    read(&good).unwrap();
    for end in 2..good.len() {
        let message = message(read(&good[..end]).err());
        assert!(message.contains("truncated gzip"), "{end}: {message}");
    }
    let mut sum = good.clone();
    let end = sum.len() - 5;
    sum[end] ^= 1;
    assert!(message(read(&sum).err()).contains("damaged or truncated gzip"));
    let mut after = good.clone();
    after.extend(b"more");
    assert!(message(read(&after).err()).contains("gzip"));
    // Two members are one text, as everywhere.
    let (head, tail) = PROBLEM.as_bytes().split_at(100);
    read(&[packed(head), packed(tail)].concat()).unwrap();
}

#[test]
fn a_bomb_ends_at_the_limit() {
    let limit = 1 << 20;
    let options = || ReadOptions::default().with_max_bytes(limit);
    let mut bomb = b"{\"problem\":{\"other\":[0".to_vec();
    bomb.extend(b",0".repeat(20 << 20));
    let bomb = packed(&bomb);
    assert!(bomb.len() < 100_000);
    let message = message(IopddlProblem::read(&bomb[..], options()).err());
    assert!(message.contains("max_bytes = 1048576"), "{message}");
    let spaces = packed(&vec![b' '; 8 << 20]);
    assert!(read_problem(&spaces[..], options()).is_err());
    // What just fits is read.
    let fits = ReadOptions::default().with_max_bytes(PROBLEM.len() as u64);
    read_problem(PROBLEM.as_bytes(), fits).unwrap();
    let short = ReadOptions::default().with_max_bytes(PROBLEM.len() as u64 - 1);
    assert!(read_problem(PROBLEM.as_bytes(), short).is_err());
}

/// One random change of a file.
fn mutate(file: &mut Vec<u8>, rng: &mut Rng) {
    let at = |rng: &mut Rng, n: usize| rng.below(n.max(1) as u64) as usize;
    let position = at(rng, file.len());
    match rng.below(7) {
        0 if !file.is_empty() => file[position] ^= 1 << rng.below(8),
        1 => file.truncate(position),
        2 => {
            let end = (position + at(rng, 40)).min(file.len());
            file.drain(position.min(end)..end);
        }
        3 => {
            let end = (position + at(rng, 40)).min(file.len());
            let piece = file[position.min(end)..end].to_vec();
            let target = at(rng, file.len());
            file.splice(target..target, piece);
        }
        // A number, a key or a list becomes another.
        4 => replace(file, rng, |b| b.is_ascii_digit(), &NUMBERS),
        5 => replace(file, rng, |b| b.is_ascii_lowercase() || b == b'_', &WORDS),
        _ => replace(file, rng, |b| b"[]{},:\"".contains(&b), &MARKS),
    }
}

const NUMBERS: [&str; 9] =
    ["0", "-1", "4294967295", "4294967294", "18446744073709551615", "1e30", "9", "0.5", "null"];
const WORDS: [&str; 8] =
    ["costs", "shape", "nodes", "scope", "points", "factor", "alternatives", "x"];
const MARKS: [&str; 8] = ["[", "]", "{", "}", ",", ":", "\"", "[["];

/// Replaces one run of bytes of a kind.
fn replace(file: &mut Vec<u8>, rng: &mut Rng, kind: impl Fn(u8) -> bool, by: &[&str]) {
    let starts: Vec<usize> =
        (0..file.len()).filter(|&i| kind(file[i]) && (i == 0 || !kind(file[i - 1]))).collect();
    if starts.is_empty() {
        return;
    }
    let start = starts[rng.below(starts.len() as u64) as usize];
    let end = (start..file.len()).find(|&i| !kind(file[i])).unwrap_or(file.len());
    let new = by[rng.below(by.len() as u64) as usize];
    file.splice(start..end, new.bytes());
}

fn cases() -> u32 {
    std::env::var("TENSOROPT_SOAK").ok().and_then(|n| n.parse().ok()).unwrap_or(400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    /// Whatever is done to a file, it is read or refused; what is read can be written and read.
    #[test]
    fn changed_files_are_read_or_refused(seed in any::<u64>(), changes in 1..6) {
        let mut rng = Rng::new(seed);
        let graph = problem(rng.below(200));
        let (mut one, mut two, mut three) = (Vec::new(), Vec::new(), IOPDDL.as_bytes().to_vec());
        write_problem(&mut one, &graph, None).unwrap();
        let options = SolveOptions::default().with_threads(1);
        write_solution(&mut two, &solve(&graph, &options).unwrap(), None).unwrap();
        let pack = rng.chance(20);
        for file in [&mut one, &mut two, &mut three] {
            if pack {
                *file = packed(file);
            }
            for _ in 0..changes {
                mutate(file, &mut rng);
            }
        }
        let options = || ReadOptions::default().with_max_bytes(1 << 24);
        match read_problem(&one[..], options()) {
            Ok(stored) => {
                let (mut file, resolution) = (Vec::new(), stored.resolution.as_deref());
                write_problem(&mut file, &stored.value, resolution).unwrap();
                let again = read_problem(&file[..], options()).unwrap();
                prop_assert_eq!(again.value.nodes(), stored.value.nodes());
            }
            Err(error) => prop_assert!(!error.to_string().contains('\n')),
        }
        match read_solution(&two[..], options()) {
            Ok(stored) => prop_assert_eq!(stored.value.plans().unwrap().len(), stored.value.len()),
            Err(error) => prop_assert!(!error.to_string().contains('\n')),
        }
        match IopddlProblem::read(&three[..], options()) {
            Ok(problem) => {
                let first = vec![0; problem.nodes()];
                let evaluation = problem.evaluate(&first).unwrap();
                prop_assert!(evaluation.peak_time.is_some() == (evaluation.peak_usage > 0));
                let _ = problem.cost_graph(None, &[]);
            }
            Err(error) => prop_assert!(!error.to_string().contains('\n')),
        }
    }
}
