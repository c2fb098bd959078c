//! The one operation, on whole tables: [`Engine::join`].

use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHasher};

use super::cells::Cells;
use super::guard::{CellGuard, TableGuard};
use super::leaf::{Leaf, View};
use super::meter::{Halt, Meter};
use super::thinning::{Reducer, Thinning};
use crate::error::Error;
use crate::frontier::{CostVector, Scratch, Term, Work, trim, union_of_sums};
use crate::problem::Table;

/// Pairs below which a table is computed where it is asked for, and a job's least size.
const JOB_PAIRS: u64 = 1 << 15;

/// Points in a cell that are not worth a trim.
const FEW: usize = 16;

/// A table that was computed, or taken from the problem.
#[derive(Debug)]
pub(crate) struct Op<C> {
    /// Unique within the engine.
    pub id: u32,
    pub cells: Cells<C>,
    /// For a table of the problem: the alternative that each point is.
    pub alternatives: Vec<u32>,
    /// Every true point has one here at most this many times as costly.
    pub factor: f64,
    /// Joins on the longest way to the problem's tables.
    pub height: u32,
}

/// How the axes of two tables meet in a third.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct JoinSpec {
    /// Axes of the result.
    pub dims: Vec<u32>,
    /// For each axis of the result the step in the left table (0 if it lacks the axis).
    pub left: Vec<usize>,
    /// The same for the right table.
    pub right: Vec<usize>,
    /// Configurations of the node that is eliminated; 1 if none is.
    pub inner: u32,
    /// The step of the eliminated node in the left table.
    pub inner_left: usize,
    /// The step of the eliminated node in the right table.
    pub inner_right: usize,
}

impl JoinSpec {
    /// Where the terms of a cell begin in the two tables.
    pub fn bases(&self, mut cell: usize) -> (usize, usize) {
        let (mut left, mut right) = (0, 0);
        for axis in (0..self.dims.len()).rev() {
            let dim = self.dims[axis] as usize;
            let k = cell % dim;
            cell /= dim;
            left += k * self.left[axis];
            right += k * self.right[axis];
        }
        (left, right)
    }

    /// Number of cells of the result.
    pub fn cells(&self) -> usize {
        self.dims.iter().map(|&dim| dim as usize).product()
    }

    /// The sums of a cell: one per configuration of the eliminated node.
    pub fn terms<'a, C: CostVector>(
        &self,
        left: &'a Cells<C>,
        right: &'a Cells<C>,
        cell: usize,
    ) -> impl Iterator<Item = Term<'a, C>> {
        let (l, r) = self.bases(cell);
        let (step_l, step_r) = (self.inner_left, self.inner_right);
        (0..self.inner as usize).map(move |k| Term {
            left: left.cell(l + k * step_l),
            right: right.cell(r + k * step_r),
        })
    }
}

/// Computes tables, each different one once.
pub(crate) struct Engine<'m, C: CostVector> {
    pub algebra: C::Algebra,
    /// Points above this are dropped.
    limit: Option<C>,
    /// How cells are thinned.
    pub thinning: Thinning,
    /// Pairs after which to give up.
    pub work_limit: Option<u64>,
    pub work: Work,
    /// Tables computed, and tables that were asked for again.
    pub computed: u64,
    pub reused: u64,
    pub bytes: u64,
    pub peak_bytes: u64,
    meter: &'m Meter,
    next: u32,
    /// Tables of the problem in whole, for the view last asked for.
    whole: FxHashMap<usize, Arc<Leaf<C>>>,
    view: Option<View>,
    leaves: FxHashMap<u64, Vec<Arc<Op<C>>>>,
    joins: FxHashMap<(u32, u32, Arc<JoinSpec>), Arc<Op<C>>>,
    unit: Arc<Op<C>>,
}

impl<'m, C: CostVector> Engine<'m, C> {
    /// An engine without limits.
    pub fn new(algebra: C::Algebra, meter: &'m Meter) -> Self {
        let unit =
            Op { id: 0, cells: Cells::unit(), alternatives: Vec::new(), factor: 1.0, height: 0 };
        Self {
            algebra,
            limit: None,
            thinning: Thinning::NONE,
            work_limit: None,
            work: Work::default(),
            computed: 0,
            reused: 0,
            bytes: 0,
            peak_bytes: 0,
            meter,
            next: 1,
            whole: FxHashMap::default(),
            view: None,
            leaves: FxHashMap::default(),
            joins: FxHashMap::default(),
            unit: Arc::new(unit),
        }
    }

