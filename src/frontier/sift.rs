//! Two passes over rows of pairs that leave little more than the frontier.

use super::cells::{Cells, Floors};
use super::plane::{scan, sort_and_scan};
use super::point::CostVector;
use super::{Term, Work};

/// Sums along a row that are dropped together if the place below them all is dominated.
const RUN: usize = 8;
/// Up to this many sorted runs, a sort that merges them is faster than one that does not.
const FEW_RUNS: usize = 4;
/// Sums kept before those that are dominated are cleared away for the first time.
const COMPACT: usize = 1 << 20;

/// A block of the pairs of one term: rows are points of the left side, columns of the right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) term: u32,
    pub(super) rows: (u32, u32),
    pub(super) columns: (u32, u32),
}

impl Block {
    /// All pairs of all terms, a block for each term that has any.
    pub(super) fn whole<C>(terms: &[Term<'_, C>], blocks: &mut Vec<Self>) {
        blocks.clear();
        blocks.extend(terms.iter().enumerate().map(|(index, term)| Self {
            term: index as u32,
            rows: (0, term.left.len() as u32),
            columns: (0, term.right.len() as u32),
        }));
        blocks.retain(|block| block.area() > 0);
    }

    /// The points of both sides.
    #[inline]
    pub(super) fn sides<'a, C>(&self, terms: &[Term<'a, C>]) -> (&'a [C], &'a [C]) {
        let Term { left, right } = terms[self.term as usize];
        (
            &left[self.rows.0 as usize..self.rows.1 as usize],
            &right[self.columns.0 as usize..self.columns.1 as usize],
        )
    }

    /// Number of pairs.
    pub(super) fn area(&self) -> usize {
        (self.rows.1 - self.rows.0) as usize * (self.columns.1 - self.columns.0) as usize
    }
}

/// A union of sums that both objectives of which add up by sum, and cells for what is known of it.
#[derive(Clone, Copy)]
pub(super) struct Sums<'a, 't, C: CostVector, M> {
    pub(super) algebra: &'a C::Algebra,
    pub(super) terms: &'a [Term<'t, C>],
    pub(super) limit: C,
    pub(super) cells: &'a M,
}

impl<C: CostVector, M: Cells> Sums<'_, '_, C, M> {
    /// Whether no pair of a block can be of use: the place below them all is dominated.
    #[inline]
    pub(super) fn is_dead(&self, block: &Block, floors: &Floors) -> bool {
        let (left, right) = block.sides(self.terms);
        let low = left[0].combine(right[0], self.algebra);
        let high = left[left.len() - 1].combine(right[right.len() - 1], self.algebra);
        let (x, y) = (low.get(0), high.get(1));
        y >= floors.at(self.cells.of(x)) || x > self.limit.get(0)
    }

    /// The frontier of the sums in some blocks that are within the limit.
    ///
    /// `floors` may hold what is known already. The first pass notes one in `sample` of the sums
    /// along a row, the second keeps the sums that nothing in a lower cell dominates, to be sorted.
    /// Objective 0 ascends along a row and objective 1 descends: the passes go through memory in
    /// order, and a run that starts too far right and ends too high goes as a whole.
    pub(super) fn sift(
        &self,
        blocks: &[Block],
        sample: usize,
        floors: &mut Floors,
        out: &mut Vec<C>,
        work: &mut Work,
    ) {
        let Self { algebra, cells, .. } = *self;
        let mut runs = 0;
        for block in blocks {
            self.rows(block, |a, row| {
                runs += 1;
                work.visited += row.len().div_ceil(sample) as u64;
                for &b in row.iter().step_by(sample) {
                    let sum = a.combine(b, algebra);
                    floors.note(cells.of(sum.get(0)), sum.get(1));
                }
            });
        }
        floors.settle();
        out.clear();
        let mut compact_at = COMPACT;
        for block in blocks.iter().filter(|block| !self.is_dead(block, floors)) {
            if out.len() > compact_at {
                work.candidates += out.len() as u64;
                sort_and_scan(out);
                compact_at = COMPACT.max(2 * out.len());
            }
            let mut kept = out.len();
            out.resize(kept + block.area(), C::ZERO);
            self.rows(block, |a, row| {
                for run in row.chunks(RUN) {
                    let x = a.combine(run[0], algebra).get(0);
                    let y = a.combine(run[run.len() - 1], algebra).get(1);
                    if y >= floors.at(cells.of(x)) {
                        continue;
                    }
                    work.visited += run.len() as u64;
                    for &b in run {
                        // Whether a sum stays is hard to predict: count instead of branching.
                        let sum = a.combine(b, algebra);
                        out[kept] = sum;
                        kept += usize::from(sum.get(1) < floors.at(cells.of(sum.get(0))));
                    }
                }
            });
            out.truncate(kept);
        }
        work.candidates += out.len() as u64;
        if runs <= FEW_RUNS {
            out.sort();
            scan(out);
        } else {
            sort_and_scan(out);
        }
    }
}

impl<C: CostVector, M> Sums<'_, '_, C, M> {
    /// The frontier of the sums in some blocks that are within the limit, where objective 0 has so
    /// few values, from `low` to `high`, that a table holds the least objective 1 of each: nothing
    /// needs to be sorted.
    pub(super) fn tabulate(
        &self,
        blocks: &[Block],
        (low, high): (u64, u64),
        table: &mut Vec<u64>,
        out: &mut Vec<C>,
        work: &mut Work,
    ) {
        table.clear();
        table.resize((high - low) as usize + 1, u64::MAX);
        let algebra = self.algebra;
        for block in blocks {
            self.rows(block, |a, row| {
                work.visited += row.len() as u64;
                for &b in row {
                    let sum = a.combine(b, algebra);
                    let least = &mut table[(sum.get(0) - low) as usize];
                    *least = (*least).min(sum.get(1));
                }
            });
        }
        out.clear();
        out.resize(table.len(), C::ZERO);
        let (mut kept, mut least) = (0, u64::MAX);
        for (x, &y) in (low..).zip(table.iter()) {
            // What stands in cells without a point is not kept, and overwritten.
            out[kept] = C::from_slice(&[x, if y < least { y } else { 0 }]);
            kept += usize::from(y < least);
            least = least.min(y);
        }
        out.truncate(kept);
        work.candidates += kept as u64;
    }

    /// Calls `visit` with each point of the shorter side of a block and the part of the longer side
    /// that it takes to sums within the limit.
    #[inline]
    fn rows(&self, block: &Block, mut visit: impl FnMut(C, &[C])) {
        let (left, right) = block.sides(self.terms);
        let (short, long) = if left.len() < right.len() { (left, right) } else { (right, left) };
        let fits = |k: usize, a: C, b: C| a.combine(b, self.algebra).get(k) <= self.limit.get(k);
        let (first, last) = (long[0], long[long.len() - 1]);
        if fits(0, short[short.len() - 1], last) && fits(1, short[0], first) {
            short.iter().for_each(|&a| visit(a, long));
            return;
        }
        for &a in short {
            let end = long.partition_point(|&b| fits(0, a, b));
            let start = long.partition_point(|&b| !fits(1, a, b));
            if start < end {
                visit(a, &long[start..end]);
            }
        }
    }
}
