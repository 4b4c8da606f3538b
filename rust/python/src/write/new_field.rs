//! The class `fastrecord.NewFieldWriter`: values for a new field of existing records.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrecord_core::{Column, Field, NewField, Value};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::convert::indices::bad_value;
use crate::write::input::{InputColumn, extract_column, extract_value};
use crate::write::state::WriterState;

/// Takes the values of a new field, in record order. Created by `Writer.add_field`.
///
/// At its normal end a `with` block commits the field if every record has a value, and raises if
/// not. An exception drops the field. Uncommitted values leave the file unchanged, also if the
/// process is killed.
#[pyclass(module = "fastrecord", frozen)]
pub(crate) struct NewFieldWriter {
    state: Arc<WriterState>,
    new: NewField,
    field: Field,
    filled: AtomicU64,
}

impl NewFieldWriter {
    pub(crate) fn new(state: Arc<WriterState>, new: NewField, field: Field) -> Self {
        Self { state, new, field, filled: AtomicU64::new(0) }
    }

    fn next(&self) -> u64 {
        self.filled.load(Ordering::Relaxed)
    }

    fn bad_value(&self, py: Python<'_>, ahead: u64, detail: &str) -> PyErr {
        let writer = self.state.lock(py);
        writer.map_or_else(|e| e, |w| bad_value(w.path(), self.next() + ahead, &self.field.name, detail))
    }

    fn fill(&self, py: Python<'_>, values: &InputColumn) -> PyResult<u64> {
        let (column, count) = (values.column(py), values.len(py));
        let bytes = match &column {
            Column::Block { data, .. } => data.len(),
            Column::Values(values) => values.iter().map(Value::input_bytes).sum(),
        };
        self.state.append(py, bytes, |writer| match &column {
            Column::Block { data, shape } => writer.fill_block(self.new, data, shape, count),
            Column::Values(values) => writer.fill(self.new, values),
        })?;
        Ok(self.filled.fetch_add(count as u64, Ordering::Relaxed))
    }
}

#[pymethods]
impl NewFieldWriter {
    /// Give the next record its value; return the record's number.
    ///
    /// Raises:
    ///     SchemaError: the value does not fit, or every record has one; names record and field;
    ///     nothing was taken.
    ///     OSError: a write failed (a full disk). The file is intact up to its last commit; its
    ///     writer cannot continue.
    fn append(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<u64> {
        let value = extract_value(value, &self.field.kind).map_err(|detail| self.bad_value(py, 0, &detail))?;
        self.fill(py, &InputColumn::Values(vec![value]))
    }

    /// Give the next N records their values; return the number of the first.
    ///
    /// Args:
    ///     values: N values, held in memory until this call returns. For scalars and arrays of a
    ///         fixed shape, an array or a tensor (N, *shape) of the field's dtype is fastest.
    /// Raises:
    ///     As `append`; nothing of the call was taken.
    fn extend(&self, py: Python<'_>, values: &Bound<'_, PyAny>) -> PyResult<u64> {
        let values = extract_column(values, &self.field.kind)?;
        let values = values.map_err(|(i, detail)| self.bad_value(py, i, &detail))?;
        self.fill(py, &values)
    }

    /// Commit the field, durably. Closing twice is allowed.
    ///
    /// Raises:
    ///     SchemaError: some records have no value; reports how many. The field is dropped.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.state.call(py, |writer| match writer.filled(self.new) {
            Ok(_) => writer.commit_field(self.new).map(drop),
            Err(_) => Ok(()), // committed or dropped already
        })
    }

    /// Drop the field and its values: the file stays unchanged. Does nothing after a commit.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        if self.state.is_from_another_process() {
            return Ok(()); // a forked child that leaves the block: the file belongs to its parent
        }
        self.state.call(py, |writer| writer.drop_new_field(self.new))
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, py: Python<'_>, exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        let failed = exception.iter().next().is_some_and(|kind| !kind.is_none());
        if failed { self.abort(py) } else { self.close(py) }
    }

    /// Return the number of records that have a value so far.
    fn __len__(&self) -> usize {
        self.next() as usize
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let writer = self.state.lock(py)?;
        let (path, records) = (writer.path().display(), writer.len());
        Ok(format!("<fastrecord.NewFieldWriter '{path}': {}, {} of {records} records>", self.field.name, self.next()))
    }

    /// The name of the new field.
    #[getter]
    fn name(&self) -> &str {
        &self.field.name
    }
}
