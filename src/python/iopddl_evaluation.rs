//! `IopddlEvaluation`: what an assignment costs by the rules of the contest.

use pyo3::prelude::*;

use crate::exchange::IopddlEvaluation as Evaluation;

/// What an assignment costs by the rules of the contest.
#[pyclass(frozen, module = "tensoropt._native")]
pub(super) struct IopddlEvaluation(Evaluation);

#[pymethods]
impl IopddlEvaluation {
    /// The sum of the costs of all nodes and edges, impossible ones as they are in the file.
    #[getter]
    fn cost(&self) -> u128 {
        self.0.cost
    }

    /// The first node or edge whose cost means that the choice is impossible, or None.
    ///
    /// Such as "node 3" or "edge 17"; nodes come before edges.
    #[getter]
    fn impossible(&self) -> Option<String> {
        self.0.impossible.map(|part| part.to_string())
    }

    /// The largest usage at any point of time.
    #[getter]
    fn peak_usage(&self) -> u128 {
        self.0.peak_usage
    }

    /// The first point of time with that usage; None if nothing is used at any time.
    #[getter]
    fn peak_time(&self) -> Option<u64> {
        self.0.peak_time
    }

    /// Whether the peak is within the limit, if there is one.
    #[getter]
    fn within_limit(&self) -> bool {
        self.0.within_limit
    }

    /// Whether the assignment is a solution: possible, and within the limit.
    #[getter]
    fn feasible(&self) -> bool {
        self.0.is_feasible()
    }

    fn __repr__(&self) -> String {
        let at = self.0.peak_time.map(|time| format!(" at {time}")).unwrap_or_default();
        let verdict = match (&self.0.impossible, self.0.within_limit) {
            (Some(part), _) => format!("{part} is impossible"),
            (None, false) => "over the limit".to_owned(),
            (None, true) => "feasible".to_owned(),
        };
        let (cost, peak) = (self.0.cost, self.0.peak_usage);
        format!("<IopddlEvaluation: cost {cost}, peak usage {peak}{at}, {verdict}>")
    }
}

impl From<Evaluation> for IopddlEvaluation {
    fn from(evaluation: Evaluation) -> Self {
        Self(evaluation)
    }
}
