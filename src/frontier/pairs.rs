//! Unions of sums in which every pair is looked at: where there are few, or each is a shift, or the
//! pairs that matter are known beforehand.

use super::blocks::range;
use super::cells::Even;
use super::plane::sort_and_scan;
use super::point::CostVector;
use super::sift::{Block, Sums};
use super::{Scratch, Term, Work};

/// Cells of the grid fit the second-level cache.
const GRID_CELLS: u64 = 1 << 15;
/// Of the sums along a row, one in this many is noted before the others are looked at.
const SAMPLE: usize = 4;

/// All pairs within the limit.
pub(super) fn all_pairs<C: CostVector>(
    algebra: &C::Algebra,
    terms: &[Term<'_, C>],
    limit: Option<C>,
    out: &mut Vec<C>,
    work: &mut Work,
) {
    out.clear();
    for term in terms {
        for &a in term.left {
            out.extend(term.right.iter().map(|&b| a.combine(b, algebra)));
        }
    }
    work.visited += out.len() as u64;
    if let Some(limit) = limit {
        out.retain(|sum| sum.dominates(&limit));
    }
    work.candidates += out.len() as u64;
}

/// The frontier of a union of sums of one or two objectives by all pairs: for few of them.
pub(super) fn by_pairs<C: CostVector>(
    algebra: &C::Algebra,
    terms: &[Term<'_, C>],
    limit: Option<C>,
    out: &mut Vec<C>,
    work: &mut Work,
) {
    all_pairs(algebra, terms, limit, out, work);
    sort_and_scan(out);
}

/// The frontier of a union of sums of two objectives of which at least one adds up by maximum.
///
/// A point of the frontier of `(max, any)` at `x` is the best of the left side up to `x` with the
/// best of the right side up to `x`, and one of the two is at `x`: a merge finds all of them.
/// Likewise for `(any, max)` from the other end. `O(n + m)` per term, and the sort.
pub(super) fn by_maximum<C: CostVector>(
    algebra: &C::Algebra,
    terms: &[Term<'_, C>],
    limit: Option<C>,
    out: &mut Vec<C>,
    work: &mut Work,
) {
    out.clear();
    for Term { left, right } in terms {
        if left.is_empty() || right.is_empty() {
            continue;
        }
        if C::is_max(algebra, 0) {
            let (mut i, mut j) = (0, 0);
            loop {
                out.push(left[i].combine(right[j], algebra));
                let next = |side: &[C], i: usize| side.get(i + 1).map(|p| p.get(0));
                match (next(left, i), next(right, j)) {
                    (None, None) => break,
                    (Some(a), b) if b.is_none_or(|b| a <= b) => i += 1,
                    _ => j += 1,
                }
            }
        } else {
            let (mut i, mut j) = (left.len() - 1, right.len() - 1);
            loop {
                out.push(left[i].combine(right[j], algebra));
                let next = |side: &[C], i: usize| i.checked_sub(1).map(|i| side[i].get(1));
                match (next(left, i), next(right, j)) {
                    (None, None) => break,
                    (Some(a), b) if b.is_none_or(|b| a <= b) => i -= 1,
                    _ => j -= 1,
                }
            }
        }
    }
    work.visited += out.len() as u64;
    if let Some(limit) = limit {
        out.retain(|sum| sum.dominates(&limit));
    }
    work.candidates += out.len() as u64;
    sort_and_scan(out);
}

/// The frontier of a union of sums of two objectives that both add up by sum, by sifting all
/// pairs with even cells; or, where objective 0 has few values, with a cell for each of them.
///
/// No sum may have `u64::MAX` in objective 1.
pub(super) fn by_sift<C: CostVector>(
    algebra: &C::Algebra,
    terms: &[Term<'_, C>],
    limit: Option<C>,
    out: &mut Vec<C>,
    scratch: &mut Scratch<C>,
    work: &mut Work,
) {
    out.clear();
    let Scratch { floors, table, blocks, .. } = scratch;
    let Some(range) = range(algebra, terms) else {
        return;
    };
    let limit = limit.unwrap_or(C::UNLIMITED);
    Block::whole(terms, blocks);
    let pairs: usize = blocks.iter().map(Block::area).sum();
    if range.1 - range.0 < GRID_CELLS.min(pairs as u64) {
        let sums = Sums { algebra, terms, limit, cells: &() };
        sums.tabulate(blocks, range, table, out, work);
        return;
    }
    let cells = &Even::new(range, (pairs as u64 / 2).clamp(64, GRID_CELLS));
    floors.reset(cells, limit.get(1).saturating_add(1));
    Sums { algebra, terms, limit, cells }.sift(blocks, SAMPLE, floors, out, work);
}
