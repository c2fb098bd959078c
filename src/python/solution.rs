//! `solve` and `Solution`: the frontier and the plans behind it as numpy arrays.

use std::path::PathBuf;

use numpy::PyReadonlyArray2;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList};

use super::arrays::{ChoiceMatrix, ChoiceVector, Units, frozen_matrix, frozen_vector};
use super::enter::{enter, reading};
use super::errors::problem;
use super::graph::CostGraph;
use super::options::{Arguments, PeakArgument, known};
use crate::exchange::{load_solution, save_solution};
use crate::{Choice, Plan, Quantity, UNCHOSEN};

/// Find the Pareto frontier of a cost graph.
///
/// The interpreter is free for other threads meanwhile, and Ctrl-C stops the search.
///
/// Parameters
/// ----------
/// graph : CostGraph
///     The problem.
/// epsilon : float, default 0.0
///     Every point of the true frontier has a returned point that is at most ``1 + epsilon`` times
///     as costly in every objective. 0 is exact.
/// threads : int, optional
///     Threads of the search's own pool; all cores by default. The result does not depend on it.
/// caps : sequence of float or None, optional
///     The largest value allowed in each objective, in the units of the costs.
/// peak : (resident, transient) or (resident, transient, cap), optional
///     Two objectives that are one to you, such as memory that stays (a "sum") and memory that
///     comes and goes (a "max"). The frontier is then over their sum and the other objectives.
/// known : (n, D) float array, optional
///     Cost vectors that you reached elsewhere, in the units of the costs; with `peak` one column
///     less, without the transient objective and with the peak in the place of the resident one.
///     What they cover need not be found, which saves work; points that one of them dominates are
///     not returned, and `Solution.factor` speaks of both together.
/// time_limit_s : float, optional
///     Stop after this time with the best points so far. The result then depends on the machine.
/// work_limit : int, optional
///     Stop after this many sums of points, with the best points so far. Deterministic.
/// max_points : int, optional
///     Return at most this many points; `Solution.factor` says what is lost.
/// max_table_cells : int, optional
///     The largest table that an elimination may make; 2**24 by default.
/// heuristic : bool, default True
///     Whether a graph that would need a larger table gets a frontier of plans with the factor by
///     which it may be off (status "heuristic") instead of a `LimitError`.
/// max_bytes : int, optional
///     Bytes of all frontiers held at a time; 2**32 by default.
/// progress : callable, optional
///     Called a few times a second from this thread with a dict of "passes", "fraction" (0 to 1, of
///     the present pass), "pairs", "points" and "bytes". What it raises stops the search.
///
/// Returns
/// -------
/// Solution
///     An infeasible problem is a solution without points whose status says so.
///
/// Raises
/// ------
/// ProblemError
///     If an option is out of range, contradicts another or does not fit the graph.
/// LimitError
///     If the frontiers outgrow `max_bytes`, or no exact answer exists within `max_table_cells` and
///     `heuristic` is false; names the nodes that depend on each other too densely.
///
/// Examples
/// --------
/// >>> import tensoropt as to
/// >>> graph = to.CostGraph.from_arrays([[[1, 8], [4, 2]], [[0, 3], [1, 1]]])
/// >>> to.solve(graph).costs.tolist()
/// [[1, 11], [2, 9], [4, 5], [5, 3]]
/// >>> to.solve(graph, caps=(None, 9)).costs.tolist()
/// [[2, 9], [4, 5], [5, 3]]
#[pyfunction]
#[pyo3(signature = (
    graph, epsilon=0.0, threads=None, caps=None, *, peak=None, known=None, time_limit_s=None,
    work_limit=None, max_points=None, max_table_cells=None, heuristic=true, max_bytes=None,
    progress=None
))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
pub(super) fn solve(
    py: Python<'_>,
    graph: PyRef<'_, CostGraph>,
    epsilon: f64,
    threads: Option<i64>,
    caps: Option<Vec<Option<f64>>>,
    peak: Option<PeakArgument>,
    known: Option<PyReadonlyArray2<'_, f64>>,
    time_limit_s: Option<f64>,
    work_limit: Option<i64>,
    max_points: Option<i64>,
    max_table_cells: Option<i64>,
    heuristic: bool,
    max_bytes: Option<i64>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Solution> {
    let arguments = Arguments {
        epsilon,
        threads,
        caps,
        max_table_cells,
        max_bytes,
        work_limit,
        time_limit_s,
        max_points,
    };
    let mut options = arguments.options(&graph.units)?;
    options.heuristic = heuristic;
    options.peak = peak.map(|peak| peak.peak(&graph.units)).transpose()?;
    let (graph, units) = graph.snapshot();
    if let Some(known) = known {
        let transient = options.peak.map(|peak| peak.transient);
        let objectives: Vec<usize> =
            (0..graph.objectives()).filter(|&i| Some(i) != transient).collect();
        options.known = self::known(&known, &objectives, &units)?;
    }
    let solution = enter(py, progress, |watch| crate::solve_watched(&graph, &options, watch))?;
    Ok(Solution::of(solution, units))
}

/// The frontier that `solve` found. Points lie in lexicographic order of their costs.
///
/// Arrays are made when first asked for and cannot be written to.
#[pyclass(frozen, module = "tensoropt._native")]
pub(super) struct Solution {
    solution: crate::Solution,
    units: Units,
    /// The objective in whose units a peak is, if there is one.
    resident: Option<usize>,
    /// Made when first asked for.
    costs: PyOnceLock<Py<PyAny>>,
    plans: PyOnceLock<Choices>,
}

#[pymethods]
impl Solution {
    /// Cost vectors, shape (points, D).
    ///
    /// int64, or float64 in the units of the costs if the graph has a resolution. With `peak`, all
    /// D objectives are here as they are; see `peak` for their sum.
    #[getter]
    fn costs(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let make = || {
            let objectives = self.solution.graph().objectives();
            let costs = self.units.decode(py, self.solution.costs(), objectives)?;
            Ok::<_, PyErr>(costs.unbind())
        };
        Ok(self.costs.get_or_try_init(py, make)?.clone_ref(py))
    }

    /// The configuration of each node in each point's plan, shape (points, nodes).
    #[getter]
    fn assignments(&self, py: Python<'_>) -> PyResult<ChoiceMatrix> {
        Ok(self.plans(py)?.assignments.clone_ref(py))
    }

    /// The alternative taken in the cell of each node, shape (points, nodes).
    #[getter]
    fn node_alternatives(&self, py: Python<'_>) -> PyResult<ChoiceMatrix> {
        Ok(self.plans(py)?.node_alternatives.clone_ref(py))
    }

    /// The alternative taken in the cell of each factor, shape (points, factors).
    #[getter]
    fn alternatives(&self, py: Python<'_>) -> PyResult<ChoiceMatrix> {
        Ok(self.plans(py)?.alternatives.clone_ref(py))
    }

    /// Return one plan, without making those of all points.
    ///
    /// Parameters
    /// ----------
    /// point : int
    ///     The index of a point.
    ///
    /// Returns
    /// -------
    /// assignment : int array of shape (nodes,)
    ///     As a row of `assignments`.
    /// node_alternatives : int array of shape (nodes,)
    ///     As a row of `node_alternatives`.
    /// alternatives : int array of shape (factors,)
    ///     As a row of `alternatives`.
    ///
    /// Raises
    /// ------
    /// ProblemError
    ///     If there is no such point.
    fn plan(
        &self,
        py: Python<'_>,
        point: i64,
    ) -> PyResult<(ChoiceVector, ChoiceVector, ChoiceVector)> {
        let point = usize::try_from(point).map_err(|_| {
            problem(format!("there is no point {point}: the solution has {}", self.solution.len()))
        })?;
        let plan = self.solution.plan(point)?;
        let vector = |values: &[u32]| {
            frozen_vector(py, values.iter().map(|&v| signed(v)).collect()).map(Bound::unbind)
        };
        Ok((
            vector(&plan.configurations)?,
            vector(&plan.node_alternatives)?,
            vector(&plan.factor_alternatives)?,
        ))
    }

    /// Resident plus transient, shape (points,), if `solve` was given a peak.
    #[getter]
    fn peak<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(resident) = self.resident else { return Ok(None) };
        let peaks: Vec<u64> =
            (0..self.solution.len()).filter_map(|point| self.solution.peak(point)).collect();
        self.units.decode_one(py, &peaks, resident).map(Some)
    }

    /// Why the search ended.
    ///
    /// "optimal" (the whole frontier, exactly), "epsilon" (within `factor` of it), "heuristic" (the
    /// same, where no exact answer is in reach), "infeasible", "time_limit", "work_limit" or
    /// "stopped".
    #[getter]
    fn status(&self) -> &'static str {
        self.solution.status().name()
    }

    /// The proven factor: every true point has a point here at most this many times as costly.
    ///
    /// 1.0 if the frontier is exact, infinity if nothing is proven.
    #[getter]
    fn factor(&self) -> f64 {
        self.solution.factor()
    }

    /// How the factor was proven.
    ///
    /// "a_priori" is the factor carried along while points were dropped, "certified" the one proven
    /// afterwards by exact optima of that many "weights" (None if that was not needed).
    #[getter]
    fn certificate<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let certificate = self.solution.certificate();
        let dict = PyDict::new(py);
        dict.set_item("a_priori", certificate.a_priori)?;
        dict.set_item("certified", certificate.certified)?;
        dict.set_item("weights", certificate.weights)?;
        Ok(dict)
    }

    /// If infeasible, what each capped quantity could reach: (quantity, cap, least value).
    ///
    /// The quantity is an objective's index or "peak". The least value is that of any plan when
    /// caps are ignored, None if there is no plan at all.
    #[getter]
    fn least<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for least in self.solution.least() {
            let (name, objective) = match least.quantity {
                Quantity::Objective(objective) => {
                    (objective.into_pyobject(py)?.into_any(), objective)
                }
                Quantity::Peak => {
                    ("peak".into_pyobject(py)?.into_any(), self.resident.unwrap_or_default())
                }
            };
            let value = |steps| self.units.decode_scalar(py, steps, objective);
            list.append((name, value(least.cap)?, least.reachable.map(value).transpose()?))?;
        }
        Ok(list)
    }

    /// What the search did, such as sums compared; the same for any number of threads.
    #[getter]
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = self.solution.counters();
        let dict = PyDict::new(py);
        for (name, count) in [
            ("passes", counters.passes),
            ("tables", counters.tables),
            ("reused", counters.reused),
            ("cells", counters.cells),
            ("pairs", counters.pairs),
            ("visited", counters.visited),
            ("points", counters.points),
            ("largest", counters.largest),
            ("peak_bytes", counters.peak_bytes),
        ] {
            dict.set_item(name, count)?;
        }
        Ok(dict)
    }

    /// Write the solution, all plans and the problem to a file, to be read with `load`.
    ///
    /// The file is JSON, compressed if the name ends in ``.gz``. It appears whole or not at all;
    /// equal solutions give equal bytes, for any number of threads.
    ///
    /// Parameters
    /// ----------
    /// path : path-like
    ///
    /// Raises
    /// ------
    /// OSError
    ///     If the file cannot be written.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        Ok(py.detach(|| save_solution(&path, &self.solution, self.units.steps()))?)
    }

    /// Read a solution from a file that `save` wrote, compressed or not.
    ///
    /// Every plan's cost is added up again from the problem in the file.
    ///
    /// Parameters
    /// ----------
    /// path : path-like
    /// max_bytes : int, default 2**30
    ///     The most bytes of text, counted after unpacking; bounds time and memory.
    ///
    /// Returns
    /// -------
    /// Solution
    ///     The same, but for "peak_bytes" in `counters`, which is 0.
    ///
    /// Raises
    /// ------
    /// OSError
    ///     If the file cannot be read.
    /// FileFormatError
    ///     If it is damaged, or no solution that this release can read, or a plan does not cost
    ///     what the file says; names the place in the file.
    #[staticmethod]
    #[pyo3(signature = (path, *, max_bytes=None))]
    fn load(py: Python<'_>, path: PathBuf, max_bytes: Option<i64>) -> PyResult<Self> {
        let stored = reading(py, max_bytes, |options| load_solution(&path, options))?;
        Ok(Self::of(stored.value, Units::stored(stored.resolution)))
    }

    fn __len__(&self) -> usize {
        self.solution.len()
    }

    fn __repr__(&self) -> String {
        format!(
            "<Solution: {} points, {}, factor {}>",
            self.solution.len(),
            self.solution.status(),
            self.solution.factor()
        )
    }
}

