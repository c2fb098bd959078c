//! The pool and the thread that watches it: [`supervise`].

use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::status::{Progress, Status, Watch};
use crate::contraction::meter::Meter;
use crate::error::{Error, Result};

/// Time between two looks of the watching thread.
const TICK: Duration = Duration::from_millis(10);

/// A pool of its own: the global one would outlive a fork and be shared with strangers.
///
/// # Errors
///
/// [`Error::Internal`] if the system gives no threads.
pub(crate) fn pool(threads: Option<usize>) -> Result<ThreadPool> {
    ThreadPoolBuilder::new()
        .num_threads(threads.unwrap_or(0))
        .thread_name(|index| format!("tensoropt-{index}"))
        .build()
        .map_err(|error| Error::Internal(format!("no threads: {error}")))
}

/// Runs a job in the pool while the calling thread watches clock and caller, and returns what it
/// gave and why it was asked to stop, if it was.
pub(crate) fn supervise<T: Send>(
    pool: &ThreadPool,
    meter: &Meter,
    deadline: Option<Instant>,
    watch: &mut dyn Watch,
    job: impl FnOnce() -> T + Send,
) -> Result<(T, Option<Status>)> {
    let (send, receive) = mpsc::channel();
    let mut reason = None;
    let answer = pool.in_place_scope(|scope| {
        scope.spawn(move |_| {
            // The receiver waits below until this arrives.
            let _ = send.send(job());
        });
        loop {
            match receive.recv_timeout(TICK) {
                Ok(answer) => return Some(answer),
                // The job panicked: the scope passes that on when it closes.
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if reason.is_some() {
                continue;
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                reason = Some(Status::TimeLimit);
            } else if watch.tick(&progress(meter)) == ControlFlow::Break(()) {
                reason = Some(Status::Stopped);
            }
            if reason.is_some() {
                meter.halt();
            }
        }
    });
    let answer = answer.ok_or_else(|| Error::Internal("a worker gave no answer".into()))?;
    Ok((answer, reason))
}

fn progress(meter: &Meter) -> Progress {
    let total = meter.total.load(Relaxed).max(1);
    Progress {
        passes: meter.passes.load(Relaxed),
        fraction: meter.done.load(Relaxed) as f64 / total as f64,
        pairs: meter.pairs.load(Relaxed),
        points: meter.points.load(Relaxed),
        bytes: meter.bytes.load(Relaxed),
    }
}
