//! The Pareto algebra: frontiers of cost vectors, their sums and unions.
//!
//! # The problem
//!
//! Lower is better in each of `D` objectives. A *frontier* is a slice of cost vectors that is
//! sorted lexicographically, holds no two vectors of which one dominates the other, and no
//! duplicates ([`is_frontier`]). Eliminating a variable of a cost graph needs one operation on
//! frontiers, the union of Minkowski sums
//!
//! ```text
//! prune( union over k of { a + b : a in A_k, b in B_k } )
//! ```
//!
//! where `+` adds or takes the maximum per objective and `prune` drops what is dominated:
//! [`union_of_sums`]. It looks at all `k` together, so that a point found in one sum spares the
//! work on another.

mod blocks;
mod boxes;
mod cells;
mod grid;
mod locate;
pub mod naive;
mod pairs;
mod plane;
mod point;
mod scratch;
mod sift;
mod space;
#[cfg(test)]
mod tests;
mod trim;
mod work;

pub use locate::{Located, locate};
pub use point::{CostVector, Packed2, Wide, WideAlgebra};
pub use scratch::Scratch;
pub use trim::{thin, trim};
pub use work::Work;

/// One Minkowski sum of a union: all combinations of a vector of `left` with one of `right`.
#[derive(Clone, Copy, Debug)]
pub struct Term<'a, C> {
    /// A frontier.
    pub left: &'a [C],
    /// A frontier.
    pub right: &'a [C],
}

/// Up to this many pairs of two objectives, forming and sorting all of them is fastest.
const FEW_PAIRS: u64 = 128;
/// Up to this many pairs of two objectives, two passes over all of them are fastest.
const PLANE_PAIRS: u64 = 1 << 13;
/// So few pairs per point, that is, where one side of each term is short, likewise.
const PAIRS_PER_POINT: u64 = 24;
/// Up to this many pairs of three or four objectives, forming and filtering all is fastest.
const SPACE_PAIRS: u64 = 1 << 14;

/// Whether the points are a frontier: sorted lexicographically, mutually nondominated, distinct.
///
/// # Complexity
///
/// `O(n)` with one or two objectives, `O(n^2)` above.
#[must_use]
pub fn is_frontier<C: CostVector>(points: &[C]) -> bool {
    match C::OBJECTIVES {
        1 => points.len() <= 1,
        2 => points
            .windows(2)
            .all(|w| w[0].get(0) < w[1].get(0) && w[0].get(1) > w[1].get(1)),
        _ => {
            points.windows(2).all(|w| w[0] < w[1])
                && (1..points.len())
                    .all(|j| !points[..j].iter().any(|p| p.dominates(&points[j])))
        }
    }
}

/// Turns any points into their frontier, in place.
pub fn prune<C: CostVector>(points: &mut Vec<C>, scratch: &mut Scratch<C>) {
    match C::OBJECTIVES {
        1 | 2 => plane::prune(points, &mut scratch.table),
        _ => space::prune(points, &mut scratch.space),
    }
}

/// `prune(union over k of (left_k + right_k))`, without the points above `limit`.
///
/// # Arguments
///
/// * `algebra`: how objectives add up.
/// * `terms`: the sums; both sides of each must be frontiers. An empty side makes an empty sum.
/// * `limit`: an inclusive upper limit in every objective ([`CostVector::limit`]).
/// * `out`: overwritten with the frontier.
/// * `scratch`: buffers, reused between calls; they carry no state.
/// * `work`: counters that are added to.
pub fn union_of_sums<C: CostVector>(
    algebra: &C::Algebra,
    terms: &[Term<'_, C>],
    limit: Option<C>,
    out: &mut Vec<C>,
    scratch: &mut Scratch<C>,
    work: &mut Work,
) {
    let pairs = terms.iter().map(|t| t.left.len() as u64 * t.right.len() as u64).sum::<u64>();
    let points = terms.iter().map(|t| t.left.len() as u64 + t.right.len() as u64).sum::<u64>();
    let shifts = terms.iter().all(|t| t.left.len().min(t.right.len()) <= 1);
    work.pairs += pairs;
    match C::OBJECTIVES {
        3.. if pairs > SPACE_PAIRS && !shifts => {
            boxes::by_boxes(algebra, terms, limit, out, scratch, work);
        }
        3.. => {
            pairs::all_pairs(algebra, terms, limit, out, work);
            space::prune(out, &mut scratch.space);
        }
        2 if pairs > FEW_PAIRS => {
            if C::is_max(algebra, 0) || C::is_max(algebra, 1) {
                pairs::by_maximum(algebra, terms, limit, out, work);
            } else if reaches_end(algebra, terms) {
                pairs::by_pairs(algebra, terms, limit, out, work);
            } else if pairs <= PLANE_PAIRS.max(PAIRS_PER_POINT * points) {
                pairs::by_sift(algebra, terms, limit, out, scratch, work);
            } else {
                blocks::by_blocks(algebra, terms, limit, out, scratch, work);
            }
        }
        _ => pairs::by_pairs(algebra, terms, limit, out, work),
    }
    work.returned(out.len());
}

/// Whether a sum may have the largest number in objective 1.
fn reaches_end<C: CostVector>(algebra: &C::Algebra, terms: &[Term<'_, C>]) -> bool {
    terms.iter().any(|term| match (term.left.first(), term.right.first()) {
        (Some(&a), Some(&b)) => a.combine(b, algebra).get(1) == u64::MAX,
        _ => false,
    })
}

/// The frontier of a union of frontiers.
pub fn union<C: CostVector>(
    frontiers: &[&[C]],
    out: &mut Vec<C>,
    scratch: &mut Scratch<C>,
    work: &mut Work,
) {
    out.clear();
    frontiers.iter().for_each(|frontier| out.extend_from_slice(frontier));
    work.candidates += out.len() as u64;
    prune(out, scratch);
    work.returned(out.len());
}
