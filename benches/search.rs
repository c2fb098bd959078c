//! Whole searches: problems like those of models with equal layers, with a peak of memory, and the
//! plans behind all points.
//!
//! `cargo bench --bench search`, with a filter such as `-- plans` for a part.

mod problems;

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion};
use problems::{PEAK, transformer};
use tensoropt::{CostGraph, Peak, SolveOptions, solve};

fn run(c: &mut Criterion, name: &str, layers: u32, graph: &CostGraph, options: &SolveOptions) {
    for threads in [1, 2] {
        let options = options.clone().with_threads(threads);
        let name = format!("{name}, threads {threads}");
        c.benchmark_group("layers").bench_function(BenchmarkId::new(name, layers), |b| {
            b.iter(|| solve(black_box(graph), &options).unwrap());
        });
    }
}

fn bench_searches(c: &mut Criterion) {
    for layers in [4, 12, 32] {
        let graph = transformer(layers, 8);
        let within = SolveOptions::default().with_epsilon(1e-3).with_peak(PEAK);
        run(c, "peak, epsilon 0.001", layers, &graph, &within);
        if layers <= 12 {
            run(c, "peak, exact", layers, &graph, &SolveOptions::default().with_peak(PEAK));
        }
        // Half of what the fastest plan needs.
        let fastest = solve(&graph, &within).unwrap();
        let cap = fastest.peak(0).map(|peak| peak / 2);
        let capped = within.with_peak(Peak { cap, ..PEAK });
        run(c, "capped peak, epsilon 0.001", layers, &graph, &capped);
    }
}

fn bench_plans(c: &mut Criterion) {
    let graph = transformer(12, 8);
    let options = SolveOptions::default().with_peak(PEAK).with_epsilon(1e-3).with_threads(1);
    let solution = solve(&graph, &options).unwrap();
    let mut group = c.benchmark_group("plans");
    group.bench_function("one", |b| b.iter(|| solution.plan(black_box(0)).unwrap()));
    group.bench_function(BenchmarkId::new("all", solution.len()), |b| {
        b.iter(|| solution.plans().unwrap());
    });
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    bench_searches(&mut criterion);
    bench_plans(&mut criterion);
    criterion.final_summary();
}
