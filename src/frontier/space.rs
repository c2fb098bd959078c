//! Filtering in three and four objectives.

use super::grid::Grid;
use super::point::CostVector;

/// Below this many points the grid costs more than it spares.
const GRID_FROM: usize = 512;
/// From this many points on, a sample of them is a grid to begin with.
const SAMPLE_FROM: usize = 1 << 15;
/// One point in this many is in the sample.
const STRIDE: usize = 8;
/// Cells of the first grid: they fit the second-level cache.
const COARSE_CELLS: usize = 1 << 15;
/// Up to this many points, comparing all of them is fastest.
const FEW: usize = 32;
/// Comparisons up to which a set is filtered by another one by comparing all.
const FEW_COMPARISONS: usize = 1024;
/// Steps per chunk of a [`Profile`].
const CHUNK: usize = 256;

/// Buffers of this module.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    pub(super) grid: Grid,
    profile: Profile,
    dead: Vec<bool>,
    lows: Vec<u32>,
    highs: Vec<u32>,
}

/// The frontier of any points of three or four objectives.
///
/// A grid drops most of what is dominated, then points are taken in lexicographic order, so that
/// only earlier ones dominate later ones. Three objectives: `O(n log n)` comparisons, each point
/// asking the [`Profile`] of those before it. Four: divide and conquer (Kung, Luccio and Preparata
/// 1975), `O(n log^2 n)` levels of a sweep.
pub(super) fn prune<C: CostVector>(points: &mut Vec<C>, buffers: &mut Buffers) {
    if points.len() >= GRID_FROM {
        let grid = &mut buffers.grid;
        if points.len() >= SAMPLE_FROM {
            // A small grid of a few of them drops what is easy to drop.
            grid.fill(points, COARSE_CELLS, STRIDE);
            points.retain(|point| grid.is_open(point));
        }
        grid.fill(points, points.len(), 1);
        points.retain(|point| grid.is_open(point));
    }
    prune_rest(points, buffers);
}

/// The frontier of points that are all noted in the grid.
pub(super) fn prune_open<C: CostVector>(points: &mut Vec<C>, buffers: &mut Buffers) {
    points.retain(|point| buffers.grid.is_open(point));
    prune_rest(points, buffers);
}

/// The frontier of points of which the grid has dropped what it can.
fn prune_rest<C: CostVector>(points: &mut Vec<C>, buffers: &mut Buffers) {
    points.sort_unstable();
    let kept = if points.len() <= FEW {
        compare_all(points)
    } else if C::OBJECTIVES == 3 {
        buffers.profile.clear();
        sweep(points, &mut buffers.profile)
    } else {
        points.dedup();
        divide(points, buffers)
    };
    points.truncate(kept);
}

/// Moves the frontier of sorted points to the front; its size.
fn compare_all<C: CostVector>(points: &mut [C]) -> usize {
    let mut kept = 0;
    for i in 0..points.len() {
        let point = points[i];
        if !points[..kept].iter().any(|earlier| earlier.dominates(&point)) {
            points[kept] = point;
            kept += 1;
        }
    }
    kept
}

/// Moves the frontier of sorted points of three objectives to the front; its size.
fn sweep<C: CostVector>(points: &mut [C], profile: &mut Profile) -> usize {
    let mut kept = 0;
    for i in 0..points.len() {
        let point = points[i];
        if profile.insert(point.get(1), point.get(2)) {
            points[kept] = point;
            kept += 1;
        }
    }
    kept
}

/// A staircase in two objectives that points are inserted into in any order, cut into chunks so
/// that an insertion moves little memory however long the staircase is.
#[derive(Debug, Default)]
pub(super) struct Profile {
    /// First objective of the first step of each chunk.
    firsts: Vec<u64>,
    /// Steps: first objective ascending, second descending. No chunk is empty.
    chunks: Vec<Vec<(u64, u64)>>,
    /// Chunks for reuse.
    spare: Vec<Vec<(u64, u64)>>,
}