    /// The meter that this engine reports to.
    pub fn meter(&self) -> &'m Meter {
        self.meter
    }

    /// The table without axes that adds nothing.
    pub fn unit(&self) -> Arc<Op<C>> {
        Arc::clone(&self.unit)
    }

    /// Counts only bytes that are still held: those of tables that may be asked for again, and what
    /// the caller keeps of earlier eliminations.
    pub fn recount(&mut self, kept: u64) {
        self.bytes = kept + self.joins.values().map(|op| op.cells.bytes()).sum::<u64>();
    }

    /// Drops points above a limit from now on, and forgets tables that were made under another.
    pub fn set_limit(&mut self, limit: Option<C>) {
        if self.limit != limit {
            self.limit = limit;
            self.joins.clear();
        }
    }

    /// Sets how cells are thinned from now on, and forgets tables that were thinned otherwise.
    pub fn set_thinning(&mut self, thinning: Thinning) {
        if self.thinning != thinning {
            self.thinning = thinning;
            self.joins.retain(|_, op| op.factor <= 1.0);
        }
    }

    /// A table of the problem, all of it that the view's objectives, caps and strike leave.
    pub fn whole(&mut self, table: &Table, slot: usize, view: &View) -> Arc<Leaf<C>> {
        let of = View { only: None, hulls: false, ..view.clone() };
        if self.view.as_ref() != Some(&of) {
            self.whole.clear();
            self.view = Some(of);
        }
        Arc::clone(self.whole.entry(slot).or_insert_with(|| Arc::new(Leaf::new(table, view))))
    }

    /// A table of the problem, as the view shows it.
    pub fn shown(&mut self, table: &Table, slot: usize, view: &View) -> Arc<Op<C>> {
        let leaf = self.whole(table, slot, view).shown(slot, view);
        self.leaf(leaf, table.factor())
    }

    /// Takes in a table of the problem. Equal ones become one.
    fn leaf(&mut self, leaf: Leaf<C>, factor: f64) -> Arc<Op<C>> {
        let mut hasher = FxHasher::default();
        leaf.cells.dims.hash(&mut hasher);
        leaf.cells.starts.hash(&mut hasher);
        leaf.alternatives.hash(&mut hasher);
        let same = self.leaves.entry(hasher.finish()).or_default();
        let equal = |op: &&Arc<Op<C>>| {
            op.cells == leaf.cells && op.alternatives == leaf.alternatives && op.factor == factor
        };
        if let Some(op) = same.iter().find(equal) {
            return Arc::clone(op);
        }
        let op = Arc::new(Op {
            id: self.next,
            cells: leaf.cells,
            alternatives: leaf.alternatives,
            factor,
            height: 0,
        });
        self.next += 1;
        same.push(Arc::clone(&op));
        op
    }

    /// `prune(union over k of left(x, k) (+) right(x, k))` for every cell `x` of the result, without
    /// the points that a guard drops.
    ///
    /// # Errors
    ///
    /// [`Halt`] if the meter or the work limit says so.
    pub fn join(
        &mut self,
        left: &Arc<Op<C>>,
        right: &Arc<Op<C>>,
        spec: &Arc<JoinSpec>,
        guard: Option<TableGuard<'_>>,
    ) -> Result<Arc<Op<C>>, Halt> {
        let key = (left.id, right.id, Arc::clone(spec));
        if let Some(op) = self.joins.get(&key).filter(|_| guard.is_none()) {
            self.reused += 1;
            return Ok(Arc::clone(op));
        }
        if let Some(limit) = self.work_limit {
            // Before, not after: one join may be more work than all others.
            let cells = 0..spec.cells();
            let ahead: u64 = cells.map(|cell| pairs(&left.cells, &right.cells, spec, cell)).sum();
            if self.work.pairs.saturating_add(ahead) > limit {
                return Err(Halt::Work);
            }
        }
        let carried = left.factor.max(right.factor);
        let height = 1 + left.height.max(right.height);
        let delta = self.thinning.delta(height, carried);
        let parts = self.compute(&left.cells, &right.cells, spec, (delta, guard))?;
        let mut cells = Cells {
            dims: spec.dims.clone().into(),
            starts: Vec::with_capacity(spec.cells() + 1),
            points: Vec::with_capacity(parts.iter().map(|part| part.points.len()).sum()),
        };
        cells.starts.push(0);
        let mut thinned: f64 = 1.0;
        for part in parts {
            let before = cells.points.len();
            cells.starts.extend(part.ends.iter().map(|end| before + end));
            cells.points.extend_from_slice(&part.points);
            thinned = thinned.max(part.factor);
            self.work += part.work;
        }
        if u32::try_from(cells.points.len()).is_err() {
            let limit = u64::from(u32::MAX);
            return Err(Error::TooMany { what: "points in a table", limit }.into());
        }
        let (factor, alternatives) = (carried * thinned, Vec::new());
        let op = Arc::new(Op { id: self.next, cells, alternatives, factor, height });
        self.next += 1;
        self.computed += 1;
        self.bytes += op.cells.bytes();
        self.peak_bytes = self.peak_bytes.max(self.bytes);
        self.meter.pairs.store(self.work.pairs, Relaxed);
        self.meter.bytes.store(self.bytes, Relaxed);
        self.meter.points.store(op.cells.points.len() as u64, Relaxed);
        if guard.is_none() {
            self.joins.insert(key, Arc::clone(&op));
        }
        Ok(op)
    }

    /// The limit, and what a guard says about each objective by itself.
    fn limit_within(&self, guard: &CellGuard<'_>) -> Option<C> {
        let corner = guard.corner();
        let caps: Vec<u64> = (0..C::OBJECTIVES)
            .map(|i| self.limit.map_or(u64::MAX, |limit| limit.get(i)).min(corner[i]))
            .collect();
        Some(C::limit(&caps))
    }

    fn compute(
        &self,
        left: &Cells<C>,
        right: &Cells<C>,
        spec: &JoinSpec,
        less: Less<'_>,
    ) -> Result<Vec<Part<C>>, Halt> {
        let jobs = jobs(left, right, spec);
        let run = |job: &Range<usize>| self.run(left, right, spec, less, job.clone());
        let parts: Option<Vec<Part<C>>> = if let [job] = &jobs[..] {
            run(job).map(|part| vec![part])
        } else {
            jobs.par_iter().with_max_len(1).map(run).collect()
        };
        parts.ok_or(Halt::Stopped)
    }

    /// Computes a run of cells; nothing if the meter says to stop.
    fn run(
        &self,
        left: &Cells<C>,
        right: &Cells<C>,
        spec: &JoinSpec,
        (delta, guard): Less<'_>,
        cells: Range<usize>,
    ) -> Option<Part<C>> {
        let (mut scratch, mut reducer) = (Scratch::new(), Reducer::new());
        let room = self.thinning.room(spec.dims.len());
        let (mut terms, mut out) = (Vec::with_capacity(spec.inner as usize), Vec::new());
        let mut part = Part {
            ends: Vec::with_capacity(cells.len()),
            points: Vec::new(),
            work: Work::default(),
            factor: 1.0,
        };
        for cell in cells {
            if self.meter.halted() {
                return None;
            }
            terms.clear();
            terms.extend(
                spec.terms(left, right, cell)
                    .filter(|term| !term.left.is_empty() && !term.right.is_empty()),
            );
            let guard = guard.map(|guard| guard.cell(cell));
            // What is out of reach of all targets need not be computed.
            if !terms.is_empty() && !matches!(guard, Some(None)) {
                let guard = guard.flatten();
                let limit = guard.as_ref().map_or(self.limit, |guard| self.limit_within(guard));
                union_of_sums(&self.algebra, &terms, limit, &mut out, &mut scratch, &mut part.work);
                if let Some(guard) = guard {
                    guard.keep(&mut out);
                }
                let Thinning { exact, .. } = self.thinning;
                part.factor = part.factor.max(reducer.reduce(&mut out, room, exact, &mut scratch));
                if delta > 0.0 && out.len() > FEW {
                    part.factor = part.factor.max(trim(&mut out, delta, exact, &mut scratch));
                }
                part.points.extend_from_slice(&out);
            }
            part.ends.push(part.points.len());
        }
        Some(part)
    }
}

