//! Keyword arguments as the options of a search.

use std::time::Duration;

use numpy::PyReadonlyArray2;
use pyo3::prelude::*;

use super::arrays::Units;
use super::errors::problem;
use crate::{Peak, SolveOptions};

/// What `solve` and `contract` have in common. Numbers are read as signed, so that a negative one
/// is refused by its name.
pub(super) struct Arguments {
    pub epsilon: f64,
    pub threads: Option<i64>,
    pub caps: Option<Vec<Option<f64>>>,
    pub max_table_cells: Option<i64>,
    pub max_bytes: Option<i64>,
    pub work_limit: Option<i64>,
    pub time_limit_s: Option<f64>,
    pub max_points: Option<i64>,
}

impl Arguments {
    pub(super) fn options(self, units: &Units) -> PyResult<SolveOptions> {
        let mut options = SolveOptions::default().with_epsilon(self.epsilon);
        options.threads = count("threads", self.threads)?.map(|threads| threads as usize);
        for (objective, cap) in self.caps.unwrap_or_default().into_iter().enumerate() {
            options.caps.push(cap_of(cap, objective, units, || format!("caps[{objective}]"))?);
        }
        if let Some(cells) = count("max_table_cells", self.max_table_cells)? {
            options.max_table_cells = cells as usize;
        }
        if let Some(bytes) = count("max_bytes", self.max_bytes)? {
            options.max_bytes = bytes;
        }
        options.work_limit = count("work_limit", self.work_limit)?;
        options.max_points = count("max_points", self.max_points)?.map(|points| points as usize);
        options.time_limit = self.time_limit_s.map(duration).transpose()?;
        Ok(options)
    }
}

/// The argument `peak`: (resident, transient) or (resident, transient, cap).
#[derive(FromPyObject)]
pub(super) enum PeakArgument {
    #[pyo3(transparent)]
    Capped((usize, usize, Option<f64>)),
    #[pyo3(transparent)]
    Open((usize, usize)),
}

impl PeakArgument {
    pub(super) fn peak(self, units: &Units) -> PyResult<Peak> {
        let (resident, transient, cap) = match self {
            Self::Capped(parts) => parts,
            Self::Open((resident, transient)) => (resident, transient, None),
        };
        if !units.same(resident, transient) {
            return Err(problem(format!(
                "peak adds objectives {resident} and {transient} up, which have different \
                 resolutions: give them the same"
            )));
        }
        let cap = cap_of(cap, resident, units, || "peak cap".into())?;
        Ok(Peak { resident, transient, cap })
    }
}

/// The argument `known` in steps; a row with an infinite cost says nothing and is left out.
///
/// `objectives` are those of the columns.
pub(super) fn known(
    known: &PyReadonlyArray2<'_, f64>,
    objectives: &[usize],
    units: &Units,
) -> PyResult<Vec<Vec<u64>>> {
    let mut rows = Vec::new();
    for (number, row) in known.as_array().outer_iter().enumerate() {
        // What does not fit the columns is refused with the other options.
        let encoded: PyResult<Option<Vec<u64>>> = row
            .iter()
            .enumerate()
            .map(|(column, &cost)| {
                let objective = objectives.get(column).copied().unwrap_or(column);
                units.encode(objective, cost, || format!("known[{number}, {column}]"))
            })
            .collect();
        rows.extend(encoded?);
    }
    Ok(rows)
}

/// A cap in steps, rounded as costs are; none if it is infinite.
fn cap_of(
    cap: Option<f64>,
    objective: usize,
    units: &Units,
    place: impl Fn() -> String,
) -> PyResult<Option<u64>> {
    let Some(cap) = cap else { return Ok(None) };
    // Without a resolution costs are whole, so the fraction of a cap cannot matter.
    let cap = if units.resolution().is_none() { cap.floor() } else { cap };
    units.encode(objective, cap, place)
}

pub(super) fn count(option: &str, value: Option<i64>) -> PyResult<Option<u64>> {
    let Some(value) = value else { return Ok(None) };
    let refused = |_| problem(format!("option {option}: expected at least 0, got {value}"));
    u64::try_from(value).map(Some).map_err(refused)
}

fn duration(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        problem(format!("option time_limit_s: expected a number of seconds >= 0, got {seconds}"))
    })
}
