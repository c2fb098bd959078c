//! A bucket grid over all objectives but the last.

use super::point::CostVector;

/// Entries of the table that maps values to cells.
const ENTRIES: u64 = 1 << 12;
/// Values that the table is made from.
const SAMPLE: usize = 1 << 12;

/// A monotone map from values to a few cells that hold about equally many of the values.
#[derive(Debug, Default)]
struct Ruler {
    low: u64,
    shift: u32,
    /// The cell of each of evenly wide entries.
    cells: Vec<u16>,
    /// Values counted in each entry.
    counts: Vec<u32>,
}

impl Ruler {
    /// Measures values, of which a sample suffices. Values outside belong to the end cells.
    fn fit(&mut self, values: impl Iterator<Item = u64> + Clone, cells: usize) {
        let (low, high) = values
            .clone()
            .fold((u64::MAX, 0), |(low, high), value| (low.min(value), high.max(value)));
        self.low = low;
        self.shift = (high.saturating_sub(low) / ENTRIES).checked_ilog2().map_or(0, |b| b + 1);
        let entries = (high.saturating_sub(low) >> self.shift) as usize + 1;
        self.cells.clear();
        self.cells.resize(entries, 0);
        self.counts.clear();
        self.counts.resize(entries, 0);
        let mut total = 0u64;
        for value in values {
            let entry = self.entry(value);
            self.counts[entry] += 1;
            total += 1;
        }
        let mut below = 0u64;
        for (cell, count) in self.cells.iter_mut().zip(&self.counts) {
            *cell = (below * cells as u64 / total.max(1)) as u16;
            below += u64::from(*count);
        }
    }

    #[inline]
    fn entry(&self, value: u64) -> usize {
        ((value.saturating_sub(self.low) >> self.shift) as usize).min(self.cells.len() - 1)
    }

    #[inline]
    fn cell(&self, value: u64) -> usize {
        usize::from(self.cells[self.entry(value)])
    }
}

/// For each cell of a grid over all objectives but the last, the least last objective known in the
/// cells that are lower in each direction: what is not below it, is dominated.
#[derive(Debug, Default)]
pub(super) struct Grid {
    rulers: [Ruler; 3],
    /// Cells in each direction, plus one below them all.
    side: usize,
    floors: Vec<u64>,
}

impl Grid {
    /// Empties the grid and fits it to points like the given ones, for about so many of them.
    fn fit<C: CostVector>(&mut self, points: &[C], expected: usize) {
        let cells = match C::OBJECTIVES {
            3 => ((expected as f64).sqrt() as usize).clamp(8, 512),
            _ => ((expected as f64).cbrt() as usize).clamp(4, 64),
        };
        self.side = cells + 1;
        let stride = (points.len() / SAMPLE).max(1);
        for (k, ruler) in self.rulers[..C::OBJECTIVES - 1].iter_mut().enumerate() {
            ruler.fit(points.iter().step_by(stride).map(|point| point.get(k)), cells);
        }
        self.floors.clear();
        self.floors.resize(self.side.pow(C::OBJECTIVES as u32 - 1), u64::MAX);
    }

    /// Fits the grid to points, and notes one in `stride` of them.
    pub(super) fn fill<C: CostVector>(&mut self, points: &[C], expected: usize, stride: usize) {
        self.fit(points, expected);
        points.iter().step_by(stride).for_each(|point| self.add(point));
        self.settle::<C>();
    }

    /// The cell of a point, seen from one step above it in every direction.
    #[inline]
    fn cell<C: CostVector>(&self, point: &C) -> usize {
        (0..C::OBJECTIVES - 1)
            .fold(0, |cell, k| cell * self.side + self.rulers[k].cell(point.get(k)))
    }

    /// From a cell to the next one in every direction.
    #[inline]
    fn diagonal<C: CostVector>(&self) -> usize {
        (0..C::OBJECTIVES - 1).fold(0, |sum, _| sum * self.side + 1)
    }

    /// Notes a point. Counts only once the grid is settled.
    #[inline]
    fn add<C: CostVector>(&mut self, point: &C) {
        let cell = self.cell(point) + self.diagonal::<C>();
        let floor = &mut self.floors[cell];
        *floor = (*floor).min(point.get(C::OBJECTIVES - 1));
    }

    /// Lets points count in all higher cells.
    fn settle<C: CostVector>(&mut self) {
        let mut step = 1;
        for _ in 0..C::OBJECTIVES - 1 {
            for cell in step..self.floors.len() {
                if (cell / step) % self.side > 0 {
                    self.floors[cell] = self.floors[cell].min(self.floors[cell - step]);
                }
            }
            step *= self.side;
        }
    }

    /// Whether no known point in a lower cell dominates this place. Errs only by saying yes.
    #[inline]
    pub(super) fn is_open<C: CostVector>(&self, point: &C) -> bool {
        self.open_cell(point).is_some()
    }

    /// Notes a point of a settled grid at once; whether it [`is_open`](Self::is_open).
    #[inline]
    pub(super) fn insert<C: CostVector>(&mut self, point: &C) -> bool {
        let cell = self.open_cell(point);
        if let Some(cell) = cell {
            self.lower::<C>(cell, point.get(C::OBJECTIVES - 1));
        }
        cell.is_some()
    }

    #[inline]
    fn open_cell<C: CostVector>(&self, point: &C) -> Option<usize> {
        let cell = self.cell(point);
        let floor = self.floors[cell];
        ((point.get(C::OBJECTIVES - 1) < floor) | (floor == u64::MAX)).then_some(cell)
    }

    /// Lowers the floors of the cells above a cell. They descend in every direction, so that each
    /// line ends at the first one that is low enough.
    fn lower<C: CostVector>(&mut self, cell: usize, floor: u64) {
        let side = self.side;
        let start = cell + self.diagonal::<C>();
        let plane = if C::OBJECTIVES == 3 { self.floors.len() } else { side * side };
        for layer in (start..self.floors.len()).step_by(plane) {
            if self.floors[layer] <= floor {
                return;
            }
            let layer_end = (layer / plane + 1) * plane;
            for row in (layer..layer_end).step_by(side) {
                if self.floors[row] <= floor {
                    break;
                }
                let row_end = (row / side + 1) * side;
                for place in &mut self.floors[row..row_end] {
                    if *place <= floor {
                        break;
                    }
                    *place = floor;
                }
            }
        }
    }
}
