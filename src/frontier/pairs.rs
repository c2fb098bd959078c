//! Unions of sums in which every pair is looked at: where there are few, or each is a shift, or the
//! pairs that matter are known beforehand.

use super::plane::{scan, sort_and_scan};
use super::point::CostVector;
use super::{Term, Work};

/// Cells of the grid fit the second-level cache.
const GRID_CELLS: u64 = 1 << 15;
/// Of the sums along a row, one in this many is noted in the grid.
const SAMPLE: usize = 4;
/// Sums along a row that are dropped together if the place below them all is dominated.
const RUN: usize = 8;
/// Up to this many sorted runs, a sort that merges them is faster than one that does not.
const FEW_RUNS: usize = 4;

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

/// The frontier of a union of sums of two objectives that both add up by sum, in two passes over
/// rows of pairs and a grid.
///
/// The grid holds the least objective 1 of evenly wide cells of objective 0. The first pass fills
/// it from a sample of the pairs, the second keeps what no lower cell dominates, to be sorted. Both
/// go along rows, in which objective 0 ascends and objective 1 descends: they go through memory in
/// order, and a run of a row that starts too far right and ends too high goes as a whole.
pub(super) fn by_grid<C: CostVector>(
    algebra: &C::Algebra,
    terms: &[Term<'_, C>],
    limit: Option<C>,
    out: &mut Vec<C>,
    floors: &mut Vec<u64>,
    work: &mut Work,
) {
    out.clear();
    let limit = limit.unwrap_or(C::UNLIMITED);
    let (mut low, mut high, mut runs, mut pairs) = (u64::MAX, 0, 0, 0);
    rows(algebra, terms, limit, |a, row| {
        low = low.min(a.combine(row[0], algebra).get(0));
        high = high.max(a.combine(row[row.len() - 1], algebra).get(0));
        runs += 1;
        pairs += row.len() as u64;
    });
    work.visited += pairs;
    if low > high {
        return;
    }
    let cells = (pairs / 2).clamp(64, GRID_CELLS);
    let shift = ((high - low) / cells).checked_ilog2().map_or(0, |bits| bits + 1);
    floors.clear();
    floors.resize(((high - low) >> shift) as usize + 2, u64::MAX);
    rows(algebra, terms, limit, |a, row| {
        for &b in row.iter().step_by(SAMPLE) {
            let sum = a.combine(b, algebra);
            let floor = &mut floors[((sum.get(0) - low) >> shift) as usize + 1];
            *floor = (*floor).min(sum.get(1));
        }
    });
    // From here on: the least of all lower cells.
    floors.iter_mut().fold(u64::MAX, |best, floor| {
        *floor = best.min(*floor);
        *floor
    });
    rows(algebra, terms, limit, |a, row| {
        let mut kept = out.len();
        out.resize(kept + row.len(), C::ZERO);
        for run in row.chunks(RUN) {
            // The corner below the whole run.
            let x = a.combine(run[0], algebra).get(0);
            let y = a.combine(run[run.len() - 1], algebra).get(1);
            let cell = ((x - low) >> shift) as usize;
            if y >= floors[cell] && cell > 0 {
                continue;
            }
            for &b in run {
                let sum = a.combine(b, algebra);
                let cell = ((sum.get(0) - low) >> shift) as usize;
                out[kept] = sum;
                // Nothing is lower than the first cell, whatever number stands there.
                kept += usize::from((sum.get(1) < floors[cell]) | (cell == 0));
            }
        }
        out.truncate(kept);
    });
    work.candidates += out.len() as u64;
    if runs <= FEW_RUNS {
        out.sort();
        scan(out);
    } else {
        sort_and_scan(out);
    }
}

/// Calls `visit` with each point of the shorter side of each term and the part of the longer side
/// that it takes to sums within the limit. Sums only.
fn rows<C: CostVector>(
    algebra: &C::Algebra,
    terms: &[Term<'_, C>],
    limit: C,
    mut visit: impl FnMut(C, &[C]),
) {
    for &Term { left, right } in terms {
        let (short, long) = if left.len() < right.len() { (left, right) } else { (right, left) };
        for &a in short {
            let end = match long.last() {
                Some(&b) if a.combine(b, algebra).get(0) > limit.get(0) => {
                    long.partition_point(|&b| a.combine(b, algebra).get(0) <= limit.get(0))
                }
                _ => long.len(),
            };
            let start = match long.first() {
                Some(&b) if a.combine(b, algebra).get(1) > limit.get(1) => {
                    long.partition_point(|&b| a.combine(b, algebra).get(1) > limit.get(1))
                }
                _ => 0,
            };
            if start < end {
                visit(a, &long[start..end]);
            }
        }
    }
}
