//! Conversion of Python values to field values, with type checks. It does not append.

use crate::convert::arrays::array_from;
use crate::convert::arrays::as_array;
use crate::convert::arrays::in_c_order;
use crate::convert::arrays::is_array;
use crate::convert::arrays::is_of;
use crate::convert::numbers::not_wanted;
use crate::convert::numbers::number_bytes;
use crate::convert::numbers::number_of;
use crate::convert::numbers::type_name;
use crate::convert::numbers::wrong;
use crate::error::NO_MEMORY;
use fastrecord_core::encode_list;
use fastrecord_core::encode_numbers;
use fastrecord_core::memory::zeros;
use fastrecord_core::{ArrayType, Column, DType, FieldType, Value, shape_text};
use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyList;
use pyo3::types::PyTuple;
use pyo3::types::{PyBytes, PyDict, PyFrozenSet, PySet, PyString};

use crate::convert::arrays::dtype_of;
use crate::convert::buffers::{BorrowedBytes, array_bytes};
use crate::convert::indices::json_text;

/// A value taken from a Python record, kept alive while it is appended.
pub(crate) enum InputValue {
    Bytes(Py<PyBytes>),
    /// The memory of another bytes-like object.
    Lent(BorrowedBytes),
    /// A copy of bytes with gaps.
    Copied(Vec<u8>),
    Text(String),
    Int(i64),
    Float(f64),
    Number([u8; 16], usize),
    /// The payload of a list.
    List(Vec<u8>),
    /// A contiguous, little-endian array, and its shape.
    Array(Py<PyUntypedArray>, Vec<u64>),
}

impl InputValue {
    pub(crate) fn value<'a>(&'a self, py: Python<'a>) -> Value<'a> {
        match self {
            Self::Bytes(bytes) => Value::Bytes(bytes.as_bytes(py)),
            Self::Lent(bytes) => Value::Bytes(bytes.bytes(py)),
            Self::Copied(bytes) => Value::Bytes(bytes),
            Self::Text(text) => Value::Str(text),
            Self::List(bytes) => Value::List(bytes),
            Self::Int(number) => Value::Int(*number),
            Self::Float(number) => Value::Float(*number),
            Self::Number(bytes, length) => Value::Number(&bytes[..*length]),
            Self::Array(array, shape) => Value::Array { data: array_bytes(py, array), shape },
        }
    }
}

/// Takes a value for a field, or returns why it does not fit.
pub(crate) fn extract_value(value: &Bound<'_, PyAny>, kind: &FieldType) -> Result<InputValue, String> {
    let py = value.py();
    match kind {
        FieldType::Image | FieldType::Bytes => {
            if let Ok(bytes) = value.cast::<PyBytes>() {
                return Ok(InputValue::Bytes(bytes.clone().unbind()));
            }
            let unfit = |e: &PyErr| wrong(value, "a bytes-like object", e);
            let buffer = PyBuffer::<u8>::get(value).map_err(|e| unfit(&e))?;
            if buffer.is_c_contiguous() {
                return Ok(InputValue::Lent(BorrowedBytes::new(buffer)));
            }
            let mut bytes = zeros(buffer.len_bytes()).map_err(|_| NO_MEMORY.to_owned())?;
            buffer.copy_to_slice(py, &mut bytes).map_err(|e| unfit(&e))?;
            Ok(InputValue::Copied(bytes))
        }
        FieldType::String => match value.cast::<PyString>() {
            Ok(text) => text
                .to_str()
                .map(|t| InputValue::Text(t.to_owned()))
                .map_err(|e| wrong(value, "text that UTF-8 can hold", &e)),
            Err(error) => Err(wrong(value, "a str", &error.into())),
        },
        FieldType::Scalar(dtype) => {
            number_of(value, *dtype).map(|(bytes, length)| match (dtype, bytes.first_chunk()) {
                (DType::Int64, Some(bytes)) => InputValue::Int(i64::from_le_bytes(*bytes)),
                (DType::Float64, Some(bytes)) => InputValue::Float(f64::from_le_bytes(*bytes)),
                _ => InputValue::Number(bytes, length),
            })
        }
        FieldType::Array(array) => extract_array(value, array),
        FieldType::List(item) => extract_list(value, item).map(InputValue::List),
        FieldType::Json => json_text(value).map(InputValue::Text).map_err(|e| format!("no JSON: {}", e.value(py))),
        other => Err(format!("a field of type {other} cannot be written")),
    }
}

