//! Frontier operations by size, shape and number of objectives.
//!
//! `cargo bench --bench frontier`, with a filter such as `-- sum/rand` for a part. Points are
//! integers below one billion from a fixed stream, so that every run measures the same work.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use tensoropt::frontier::{
    CostVector, Packed2, Scratch, Term, Wide, WideAlgebra, Work, prune, thin, union_of_sums,
};

const SCALE: f64 = 1e9;

/// A stream of numbers in `0..1` that is the same everywhere (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Positive, adding up to one.
    fn simplex<const D: usize>(&mut self) -> [f64; D] {
        let weights = [0.0; D].map(|_: f64| -(1.0 - self.next()).ln());
        let sum: f64 = weights.iter().sum();
        weights.map(|weight| weight / sum)
    }
}

/// Frontiers of two objectives: two sorted columns of uniform numbers (`rand`) or of numbers over
/// six orders of magnitude (`log`), or the lower left quarter of a circle (`convex`).
fn plane(shape: &str, size: usize, numbers: &mut Numbers) -> Vec<Packed2> {
    let point = |x: f64, y: f64| Packed2::new((x * SCALE) as u32, (y * SCALE) as u32);
    let mut points: Vec<Packed2> = match shape {
        "convex" => (0..size)
            .map(|_| (numbers.next() * std::f64::consts::FRAC_PI_2).sin_cos())
            .map(|(sin, cos)| point(1.0 - sin, 1.0 - cos))
            .collect(),
        _ => {
            let mut column = || {
                let value = |number: f64| match shape {
                    "log" => 10f64.powf(-6.0 * number),
                    _ => number,
                };
                let mut column: Vec<f64> = (0..size).map(|_| value(numbers.next())).collect();
                column.sort_by(f64::total_cmp);
                column
            };
            let (xs, ys) = (column(), column());
            xs.iter().zip(ys.iter().rev()).map(|(&x, &y)| point(x, y)).collect()
        }
    };
    prune(&mut points, &mut Scratch::new());
    points
}

/// Points on a part of a sphere: nondominated.
fn sphere<const D: usize>(size: usize, numbers: &mut Numbers) -> Vec<Wide<D>> {
    let mut points: Vec<Wide<D>> = (0..size)
        .map(|_| {
            let weights: [f64; D] = numbers.simplex();
            let length = weights.iter().map(|weight| weight * weight).sum::<f64>().sqrt();
            Wide(weights.map(|weight| ((1.0 - weight / length) * SCALE) as u64))
        })
        .collect();
    prune(&mut points, &mut Scratch::new());
    points
}

/// Points about a simplex (thickness above 0), on it (0), or uniform in a cube (negative).
fn cloud<const D: usize>(size: usize, thickness: f64, numbers: &mut Numbers) -> Vec<Wide<D>> {
    (0..size)
        .map(|_| {
            let point: [f64; D] = numbers.simplex();
            Wide(point.map(|cost| {
                let noise = numbers.next();
                let cost = if thickness < 0.0 { noise } else { cost + thickness * noise };
                (cost * SCALE) as u64
            }))
        })
        .collect()
}

fn bench_prune(c: &mut Criterion) {
    fn run<C: CostVector>(c: &mut Criterion, name: &str, points: &[C]) {
        let mut group = c.benchmark_group("prune");
        group.throughput(Throughput::Elements(points.len() as u64));
        let mut scratch = Scratch::new();
        group.bench_function(BenchmarkId::new(name, points.len()), |b| {
            b.iter_batched_ref(
                || points.to_vec(),
                |points| prune(points, &mut scratch),
                BatchSize::LargeInput,
            );
        });
    }
    let numbers = &mut Numbers(1);
    for size in [10_000, 1_000_000] {
        for (shape, thickness) in [("uniform", -1.0), ("anti", 0.001), ("simplex", 0.0)] {
            let flat: Vec<Packed2> = cloud::<2>(size, thickness, numbers)
                .iter()
                .map(|point| Packed2::from_slice(&point.0))
                .collect();
            run(c, &format!("2/{shape}"), &flat);
            let thickness = thickness * 20.0;
            run(c, &format!("3/{shape}"), &cloud::<3>(size, thickness, numbers));
        }
    }
    run(c, "4/uniform", &cloud::<4>(100_000, -1.0, numbers));
    run(c, "4/anti", &cloud::<4>(10_000, 0.02, numbers));
}

