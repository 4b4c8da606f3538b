//! Input mappings of a writer: field names to values, of one record or of many.

use fastrecord_core::Schema;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyMapping;

use crate::convert::indices::bad_value;
use crate::error::SchemaError;
use crate::write::input::{FileColumn, Held, HeldColumn, hold, hold_column};
use crate::write::writer::Writer;

impl Writer {
    /// Returns the columns of many records, in schema order, and the number of records.
    pub(crate) fn held_columns(&self, columns: &Bound<'_, PyMapping>) -> PyResult<(Vec<HeldColumn>, usize)> {
        let py = columns.py();
        let schema = self.known();
        let fields = schema.fields();
        let (mut held, mut count): (Vec<HeldColumn>, Option<usize>) = (Vec::with_capacity(fields.len()), None);
        for field in fields {
            let values = get(columns, &field.name)?;
            let values = values.ok_or_else(|| self.bad_value(py, &field.name, "there are no values for it"))?;
            let column = hold_column(&values, &field.kind)?;
            let column = column.map_err(|(i, detail)| self.bad_value_of(py, i, &field.name, &detail))?;
            let length = column.len(py);
            if *count.get_or_insert(length) != length {
                let (first, expected) = (&fields[0].name, count.unwrap_or_default());
                let detail = format!("{length} values, where field {first} has {expected}");
                return Err(self.bad_value(py, &field.name, &detail));
            }
            held.push(column);
        }
        if columns.len()? != fields.len()
            && let Some(name) = unknown_key(&schema, columns, None)?
        {
            let detail = format!("no such field: the file has {}", schema.describe());
            return Err(self.bad_value(py, &name, &detail));
        }
        Ok((held, count.unwrap_or_default()))
    }

    pub(crate) fn record_values(&self, record: &Bound<'_, PyMapping>) -> PyResult<Vec<Held>> {
        let py = record.py();
        let schema = self.known();
        let fields = schema.fields();
        let mut held = Vec::with_capacity(fields.len());
        for field in fields {
            let value = get(record, &field.name)?;
            let value = value.ok_or_else(|| self.bad_value(py, &field.name, "the record has no value for it"))?;
            held.push(hold(&value, &field.kind).map_err(|detail| self.bad_value(py, &field.name, &detail))?);
        }
        if record.len()? != fields.len()
            && let Some(name) = unknown_key(&schema, record, None)?
        {
            let detail = format!("no such field: the file has {}", schema.describe());
            return Err(self.bad_value(py, &name, &detail));
        }
        Ok(held)
    }

    fn bad_value(&self, py: Python<'_>, field: &str, detail: &str) -> PyErr {
        self.bad_value_of(py, 0, field, detail)
    }

    fn bad_value_of(&self, py: Python<'_>, ahead: u64, field: &str, detail: &str) -> PyErr {
        self.lock(py).map_or_else(|error| error, |writer| bad_value(writer.path(), writer.len() + ahead, field, detail))
    }
}

/// Returns the position of the field for the files, and the values of each other field, one per
/// file.
pub(crate) fn beside_files(
    schema: &Schema,
    field: &str,
    files: usize,
    values: &Bound<'_, PyMapping>,
) -> PyResult<(usize, Vec<FileColumn>)> {
    let py = values.py();
    let no_field =
        |name: &str| SchemaError::new_err(format!("no field {name:?}: the file has {} [FR407]", schema.describe()));
    let position = schema.position(field).ok_or_else(|| no_field(field))?;
    if let Some(name) = unknown_key(schema, values, Some(field))? {
        let twice = || SchemaError::new_err(format!("field {field}: both files and values are given for it [FR402]"));
        return Err(if name == field { twice() } else { no_field(&name) });
    }
    let mut columns = Vec::new();
    for other in schema.fields().iter().filter(|f| f.name != field) {
        let given = get(values, &other.name)?;
        let given = given.ok_or_else(|| SchemaError::new_err(format!("no values for field {} [FR402]", other.name)))?;
        let column = FileColumn::new(&given, &other.kind);
        let column =
            column.map_err(|e| SchemaError::new_err(format!("field {}: {} [FR402]", other.name, e.value(py))))?;
        if column.len() != files {
            let message = format!("field {}: {} values for {} files [FR402]", other.name, column.len(), files);
            return Err(SchemaError::new_err(message));
        }
        columns.push(column);
    }
    Ok((position, columns))
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
