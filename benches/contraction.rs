//! Exact elimination by shape of the graph, on one thread.
//!
//! `cargo bench --bench contraction`, with a filter such as `-- ladder` for a part.

mod problems;

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion};
use problems::{chain, clique, grid, hub, ladder};
use tensoropt::{CostGraph, NodeId, SolveOptions, contract, solve};

fn run(c: &mut Criterion, group: &str, name: &str, graph: &CostGraph, options: &SolveOptions) {
    let options = options.clone().with_threads(1);
    c.benchmark_group(group).bench_function(BenchmarkId::new(name, graph.nodes()), |b| {
        b.iter(|| solve(black_box(graph), &options).unwrap());
    });
}

fn bench_shapes(c: &mut Criterion) {
    let exact = SolveOptions::default();
    for nodes in [10, 30, 100] {
        run(c, "chain of 16", "equal tables", &chain(nodes, 16, 1), &exact);
        run(c, "chain of 16", "four tables", &chain(nodes, 16, 4), &exact);
    }
    for k in [4, 8] {
        run(c, "ladder", &format!("of {k}"), &ladder(16, k), &exact);
        run(c, "star with hub", &format!("of {k}"), &hub(32, k), &exact);
        run(c, "clique", &format!("of {k}"), &clique(5, k), &exact);
        run(c, "grid", &format!("of {k}"), &grid(3, 6, k), &exact);
    }
}

/// The figure that the aim of the solver names: 10,000 nodes, four tables in turn, within 0.1 %.
fn bench_long(c: &mut Criterion) {
    let within = SolveOptions::default().with_epsilon(1e-3);
    run(c, "long chain of 16", "four tables, epsilon 0.001", &chain(10_000, 16, 4), &within);
}

/// A block to its ends, which is what repeated layers are made of.
fn bench_blocks(c: &mut Criterion) {
    let options = SolveOptions::default().with_threads(1);
    for k in [4, 8] {
        let graph = ladder(6, k);
        let ends = [NodeId(0), NodeId(graph.nodes() as u32 - 1)];
        c.benchmark_group("block").bench_function(BenchmarkId::new("ladder", k), |b| {
            b.iter(|| contract(black_box(&graph), &ends, &options).unwrap());
        });
    }
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    bench_shapes(&mut criterion);
    bench_blocks(&mut criterion);
    bench_long(&mut criterion);
    criterion.final_summary();
}
