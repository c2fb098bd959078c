//! Provenance on demand: which pair made a point.

use super::Term;
use super::point::CostVector;

/// Where a point of a union of sums came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Located {
    /// Index of the term.
    pub term: usize,
    /// Index in the term's left frontier.
    pub left: usize,
    /// Index in the term's right frontier.
    pub right: usize,
}

/// Finds the pair that gives exactly `point`: the smallest term, then the smallest left, then the
/// smallest right index. `None` if there is none.
///
/// Costs are integers, so differences are exact and nothing needs to be stored to find a plan
/// again but the frontiers that were combined.
///
/// # Complexity
///
/// Per term `O(min(n log m, n + m))` with sums; with maxima, where the partner is not
/// determined by one side, up to `O(n m)` in the worst case.
///
/// # Example
///
/// ```
/// use tensoropt::frontier::{CostVector, Located, Packed2, Term, locate};
///
/// let a = [Packed2::new(1, 9), Packed2::new(4, 2)];
/// let b = [Packed2::new(0, 5), Packed2::new(3, 0)];
/// let found = locate(&(), &[Term { left: &a, right: &b }], &Packed2::new(4, 7));
/// assert_eq!(found, Some(Located { term: 0, left: 1, right: 0 }));
/// ```
#[must_use]
pub fn locate<C: CostVector>(
    algebra: &C::Algebra,
    terms: &[Term<'_, C>],
    point: &C,
) -> Option<Located> {
    terms.iter().enumerate().find_map(|(term, t)| {
        t.left.iter().enumerate().find_map(|(left, a)| {
            partner(algebra, a, t.right, point).map(|right| Located { term, left, right })
        })
    })
}

/// The first `b` in `right` with `a + b == point`.
fn partner<C: CostVector>(algebra: &C::Algebra, a: &C, right: &[C], point: &C) -> Option<usize> {
    if !a.dominates(point) {
        return None;
    }
    // Narrow to the run that shares the leading objectives that `a` and `point` determine.
    let (mut low, mut high) = (0, right.len());
    for k in 0..C::OBJECTIVES {
        let (have, want) = (a.get(k), point.get(k));
        let value = match C::is_max(algebra, k) {
            false => want - have,
            true if have < want => want,
            true => break,
        };
        let run = &right[low..high];
        high = low + run.partition_point(|b| b.get(k) <= value);
        low += run.partition_point(|b| b.get(k) < value);
        if low == high {
            return None;
        }
    }
    let hit = right[low..high].iter().position(|b| a.combine(*b, algebra) == *point)?;
    Some(low + hit)
}
