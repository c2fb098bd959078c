//! Filtering in one and two objectives.

use super::point::CostVector;

/// Below this, sorting everything beats looking for what need not be sorted.
const GRID_FROM: usize = 128;
/// Cells of the grid fit the second-level cache.
const GRID_CELLS: usize = 1 << 15;

/// Keeps the frontier of points sorted lexicographically, in place, in `O(n)`.
pub(super) fn scan<C: CostVector>(points: &mut Vec<C>) {
    let Some(&first) = points.first() else {
        return;
    };
    let mut best = last(&first);
    let mut kept = 1;
    for i in 1..points.len() {
        let point = points[i];
        points[kept] = point;
        // Whether a point stays is hard to predict: count instead of branching.
        kept += usize::from(last(&point) < best);
        best = best.min(last(&point));
    }
    points.truncate(kept);
}

/// The second of two objectives. With one objective every point but the first is dominated.
#[inline]
fn last<C: CostVector>(point: &C) -> u64 {
    if C::OBJECTIVES == 1 { 0 } else { point.get(1) }
}

/// Sorts and filters points of one or two objectives.
pub(super) fn sort_and_scan<C: CostVector>(points: &mut Vec<C>) {
    points.sort_unstable();
    scan(points);
}

/// The frontier of any points of one or two objectives.
///
/// A uniform grid over objective 0 holds the least objective 1 of each cell; what is dominated by
/// a lower cell goes before the rest is sorted. `O(n + c log c)` for `c` points left by the grid,
/// `O(n log n)` in the worst case.
pub(super) fn prune<C: CostVector>(points: &mut Vec<C>, floors: &mut Vec<u64>) {
    if points.len() >= GRID_FROM && C::OBJECTIVES == 2 {
        thin_by_grid(points, floors);
    }
    sort_and_scan(points);
}

/// Drops most of what is dominated, in two passes over the points.
fn thin_by_grid<C: CostVector>(points: &mut Vec<C>, floors: &mut Vec<u64>) {
    let (low, high) = points
        .iter()
        .fold((u64::MAX, 0), |(low, high), point| (low.min(point.get(0)), high.max(point.get(0))));
    let cells = (points.len() / 2).min(GRID_CELLS) as u64;
    // The smallest cells, of a power of two wide, of which at most `cells` cover the range.
    let shift = ((high - low) / cells).checked_ilog2().map_or(0, |bits| bits + 1);
    floors.clear();
    floors.resize(((high - low) >> shift) as usize + 2, u64::MAX);
    for point in points.iter() {
        let floor = &mut floors[((point.get(0) - low) >> shift) as usize + 1];
        *floor = (*floor).min(point.get(1));
    }
    // Now the least of all lower cells.
    floors.iter_mut().fold(u64::MAX, |best, floor| {
        *floor = best.min(*floor);
        *floor
    });
    let mut kept = 0;
    for i in 0..points.len() {
        let point = points[i];
        let cell = ((point.get(0) - low) >> shift) as usize;
        points[kept] = point;
        // Nothing is lower than the first cell, whatever number stands there.
        kept += usize::from((point.get(1) < floors[cell]) | (cell == 0));
    }
    points.truncate(kept);
}
