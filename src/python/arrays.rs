//! Numbers between numpy and the crate: costs, shapes, indices.

use numpy::{
    Element, PyArray1, PyArray2, PyArrayDescrMethods, PyArrayDyn, PyArrayMethods, PyUntypedArray,
    PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use pyo3::types::PyString;

use super::errors::{at, problem};
use crate::Table;
use crate::units::Resolution;

/// Choices of one plan, -1 where nothing was chosen.
pub(super) type ChoiceVector = Py<PyArray1<i32>>;
/// Choices of many plans, one row each.
pub(super) type ChoiceMatrix = Py<PyArray2<i32>>;

/// The units that a user's costs are in: one step size per objective, or whole numbers as they are.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Units {
    steps: Option<Vec<Resolution>>,
}

impl Units {
    /// Checks that there is a resolution for each objective.
    pub(super) fn new(resolution: Option<Vec<f64>>, objectives: usize) -> PyResult<Self> {
        let Some(resolution) = resolution else { return Ok(Self { steps: None }) };
        if resolution.len() != objectives {
            return Err(problem(format!(
                "resolution has {} entries, expected one per objective ({objectives})",
                resolution.len()
            )));
        }
        let steps = resolution.into_iter().map(Resolution::new).collect::<crate::Result<_>>()?;
        Ok(Self { steps: Some(steps) })
    }

    /// The units that a file says its costs are in.
    pub(super) fn stored(steps: Option<Vec<Resolution>>) -> Self {
        Self { steps }
    }

    /// The units as a file holds them.
    pub(super) fn steps(&self) -> Option<&[Resolution]> {
        self.steps.as_deref()
    }

    /// The step sizes, if they were given.
    pub(super) fn resolution(&self) -> Option<Vec<f64>> {
        self.steps.as_ref().map(|steps| steps.iter().map(|step| step.step()).collect())
    }

    /// A float cost in steps; nothing if it is infinite. `place` names the number in messages.
    pub(super) fn encode(
        &self,
        objective: usize,
        value: f64,
        place: impl Fn() -> String,
    ) -> PyResult<Option<u64>> {
        let step = match &self.steps {
            Some(steps) => *steps.get(objective).ok_or_else(|| {
                problem(format!("{}: there are only {} objectives", place(), steps.len()))
            })?,
            None if value.is_finite() && value.fract() != 0.0 => {
                return Err(problem(format!(
                    "{}: {value} is not a whole number: give resolution=(...), the size of one \
                     step of each objective, for example (1e-9, 512) for nanoseconds and 512 bytes",
                    place()
                )));
            }
            None => Resolution::new(1.0)?,
        };
        step.encode(value).map_err(|error| at(&format!("{}: ", place()), error))
    }

    /// Whether two objectives, if they exist, are counted in the same steps.
    pub(super) fn same(&self, a: usize, b: usize) -> bool {
        let Some(steps) = &self.steps else { return true };
        steps.get(a).zip(steps.get(b)).is_none_or(|(a, b)| a == b)
    }

    /// Whether integers are taken as they are, without a detour over floats.
    fn exact(&self) -> bool {
        self.steps.as_ref().is_none_or(|steps| steps.iter().all(|step| step.step() == 1.0))
    }

    /// Costs as a numpy array of shape (rows, objectives): int64 as they are, or float64 in the
    /// units of the resolution.
    pub(super) fn decode<'py>(
        &self,
        py: Python<'py>,
        costs: &[u64],
        objectives: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let rows = costs.len() / objectives;
        let Some(steps) = &self.steps else {
            return frozen_matrix(py, signed(costs)?, rows, objectives).map(Bound::into_any);
        };
        let values = costs.iter().enumerate().map(|(i, &cost)| steps[i % objectives].decode(cost));
        frozen_matrix(py, values.collect(), rows, objectives).map(Bound::into_any)
    }

    /// Values of one objective as a numpy array of shape (rows,).
    pub(super) fn decode_one<'py>(
        &self,
        py: Python<'py>,
        values: &[u64],
        objective: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        match &self.steps {
            None => frozen_vector(py, signed(values)?).map(Bound::into_any),
            Some(steps) => {
                let values = values.iter().map(|&value| steps[objective].decode(value));
                frozen_vector(py, values.collect()).map(Bound::into_any)
            }
        }
    }

    /// One value of an objective as a Python number.
    pub(super) fn decode_scalar<'py>(
        &self,
        py: Python<'py>,
        value: u64,
        objective: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        Ok(match &self.steps {
            None => value.into_pyobject(py)?.into_any(),
            Some(steps) => steps[objective].decode(value).into_pyobject(py)?.into_any(),
        })
    }
}

/// Whole costs as numpy holds them.
fn signed(values: &[u64]) -> PyResult<Vec<i64>> {
    let too_large = |_| problem("a cost does not fit into int64: give a resolution");
    values.iter().map(|&value| i64::try_from(value).map_err(too_large)).collect()
}

