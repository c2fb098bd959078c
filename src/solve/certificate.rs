//! A factor proven afterwards: [`certify`].
//!
//! # The problem
//!
//! Given points of a problem with two sums, however they were found, how far can any solution be
//! from being covered? If a solution `z` is not covered within a factor `c`, then `c z` lies below
//! the staircase of the points: strictly below one of its inner corners `u` in both objectives.
//! But every solution has `w . z >= v_w`, where `v_w` is the least weighted sum, found exactly by
//! one elimination with scalars. So `w . u > c v_w` for every weight `w`, and
//!
//! ```text
//! c = max over corners u of min over weights w of (w . u) / v_w
//! ```
//!
//! is a factor that holds. It cannot fall below the gap between the frontier and its convex hull.
//! That gap is smaller for parts of the solutions: those that share a configuration of one node.
//! The factor that holds for each part holds for all, and the sweep gives the least sums of the
//! parts at no cost, for the node that is eliminated last.

use rayon::prelude::*;

use crate::contraction::scalar::{self, Weights};
use crate::contraction::thinning::hull;
use crate::contraction::trace::Trace;
use crate::frontier::CostVector;

/// Weighted sums tried at most.
const WEIGHTS: usize = 128;

/// Rounds a quotient of numbers below 2^63 up: their conversions and the division err by less than
/// this in relative terms.
const ROUND_UP: f64 = 1.0 + 4.0 * f64::EPSILON;

/// The factor proven for the points at the root of a trace, and the number of weights used; `None`
/// if nothing can be proven this way.
///
/// # Arguments
///
/// * `trace`: of vectors with two objectives that add up by sum.
/// * `largest`: bounds on what the two objectives can add up to.
/// * `caps`: the largest values allowed in the two; solutions above are none.
pub(crate) fn certify<C: CostVector>(
    trace: &Trace<C>,
    largest: [u64; 2],
    caps: [u64; 2],
) -> Option<(f64, usize)> {
    let points = trace.root().op.cells.cell(0);
    let weights = weights(points, largest);
    if points.is_empty() || weights.is_empty() {
        return None;
    }
    let optima = scalar::optima(trace, &weights);
    // By configuration of the node that went last: weights with their least sums.
    let parts: Vec<Vec<(Weights, u64)>> = (0..optima[0].len())
        .map(|part| {
            let bounds = weights.iter().zip(&optima);
            bounds.filter_map(|(&w, least)| Some((w, least[part]?))).collect()
        })
        .filter(|bounds: &Vec<_>| !bounds.is_empty())
        .collect();
    let factor_of = |corner: Corner| {
        let part = |bounds: &Vec<(Weights, u64)>| {
            bounds.iter().map(|bound| quotient(corner, bound)).fold(f64::INFINITY, f64::min)
        };
        parts.iter().map(part).fold(1.0, f64::max)
    };
    let corners: Vec<Corner> = corners(points, caps).collect();
    let factor = corners.into_par_iter().map(factor_of).reduce(|| 1.0, f64::max);
    factor.is_finite().then_some((factor, weights.len()))
}

/// A corner of the staircase; a coordinate that no point bounds is the cap there, which does not
/// grow with the factor.
#[derive(Clone, Copy)]
pub(crate) struct Corner {
    pub value: [u64; 2],
    pub is_cap: [bool; 2],
}

pub(crate) fn corners<C: CostVector>(points: &[C], caps: [u64; 2]) -> impl Iterator<Item = Corner> {
    let (first, last) = (points[0], points[points.len() - 1]);
    let first = Corner { value: [first.get(0), caps[1]], is_cap: [false, true] };
    let last = Corner { value: [caps[0], last.get(1)], is_cap: [true, false] };
    let corner = |w: &[C]| Corner { value: [w[1].get(0), w[0].get(1)], is_cap: [false; 2] };
    let inner = points.windows(2).map(corner);
    std::iter::once(first).chain(inner).chain(std::iter::once(last))
}