/// The values of one field for many records.
pub(crate) enum InputColumn {
    /// Numbers, or arrays of one shape, in one array.
    Block(Py<PyUntypedArray>, Vec<u64>),
    Values(Vec<InputValue>),
}

impl InputColumn {
    /// Returns the number of values.
    pub(crate) fn len(&self, py: Python<'_>) -> usize {
        match self {
            Self::Block(array, _) => array.bind(py).shape().first().copied().unwrap_or_default(),
            Self::Values(values) => values.len(),
        }
    }

    /// Returns the bytes of each value of a bytes field.
    pub(crate) fn payloads<'a>(&'a self, py: Python<'a>) -> Vec<&'a [u8]> {
        let Self::Values(values) = self else { return Vec::new() };
        let bytes = |held: &'a InputValue| match held.value(py) {
            Value::Bytes(bytes) => bytes,
            _ => &[],
        };
        values.iter().map(bytes).collect()
    }

    pub(crate) fn column<'a>(&'a self, py: Python<'a>) -> Column<'a> {
        match self {
            Self::Block(array, shape) => Column::Block { data: array_bytes(py, array), shape },
            Self::Values(values) => Column::Values(values.iter().map(|held| held.value(py)).collect()),
        }
    }
}

/// Takes a field's values for many records. The error carries the position of the bad value; 0 if
/// it is about all of them.
pub(crate) fn extract_column(
    values: &Bound<'_, PyAny>,
    kind: &FieldType,
) -> PyResult<Result<InputColumn, (u64, String)>> {
    let (wanted, scalar) = match kind {
        FieldType::Scalar(dtype) => (Some(ArrayType::scalar(*dtype)), true),
        FieldType::Array(array) => (Some(array.clone()), false),
        _ => (None, false),
    };
    if let Some(wanted) = wanted {
        let tensor = values.hasattr("__torch_function__")? && values.hasattr("detach")?;
        if tensor || is_array(values)? {
            return Ok(extract_block(values, &wanted, scalar).map_err(|detail| (0, detail)));
        }
    }
    // A str is also a sequence (of characters), and bytes are a sequence of integers.
    let one = values.is_instance_of::<PyString>() || values.is_instance_of::<PyBytes>();
    // A set has no order to match the other fields, and iterating over a dict yields its keys.
    let unordered =
        values.is_instance_of::<PySet>() || values.is_instance_of::<PyFrozenSet>() || values.is_instance_of::<PyDict>();
    let values_of = if one || unordered { None } else { values.try_iter().ok() };
    let Some(values_of) = values_of else {
        return Ok(Err((0, not_wanted(values, &format!("a sequence of values, each {kind},")))));
    };
    let mut held = Vec::with_capacity(values.len().unwrap_or_default());
    for (i, value) in values_of.enumerate() {
        match extract_value(&value?, kind) {
            Ok(value) => held.push(value),
            Err(detail) => return Ok(Err((i as u64, detail))),
        }
    }
    Ok(Ok(InputColumn::Values(held)))
}