impl Solution {
    fn of(solution: crate::Solution, units: Units) -> Self {
        let resident = solution.peak_parts().map(|peak| peak.resident);
        Self { solution, units, resident, costs: PyOnceLock::new(), plans: PyOnceLock::new() }
    }

    fn plans(&self, py: Python<'_>) -> PyResult<&Choices> {
        self.plans.get_or_try_init(py, || {
            let plans = py.detach(|| self.solution.plans())?;
            let graph = self.solution.graph();
            Choices::new(py, &plans, graph.nodes(), graph.factors())
        })
    }
}

/// What was chosen, one row per plan.
pub(super) struct Choices {
    pub(super) assignments: ChoiceMatrix,
    pub(super) node_alternatives: ChoiceMatrix,
    pub(super) alternatives: ChoiceMatrix,
}

/// A plan of a solution or a choice of a contraction.
pub(super) trait Row {
    fn parts(&self) -> [&[u32]; 3];
}

impl Row for Plan {
    fn parts(&self) -> [&[u32]; 3] {
        [&self.configurations, &self.node_alternatives, &self.factor_alternatives]
    }
}

impl Row for Choice {
    fn parts(&self) -> [&[u32]; 3] {
        [&self.configurations, &self.node_alternatives, &self.factor_alternatives]
    }
}

impl Choices {
    pub(super) fn new(
        py: Python<'_>,
        rows: &[impl Row],
        nodes: usize,
        factors: usize,
    ) -> PyResult<Self> {
        let part = |part: usize, columns: usize| {
            let values = rows.iter().flat_map(|row| row.parts()[part]).map(|&v| signed(v));
            frozen_matrix(py, values.collect(), rows.len(), columns).map(Bound::unbind)
        };
        Ok(Self {
            assignments: part(0, nodes)?,
            node_alternatives: part(1, nodes)?,
            alternatives: part(2, factors)?,
        })
    }
}

/// A choice as a signed number; -1 where nothing was chosen. Tables have less than 2^32 cells and
/// two cells or more per step, so a choice beyond 2^31 cannot be.
fn signed(choice: u32) -> i32 {
    if choice == UNCHOSEN { -1 } else { i32::try_from(choice).unwrap_or(i32::MAX) }
}
