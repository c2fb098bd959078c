//! Errors of the crate as Python exceptions.

use std::path::PathBuf;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::Error;
use crate::exchange::FileError;

mod exceptions {
    //! The classes of `tensoropt/errors.py`.
    pyo3::import_exception!(tensoropt.errors, FileFormatError);
    pyo3::import_exception!(tensoropt.errors, LimitError);
    pyo3::import_exception!(tensoropt.errors, ProblemError);
    pyo3::import_exception!(tensoropt.errors, TensorOptError);
}

/// Bad input, in our own words.
pub(super) fn problem(message: impl Into<String>) -> PyErr {
    exceptions::ProblemError::new_err(message.into())
}

/// The one match from errors to exceptions.
impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        at("", error)
    }
}

/// An error with the argument at fault in front, such as `edges[3]: `.
pub(super) fn at(place: &str, error: Error) -> PyErr {
    let message = format!("{place}{error}");
    match error {
        Error::TableCells { .. } | Error::Bytes { .. } | Error::Interrupted(_) => {
            exceptions::LimitError::new_err(message)
        }
        Error::Mismatch { .. } | Error::Internal(_) => exceptions::TensorOptError::new_err(message),
        Error::Objectives { .. }
        | Error::Table { .. }
        | Error::UnknownTable(_)
        | Error::UnknownNode(_)
        | Error::NodeShape { .. }
        | Error::FactorShape { .. }
        | Error::EmptyScope { .. }
        | Error::RepeatedNode { .. }
        | Error::Overflow { .. }
        | Error::TooMany { .. }
        | Error::Option { .. }
        | Error::NoPoint { .. }
        | Error::NoAlternative { .. }
        | Error::Assignment { .. }
        | Error::Cost { .. }
        | Error::TooLarge { .. } => problem(message),
    }
}

impl From<FileError> for PyErr {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Io { path, source } => match source.raw_os_error() {
                // Python finds the class, such as FileNotFoundError, by the number.
                Some(number) => {
                    let what = source.to_string();
                    let what = what.trim_end_matches(&format!(" (os error {number})")).to_owned();
                    PyOSError::new_err((number, what, path.map(PathBuf::into_os_string)))
                }
                None => source.into(),
            },
            FileError::Format { .. } => exceptions::FileFormatError::new_err(error.to_string()),
            FileError::Stopped { .. } => exceptions::TensorOptError::new_err(error.to_string()),
        }
    }
}
