//! What is known to be dominated in two objectives.

use super::point::CostVector;

/// There are `1 << BITS` entries for each power of two.
const BITS: u32 = 6;
/// Cells per known point, while there are few.
const CELLS_PER_POINT: usize = 4;
/// About this many cells fit the second-level cache.
const CELLS: usize = 1 << 17;

/// For cells of objective 0, the least objective 1 known in lower cells: from there on upwards,
/// everything in the cell is dominated.
///
/// Cells are narrow where known points are dense. A point's cell is found in two steps: entries
/// whose width grows with the distance from the lowest value (some for each power of two), each
/// cut evenly into as many cells as its share of the known points asks for.
#[derive(Debug, Default)]
pub(super) struct Floors {
    /// Lowest value of objective 0.
    low: u64,
    /// For each entry, the width of its cells as a shift, and what to add (modulo `2^32`) to an
    /// offset shifted by that to get its cell.
    entries: Vec<(u32, u32)>,
    floors: Vec<u64>,
}

impl Floors {
    /// Builds the cells for values of objective 0 from `low` to `high`, from known points that are
    /// a frontier. Nothing is known to be dominated below `ceiling` but by the points.
    pub(super) fn fit<C: CostVector>(
        &mut self,
        (low, high): (u64, u64),
        ceiling: u64,
        known: &[C],
    ) {
        self.low = low;
        self.entries.clear();
        self.entries.resize(entry(high - low) + 1, (0, 0));
        for point in known {
            self.entries[entry(point.get(0) - low)].0 += 1;
        }
        let share = (CELLS / known.len().max(1)).clamp(1, CELLS_PER_POINT);
        let mut cells = 0u32;
        for (index, (points, shift)) in self.entries.iter_mut().enumerate() {
            let (start, width) = span(index);
            let split = (*points as usize * share).max(1).ilog2().min(width);
            *shift = width - split;
            // The count of points has served.
            *points = cells.wrapping_sub((start >> *shift) as u32);
            cells += 1 << split;
        }
        self.floors.clear();
        self.floors.resize(cells as usize + 1, ceiling);
        let mut from = 0;
        let mut floor = ceiling;
        for point in known {
            let next = self.cell(point.get(0)) + 1;
            self.floors[from..next].fill(floor);
            (from, floor) = (next, point.get(1));
        }
        self.floors[from..].fill(floor);
    }

    #[inline]
    fn cell(&self, x: u64) -> usize {
        let offset = x - self.low;
        let (add, shift) = self.entries[entry(offset)];
        add.wrapping_add((offset >> shift) as u32) as usize
    }

    /// From which objective 1 on everything at a value of objective 0 is dominated.
    #[inline]
    pub(super) fn at(&self, x: u64) -> u64 {
        self.floors[self.cell(x)]
    }

    /// Notes a point, unless it is known to be dominated; whether it was noted.
    #[inline]
    pub(super) fn insert(&mut self, x: u64, y: u64) -> bool {
        let cell = self.cell(x);
        if y >= self.floors[cell] {
            return false;
        }
        for floor in &mut self.floors[cell + 1..] {
            if *floor <= y {
                break;
            }
            *floor = y;
        }
        true
    }
}

/// The entry of an offset from the lowest value.
#[inline]
fn entry(offset: u64) -> usize {
    let width = (offset | (1 << BITS)).ilog2() - BITS;
    ((width as usize) << BITS) + (offset >> width) as usize
}

/// Where an entry starts, and as a shift its width. The first `2 << BITS` entries are 1 wide.
fn span(entry: usize) -> (u64, u32) {
    let width = (entry as u32 >> BITS).saturating_sub(1);
    ((entry as u64 - (u64::from(width) << BITS)) << width, width)
}