/// A table from an array of shape (K_1, ..., K_r, D).
///
/// Integer arrays are read in place and copied once, into the table.
pub(super) fn table(
    costs: &Bound<'_, PyAny>,
    impossible: Option<&Bound<'_, PyAny>>,
    name: &str,
    units: &Units,
    objectives: usize,
) -> PyResult<Table> {
    let array = costs_array(costs, name)?;
    let shape = array.shape();
    if shape.len() < 2 || shape[shape.len() - 1] != objectives {
        return Err(problem(format!(
            "{name} has shape {shape:?}, expected one axis per node and a last one of length \
             {objectives}, one cost per objective"
        )));
    }
    let dims = dims(&shape[..shape.len() - 1], name)?;
    let mut mask =
        impossible.map(|mask| mask_of(mask, name, &shape[..shape.len() - 1])).transpose()?;
    let build = |costs: &[u64], mask: Option<&[bool]>| {
        Table::dense(&dims, objectives, costs, mask)
            .map_err(|error| at(&format!("{name}: "), error))
    };
    if let Some(exact) = unsigned(&array, mask.as_deref(), name, units)? {
        return build(exact.readonly().as_slice()?, mask.as_deref());
    }
    let floats = cast::<f64>(&array, "float64")?;
    let floats = floats.readonly();
    let floats = floats.as_slice()?;
    let gone = mask.get_or_insert_with(|| vec![false; floats.len() / objectives]);
    let costs = encode_rows(floats, gone, units, objectives, |cell, objective| {
        place(name, &shape[..shape.len() - 1], cell, objective)
    })?;
    build(&costs, mask.as_deref())
}

/// A table from the parts of its cells' alternatives: shape (K_1, ..., K_r), offsets, costs.
pub(super) fn table_with_alternatives(
    shape: &[usize],
    offsets: &Bound<'_, PyAny>,
    costs: &Bound<'_, PyAny>,
    units: &Units,
    objectives: usize,
) -> PyResult<Table> {
    let dims = dims(shape, "shape")?;
    let offsets = indices(offsets, "offsets")?;
    let array = costs_array(costs, "costs")?;
    if array.ndim() != 2 || array.shape()[1] != objectives {
        return Err(problem(format!(
            "costs has shape {:?}, expected (alternatives, {objectives})",
            array.shape()
        )));
    }
    let build = |costs: &[u64]| {
        Table::with_alternatives(&dims, objectives, &offsets, costs).map_err(PyErr::from)
    };
    if let Some(exact) = unsigned(&array, None, "costs", units)? {
        return build(exact.readonly().as_slice()?);
    }
    let floats = cast::<f64>(&array, "float64")?;
    let floats = floats.readonly();
    let floats = floats.as_slice()?;
    let mut gone = vec![false; floats.len() / objectives];
    let encoded = encode_rows(floats, &mut gone, units, objectives, |row, objective| {
        format!("costs[{row}, {objective}]")
    })?;
    if let Some(row) = gone.iter().position(|&gone| gone) {
        return Err(problem(format!(
            "costs[{row}] is infinite: leave impossible alternatives out instead"
        )));
    }
    build(&encoded)
}

/// Cost vectors in steps; marks those with an infinite cost as gone, and skips the ones that are.
fn encode_rows(
    values: &[f64],
    gone: &mut [bool],
    units: &Units,
    objectives: usize,
    place: impl Fn(usize, usize) -> String,
) -> PyResult<Vec<u64>> {
    let mut costs = vec![0; values.len()];
    let rows = values.chunks_exact(objectives).zip(costs.chunks_exact_mut(objectives));
    for (row, ((values, costs), gone)) in rows.zip(gone).enumerate() {
        if *gone {
            continue;
        }
        for (objective, (&value, cost)) in values.iter().zip(costs).enumerate() {
            match units.encode(objective, value, || place(row, objective))? {
                Some(steps) => *cost = steps,
                None => *gone = true,
            }
        }
    }
    Ok(costs)
}

/// The array as contiguous uint64, without a copy where it holds integers in steps already; nothing
/// where numbers have to be converted.
fn unsigned<'py>(
    array: &Bound<'py, PyUntypedArray>,
    impossible: Option<&[bool]>,
    name: &str,
    units: &Units,
) -> PyResult<Option<Bound<'py, PyArrayDyn<u64>>>> {
    if !units.exact() {
        return Ok(None);
    }
    match array.dtype().kind() {
        b'u' => cast(array, "uint64").map(Some),
        b'i' => {
            let signed = cast::<i64>(array, "int64")?;
            let (axes, objectives) = (array.ndim() - 1, array.shape()[array.ndim() - 1]);
            let values = signed.readonly();
            let values = values.as_slice()?;
            let negative = values.iter().enumerate().find(|&(i, &value)| {
                value < 0 && !impossible.is_some_and(|gone| gone[i / objectives])
            });
            if let Some((i, value)) = negative {
                let entry = place(name, &array.shape()[..axes], i / objectives, i % objectives);
                return Err(problem(format!(
                    "{entry}: {value} is negative, expected a cost of at least 0"
                )));
            }
            // Not negative: the same bits, read as unsigned.
            let unsigned = signed.call_method1("view", (PyString::new(array.py(), "uint64"),))?;
            Ok(Some(unsigned.cast_into()?))
        }
        _ => Ok(None),
    }
}

