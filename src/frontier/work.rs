//! Deterministic work counters.

use std::ops::AddAssign;

/// What the kernels did, in counts that depend on nothing but the input: they may be asserted in
/// tests and used as limits that cut at the same place on every machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// Kernel calls.
    pub calls: u64,
    /// Sums that the terms stand for: the pairs an all-pairs method would have formed.
    pub pairs: u64,
    /// Sums actually formed and tested against known points.
    pub visited: u64,
    /// Points that reached the final filter.
    pub candidates: u64,
    /// Points returned.
    pub points: u64,
    /// Size of the largest frontier returned.
    pub peak: u64,
}

impl Work {
    /// Notes a frontier that was returned.
    pub(super) fn returned(&mut self, points: usize) {
        self.calls += 1;
        self.points += points as u64;
        self.peak = self.peak.max(points as u64);
    }
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.pairs += other.pairs;
        self.visited += other.visited;
        self.candidates += other.candidates;
        self.points += other.points;
        self.peak = self.peak.max(other.peak);
    }
}
