//! The upper envelope of known points of two objectives.

use super::point::CostVector;

/// Known points as a staircase that answers: up to where is this place dominated?
///
/// Structure of arrays, so that a search touches one objective only. The first step (and the last
/// one, under a limit in objective 0) are sentinels that stand for the limit.
#[derive(Debug, Default)]
pub(super) struct Staircase {
    /// Objective 0 of each step, ascending.
    xs: Vec<u64>,
    /// Objective 1 of each step, descending.
    ys: Vec<u64>,
    /// For each of evenly wide cells of objective 0 from `low` on, the last step at or left of
    /// where the cell begins: where the steps are evenly spread, a search ends where it starts.
    index: Vec<u32>,
    /// Where the first cell begins.
    low: u64,
    /// The cells are `1 << shift` wide.
    shift: u32,
    /// Buffers that the merge swaps in.
    next_xs: Vec<u64>,
    next_ys: Vec<u64>,
}

impl Staircase {
    /// Forgets all points; from now on everything outside the limit counts as dominated.
    ///
    /// A point with `u64::MAX` in objective 1 counts as outside: the caller keeps such away.
    pub(super) fn reset<C: CostVector>(&mut self, limit: Option<C>) {
        let limit = limit.unwrap_or(C::UNLIMITED);
        self.xs.clear();
        self.ys.clear();
        self.xs.push(0);
        self.ys.push(limit.get(1).saturating_add(1));
        if limit.get(0) < u64::MAX {
            self.xs.push(limit.get(0) + 1);
            self.ys.push(0);
        }
        self.reindex();
    }

    /// Number of steps, sentinels included.
    pub(super) fn len(&self) -> usize {
        self.xs.len()
    }

    /// The last step at or left of `x`, found from a step that is.
    ///
    /// `O(1)` where the steps are evenly spread, `O(log len)` in the worst case.
    #[inline]
    pub(super) fn step(&self, x: u64, from: usize) -> usize {
        match self.xs.get(from + 1) {
            Some(&next) if next <= x => self.search(x, from + 1),
            _ => from,
        }
    }

    #[inline]
    fn search(&self, x: u64, from: usize) -> usize {
        // Steps from 1 on are not left of `low`, so that `x` is not either.
        let cell = ((x - self.low) >> self.shift) as usize;
        let from = from.max(self.index[cell.min(self.index.len() - 1)] as usize);
        let xs = &self.xs[from..];
        let mut reach = 1;
        while reach < xs.len() && xs[reach] <= x {
            reach *= 2;
        }
        let low = reach / 2;
        let high = reach.min(xs.len());
        if high - low <= 1 {
            return from + low;
        }
        from + low + xs[low..high].partition_point(|&step| step <= x) - 1
    }

    /// Builds the index for the steps as they are.
    fn reindex(&mut self) {
        let Self { xs, index, low, shift, .. } = self;
        index.clear();
        let (&[_, first, ..], &[.., last]) = (&xs[..], &xs[..]) else {
            return;
        };
        *low = first;
        let cells = 2 * xs.len() as u64;
        *shift = ((last - first) / cells).checked_ilog2().map_or(0, |bits| bits + 1);
        let count = ((last - first) >> *shift) as usize + 2;
        index.resize(count, 0);
        // A step counts from the first cell that begins at or right of it.
        let round = (1u64 << *shift) - 1;
        for (step, x) in xs.iter().enumerate().skip(1) {
            let offset = x - first;
            index[(offset >> *shift) as usize + usize::from(offset & round > 0)] = step as u32;
        }
        index.iter_mut().fold(1, |latest, step| {
            *step = latest.max(*step);
            *step
        });
    }

    /// The lowest objective 1 known at a step: from there on upwards everything is dominated.
    #[inline]
    pub(super) fn floor(&self, step: usize) -> u64 {
        self.ys[step]
    }

    /// Notes that there is a point of height `y` within a step: later steps are no higher.
    #[inline]
    pub(super) fn lower(&mut self, step: usize, y: u64) {
        for floor in &mut self.ys[step + 1..] {
            if *floor <= y {
                break;
            }
            *floor = y;
        }
    }

    /// Adds points that are sorted and scanned, in `O(len + points)`.
    pub(super) fn merge<C: CostVector>(&mut self, points: &[C]) {
        if points.is_empty() {
            return;
        }
        let Self { xs, ys, next_xs, next_ys, .. } = self;
        next_xs.clear();
        next_ys.clear();
        let (total, mut old, mut new) = (xs.len() + points.len(), 0, 0);
        next_xs.resize(total, 0);
        next_ys.resize(total, 0);
        let (mut kept, mut best) = (0, u64::MAX);
        // The first sentinel always stays, even where its height is the largest number.
        let mut first = true;
        while old < xs.len() || new < points.len() {
            let key = |x: u64, y: u64| (u128::from(x) << 64) | u128::from(y);
            let mine = if old < xs.len() { key(xs[old], ys[old]) } else { u128::MAX };
            let theirs = points.get(new).map_or(u128::MAX, |p| key(p.get(0), p.get(1)));
            let take_mine = (mine <= theirs) | first;
            let taken = if take_mine { mine } else { theirs };
            old += usize::from(take_mine);
            new += usize::from(!take_mine);
            let (x, y) = ((taken >> 64) as u64, taken as u64);
            next_xs[kept] = x;
            next_ys[kept] = y;
            kept += usize::from((y < best) | first);
            best = best.min(y);
            first = false;
        }
        next_xs.truncate(kept);
        next_ys.truncate(kept);
        std::mem::swap(xs, next_xs);
        std::mem::swap(ys, next_ys);
        self.reindex();
    }

    /// The points without the sentinels.
    pub(super) fn points<C: CostVector>(&self, limit: Option<C>, out: &mut Vec<C>) {
        let x_end = limit.unwrap_or(C::UNLIMITED).get(0);
        let end = self.xs.partition_point(|&x| x <= x_end);
        out.clear();
        out.extend((1..end).map(|i| C::from_slice(&[self.xs[i], self.ys[i]])));
    }
}
