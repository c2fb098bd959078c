//! The Python module `tensoropt._native`: the crate's public interface on numpy arrays.
//!
//! Bindings extract, call and convert; what they call is public, so that another planner could be
//! built on the same functions. [`enter`] is the one gate for calls that take long, [`errors`] the
//! one place where errors become exceptions, [`arrays`] the one where numbers are converted.

mod arrays;
mod contraction;
mod enter;
mod errors;
mod graph;
mod iopddl;
mod iopddl_evaluation;
mod options;
mod solution;

use pyo3::prelude::*;

#[pymodule(gil_used = true)]
mod _native {
    #[pymodule_export]
    use super::contraction::{Contraction, contract};
    #[pymodule_export]
    use super::graph::CostGraph;
    #[pymodule_export]
    use super::iopddl::IopddlProblem;
    #[pymodule_export]
    use super::iopddl_evaluation::IopddlEvaluation;
    #[pymodule_export]
    use super::solution::{Solution, solve};
}
