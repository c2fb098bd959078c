//! What is known to be dominated in two objectives, cell by cell of objective 0.

use super::point::CostVector;

/// There are `1 << BITS` entries of an [`Uneven`] map for each power of two.
const BITS: u32 = 6;

/// A monotone map from objective 0 to cells.
pub(super) trait Cells {
    /// The cell of a value. The map was made for a range; the value lies in it.
    fn of(&self, x: u64) -> usize;

    /// Number of cells.
    fn count(&self) -> usize;
}

/// Evenly wide cells.
#[derive(Debug)]
pub(super) struct Even {
    low: u64,
    shift: u32,
    count: usize,
}

impl Even {
    /// At most `cells` cells, or two.
    pub(super) fn new((low, high): (u64, u64), cells: u64) -> Self {
        let shift = ((high - low) / cells.max(2)).checked_ilog2().map_or(0, |bits| bits + 1);
        Self { low, shift, count: ((high - low) >> shift) as usize + 1 }
    }
}

impl Cells for Even {
    #[inline]
    fn of(&self, x: u64) -> usize {
        ((x - self.low) >> self.shift) as usize
    }

    fn count(&self) -> usize {
        self.count
    }
}

/// Cells that are narrow where points are dense.
///
/// A value's cell is found in two steps: entries whose width grows with the distance from the
/// lowest value (some for each power of two), each cut evenly into as many cells as its share of
/// the points asks for.
#[derive(Debug, Default)]
pub(super) struct Uneven {
    low: u64,
    /// For each entry, what to add (modulo `2^32`) to an offset shifted by the width of its cells
    /// to get the cell, and the width as that shift.
    entries: Vec<(u32, u32)>,
    count: usize,
}

impl Uneven {
    /// Cells for values from `low` to `high`, about `cells` of them, for points like the given.
    pub(super) fn fit<C: CostVector>(
        &mut self,
        (low, high): (u64, u64),
        cells: usize,
        points: &[C],
    ) {
        self.low = low;
        self.entries.clear();
        self.entries.resize(entry(high - low) + 1, (0, 0));
        for point in points {
            self.entries[entry(point.get(0) - low)].0 += 1;
        }
        let share = (cells / points.len().max(1)).max(1);
        let mut cells = 0u32;
        for (index, (points, shift)) in self.entries.iter_mut().enumerate() {
            let (start, width) = span(index);
            let split = (*points as usize * share).max(1).ilog2().min(width);
            *shift = width - split;
            // The count of points has served.
            *points = cells.wrapping_sub((start >> *shift) as u32);
            cells += 1 << split;
        }
        self.count = cells as usize;
    }
}

impl Cells for Uneven {
    #[inline]
    fn of(&self, x: u64) -> usize {
        let offset = x - self.low;
        let (add, shift) = self.entries[entry(offset)];
        add.wrapping_add((offset >> shift) as u32) as usize
    }

    fn count(&self) -> usize {
        self.count
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

/// For each cell, the least objective 1 known in lower cells: from there on upwards, everything in
/// the cell is dominated.
#[derive(Debug, Default)]
pub(super) struct Floors(Vec<u64>);

impl Floors {
    /// Forgets all points; from now on only what is not below `ceiling` counts as dominated.
    pub(super) fn reset(&mut self, cells: &impl Cells, ceiling: u64) {
        self.0.clear();
        self.0.resize(cells.count() + 1, ceiling);
    }

    /// Counts a point in a cell; how many were counted there before.
    #[inline]
    pub(super) fn count(&mut self, cell: usize) -> u64 {
        self.0[cell] += 1;
        self.0[cell] - 1
    }

    /// The floor of a cell.
    #[inline]
    pub(super) fn at(&self, cell: usize) -> u64 {
        self.0[cell]
    }

    /// Notes a point in a cell. Counts only once the floors are [`settle`](Self::settle)d.
    #[inline]
    pub(super) fn note(&mut self, cell: usize, y: u64) {
        let floor = &mut self.0[cell + 1];
        *floor = (*floor).min(y);
    }

    /// Lets what was noted count in all higher cells.
    pub(super) fn settle(&mut self) {
        self.0.iter_mut().fold(u64::MAX, |least, floor| {
            *floor = least.min(*floor);
            *floor
        });
    }

    /// Notes a point in a cell of settled floors at once.
    #[inline]
    pub(super) fn lower(&mut self, cell: usize, y: u64) {
        for floor in &mut self.0[cell + 1..] {
            if *floor <= y {
                break;
            }
            *floor = y;
        }
    }
}