/// An argument as a numpy array of integers or floats.
fn costs_array<'py>(value: &Bound<'py, PyAny>, name: &str) -> PyResult<Bound<'py, PyUntypedArray>> {
    let array = as_array(value, name)?;
    match array.dtype().kind() {
        b'i' | b'u' | b'f' => Ok(array),
        _ => Err(problem(format!(
            "{name} has dtype {}, expected int64, uint64 or float64",
            array.dtype()
        ))),
    }
}

/// Which cells an `impossible` argument names.
fn mask_of(value: &Bound<'_, PyAny>, name: &str, shape: &[usize]) -> PyResult<Vec<bool>> {
    let array = as_array(value, "impossible")?;
    if array.dtype().kind() != b'b' || array.shape() != shape {
        return Err(problem(format!(
            "impossible has dtype {} and shape {:?}, expected bool and {shape:?}, one entry per \
             cell of {name}",
            array.dtype(),
            array.shape()
        )));
    }
    Ok(cast::<bool>(&array, "bool")?.readonly().as_slice()?.to_vec())
}

/// A one-dimensional array of indices, such as offsets or node identifiers.
pub(super) fn indices(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<u32>> {
    let array = as_array(value, name)?;
    // An empty list is an array of floats to numpy.
    if array.ndim() != 1 || !(matches!(array.dtype().kind(), b'i' | b'u') || array.len() == 0) {
        return Err(problem(format!(
            "{name} has dtype {} and shape {:?}, expected integers in one dimension",
            array.dtype(),
            array.shape()
        )));
    }
    let values = cast::<i64>(&array, "int64")?;
    let values = values.readonly();
    let out_of_range = |i: usize, value: i64| {
        problem(format!("{name}[{i}] is {value}, expected 0 or more and less than 2**32"))
    };
    let values = values.as_slice()?.iter().enumerate();
    values.map(|(i, &v)| u32::try_from(v).map_err(|_| out_of_range(i, v))).collect()
}

fn as_array<'py>(value: &Bound<'py, PyAny>, name: &str) -> PyResult<Bound<'py, PyUntypedArray>> {
    if let Ok(array) = value.cast::<PyUntypedArray>() {
        return Ok(array.clone());
    }
    let array = value.py().import("numpy")?.call_method1("asarray", (value,));
    let array = array.map_err(|error| problem(format!("{name} is no array: {error}")))?;
    Ok(array.cast_into()?)
}

/// A contiguous array of the given type; the same array where it is one already.
fn cast<'py, T: Element>(
    array: &Bound<'py, PyUntypedArray>,
    dtype: &str,
) -> PyResult<Bound<'py, PyArrayDyn<T>>> {
    let py = array.py();
    // C order and aligned, so that it can be read as a slice.
    Ok(py.import("numpy")?.call_method1("require", (array, dtype, "CA"))?.cast_into()?)
}

fn dims(shape: &[usize], name: &str) -> PyResult<Vec<u32>> {
    let too_long = |_| problem(format!("{name} has shape {shape:?}, an axis is too long"));
    shape.iter().map(|&dim| u32::try_from(dim).map_err(too_long)).collect()
}

/// The name of an entry, as Python would write its index.
fn place(name: &str, shape: &[usize], mut cell: usize, objective: usize) -> String {
    let mut index: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&dim| {
            let at = cell % dim;
            cell /= dim;
            at
        })
        .collect();
    index.reverse();
    index.push(objective);
    format!("{name}{index:?}")
}

/// A read-only matrix of the given shape.
pub(super) fn frozen_matrix<'py, T: Element>(
    py: Python<'py>,
    values: Vec<T>,
    rows: usize,
    columns: usize,
) -> PyResult<Bound<'py, PyArray2<T>>> {
    let array = PyArray1::from_vec(py, values).reshape([rows, columns])?;
    freeze(&array)?;
    Ok(array)
}

/// A read-only vector.
pub(super) fn frozen_vector<T: Element>(
    py: Python<'_>,
    values: Vec<T>,
) -> PyResult<Bound<'_, PyArray1<T>>> {
    let array = PyArray1::from_vec(py, values);
    freeze(&array)?;
    Ok(array)
}

/// Results are handed out more than once, so nobody may write into them.
fn freeze(array: &Bound<'_, PyAny>) -> PyResult<()> {
    array.call_method1("setflags", (false,)).map(|_| ())
}
