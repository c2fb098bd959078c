//! The naive twins: all pairs and a quadratic filter, short enough to be right by inspection.
//!
//! Every fast algorithm is tested to give exactly what these give.

use super::point::CostVector;
use super::{Located, Term};

/// The frontier of any points: sorted lexicographically, nondominated, without duplicates.
///
/// # Complexity
///
/// Time `O(n log n + n k)` for `k` points returned.
#[must_use]
pub fn prune<C: CostVector>(points: &[C]) -> Vec<C> {
    let mut sorted = points.to_vec();
    sorted.sort_unstable();
    let mut kept: Vec<C> = Vec::new();
    // A vector that dominates another precedes it lexicographically, or equals it.
    for point in sorted {
        if !kept.iter().any(|k| k.dominates(&point)) {
            kept.push(point);
        }
    }
    kept
}

/// `prune(union over k of (left_k + right_k))` within the limit.
#[must_use]
pub fn union_of_sums<C: CostVector>(
    algebra: &C::Algebra,
    terms: &[Term<'_, C>],
    limit: Option<C>,
) -> Vec<C> {
    let mut all = Vec::new();
    for term in terms {
        for &a in term.left {
            all.extend(term.right.iter().map(|&b| a.combine(b, algebra)));
        }
    }
    if let Some(limit) = limit {
        all.retain(|point| point.dominates(&limit));
    }
    prune(&all)
}

/// The frontier of a union of frontiers.
#[must_use]
pub fn union<C: CostVector>(frontiers: &[&[C]]) -> Vec<C> {
    prune(&frontiers.concat())
}

/// The first term, and in it the first pair, that gives exactly `point`.
#[must_use]
pub fn locate<C: CostVector>(
    algebra: &C::Algebra,
    terms: &[Term<'_, C>],
    point: &C,
) -> Option<Located> {
    for (term, t) in terms.iter().enumerate() {
        for (left, a) in t.left.iter().enumerate() {
            for (right, b) in t.right.iter().enumerate() {
                if a.combine(*b, algebra) == *point {
                    return Some(Located { term, left, right });
                }
            }
        }
    }
    None
}

/// The least `factor` with which `cover` covers `points`: for every point there is one in the
/// cover that is at most `factor` times it in every objective, and at most it in the `exact` one.
///
/// Infinite if there is none. Rounded as one division of floats is; compare with a tolerance.
#[must_use]
pub fn cover_factor<C: CostVector>(points: &[C], cover: &[C], exact: Option<usize>) -> f64 {
    let factor = |q: &C, p: &C| {
        (0..C::OBJECTIVES)
            .map(|k| match (q.get(k), p.get(k)) {
                (q, p) if q <= p => 1.0,
                (_, 0) => f64::INFINITY,
                _ if exact == Some(k) => f64::INFINITY,
                (q, p) => q as f64 / p as f64,
            })
            .fold(1.0, f64::max)
    };
    points
        .iter()
        .map(|p| cover.iter().map(|q| factor(q, p)).fold(f64::INFINITY, f64::min))
        .fold(1.0, f64::max)
}
