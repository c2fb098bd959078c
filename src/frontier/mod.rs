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
//!
//! | question | function |
//! |---|---|
//! | which of these points are worth having? | [`prune`] |
//! | what are the best sums? | [`union_of_sums`] |
//! | the best of several frontiers? | [`union`] |
//! | which pair made this point? | [`locate`] |
//! | fewer points, how much is lost? | [`trim`], [`thin`] |
//!
//! # How
//!
//! In the worst case no algorithm for two objectives is expected to be much faster than looking at
//! all pairs (a sub-quadratic one would also solve min-plus convolution). What pays is to discard
//! pairs without forming them, and that goes by the fact that combining is monotone: a run of
//! pairs, or a block of them, is no better than the sum of its lower corners. If a known point
//! dominates that, all of it goes.
//!
//! * `pairs`: few pairs are formed and sorted. Where one side of each sum is short (the linear
//!   sweep of a chain), rows of pairs are sifted in two passes. An objective that adds up by
//!   maximum needs only a merge.
//! * `sift`: the two passes. The first learns from a sample of the pairs what is dominated, the
//!   second drops runs and then pairs by it.
//! * `blocks`: large sums. Blocks of pairs are halved and discarded, then sifted.
//! * `cells`: what is known to be dominated, by cells of objective 0, evenly wide or as narrow as
//!   points are dense.
//! * `plane`, `space`: filters in two objectives, and in three and four; `grid`, `boxes`: the
//!   counterparts of cells and blocks there.
//! * [`naive`]: the same functions by all pairs and a quadratic filter. Tests hold every algorithm
//!   against them.
//!
//! Results and counters ([`Work`]) depend on nothing but the input.
//!
//! # Example
//!
//! ```
//! use tensoropt::frontier::{Packed2, Scratch, Term, Work, union_of_sums};
//!
//! // Two ways to go on, each with the frontier so far and what the next step may cost.
//! let [a, b] = [[Packed2::new(1, 9), Packed2::new(4, 2)], [Packed2::new(2, 8), Packed2::new(3, 3)]];
//! let [step, other] = [[Packed2::new(1, 1)], [Packed2::new(0, 3)]];
//! let terms = [Term { left: &a, right: &step }, Term { left: &b, right: &other }];
//! let mut out = Vec::new();
//! union_of_sums(&(), &terms, None, &mut out, &mut Scratch::new(), &mut Work::default());
//! assert_eq!(out, [Packed2::new(2, 10), Packed2::new(3, 6), Packed2::new(5, 3)]);
//! ```

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

/// Up to this many pairs of two objectives, forming and sorting all of them is fastest.
const FEW_PAIRS: u64 = 128;
/// Up to this many pairs of two objectives, two passes over all of them are fastest.
const PLANE_PAIRS: u64 = 1 << 13;
/// So few pairs per point, that is, where one side of each term is short, likewise.
const PAIRS_PER_POINT: u64 = 24;
/// Up to this many pairs of three or four objectives, forming and filtering all is fastest.
const SPACE_PAIRS: u64 = 1 << 16;

/// One Minkowski sum of a union: all combinations of a vector of `left` with one of `right`.
#[derive(Clone, Copy, Debug)]
pub struct Term<'a, C> {
    /// A frontier.
    pub left: &'a [C],
    /// A frontier.
    pub right: &'a [C],
}

/// Whether the points are a frontier: sorted lexicographically, mutually nondominated, distinct.
///
/// # Complexity
///
/// `O(n)` with one or two objectives, `O(n^2)` above.
#[must_use]
pub fn is_frontier<C: CostVector>(points: &[C]) -> bool {
    match C::OBJECTIVES {
        1 => points.len() <= 1,
        2 => points.windows(2).all(|w| w[0].get(0) < w[1].get(0) && w[0].get(1) > w[1].get(1)),
        _ => {
            points.windows(2).all(|w| w[0] < w[1])
                && (1..points.len()).all(|j| !points[..j].iter().any(|p| p.dominates(&points[j])))
        }
    }
}

/// Turns any points into their frontier, in place.
///
/// # Arguments
///
/// * `points`: any vectors, in any order, with duplicates or without.
/// * `scratch`: buffers, reused between calls; they carry no state.
///
/// # Complexity
///
/// `O(n)` and a sort of the points that a grid does not discard; `O(n log n)` in the worst case
/// with up to three objectives, `O(n log^2 n)` with four. Space `O(n)`.
///
/// # Example
///
/// ```
/// use tensoropt::frontier::{Packed2, Scratch, prune};
///
/// let mut points = [(4, 4), (2, 7), (4, 4), (5, 5), (9, 1)].map(|(x, y)| Packed2::new(x, y)).to_vec();
/// prune(&mut points, &mut Scratch::new());
/// assert_eq!(points, [Packed2::new(2, 7), Packed2::new(4, 4), Packed2::new(9, 1)]);
/// ```
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
///
/// # Complexity
///
/// With two objectives of which one adds up by maximum, linear in the points and a sort. Otherwise
/// all pairs in the worst case, and far fewer usually: of two anti-correlated frontiers of 10,000
/// points, about one pair in a hundred is formed. Space: the blocks or pairs that cannot be
/// discarded by their corners, a small multiple of the result as a rule.
pub fn union_of_sums<C: CostVector>(
    algebra: &C::Algebra,
    terms: &[Term<'_, C>],
    limit: Option<C>,
    out: &mut Vec<C>,
    scratch: &mut Scratch<C>,
    work: &mut Work,
) {
    let sizes = || terms.iter().map(|t| (t.left.len() as u64, t.right.len() as u64));
    let pairs: u64 = sizes().map(|(left, right)| left * right).sum();
    work.pairs += pairs;
    match C::OBJECTIVES {
        3.. if pairs > SPACE_PAIRS && sizes().any(|(left, right)| left.min(right) > 1) => {
            boxes::by_boxes(algebra, terms, limit, out, scratch, work);
        }
        3.. => {
            pairs::all_pairs(algebra, terms, limit, out, work);
            space::prune(out, &mut scratch.space);
        }
        2 if pairs > FEW_PAIRS => {
            let points: u64 = sizes().map(|(left, right)| left + right).sum();
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

/// Whether a sum may have the largest number in objective 1, which cells cannot tell from "nothing
/// is known".
fn reaches_end<C: CostVector>(algebra: &C::Algebra, terms: &[Term<'_, C>]) -> bool {
    terms.iter().any(|term| match (term.left.first(), term.right.first()) {
        (Some(&a), Some(&b)) => a.combine(b, algebra).get(1) == u64::MAX,
        _ => false,
    })
}

/// The frontier of a union of frontiers.
///
/// # Arguments
///
/// * `frontiers`: any number of frontiers.
/// * `out`: overwritten with the frontier.
/// * `scratch`: buffers, reused between calls; they carry no state.
/// * `work`: counters that are added to.
///
/// # Complexity
///
/// `O(n)` and a sort of what is not dominated by something in another frontier.
pub fn union<C: CostVector>(
    frontiers: &[&[C]],
    out: &mut Vec<C>,
    scratch: &mut Scratch<C>,
    work: &mut Work,
) {
    // Adding nothing makes each frontier a sum.
    let zero = &[C::ZERO];
    let terms: Vec<Term<'_, C>> = frontiers.iter().map(|left| Term { left, right: zero }).collect();
    union_of_sums(&C::SUMS, &terms, None, out, scratch, work);
}
