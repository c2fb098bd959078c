//! Large unions of sums in two objectives, output-sensitively.
//!
//! The matrix of pairs of a term is cut into blocks. No pair of a block is better than the sum of
//! the block's two lower corners, so where known points dominate that corner, the block goes
//! without being looked at. What is known ([`Floors`]) is shared by all terms. It starts with
//! seeds, pairs along the lower hulls of both sides (the hull of a sum is the sum of the hulls),
//! and each halving of the blocks adds some pairs. The small blocks that are left are
//! sifted ([`Sums::sift`]).

use super::cells::{Cells, Even, Floors};
use super::point::CostVector;
use super::sift::{Block, Sums};
use super::{Scratch, Term, Work};

/// Pairs per block down to which blocks are halved in any case.
const SMALL: usize = 256;
/// Pairs per block from which on halving costs more than looking at the pairs.
const LEAF: usize = 16;
/// Between the two, blocks are halved as long as one in this many turns out to be dominated.
const KILL: usize = 4;
/// Of the sums along a row of a small block, one in this many is noted before the others are
/// looked at.
const SAMPLE: usize = 16;
/// Of the pairs along the hulls, one in this many (a power of two) becomes a seed.
const STRIDE: usize = 2;
/// Cells per seed, while there are few.
const CELLS_PER_SEED: usize = 16;
/// About this many cells fit the second-level cache.
const CELLS: usize = 1 << 17;