fn extract_block(values: &Bound<'_, PyAny>, wanted: &ArrayType, scalar: bool) -> Result<InputColumn, String> {
    let (array, bfloat) = array_from(values, wanted)?;
    let shape: Vec<u64> = array.shape().iter().map(|&dim| dim as u64).collect();
    let Some((_, each)) = shape.split_first().filter(|(_, each)| wanted.nbytes_of(each).is_some()) else {
        let values = if scalar { "numbers".to_owned() } else { wanted.to_string() };
        return Err(format!("an array of shape {}, where one of N {values} is wanted", shape_text(&shape)));
    };
    let array = if scalar { widened(array, wanted.dtype(), bfloat)? } else { array };
    let array = in_c_order(array, wanted.dtype(), bfloat)?;
    Ok(InputColumn::Block(array.unbind(), each.to_vec()))
}

/// Converts numbers to a type that holds every one of them, with the rules for single numbers.
/// Returns other arrays unchanged.
fn widened<'py>(
    array: Bound<'py, PyUntypedArray>,
    wanted: DType,
    bfloat: bool,
) -> Result<Bound<'py, PyUntypedArray>, String> {
    if is_of(&array.dtype(), wanted, bfloat) || bfloat || wanted == DType::BFloat16 {
        return Ok(array);
    }
    let py = array.py();
    let cast = || -> PyResult<Bound<'py, PyUntypedArray>> {
        let (numpy, dtype) = (py.import("numpy")?, dtype_of(py, wanted)?);
        if !numpy.call_method1("can_cast", (array.dtype(), &dtype, "safe"))?.extract::<bool>()? {
            return Ok(array.clone());
        }
        Ok(array.call_method1("astype", (dtype,))?.cast_into::<PyUntypedArray>()?)
    };
    cast().map_err(|error| error.value(py).to_string())
}

/// Converts to an array of the field's dtype, in native byte order and C order. The core checks its
/// shape.
fn extract_array(value: &Bound<'_, PyAny>, wanted: &ArrayType) -> Result<InputValue, String> {
    let (array, bfloat) = array_from(value, wanted)?;
    let shape: Vec<u64> = array.shape().iter().map(|&dim| dim as u64).collect();
    let array = in_c_order(array, wanted.dtype(), bfloat).map_err(|detail| {
        let shape = shape_text(&shape);
        format!("{detail} (an array of shape {shape}, where the field is {wanted})")
    })?;
    Ok(InputValue::Array(array.unbind(), shape))
}

/// Builds the payload of a list, or returns why the value does not fit.
pub(crate) fn extract_list(value: &Bound<'_, PyAny>, kind: &FieldType) -> Result<Vec<u8>, String> {
    let py = value.py();
    let fail = |error: PyErr| error.value(py).to_string();
    if let FieldType::Scalar(dtype) = kind
        && let Some(array) = as_array(value, *dtype)?
    {
        return match array.shape().len() {
            1 => Ok(encode_numbers(*dtype, array_bytes(py, &array.unbind()))),
            dims => Err(format!("a list of numbers is wanted, not an array of {dims} dimensions")),
        };
    }
    // Do not accept any sequence: str and bytes are sequences too.
    let tensor = || Ok(value.hasattr("__torch_function__")? && value.hasattr("detach")?);
    let list = value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>();
    if !list && !value.is_instance_of::<PyUntypedArray>() && !tensor().map_err(fail)? {
        return Err(format!("a list is wanted, not {}", type_name(value)));
    }
    let items = value.try_iter().map_err(fail)?;
    if let FieldType::Scalar(dtype) = kind {
        let mut numbers = Vec::new();
        for (i, item) in items.enumerate() {
            let number = number_bytes(&item.map_err(fail)?, *dtype);
            numbers.extend(number.map_err(|detail| format!("item {i}: {detail}"))?);
        }
        return Ok(encode_numbers(*dtype, &numbers));
    }
    let mut held: Vec<InputValue> = Vec::new();
    for (i, item) in items.enumerate() {
        held.push(extract_value(&item.map_err(fail)?, kind).map_err(|detail| format!("item {i}: {detail}"))?);
    }
    encode_list(kind, &held.iter().map(|held| held.value(py)).collect::<Vec<_>>())
}