impl Profile {
    pub(super) fn clear(&mut self) {
        self.firsts.clear();
        self.spare.append(&mut self.chunks);
        self.spare.iter_mut().for_each(Vec::clear);
    }

    /// The step that is least in the second objective among those up to `y` in the first.
    pub(super) fn lowest(&self, y: u64) -> Option<(u64, u64)> {
        let at = self.firsts.partition_point(|&first| first <= y).checked_sub(1)?;
        let chunk = &self.chunks[at];
        Some(chunk[chunk.partition_point(|step| step.0 <= y) - 1])
    }

    /// Inserts a step and removes those that it dominates, unless one dominates it: `false`.
    pub(super) fn insert(&mut self, y: u64, z: u64) -> bool {
        let next = self.firsts.partition_point(|&first| first <= y);
        let Some(at) = next.checked_sub(1) else {
            self.insert_first(y, z);
            return true;
        };
        let chunk = &mut self.chunks[at];
        let after = chunk.partition_point(|step| step.0 <= y);
        let before = chunk[after - 1];
        if before.1 <= z {
            return false;
        }
        // One step of the same height of the first objective may stand before, and goes.
        let from = if before.0 == y { after - 1 } else { after };
        let run = chunk[from..].partition_point(|step| step.1 >= z);
        let reaches_end = from + run == chunk.len();
        if run > 0 {
            chunk[from] = (y, z);
            chunk.drain(from + 1..from + run);
        } else {
            chunk.insert(from, (y, z));
        }
        if reaches_end {
            self.remove_dominated(next, z);
        }
        if self.chunks[at].len() > CHUNK {
            self.split(at);
        }
        true
    }

    /// Inserts a step before all others.
    fn insert_first(&mut self, y: u64, z: u64) {
        self.remove_dominated(0, z);
        match self.chunks.first_mut() {
            Some(chunk) if chunk.len() < CHUNK => {
                chunk.insert(0, (y, z));
                self.firsts[0] = y;
            }
            _ => {
                let mut chunk = self.spare.pop().unwrap_or_default();
                chunk.push((y, z));
                self.chunks.insert(0, chunk);
                self.firsts.insert(0, y);
            }
        }
    }

    /// Removes the steps from a chunk on that are not below `z`.
    fn remove_dominated(&mut self, from: usize, z: u64) {
        let whole =
            self.chunks[from..].iter().take_while(|chunk| chunk[chunk.len() - 1].1 >= z).count();
        self.firsts.drain(from..from + whole);
        for mut chunk in self.chunks.drain(from..from + whole) {
            chunk.clear();
            self.spare.push(chunk);
        }
        if let Some(chunk) = self.chunks.get_mut(from) {
            let part = chunk.partition_point(|step| step.1 >= z);
            chunk.drain(..part);
            self.firsts[from] = chunk[0].0;
        }
    }

    fn split(&mut self, at: usize) {
        let mut upper = self.spare.pop().unwrap_or_default();
        upper.extend(self.chunks[at].drain(CHUNK / 2..));
        self.firsts.insert(at + 1, upper[0].0);
        self.chunks.insert(at + 1, upper);
    }
}

/// Moves the frontier of sorted, distinct points to the front; its size.
///
/// Only the first half can dominate points of the second, and it is not behind in objective 0:
/// both are filtered alone, then the second by the first in the other objectives.
fn divide<C: CostVector>(points: &mut [C], buffers: &mut Buffers) -> usize {
    if points.len() <= FEW {
        return compare_all(points);
    }
    let middle = points.len() / 2;
    let low = divide(&mut points[..middle], buffers);
    let high = divide(&mut points[middle..], buffers);
    let Buffers { dead, lows, highs, .. } = buffers;
    dead.clear();
    dead.resize(middle + high, false);
    lows.clear();
    lows.extend(0..low as u32);
    highs.clear();
    highs.extend((middle..middle + high).map(|i| i as u32));
    Cross { points, dead }.filter(lows, highs, 1);
    let mut kept = low;
    for i in middle..middle + high {
        points[kept] = points[i];
        kept += usize::from(!dead[i]);
    }
    kept
}