/// The frontier of a union of sums of two objectives that both add up by sum.
///
/// No sum may have `u64::MAX` in objective 1.
pub(super) fn by_blocks<C: CostVector>(
    algebra: &C::Algebra,
    terms: &[Term<'_, C>],
    limit: Option<C>,
    out: &mut Vec<C>,
    scratch: &mut Scratch<C>,
    work: &mut Work,
) {
    let Scratch { uneven, floors, hulls, blocks, next_blocks, .. } = scratch;
    let seeds = out;
    seeds.clear();
    let Some(range) = range(algebra, terms) else {
        return;
    };
    let limit = limit.unwrap_or(C::UNLIMITED);
    seed(algebra, terms, limit, hulls, seeds);
    work.visited += seeds.len() as u64;
    Block::whole(terms, blocks);
    let buffers = (blocks, next_blocks);
    let cells = (seeds.len() * CELLS_PER_SEED).clamp(64, CELLS);
    let even = Even::new(range, cells as u64);
    if is_even(seeds, range, floors) {
        Sums { algebra, terms, limit, cells: &even }.search(buffers, floors, seeds, work);
    } else {
        uneven.fit(range, cells, seeds);
        Sums { algebra, terms, limit, cells: &*uneven }.search(buffers, floors, seeds, work);
    }
}

/// Sums along the lower hulls of both sides of all terms.
fn seed<C: CostVector>(
    algebra: &C::Algebra,
    terms: &[Term<'_, C>],
    limit: C,
    hulls: &mut [Vec<u32>; 2],
    seeds: &mut Vec<C>,
) {
    for term in terms {
        let mut count = 0usize;
        along_hulls(term, hulls, |a, b| {
            let sum = a.combine(b, algebra);
            if count & (STRIDE - 1) == 0 && sum.dominates(&limit) {
                seeds.push(sum);
            }
            count += 1;
        });
    }
}

/// Whether points are spread over objective 0 about as evenly as random ones.
fn is_even<C: CostVector>(points: &[C], range: (u64, u64), floors: &mut Floors) -> bool {
    let cells = Even::new(range, points.len() as u64);
    floors.reset(&cells, 0);
    let crowd: u64 = points.iter().map(|point| floors.count(cells.of(point.get(0)))).sum();
    // Pairs of points in one cell: half a pair per point and cell where the spread is random.
    crowd <= 2 * points.len() as u64
}

/// The least and the greatest objective 0 of any sum; `None` if there is none.
pub(super) fn range<C: CostVector>(
    algebra: &C::Algebra,
    terms: &[Term<'_, C>],
) -> Option<(u64, u64)> {
    let ends = terms.iter().filter_map(|Term { left, right }| {
        let low = left.first()?.combine(*right.first()?, algebra);
        let high = left.last()?.combine(*right.last()?, algebra);
        Some((low.get(0), high.get(0)))
    });
    ends.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
}

impl<C: CostVector, M: Cells> Sums<'_, '_, C, M> {
    /// Halves blocks while that drops some, then sifts what is left. `out` holds known sums, and is
    /// overwritten with the frontier.
    fn search(
        &self,
        (blocks, next): (&mut Vec<Block>, &mut Vec<Block>),
        floors: &mut Floors,
        out: &mut Vec<C>,
        work: &mut Work,
    ) {
        floors.reset(self.cells, self.limit.get(1).saturating_add(1));
        out.iter().for_each(|seed| floors.note(self.cells.of(seed.get(0)), seed.get(1)));
        floors.settle();
        let mut small = SMALL;
        loop {
            let (dead, again) = self.halve(blocks, small, floors, next, work);
            std::mem::swap(blocks, next);
            if again {
                continue;
            }
            if small <= LEAF || dead * KILL < blocks.len() {
                break;
            }
            small /= 2;
        }
        self.sift(blocks, SAMPLE, floors, out, work);
    }

    /// One level of all blocks: drops the dominated ones, and halves the others across the longer
    /// side unless they are small, learning from one pair of each. How many were dropped, and
    /// whether a block is left that is not small.
    fn halve(
        &self,
        blocks: &[Block],
        small: usize,
        floors: &mut Floors,
        next: &mut Vec<Block>,
        work: &mut Work,
    ) -> (usize, bool) {
        next.clear();
        let mut again = false;
        let mut dead = 0;
        for block in blocks {
            if self.is_dead(block, floors) {
                dead += 1;
                continue;
            }
            if block.area() <= small {
                next.push(*block);
                continue;
            }
            let middle = |(from, to): (u32, u32)| from + (to - from) / 2;
            let (row, column) = (middle(block.rows), middle(block.columns));
            let Term { left, right } = self.terms[block.term as usize];
            work.visited += 1;
            self.learn(left[row as usize].combine(right[column as usize], self.algebra), floors);
            let (mut low, mut high) = (*block, *block);
            if block.rows.1 - block.rows.0 > block.columns.1 - block.columns.0 {
                (low.rows.1, high.rows.0) = (row, row);
            } else {
                (low.columns.1, high.columns.0) = (column, column);
            }
            again |= low.area().max(high.area()) > small;
            next.extend([low, high]);
        }
        (dead, again)
    }

    /// Notes a sum.
    fn learn(&self, sum: C, floors: &mut Floors) {
        let cell = self.cells.of(sum.get(0));
        if sum.get(1) < floors.at(cell) && sum.dominates(&self.limit) {
            floors.lower(cell, sum.get(1));
        }
    }
}

/// Calls `visit` with the pairs along the lower hulls of both sides of a term, in ascending order
/// of objective 0: for each edge of the hull of the sum, all points between the ends of the edge it
/// came from, each with the vertex of the other side.
fn along_hulls<C: CostVector>(
    term: &Term<'_, C>,
    hulls: &mut [Vec<u32>; 2],
    mut visit: impl FnMut(C, C),
) {
    let Term { left, right } = *term;
    if left.is_empty() || right.is_empty() {
        return;
    }
    let [a, b] = hulls;
    lower_hull(left, a);
    lower_hull(right, b);
    let (mut i, mut j) = (0, 0);
    visit(left[0], right[0]);
    while i + 1 < a.len() || j + 1 < b.len() {
        let (here, there) = (left[a[i] as usize], right[b[j] as usize]);
        let take_left = j + 1 == b.len()
            || i + 1 < a.len()
                && turns_left(
                    difference(here, left[a[i + 1] as usize]),
                    difference(there, right[b[j + 1] as usize]),
                );
        if take_left {
            for &point in &left[a[i] as usize + 1..=a[i + 1] as usize] {
                visit(point, there);
            }
            i += 1;
        } else {
            for &point in &right[b[j] as usize + 1..=b[j + 1] as usize] {
                visit(here, point);
            }
            j += 1;
        }
    }
}

/// The indices of the vertices of the lower left convex hull of a frontier.
fn lower_hull<C: CostVector>(points: &[C], hull: &mut Vec<u32>) {
    hull.clear();
    for (i, &point) in points.iter().enumerate() {
        while let [.., p, q] = hull[..] {
            let (p, q) = (points[p as usize], points[q as usize]);
            if turns_left(difference(p, q), difference(q, point)) {
                break;
            }
            hull.pop();
        }
        hull.push(i as u32);
    }
}

/// From one point of a frontier to a later one. Rounding is harmless: the hull only chooses seeds.
#[inline]
fn difference<C: CostVector>(from: C, to: C) -> (f64, f64) {
    let delta = |k: usize| to.get(k) as f64 - from.get(k) as f64;
    (delta(0), delta(1))
}

/// Whether going along `a` and then along `b` turns left.
#[inline]
fn turns_left(a: (f64, f64), b: (f64, f64)) -> bool {
    a.0 * b.1 > a.1 * b.0
}
