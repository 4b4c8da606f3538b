//! Input mappings of a writer: field names to values, of one record or of many.

use fastrecord_core::{FieldType, Schema};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyMapping;

use crate::error::SchemaError;
use crate::write::input::{InputColumn, InputValue, extract_column, extract_value};
use crate::write::state::WriterState;

/// Returns the columns of many records, in schema order, and the number of records.
pub(crate) fn columns_from(state: &WriterState, columns: &Bound<'_, PyMapping>) -> PyResult<(Vec<InputColumn>, usize)> {
    let py = columns.py();
    let schema = state.schema();
    let fields = schema.fields();
    let (mut held, mut count): (Vec<InputColumn>, Option<usize>) = (Vec::with_capacity(fields.len()), None);
    for field in fields {
        let values = get(columns, &field.name)?;
        let values = values.ok_or_else(|| state.bad_value(py, 0, &field.name, "there are no values for it"))?;
        let column = extract_column(&values, &field.kind)?;
        let column = column.map_err(|(i, detail)| state.bad_value(py, i, &field.name, &detail))?;
        let length = column.len(py);
        if *count.get_or_insert(length) != length {
            let (first, expected) = (&fields[0].name, count.unwrap_or_default());
            let detail = format!("{length} values, where field {first} has {expected}");
            return Err(state.bad_value(py, 0, &field.name, &detail));
        }
        held.push(column);
    }
    if columns.len()? != fields.len()
        && let Some(name) = unknown_key(&schema, columns, None)?
    {
        let detail = format!("no such field: the file has {}", schema.describe());
        return Err(state.bad_value(py, 0, &name, &detail));
    }
    Ok((held, count.unwrap_or_default()))
}

/// Returns the values of a record, in schema order.
pub(crate) fn record_from(state: &WriterState, record: &Bound<'_, PyMapping>) -> PyResult<Vec<InputValue>> {
    let py = record.py();
    let schema = state.schema();
    let fields = schema.fields();
    let mut held = Vec::with_capacity(fields.len());
    for field in fields {
        let value = get(record, &field.name)?;
        let value = value.ok_or_else(|| state.bad_value(py, 0, &field.name, "the record has no value for it"))?;
        held.push(extract_value(&value, &field.kind).map_err(|detail| state.bad_value(py, 0, &field.name, &detail))?);
    }
    if record.len()? != fields.len()
        && let Some(name) = unknown_key(&schema, record, None)?
    {
        let detail = format!("no such field: the file has {}", schema.describe());
        return Err(state.bad_value(py, 0, &name, &detail));
    }
    Ok(held)
}

/// Returns the position of the field that takes the inputs, and the values of each other field, one
/// per input. `inputs` is what errors call them.
pub(crate) fn beside_inputs(
    schema: &Schema,
    field: &str,
    (count, inputs): (usize, &str),
    values: &Bound<'_, PyMapping>,
) -> PyResult<(usize, Vec<InputColumn>)> {
    let py = values.py();
    let no_field =
        |name: &str| SchemaError::new_err((format!("no field {name:?}: the file has {}", schema.describe()), "FR407"));
    let bad = |name: &str, detail: &str| SchemaError::new_err((format!("field {name}: {detail}"), "FR402"));
    let position = schema.position(field).ok_or_else(|| no_field(field))?;
    if let Some(name) = unknown_key(schema, values, Some(field))? {
        let twice = || bad(field, &format!("both {inputs} and values are given for it"));
        return Err(if name == field { twice() } else { no_field(&name) });
    }
    let mut columns = Vec::new();
    for other in schema.fields().iter().filter(|f| f.name != field) {
        let given = get(values, &other.name)?;
        let given =
            given.ok_or_else(|| SchemaError::new_err((format!("no values for field {}", other.name), "FR402")))?;
        let column = extract_column(&given, &other.kind)?;
        let column = column.map_err(|(i, detail)| match count {
            1 => bad(&other.name, &detail),
            _ => bad(&other.name, &format!("value {i}: {detail}")),
        })?;
        if column.len(py) != count {
            return Err(bad(&other.name, &format!("{} values for {count} {inputs}", column.len(py))));
        }
        columns.push(column);
    }
    Ok((position, columns))
}

/// Returns images in memory.
pub(crate) fn images_from(images: &Bound<'_, PyAny>) -> PyResult<InputColumn> {
    extract_column(images, &FieldType::Bytes)?
        .map_err(|(i, detail)| SchemaError::new_err((detail, "FR402", format!("images[{i}]"))))
}

/// Returns the first key that names no field, or names the field to leave out.
fn unknown_key(schema: &Schema, given: &Bound<'_, PyMapping>, without: Option<&str>) -> PyResult<Option<String>> {
    for key in given.keys()? {
        let name = key.extract::<String>().ok();
        if name.as_deref().is_none_or(|name| schema.position(name).is_none() || Some(name) == without) {
            return Ok(Some(name.map_or_else(|| key.repr().map(|text| text.to_string()), Ok)?));
        }
    }
    Ok(None)
}

/// Returns the value of a key; `None` if the mapping lacks it. Other errors of the mapping reach
/// the caller.
fn get<'py>(mapping: &Bound<'py, PyMapping>, key: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    match mapping.get_item(key) {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_instance_of::<PyKeyError>(mapping.py()) => Ok(None),
        Err(error) => Err(error),
    }
}