/// How a join gives less than all: what its cells may lose to trimming, and a guard.
type Less<'g> = (f64, Option<TableGuard<'g>>);

/// A run of cells of a result.
struct Part<C> {
    ends: Vec<usize>,
    points: Vec<C>,
    work: Work,
    factor: f64,
}

/// Sums that a cell stands for.
fn pairs<C: CostVector>(left: &Cells<C>, right: &Cells<C>, spec: &JoinSpec, cell: usize) -> u64 {
    let terms = spec.terms(left, right, cell);
    terms.map(|term| term.left.len() as u64 * term.right.len() as u64).sum()
}

/// Cuts the cells into runs of some work each, so that a thread's set-up is worth it.
fn jobs<C: CostVector>(left: &Cells<C>, right: &Cells<C>, spec: &JoinSpec) -> Vec<Range<usize>> {
    let mut jobs = Vec::new();
    let (mut start, mut work) = (0, 0);
    let cells = spec.cells();
    for cell in 0..cells {
        // A cell costs something even when it has no pairs.
        work += 16 + pairs(left, right, spec, cell);
        if work >= JOB_PAIRS {
            jobs.push(start..cell + 1);
            (start, work) = (cell + 1, 0);
        }
    }
    if start < cells {
        jobs.push(start..cells);
    }
    jobs
}
