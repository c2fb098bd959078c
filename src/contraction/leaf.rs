//! A problem's tables as frontiers: [`View`], [`Leaf`].

use std::sync::Arc;

use super::cells::Cells;
use super::thinning::hull;
use crate::frontier::{CostVector, Scratch, prune};
use crate::problem::Table;

/// The objectives that are solved for, and what is struck out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// The objectives of the problem that the vectors hold, in order.
    pub objectives: Vec<usize>,
    /// Alternatives that cost more than this in this objective are left out.
    pub strike: Option<(usize, u64)>,
    /// The largest value that each of `objectives` may take; `u64::MAX` for no cap.
    pub caps: Vec<u64>,
    /// Of each table of the problem, the points that are left; all if there is none.
    pub only: Option<Arc<Marks>>,
    /// Whether only the vertices of each cell's lower convex hull are shown.
    pub hulls: bool,
}

/// Which points of the tables of a problem are wanted; `None` for a table that is not used.
pub(crate) type Marks = Vec<Option<Vec<bool>>>;

/// The cells of a table and, for every point, the alternative that it is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Leaf<C> {
    pub cells: Cells<C>,
    pub alternatives: Vec<u32>,
}

impl<C: CostVector> Leaf<C> {
    /// Prunes each cell's alternatives. Of equal alternatives the first stays.
    pub fn new(table: &Table, view: &View) -> Self {
        let mut leaf = Self {
            cells: Cells {
                dims: table.dims().into(),
                starts: Vec::with_capacity(table.cells() + 1),
                points: Vec::new(),
            },
            alternatives: Vec::new(),
        };
        let (mut found, mut kept) = (Vec::new(), Vec::new());
        let (mut projected, mut scratch) = (Vec::new(), Scratch::new());
        let limit = C::limit(&view.caps);
        leaf.cells.starts.push(0);
        for cell in 0..table.cells() {
            found.clear();
            for (index, cost) in table.alternatives(cell).enumerate() {
                if view.strike.is_some_and(|(objective, most)| cost[objective] > most) {
                    continue;
                }
                projected.clear();
                projected.extend(view.objectives.iter().map(|&objective| cost[objective]));
                let point = C::from_slice(&projected);
                if point.dominates(&limit) {
                    found.push((point, index as u32));
                }
            }
            if found.len() > 1 {
                found.sort_unstable();
                found.dedup_by_key(|(point, _)| *point);
                kept.clear();
                kept.extend(found.iter().map(|(point, _)| *point));
                prune(&mut kept, &mut scratch);
                let mut next = kept.iter().peekable();
                found.retain(|(point, _)| next.next_if_eq(&point).is_some());
            }
            leaf.cells.points.extend(found.iter().map(|(point, _)| *point));
            leaf.alternatives.extend(found.iter().map(|(_, index)| *index));
            leaf.cells.starts.push(leaf.cells.points.len());
        }
        leaf
    }

    /// The table with a number, as the view shows it; `self` is the whole of it.
    pub fn shown(&self, slot: usize, view: &View) -> Self {
        if let Some(marks) = view.only.as_ref().and_then(|only| only[slot].as_ref()) {
            return self.filter(marks);
        }
        if view.hulls {
            return self.filter(&self.hulls());
        }
        Self { cells: self.cells.clone(), alternatives: self.alternatives.clone() }
    }

    /// Number of vertices of the hulls of all cells; two objectives.
    pub fn vertices(&self) -> usize {
        self.hulls().into_iter().filter(|&mark| mark).count()
    }

    /// Marks the vertices of each cell's hull; two objectives.
    fn hulls(&self) -> Vec<bool> {
        let mut marks = vec![false; self.cells.points.len()];
        let mut vertices = Vec::new();
        for cell in 0..self.cells.len() {
            hull(self.cells.cell(cell), &mut vertices);
            let mut next = vertices.iter().peekable();
            let marks = &mut marks[self.cells.starts[cell]..];
            for (point, mark) in self.cells.cell(cell).iter().zip(marks) {
                *mark = next.next_if_eq(&point).is_some();
            }
        }
        marks
    }

    /// Only the points that are marked.
    fn filter(&self, marks: &[bool]) -> Self {
        let mut starts = Vec::with_capacity(self.cells.starts.len());
        let (mut points, mut alternatives) = (Vec::new(), Vec::new());
        starts.push(0);
        for cell in 0..self.cells.len() {
            let here = self.cells.starts[cell]..self.cells.starts[cell + 1];
            for position in here.filter(|&position| marks[position]) {
                points.push(self.cells.points[position]);
                alternatives.push(self.alternatives[position]);
            }
            starts.push(points.len());
        }
        Self { cells: Cells { dims: self.cells.dims.clone(), starts, points }, alternatives }
    }
}
