//! What a solve may do: [`SolveOptions`].

use std::time::Duration;

use crate::error::{Error, Result};
use crate::problem::{Aggregate, CostGraph};

/// Options of [`solve`](crate::solve()) and [`contract`](crate::contract). The default is an exact
/// answer on all threads.
///
/// # Example
///
/// ```
/// use tensoropt::SolveOptions;
///
/// let options = SolveOptions::default().with_epsilon(1e-3).with_threads(2);
/// assert_eq!(options.threads, Some(2));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SolveOptions {
    /// Every point of the true frontier has a returned point that is at most `1 + epsilon` times
    /// as costly in every objective. 0 is exact.
    pub epsilon: f64,
    /// Threads of the pool; `None` for as many as the machine has. The answer does not depend on
    /// it.
    pub threads: Option<usize>,
    /// The largest value allowed in each objective; `None` in an entry for no cap. Empty for no
    /// caps at all.
    pub caps: Vec<Option<u64>>,
    /// Two objectives that are one for the user: peak memory.
    pub peak: Option<Peak>,
    /// Cost vectors that were reached elsewhere: one entry per objective of the answer (with a peak
    /// that is all but the transient one, and the peak is in the place of the resident one).
    /// What they cover need not be found, so much of the search can be left out; points that one
    /// of them dominates are not returned.
    pub known: Vec<Vec<u64>>,
    /// Cells of the largest table that an elimination may make.
    pub max_table_cells: usize,
    /// Whether [`solve`](crate::solve()) answers graphs that would need a larger table with a
    /// frontier that is not exact ([`Status::Heuristic`](crate::Status::Heuristic)), with the
    /// factor by which it may be off, instead of an error.
    pub heuristic: bool,
    /// Bytes of all frontiers held at a time.
    pub max_bytes: u64,
    /// Sums (pairs of points) after which to stop with the best answer so far. Deterministic.
    pub work_limit: Option<u64>,
    /// Time after which to stop with the best answer so far.
    pub time_limit: Option<Duration>,
    /// The most points to return; the factor says what is lost.
    pub max_points: Option<usize>,
}

/// A peak that is the sum of a part that adds up and a part that is a maximum, such as memory that
/// stays and memory that comes and goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peak {
    /// The objective that adds up by sum.
    pub resident: usize,
    /// The objective that adds up by maximum.
    pub transient: usize,
    /// The largest value of their sum allowed.
    pub cap: Option<u64>,
}

impl Default for SolveOptions {
    fn default() -> Self {
        Self {
            epsilon: 0.0,
            threads: None,
            caps: Vec::new(),
            peak: None,
            known: Vec::new(),
            max_table_cells: 1 << 24,
            heuristic: true,
            max_bytes: 4 << 30,
            work_limit: None,
            time_limit: None,
            max_points: None,
        }
    }
}

impl SolveOptions {
    /// Sets [`epsilon`](Self::epsilon).
    #[must_use]
    pub fn with_epsilon(mut self, epsilon: f64) -> Self {
        self.epsilon = epsilon;
        self
    }

    /// Sets [`threads`](Self::threads).
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Sets [`caps`](Self::caps).
    #[must_use]
    pub fn with_caps(mut self, caps: &[Option<u64>]) -> Self {
        self.caps = caps.to_vec();
        self
    }

    /// Sets [`peak`](Self::peak).
    #[must_use]
    pub fn with_peak(mut self, peak: Peak) -> Self {
        self.peak = Some(peak);
        self
    }

    /// Sets [`heuristic`](Self::heuristic).
    #[must_use]
    pub fn with_heuristic(mut self, heuristic: bool) -> Self {
        self.heuristic = heuristic;
        self
    }

    /// Sets [`known`](Self::known).
    #[must_use]
    pub fn with_known(mut self, known: &[Vec<u64>]) -> Self {
        self.known = known.to_vec();
        self
    }

    /// The cap of an objective; `u64::MAX` for none.
    pub(crate) fn cap(&self, objective: usize) -> u64 {
        self.caps.get(objective).copied().flatten().unwrap_or(u64::MAX)
    }

    /// Refuses what is out of range or does not fit the graph.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] that names the option.
    pub(crate) fn validate(&self, graph: &CostGraph) -> Result<()> {
        let refuse = |option, what| Err(Error::Option { option, what });
        if !(self.epsilon.is_finite() && self.epsilon >= 0.0) {
            return refuse(
                "epsilon",
                format!("expected a finite number >= 0, got {}", self.epsilon),
            );
        }
        if self.threads == Some(0) {
            return refuse("threads", "expected at least 1, got 0".into());
        }
        if !self.caps.is_empty() && self.caps.len() != graph.objectives() {
            return refuse(
                "caps",
                format!(
                    "expected one entry per objective ({}), got {}",
                    graph.objectives(),
                    self.caps.len()
                ),
            );
        }
        if self.max_table_cells == 0 {
            return refuse("max_table_cells", "expected at least 1, got 0".into());
        }
        if self.max_points == Some(0) {
            return refuse("max_points", "expected at least 1, got 0".into());
        }
        let entries = graph.objectives() - usize::from(self.peak.is_some());
        if let Some(row) = self.known.iter().position(|row| row.len() != entries) {
            return refuse(
                "known",
                format!(
                    "expected {entries} entries in every row, row {row} has {}",
                    self.known[row].len()
                ),
            );
        }
        self.peak.map_or(Ok(()), |peak| validate_peak(peak, graph))
    }
}

fn validate_peak(peak: Peak, graph: &CostGraph) -> Result<()> {
    let expect = |objective: usize, part, aggregate| {
        if graph.aggregates().get(objective) == Some(&aggregate) {
            return Ok(());
        }
        let what = match graph.aggregates().get(objective) {
            Some(got) => {
                format!("{part} must be a {aggregate:?} objective, {objective} is {got:?}")
            }
            None => format!("{part} is objective {objective}, there are {}", graph.objectives()),
        };
        Err(Error::Option { option: "peak", what })
    };
    expect(peak.resident, "resident", Aggregate::Sum)?;
    expect(peak.transient, "transient", Aggregate::Max)?;
    let (so_far, added) = (graph.largest(peak.resident), graph.largest(peak.transient));
    if so_far.checked_add(added).is_none() {
        return Err(Error::Overflow {
            objective: peak.resident,
            part: "the transient part of the peak".into(),
            so_far,
            added,
            sum: u128::from(so_far) + u128::from(added),
        });
    }
    Ok(())
}
