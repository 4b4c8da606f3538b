//! Conversion of record numbers, JSON, schemas and paths between Python and the core.

use std::path::{Path, PathBuf};

use numpy::{PyArray1, PyReadonlyArray1, PyUntypedArrayMethods};
use pyo3::exceptions::{PyIndexError, PyMemoryError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyRange, PySlice, PyString, PyTuple};

use fastrecord_core::Schema;
use fastrecord_core::memory::{collected, copied, room};

use crate::convert::objects::empty_list;
use crate::error::NO_MEMORY;
use crate::error::{SchemaError, to_py};

fn not_indices(detail: &str) -> PyErr {
    PyTypeError::new_err(format!("record numbers are a 1-D sequence or array of integers, not {detail}"))
}

/// Reports an integer that does not fit in i64: it is out of range in every file.
fn out_of_range(number: impl std::fmt::Display) -> PyErr {
    PyIndexError::new_err(format!("record {number} is out of range"))
}

/// Takes record numbers from any 1-D sequence or array of integers.
pub(crate) fn indices(given: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    if let Ok(array) = given.extract::<PyReadonlyArray1<'_, i64>>() {
        let Ok(numbers) = array.as_slice() else { return collected(array.as_array().iter().copied()).map_err(to_py) };
        return copied(numbers).map_err(to_py);
    }
    if given.is_instance_of::<PyList>() || given.is_instance_of::<PyTuple>() || given.is_instance_of::<PyRange>() {
        let mut numbers = room(given.len()?).map_err(to_py)?;
        for item in given.try_iter()? {
            numbers.push(index(&item?)?);
        }
        return Ok(numbers);
    }
    let array = given.py().import("numpy")?.call_method1("asarray", (given,))?;
    if array.getattr("ndim")?.extract::<usize>()? != 1 {
        return Err(not_indices(&format!("of shape {}", array.getattr("shape")?)));
    }
    let kind: String = array.getattr("dtype")?.getattr("kind")?.extract()?;
    if array.len()? == 0 {
        return Ok(Vec::new());
    }
    match kind.as_str() {
        "i" => indices(&array.call_method1("astype", ("int64",))?),
        "u" => {
            let numbers = array.call_method1("astype", ("uint64",))?;
            let numbers = numbers.extract::<PyReadonlyArray1<'_, u64>>()?;
            let mut fitting = room(numbers.as_array().len()).map_err(to_py)?;
            for &number in numbers.as_array() {
                fitting.push(i64::try_from(number).map_err(|_| out_of_range(number))?);
            }
            Ok(fitting)
        }
        _ => Err(not_indices(&format!(
            "of dtype {} (a mask is turned into numbers by numpy.flatnonzero)",
            array.getattr("dtype")?
        ))),
    }
}

/// Takes one record number: any object with `__index__`, except a bool.
pub(crate) fn index(given: &Bound<'_, PyAny>) -> PyResult<i64> {
    if given.is_instance_of::<PyBool>() || given.is_instance_of::<PyFloat>() {
        return Err(not_indices(&format!("of {}", given.get_type().name()?)));
    }
    given.extract::<i64>().map_err(|error| {
        if error.is_instance_of::<PyOverflowError>(given.py()) {
            out_of_range(given)
        } else {
            not_indices(&format!("of {}", given.get_type()))
        }
    })
}

/// Creates an int64 array that owns its memory.
pub(crate) fn int64_array(py: Python<'_>, values: Vec<u64>) -> Bound<'_, PyAny> {
    PyArray1::from_vec(py, values.into_iter().map(u64::cast_signed).collect()).into_any()
}

/// Creates a list; too little memory is a `MemoryError`.
pub(crate) fn list_of<'py>(
    py: Python<'py>,
    items: impl Iterator<Item = PyResult<Bound<'py, PyAny>>>,
) -> PyResult<Bound<'py, PyList>> {
    let list = empty_list(py)?;
    for item in items {
        list.append(item?)?;
    }
    Ok(list)
}

/// Returns the item at a position of a batch, or a list of those of a slice; negative positions count
/// from the end.
pub(crate) fn item_at<'py>(
    position: &Bound<'py, PyAny>,
    length: usize,
    name: &str,
    item: impl Fn(usize) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = position.py();
    if let Ok(slice) = position.cast::<PySlice>() {
        let slice = slice.indices(length.cast_signed())?;
        let at = (0..slice.slicelength.cast_signed()).map(|i| (slice.start + i * slice.step).cast_unsigned());
        return Ok(list_of(py, at.map(item))?.into_any());
    }
    let at = match position.extract::<isize>() {
        Ok(at) if at < 0 => usize::try_from(at + length.cast_signed()).ok(),
        Ok(at) => usize::try_from(at).ok(),
        Err(error) if error.is_instance_of::<PyOverflowError>(py) => None,
        Err(error) => return Err(error),
    };
    let wrong = || PyIndexError::new_err(format!("{name} {position} is out of range: the batch has {length}"));
    item(at.filter(|&at| at < length).ok_or_else(wrong)?)
}

