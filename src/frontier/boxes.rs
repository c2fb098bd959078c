//! Unions of sums in three and four objectives, output-sensitively.
//!
//! Each side of a term is cut into boxes, halves of halves, by the objective in which it is widest.
//! No pair of two boxes is better than the sum of their lower corners, so where the grid of
//! known points closes that corner, the pair of boxes goes without being looked at. The known
//! points are shared by all terms. They start as a sample of all pairs, one from each pair of the
//! smallest boxes, and grow as pairs are found.

use super::point::CostVector;
use super::space::{self, Buffers};
use super::{Scratch, Term, Work};

/// Points of a box that is not halved any more.
const LEAF: usize = 8;
/// Pairs found before those that are dominated are cleared away for the first time.
const COMPACT: usize = 1 << 18;

/// One side of a term: its points, box by box, and the lower corner of each box.
#[derive(Debug)]
pub(super) struct Tree<C> {
    points: Vec<C>,
    /// Box 1 holds all; box `k` is halved into boxes `2 k` and `2 k + 1`.
    corners: Vec<C>,
}

impl<C> Default for Tree<C> {
    fn default() -> Self {
        Self { points: Vec::new(), corners: Vec::new() }
    }
}

/// A box of a tree.
#[derive(Clone, Copy)]
struct Cell {
    index: usize,
    from: usize,
    to: usize,
}

impl Cell {
    fn is_leaf(self) -> bool {
        self.to - self.from <= LEAF
    }

    fn halves(self) -> [Self; 2] {
        let middle = self.from + (self.to - self.from) / 2;
        [
            Self { index: 2 * self.index, from: self.from, to: middle },
            Self { index: 2 * self.index + 1, from: middle, to: self.to },
        ]
    }
}

impl<C: CostVector> Tree<C> {
    fn build(&mut self, points: &[C]) {
        self.points.clear();
        self.points.extend_from_slice(points);
        self.corners.clear();
        if let Some(root) = self.root() {
            self.divide(root);
        }
    }

    fn root(&self) -> Option<Cell> {
        let to = self.points.len();
        (to > 0).then_some(Cell { index: 1, from: 0, to })
    }

    fn divide(&mut self, cell: Cell) {
        let points = &mut self.points[cell.from..cell.to];
        let mut low = [u64::MAX; 4];
        let mut high = [0; 4];
        for point in points.iter() {
            for k in 0..C::OBJECTIVES {
                low[k] = low[k].min(point.get(k));
                high[k] = high[k].max(point.get(k));
            }
        }
        if self.corners.len() <= cell.index {
            self.corners.resize(cell.index + 1, C::ZERO);
        }
        self.corners[cell.index] = C::from_slice(&low[..C::OBJECTIVES]);
        if cell.is_leaf() {
            return;
        }
        let widest = (0..C::OBJECTIVES).max_by_key(|&k| high[k] - low[k]).unwrap_or(0);
        let middle = points.len() / 2;
        points.select_nth_unstable_by_key(middle, |point| (point.get(widest), *point));
        cell.halves().into_iter().for_each(|half| self.divide(half));
    }

    /// One point of each leaf.
    fn sample(&self, cell: Cell, visit: &mut impl FnMut(C)) {
        if cell.is_leaf() {
            visit(self.points[cell.from + (cell.to - cell.from) / 2]);
        } else {
            cell.halves().into_iter().for_each(|half| self.sample(half, visit));
        }
    }
}

/// What the search carries along.
struct Search<'a, C: CostVector> {
    algebra: &'a C::Algebra,
    limit: C,
    /// The grid of what is known, and buffers.
    space: &'a mut Buffers,
    /// Sums that may be of use.
    out: &'a mut Vec<C>,
    /// At how many of them those that are dominated by now are cleared away.
    compact_at: usize,
    work: &'a mut Work,
}

/// The frontier of a union of sums of three or four objectives.
pub(super) fn by_boxes<C: CostVector>(
    algebra: &C::Algebra,
    terms: &[Term<'_, C>],
    limit: Option<C>,
    out: &mut Vec<C>,
    scratch: &mut Scratch<C>,
    work: &mut Work,
) {
    let Scratch { trees, samples, space, .. } = scratch;
    trees.resize_with(trees.len().max(2 * terms.len()), Tree::default);
    for (term, trees) in terms.iter().zip(trees.chunks_exact_mut(2)) {
        trees[0].build(term.left);
        trees[1].build(term.right);
    }
    let trees = &trees[..2 * terms.len()];
    let limit = limit.unwrap_or(C::UNLIMITED);
    out.clear();
    let Buffers { grid, .. } = space;
    sample(algebra, trees, limit, samples, out);
    work.visited += out.len() as u64;
    let pairs: usize = terms.iter().map(|t| t.left.len() * t.right.len()).sum();
    // Twice: now the grid fits the points that matter.
    grid.fill(out, out.len(), 1);
    out.retain(|point| grid.is_open(point));
    grid.fill(out, pairs / LEAF, 1);
    out.clear();
    let mut search = Search { algebra, limit, space, out, compact_at: COMPACT, work };
    for pair in trees.chunks_exact(2) {
        if let (Some(left), Some(right)) = (pair[0].root(), pair[1].root()) {
            search.descend(&pair[0], left, &pair[1], right);
        }
    }
    search.compact();
}

/// Sums of one point of each leaf of both sides, for all terms.
fn sample<C: CostVector>(
    algebra: &C::Algebra,
    trees: &[Tree<C>],
    limit: C,
    samples: &mut [Vec<C>; 2],
    out: &mut Vec<C>,
) {
    for pair in trees.chunks_exact(2) {
        for (tree, samples) in pair.iter().zip(samples.iter_mut()) {
            samples.clear();
            if let Some(root) = tree.root() {
                tree.sample(root, &mut |point| samples.push(point));
            }
        }
        for &a in &samples[0] {
            out.extend(samples[1].iter().map(|&b| a.combine(b, algebra)));
        }
    }
    out.retain(|sum| sum.dominates(&limit));
}

impl<C: CostVector> Search<'_, C> {
    /// Keeps the frontier of what was found.
    fn compact(&mut self) {
        self.work.candidates += self.out.len() as u64;
        space::prune_open(self.out, self.space);
        self.compact_at = COMPACT.max(2 * self.out.len());
    }

    fn descend(&mut self, left: &Tree<C>, rows: Cell, right: &Tree<C>, columns: Cell) {
        let corner = left.corners[rows.index].combine(right.corners[columns.index], self.algebra);
        if !corner.dominates(&self.limit) || !self.space.grid.is_open(&corner) {
            return;
        }
        if rows.is_leaf() && columns.is_leaf() {
            self.leaf(&left.points[rows.from..rows.to], &right.points[columns.from..columns.to]);
        } else if columns.is_leaf()
            || !rows.is_leaf() && rows.to - rows.from >= columns.to - columns.from
        {
            for half in rows.halves() {
                self.descend(left, half, right, columns);
            }
        } else {
            for half in columns.halves() {
                self.descend(left, rows, right, half);
            }
        }
    }

    fn leaf(&mut self, left: &[C], right: &[C]) {
        self.work.visited += (left.len() * right.len()) as u64;
        if self.out.len() > self.compact_at {
            self.compact();
        }
        for &a in left {
            for &b in right {
                let sum = a.combine(b, self.algebra);
                if sum.dominates(&self.limit) && self.space.grid.insert(&sum) {
                    self.out.push(sum);
                }
            }
        }
    }
}
