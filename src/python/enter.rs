//! The one gate for calls that take long: searches, and files.

use std::ops::ControlFlow;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::options::count;
use crate::exchange::{FileError, ReadOptions};
use crate::{Progress, Result, Watch};

/// Ticks between two calls of a progress callback; signals are looked at on every one.
const TICKS_PER_CALL: u64 = 10;

/// Runs work without the interpreter's lock.
///
/// The calling thread watches: now and then it takes the lock to run signal handlers, so that
/// Ctrl-C raises `KeyboardInterrupt`, and to call `progress`. Whatever either raises stops the work
/// and is raised here.
pub(super) fn enter<T: Send>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(&mut dyn Watch) -> Result<T> + Send,
) -> PyResult<T> {
    let mut raised = None;
    let result = py.detach(|| {
        let mut ticks = 0;
        work(&mut |state: &Progress| {
            let callback = progress.as_ref().filter(|_| ticks % TICKS_PER_CALL == 0);
            ticks += 1;
            match Python::attach(|py| look(py, callback, state)) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    raised = Some(error);
                    ControlFlow::Break(())
                }
            }
        })
    });
    match raised {
        Some(error) => Err(error),
        None => Ok(result?),
    }
}

/// Reads a file without the interpreter's lock; Ctrl-C is looked for every few megabytes.
pub(super) fn reading<T: Send>(
    py: Python<'_>,
    max_bytes: Option<i64>,
    read: impl FnOnce(ReadOptions<'_>) -> std::result::Result<T, FileError> + Send,
) -> PyResult<T> {
    let max_bytes = count("max_bytes", max_bytes)?;
    let mut raised = None;
    let result = py.detach(|| {
        let mut watch = |_| match Python::attach(|py| py.check_signals()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                raised = Some(error);
                ControlFlow::Break(())
            }
        };
        let options = ReadOptions::default().with_watch(&mut watch);
        read(match max_bytes {
            Some(max_bytes) => options.with_max_bytes(max_bytes),
            None => options,
        })
    });
    match raised {
        Some(error) => Err(error),
        None => Ok(result?),
    }
}

fn look(py: Python<'_>, callback: Option<&Py<PyAny>>, state: &Progress) -> PyResult<()> {
    py.check_signals()?;
    let Some(callback) = callback else { return Ok(()) };
    let report = PyDict::new(py);
    report.set_item("passes", state.passes)?;
    report.set_item("fraction", state.fraction)?;
    report.set_item("pairs", state.pairs)?;
    report.set_item("points", state.points)?;
    report.set_item("bytes", state.bytes)?;
    callback.call1(py, (report,)).map(|_| ())
}
