//! Whether to go on, and how far it is: [`Meter`], [`Halt`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::error::Error;

/// Shared between the threads that work and the one that watches. Everything is a plain counter:
/// a worker's cost for being watched is one relaxed load per cell.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    halt: AtomicBool,
    /// Nodes eliminated in this pass, and their number.
    pub done: AtomicU64,
    pub total: AtomicU64,
    /// Passes finished (a solve may take several).
    pub passes: AtomicU64,
    /// Sums looked at.
    pub pairs: AtomicU64,
    /// Bytes held by frontiers.
    pub bytes: AtomicU64,
    /// Points of the last table.
    pub points: AtomicU64,
}

impl Meter {
    /// Asks the workers to give up soon.
    pub fn halt(&self) {
        self.halt.store(true, Relaxed);
    }

    /// Whether workers should give up.
    pub fn halted(&self) -> bool {
        self.halt.load(Relaxed)
    }
}

/// Why an elimination did not come to its end.
#[derive(Debug)]
pub(crate) enum Halt {
    /// The problem or a limit makes an answer impossible.
    Error(Error),
    /// The watching thread asked to stop.
    Stopped,
    /// The allowed work was done.
    Work,
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}
