//! The answer: [`Solution`].

use std::sync::Arc;

use rayon::prelude::*;

use super::expand::choices;
use super::options::Peak;
use super::pool::pool;
use super::status::{Counters, Status};
use crate::contraction::{Choice, Expand};
use crate::error::{Error, Result};
use crate::plan::{Plan, check};
use crate::problem::CostGraph;

/// What a solve proved about its points.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Certificate {
    /// The factor carried along with every thinned table.
    pub a_priori: f64,
    /// The factor proven afterwards by exact optima of weighted sums, if it was asked for.
    pub certified: Option<f64>,
    /// The number of weighted sums.
    pub weights: usize,
}

impl Certificate {
    /// The better of the two factors; infinite if nothing is proven.
    #[must_use]
    pub fn factor(&self) -> f64 {
        self.certified.unwrap_or(f64::INFINITY).min(self.a_priori)
    }
}

/// A frontier and the plans behind it.
#[derive(Clone)]
pub struct Solution {
    pub(crate) graph: CostGraph,
    pub(crate) threads: Option<usize>,
    pub(crate) status: Status,
    pub(crate) certificate: Certificate,
    pub(crate) factor: f64,
    pub(crate) counters: Counters,
    pub(crate) peak: Option<Peak>,
    /// Points after each other, all objectives of the graph.
    pub(crate) costs: Vec<u64>,
    /// For each point the trace that it came from, and its index there.
    pub(crate) origins: Vec<(u32, u32)>,
    pub(crate) traces: Vec<Arc<dyn Expand>>,
    pub(crate) least: Vec<Least>,
}

/// The least value that a capped quantity can reach if its own cap, and only that, is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Least {
    /// What is capped.
    pub quantity: Quantity,
    /// Its cap.
    pub cap: u64,
    /// The least value of any plan, whatever its other costs.
    pub reachable: Option<u64>,
}

/// Something that can have a cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quantity {
    /// An objective of the graph.
    Objective(usize),
    /// Resident plus transient.
    Peak,
}

impl Solution {
    /// How the solve ended.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status
    }

    /// Every point of the true frontier has a returned point that is at most this many times as
    /// costly in every objective: 1 if the answer is exact, infinity if nothing is proven.
    #[must_use]
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// How the factor was proven.
    #[must_use]
    pub fn certificate(&self) -> Certificate {
        self.certificate
    }

    /// What was done.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Number of points.
    #[must_use]
    pub fn len(&self) -> usize {
        self.origins.len()
    }

    /// Whether there is no point.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.origins.is_empty()
    }

    /// The cost vectors of all points after each other, in lexicographic order of what was solved
    /// for (with a peak: the other objectives, then the peak).
    #[must_use]
    pub fn costs(&self) -> &[u64] {
        &self.costs
    }

    /// The cost vector of a point.
    ///
    /// # Panics
    ///
    /// If there is no such point.
    #[must_use]
    pub fn cost(&self, point: usize) -> &[u64] {
        let objectives = self.graph.objectives();
        &self.costs[point * objectives..(point + 1) * objectives]
    }

    /// The peak of a point, if the options named one.
    ///
    /// # Panics
    ///
    /// If there is no such point.
    #[must_use]
    pub fn peak(&self, point: usize) -> Option<u64> {
        let peak = self.peak?;
        let cost = self.cost(point);
        Some(cost[peak.resident] + cost[peak.transient])
    }

    /// The two objectives that are one for the user, if the options named them.
    #[must_use]
    pub fn peak_parts(&self) -> Option<Peak> {
        self.peak
    }

    /// For an infeasible problem with caps: what each capped quantity could reach.
    #[must_use]
    pub fn least(&self) -> &[Least] {
        &self.least
    }

    /// The problem that was solved.
    #[must_use]
    pub fn graph(&self) -> &CostGraph {
        &self.graph
    }

    /// The plan of a point. Its cost is added up from the problem and compared with the point.
    ///
    /// # Errors
    ///
    /// [`Error::NoPoint`], and [`Error::Mismatch`] if the self-check fails.
    pub fn plan(&self, point: usize) -> Result<Plan> {
        let &(trace, index) =
            self.origins.get(point).ok_or(Error::NoPoint { index: point, points: self.len() })?;
        let mut choice = Choice::new(self.graph.nodes(), self.graph.factors());
        self.traces[trace as usize].expand(index, &mut choice)?;
        check(&self.graph, point, self.cost(point), choice)
    }

    /// The plans of all points, rebuilt on as many threads as the solve had. What they share is
    /// looked for once, so this is much faster than [`plan`](Self::plan) for each.
    ///
    /// # Errors
    ///
    /// [`Error::Mismatch`] if the self-check fails for any of them.
    pub fn plans(&self) -> Result<Vec<Plan>> {
        pool(self.threads)?.install(|| {
            choices(&self.graph, &self.traces, &self.origins)?
                .into_par_iter()
                .enumerate()
                .map(|(point, choice)| check(&self.graph, point, self.cost(point), choice))
                .collect()
        })
    }
}

impl std::fmt::Debug for Solution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Solution")
            .field("status", &self.status)
            .field("points", &self.len())
            .field("factor", &self.factor)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}