/// Terms of left and right sides.
type Sides<C> = Vec<(Vec<C>, Vec<C>)>;

fn run_sums<C: CostVector>(
    c: &mut Criterion,
    group: &str,
    name: &str,
    size: usize,
    algebra: &C::Algebra,
    sides: &Sides<C>,
) {
    let terms: Vec<Term<'_, C>> = sides.iter().map(|(left, right)| Term { left, right }).collect();
    let (mut out, mut scratch, mut work) = (Vec::new(), Scratch::new(), Work::default());
    c.benchmark_group(group).bench_function(BenchmarkId::new(name, size), |b| {
        b.iter(|| {
            let terms = black_box(&terms);
            union_of_sums(algebra, terms, None, &mut out, &mut scratch, &mut work);
            black_box(out.len())
        });
    });
}

fn bench_sums(c: &mut Criterion) {
    let numbers = &mut Numbers(2);
    for shape in ["rand", "convex", "log"] {
        for size in [4, 16, 64, 256, 1000, 10_000] {
            let sides = vec![(plane(shape, size, numbers), plane(shape, size, numbers))];
            run_sums(c, "sum", shape, size, &(), &sides);
        }
        for size in [4, 16, 64, 256, 1000] {
            let mut side = || plane(shape, size, numbers);
            let sides: Sides<Packed2> = (0..16).map(|_| (side(), side())).collect();
            run_sums(c, "union of 16 sums", shape, size, &(), &sides);
        }
        for size in [16, 256, 4000] {
            let mut side = |size| plane(shape, size, numbers);
            let sides: Sides<Packed2> = (0..16).map(|_| (side(size), side(1))).collect();
            run_sums(c, "union of 16 shifts", shape, size, &(), &sides);
        }
    }
    let wide = |points: Vec<Packed2>| -> Vec<Wide<2>> {
        points.iter().map(|p| Wide([p.get(0), p.get(1)])).collect()
    };
    for (name, max) in [("wide", [false, false]), ("wide, one maximum", [false, true])] {
        let sides = vec![(wide(plane("rand", 1000, numbers)), wide(plane("rand", 1000, numbers)))];
        run_sums(c, "sum", name, 1000, &WideAlgebra { max }, &sides);
    }
}

fn bench_space(c: &mut Criterion) {
    let numbers = &mut Numbers(3);
    for size in [16, 64, 256, 1000] {
        let sides = vec![(sphere::<3>(size, numbers), sphere::<3>(size, numbers))];
        run_sums(c, "sum of 3 objectives", "sphere", size, &WideAlgebra::SUM, &sides);
    }
    for size in [16, 64, 256] {
        let sides = vec![(sphere::<4>(size, numbers), sphere::<4>(size, numbers))];
        run_sums(c, "sum of 4 objectives", "sphere", size, &WideAlgebra::SUM, &sides);
    }
}

fn bench_thin(c: &mut Criterion) {
    fn run<C: CostVector>(c: &mut Criterion, name: &str, points: &[C], at_most: usize) {
        let mut scratch = Scratch::new();
        c.benchmark_group("thin").bench_function(BenchmarkId::new(name, points.len()), |b| {
            b.iter_batched_ref(
                || points.to_vec(),
                |points| thin(points, at_most, None, &mut scratch),
                BatchSize::SmallInput,
            );
        });
    }
    let numbers = &mut Numbers(4);
    run(c, "2 to 256", &plane("convex", 4000, numbers), 256);
    run(c, "3 to 1000", &sphere::<3>(10_000, numbers), 1000);
    run(c, "4 to 1000", &sphere::<4>(10_000, numbers), 1000);
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    bench_prune(&mut criterion);
    bench_sums(&mut criterion);
    bench_space(&mut criterion);
    bench_thin(&mut criterion);
    criterion.final_summary();
}