/// The factor beyond which a weight rules out solutions below a corner.
pub(crate) fn quotient(corner: Corner, &(weights, least): &(Weights, u64)) -> f64 {
    let (mut above, mut below) = (0u128, u128::from(least));
    let parts = weights.iter().zip(corner.value).map(|(&w, u)| u128::from(w) * u128::from(u));
    for (part, is_cap) in parts.zip(corner.is_cap) {
        if is_cap {
            // A solution is at most the cap here, whatever the factor.
            match below.checked_sub(part) {
                Some(rest) => below = rest,
                None => return f64::INFINITY,
            }
        } else {
            above += part;
        }
    }
    if above == 0 {
        1.0
    } else if below == 0 {
        f64::INFINITY
    } else {
        (above as f64 / below as f64 * ROUND_UP).max(1.0)
    }
}

/// Normals of the lower convex hull of the points, evenly chosen, and the two axes. Weighted sums
/// of up to `largest` must stay in range; scaling a weight down only blunts the bound.
fn weights<C: CostVector>(points: &[C], largest: [u64; 2]) -> Vec<Weights> {
    let in_range = |w: Weights| {
        let [x, y] = [0, 1].map(|i| u128::from(w[i]) * u128::from(largest[i]));
        x.checked_add(y).is_some_and(|sum| sum <= u128::from(scalar::LARGEST))
    };
    let mut vertices = Vec::new();
    hull(points, &mut vertices);
    let normals: Vec<Weights> = vertices
        .windows(2)
        .map(|edge| {
            let [a, b] = [edge[0], edge[1]];
            let mut normal = [a.get(1) - b.get(1), b.get(0) - a.get(0)];
            // Precision up to here; a shift by more than the shorter side would lose it.
            while !in_range(normal) {
                normal = normal.map(|w| w / 2);
            }
            normal
        })
        .filter(|normal| *normal != [0, 0])
        .collect();
    let wanted = normals.len().min(WEIGHTS / 2);
    let mut chosen: Vec<Weights> =
        (0..wanted).map(|i| normals[i * normals.len() / wanted]).collect();
    chosen.extend(between(&normals, WEIGHTS - wanted));
    chosen.extend([[1, 0], [0, 1]]);
    chosen.retain(|&w| in_range(w));
    chosen
}

/// Weights with ratios evenly spread, on a logarithmic scale, over those of the normals: parts of
/// the solutions have hulls with other normals.
fn between(normals: &[Weights], count: usize) -> Vec<Weights> {
    let ratios = normals.iter().filter(|w| w[0] > 0 && w[1] > 0);
    let logs = ratios.map(|w| (w[0] as f64 / w[1] as f64).ln());
    let (low, high) =
        logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(x), h.max(x)));
    if low > high {
        return Vec::new();
    }
    let scale = normals.iter().flatten().copied().max().unwrap_or(1) as f64;
    (0..count)
        .map(|i| {
            let ratio = (low + (high - low) * (i as f64 + 0.5) / count as f64).exp();
            let (x, y) = if ratio > 1.0 { (scale, scale / ratio) } else { (scale * ratio, scale) };
            [x as u64, y as u64]
        })
        .filter(|weights| *weights != [0, 0])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_corner_above_the_optimum_costs_a_factor() {
        let corner = Corner { value: [4, 6], is_cap: [false; 2] };
        let factor = quotient(corner, &([1, 1], 5));
        assert!((2.0..2.000_001).contains(&factor), "{factor}");
    }

    #[test]
    fn a_cap_does_not_grow() {
        let corner = Corner { value: [6, 3], is_cap: [false, true] };
        let factor = quotient(corner, &([1, 1], 6));
        assert!((2.0..2.000_001).contains(&factor), "{factor}");
        let unlimited = Corner { value: [6, u64::MAX], is_cap: [false, true] };
        assert_eq!(quotient(unlimited, &([1, 1], 6)), f64::INFINITY);
    }
}
