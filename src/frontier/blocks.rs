//! Unions of sums in two objectives, output-sensitively.
//!
//! The matrix of pairs of a term is cut into blocks. No pair of a block is better than the sum of
//! the block's two lower corners, so where known points dominate that corner, the block goes
//! without being looked at. What is known ([`Floors`]) is shared by all terms. They start
//! as seeds, pairs along the lower hulls of both sides (the hull of a sum is the sum of the
//! hulls), and grow as pairs are found.

use super::floors::Floors;
use super::plane::sort_and_scan;
use super::point::CostVector;
use super::scratch::Scratch;
use super::{Term, Work};

/// Pairs per block below which the pairs are looked at one by one.
const LEAF: usize = 16;
/// Pairs per block from which on all blocks are halved together, so that each level profits from
/// the points that the level before found.
const COARSE: usize = 4096;
/// Points found before they refine the cells of what is known for the first time.
const REFRESH: usize = 1024;
/// Of the pairs along the hulls, one in this many (a power of two) becomes a seed.
const STRIDE: usize = 2;

/// A block of the pairs of one term: rows are points of the left side, columns of the right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    term: u32,
    rows: (u32, u32),
    columns: (u32, u32),
}

impl Block {
    fn area(&self) -> usize {
        (self.rows.1 - self.rows.0) as usize * (self.columns.1 - self.columns.0) as usize
    }

    /// Two halves, cut across the longer side.
    fn halves(self) -> [Self; 2] {
        let middle = |(from, to): (u32, u32)| from + (to - from) / 2;
        let (mut low, mut high) = (self, self);
        if self.rows.1 - self.rows.0 > self.columns.1 - self.columns.0 {
            low.rows.1 = middle(self.rows);
            high.rows.0 = low.rows.1;
        } else {
            low.columns.1 = middle(self.columns);
            high.columns.0 = low.columns.1;
        }
        [low, high]
    }
}

/// What the search carries along.
struct Search<'a, 't, C: CostVector> {
    algebra: &'a C::Algebra,
    terms: &'a [Term<'t, C>],
    limit: C,
    /// The least and the greatest objective 0 of any sum.
    range: (u64, u64),
    floors: &'a mut Floors,
    /// Known points: first a frontier of `settled` points, then those found since.
    found: &'a mut Vec<C>,
    settled: usize,
    work: &'a mut Work,
}

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
    let Scratch { floors, hulls, blocks, next_blocks, .. } = scratch;
    out.clear();
    let Some(range) = range(algebra, terms) else {
        return;
    };
    let limit = limit.unwrap_or(C::UNLIMITED);
    let mut search =
        Search { algebra, terms, limit, range, floors, found: out, settled: 0, work };
    search.seed(hulls);
    search.start(blocks);
    while blocks.iter().any(|block| block.area() > COARSE) {
        search.halve(blocks, next_blocks);
        std::mem::swap(blocks, next_blocks);
    }
    for block in blocks.iter() {
        search.descend(*block);
        if search.found.len() >= REFRESH.max(3 * search.settled) {
            search.refresh();
        }
    }
    search.settle();
}

/// The least and the greatest objective 0 of any sum; `None` if there is none.
fn range<C: CostVector>(algebra: &C::Algebra, terms: &[Term<'_, C>]) -> Option<(u64, u64)> {
    let ends = terms.iter().filter_map(|Term { left, right }| {
        let low = left.first()?.combine(*right.first()?, algebra);
        let high = left.last()?.combine(*right.last()?, algebra);
        Some((low.get(0), high.get(0)))
    });
    ends.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
}

impl<C: CostVector> Search<'_, '_, C> {
    /// Keeps the frontier of what was found.
    fn settle(&mut self) {
        self.work.candidates += (self.found.len() - self.settled) as u64;
        sort_and_scan(self.found);
        self.settled = self.found.len();
    }

    /// Refines the cells of what is known.
    fn refresh(&mut self) {
        self.settle();
        let ceiling = self.limit.get(1).saturating_add(1);
        self.floors.fit(self.range, ceiling, self.found);
    }

    /// Starts with sums along the lower hulls.
    fn seed(&mut self, hulls: &mut [Vec<u32>; 2]) {
        for term in self.terms {
            let mut count = 0usize;
            along_hulls(term, hulls, |a, b| {
                let sum = a.combine(b, self.algebra);
                if count & (STRIDE - 1) == 0 && sum.dominates(&self.limit) {
                    self.found.push(sum);
                }
                count += 1;
            });
        }
        self.work.visited += self.found.len() as u64;
        self.refresh();
    }

    /// One block per term.
    fn start(&self, blocks: &mut Vec<Block>) {
        blocks.clear();
        blocks.extend(self.terms.iter().enumerate().map(|(term, t)| Block {
            term: term as u32,
            rows: (0, t.left.len() as u32),
            columns: (0, t.right.len() as u32),
        }));
        blocks.retain(|block| block.area() > 0);
    }

    /// The sum that no pair of the block is better than.
    #[inline]
    fn corner(&self, block: &Block) -> (u64, u64) {
        let term = &self.terms[block.term as usize];
        let left = &term.left[block.rows.0 as usize..block.rows.1 as usize];
        let right = &term.right[block.columns.0 as usize..block.columns.1 as usize];
        let low = left[0].combine(right[0], self.algebra);
        let high = left[left.len() - 1].combine(right[right.len() - 1], self.algebra);
        (low.get(0), high.get(1))
    }

    /// Whether no pair of the block can be of use.
    #[inline]
    fn is_dead(&self, block: &Block) -> bool {
        let (x, y) = self.corner(block);
        y >= self.floors.at(x) || x > self.limit.get(0)
    }

    /// Keeps a sum unless a known point dominates it.
    #[inline]
    fn test(&mut self, sum: C) {
        if sum.dominates(&self.limit) && self.floors.insert(sum.get(0), sum.get(1)) {
            self.found.push(sum);
        }
    }

    /// One level of all large blocks: drops the dominated ones, looks at one pair of each of the
    /// others to learn from, and halves them.
    fn halve(&mut self, blocks: &[Block], next: &mut Vec<Block>) {
        next.clear();
        for block in blocks {
            if self.is_dead(block) {
                continue;
            }
            if block.area() <= COARSE {
                next.push(*block);
                continue;
            }
            let term = &self.terms[block.term as usize];
            let middle = |(from, to): (u32, u32)| (from + (to - from) / 2) as usize;
            let a = term.left[middle(block.rows)];
            let b = term.right[middle(block.columns)];
            self.work.visited += 1;
            self.test(a.combine(b, self.algebra));
            next.extend(block.halves());
        }
    }

    /// All of a block.
    fn descend(&mut self, block: Block) {
        if self.is_dead(&block) {
            return;
        }
        if block.area() > LEAF {
            for half in block.halves() {
                self.descend(half);
            }
            return;
        }
        let term = &self.terms[block.term as usize];
        let left = &term.left[block.rows.0 as usize..block.rows.1 as usize];
        let right = &term.right[block.columns.0 as usize..block.columns.1 as usize];
        self.work.visited += (left.len() * right.len()) as u64;
        for &a in left {
            for &b in right {
                self.test(a.combine(b, self.algebra));
            }
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