/// Filters some points by others.
struct Cross<'a, C> {
    points: &'a [C],
    dead: &'a mut [bool],
}

impl<C: CostVector> Cross<'_, C> {
    /// Marks the points of `highs` that one of `lows` dominates in the objectives from `from` on.
    fn filter(&mut self, lows: &mut [u32], highs: &mut [u32], from: usize) {
        if lows.is_empty() || highs.is_empty() {
            return;
        }
        if lows.len() * highs.len() <= FEW_COMPARISONS {
            self.compare_all(lows, highs, from);
            return;
        }
        if C::OBJECTIVES - from == 2 {
            self.sweep(lows, highs, from);
            return;
        }
        let value = |&i: &u32| self.points[i as usize].get(from);
        let ends = |ids: &[u32]| {
            ids.iter().map(value).fold((u64::MAX, 0), |(a, b), v| (a.min(v), b.max(v)))
        };
        let ((low_min, low_max), (high_min, high_max)) = (ends(lows), ends(highs));
        if high_max < low_min {
            return;
        }
        if low_max <= high_min {
            self.filter(lows, highs, from + 1);
            return;
        }
        // Below the greatest value, so that both parts are smaller than the whole.
        let greatest = low_max.max(high_max);
        let pivot = self.median(lows, highs, from).min(greatest - 1);
        let points = self.points;
        let is_low = |&i: &u32| points[i as usize].get(from) <= pivot;
        let (lows_low, lows_high) = partition(lows, is_low);
        let (highs_low, highs_high) = partition(highs, is_low);
        self.filter(lows_low, highs_high, from + 1);
        self.filter(lows_low, highs_low, from);
        self.filter(lows_high, highs_high, from);
    }

    /// The middle value of an objective, of the larger side.
    fn median(&self, lows: &mut [u32], highs: &mut [u32], objective: usize) -> u64 {
        let side = if lows.len() > highs.len() { lows } else { highs };
        let value = |&i: &u32| self.points[i as usize].get(objective);
        let middle = (side.len() - 1) / 2;
        value(side.select_nth_unstable_by_key(middle, value).1)
    }

    fn compare_all(&mut self, lows: &[u32], highs: &[u32], from: usize) {
        for &high in highs {
            let point = &self.points[high as usize];
            self.dead[high as usize] |= lows.iter().any(|&low| {
                let low = &self.points[low as usize];
                (from..C::OBJECTIVES).all(|k| low.get(k) <= point.get(k))
            });
        }
    }

    /// The last two objectives: both sides in order of one, with the least of the other so far.
    fn sweep(&mut self, lows: &mut [u32], highs: &mut [u32], from: usize) {
        let points = self.points;
        let first = |i: u32| points[i as usize].get(from);
        lows.sort_unstable_by_key(|&i| first(i));
        highs.sort_unstable_by_key(|&i| first(i));
        let mut next = 0;
        let mut least = None;
        for &high in highs.iter() {
            while next < lows.len() && first(lows[next]) <= first(high) {
                let low = points[lows[next] as usize].get(from + 1);
                least = Some(least.map_or(low, |least: u64| least.min(low)));
                next += 1;
            }
            let second = points[high as usize].get(from + 1);
            self.dead[high as usize] |= least.is_some_and(|least| least <= second);
        }
    }
}

/// Moves the ids that satisfy the predicate to the front.
fn partition(ids: &mut [u32], predicate: impl Fn(&u32) -> bool) -> (&mut [u32], &mut [u32]) {
    let mut front = 0;
    for i in 0..ids.len() {
        if predicate(&ids[i]) {
            ids.swap(i, front);
            front += 1;
        }
    }
    ids.split_at_mut(front)
}
