//! How a solve ended: [`Status`], [`Counters`], [`Progress`].

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// How a solve ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// The points are the whole frontier, exactly.
    Optimal,
    /// The points cover the frontier within the factor of the solution.
    Epsilon,
    /// The graph is too dense for an exact elimination: the points are plans that can be had, and
    /// the factor says how far from the frontier they are at most.
    Heuristic,
    /// No plan is possible, or none within the caps.
    Infeasible,
    /// The time limit was reached; the points are the best so far, within the factor.
    TimeLimit,
    /// The work limit was reached; the points are the best so far, within the factor.
    WorkLimit,
    /// The caller asked to stop; the points are the best so far, within the factor.
    Stopped,
}

impl Status {
    /// The status in lower case with underscores, such as `time_limit`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Optimal => "optimal",
            Self::Epsilon => "epsilon",
            Self::Heuristic => "heuristic",
            Self::Infeasible => "infeasible",
            Self::TimeLimit => "time_limit",
            Self::WorkLimit => "work_limit",
            Self::Stopped => "stopped",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a solve did. All counts but the bytes are the same on every machine and for any number of
/// threads, unless the clock or the caller stopped it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Eliminations from first to last node, over all thresholds and refinements.
    pub passes: u64,
    /// Tables computed.
    pub tables: u64,
    /// Tables that were asked for again and not computed again.
    pub reused: u64,
    /// Cells computed.
    pub cells: u64,
    /// Sums that the operations stand for.
    pub pairs: u64,
    /// Sums formed and compared.
    pub visited: u64,
    /// Points of all tables.
    pub points: u64,
    /// Size of the largest frontier in a cell.
    pub largest: u64,
    /// Most bytes of frontiers held at a time.
    pub peak_bytes: u64,
}

/// How far a solve is.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// Eliminations finished so far.
    pub passes: u64,
    /// Part of the nodes eliminated in the present one, 0 to 1.
    pub fraction: f64,
    /// Sums that the operations so far stand for.
    pub pairs: u64,
    /// Points of the last table.
    pub points: u64,
    /// Bytes of frontiers held.
    pub bytes: u64,
}

/// Watches a solve from the calling thread and may stop it.
///
/// Any `FnMut(&Progress) -> ControlFlow<()>` is one. It is called every few milliseconds, on the
/// thread that called, so it may look at thread-bound state such as a Python interpreter's signals.
pub trait Watch {
    /// Called now and then; [`ControlFlow::Break`] stops the solve.
    fn tick(&mut self, progress: &Progress) -> ControlFlow<()>;
}

impl<F: FnMut(&Progress) -> ControlFlow<()>> Watch for F {
    fn tick(&mut self, progress: &Progress) -> ControlFlow<()> {
        self(progress)
    }
}

/// Stops a solve from another thread. Clones share one flag.
#[derive(Clone, Debug, Default)]
pub struct StopToken(Arc<AtomicBool>);

impl StopToken {
    /// A token that has not been used.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks all solves that watch this token to stop.
    pub fn stop(&self) {
        self.0.store(true, Relaxed);
    }

    /// Whether [`stop`](Self::stop) was called.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.0.load(Relaxed)
    }
}

impl Watch for StopToken {
    fn tick(&mut self, _progress: &Progress) -> ControlFlow<()> {
        if self.stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