/// Takes an int64 array of positions, each at least 0.
pub(crate) fn positions(given: &PyReadonlyArray1<'_, i64>, n: u64) -> PyResult<Vec<u64>> {
    if given.ndim() != 1 {
        return Err(PyValueError::new_err("positions are a 1-D int64 array"));
    }
    let check = |&p: &i64| {
        let position = u64::try_from(p).ok().filter(|&p| p < n);
        position.ok_or_else(|| PyIndexError::new_err(format!("position {p} is out of range: there are {n}")))
    };
    let mut checked = room(given.as_array().len()).map_err(to_py)?;
    for position in given.as_array() {
        checked.push(check(position)?);
    }
    Ok(checked)
}

/// Converts a Python mapping to a JSON object. Refuses NaN and values that JSON lacks.
pub(crate) fn to_json(value: &Bound<'_, PyAny>) -> PyResult<serde_json::Map<String, serde_json::Value>> {
    let py = value.py();
    let named = |error: PyErr| {
        let message = format!("metadata: {}", error.value(py));
        if error.is_instance_of::<PyTypeError>(py) {
            PyTypeError::new_err(message)
        } else if error.is_instance_of::<PyValueError>(py) {
            PyValueError::new_err(message)
        } else {
            error
        }
    };
    let dict = py.import("builtins")?.call_method1("dict", (value,)).map_err(named)?;
    let map = serde_json::from_str(&dumped(&dict).map_err(named)?);
    let map = map.map_err(|e| PyValueError::new_err(format!("metadata: {e}")))?;
    check_kept(&dict, true).map_err(named)?; // after the parser, which limits the depth
    Ok(map)
}

/// Converts a Python value to JSON text. Refuses NaN, and keys that would become text.
pub(crate) fn json_text(value: &Bound<'_, PyAny>) -> PyResult<String> {
    let text = dumped(value)?;
    check_kept(value, false)?; // after `dumps`, which detects cycles
    Ok(text)
}

fn dumped(value: &Bound<'_, PyAny>) -> PyResult<String> {
    let py = value.py();
    let options = PyDict::new(py);
    options.set_item("allow_nan", false)?;
    options.set_item("ensure_ascii", false)?;
    options.set_item("separators", (",", ":"))?;
    let text = py.import("json")?.call_method("dumps", (value,), Some(&options))?;
    Ok(text.cast::<PyString>()?.to_str()?.to_owned())
}

/// Refuses values that JSON would return as another type: keys that become text, and with `integers`
/// those that become floats.
fn check_kept(value: &Bound<'_, PyAny>, integers: bool) -> PyResult<()> {
    if let Ok(dict) = value.cast::<PyDict>() {
        for (key, value) in dict {
            if !key.is_instance_of::<PyString>() {
                return Err(PyTypeError::new_err(format!("keys are str, not {}", key.repr()?)));
            }
            check_kept(&value, integers)?;
        }
    } else if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        for item in value.try_iter()? {
            check_kept(&item?, integers)?;
        }
    } else if integers
        && value.is_instance_of::<PyInt>()
        && value.extract::<i64>().is_err()
        && value.extract::<u64>().is_err()
    {
        return Err(PyValueError::new_err(format!("{value} does not fit in 64 bits")));
    }
    Ok(())
}

/// Parses JSON text to a Python object.
pub(crate) fn from_json<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
    // Conversions from `str` panic if there is too little memory; this is a `MemoryError`.
    let text = PyString::from_bytes(py, text.as_bytes())?;
    py.import(intern!(py, "json"))?.getattr(intern!(py, "loads"))?.call1((text,))
}

/// Builds the core's schema from a `fastrecord.Schema`, or from a mapping accepted by its
/// constructor.
pub(crate) fn schema_from(given: &Bound<'_, PyAny>) -> PyResult<Schema> {
    let class = given.py().import("fastrecord.schema")?.getattr("Schema")?;
    let schema = if given.is_instance(&class)? { given.clone() } else { class.call1((given,))? };
    let text: String = schema.call_method0("_to_json")?.extract()?;
    Schema::from_json(&text).map_err(to_py)
}

/// Builds a `fastrecord.Schema` from the core's schema.
pub(crate) fn schema_to<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyAny>> {
    py.import("fastrecord.schema")?.getattr("Schema")?.call_method1("_from_json", (schema.to_json(),))
}

/// Returns the absolute path. It stays valid when the process changes its working directory.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Builds an error about one value of a record, in the core's message form.
pub(crate) fn bad_value(path: &Path, record: u64, field: &str, detail: &str) -> PyErr {
    let path = path.display().to_string();
    if detail == NO_MEMORY {
        return PyMemoryError::new_err(format!("{path}: record {record}, field {field}: {detail}"));
    }
    SchemaError::new_err((detail.to_owned(), "FR402", path, record, field.to_owned()))
}
