//! Conversion of list values: payloads to Python lists and back. It does not read files.

use std::sync::Arc;

use fastrecord_core::{DType, Damage, FieldIndex, FieldType, ListItem, Records, Verify};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use crate::convert::arrays::{array_over, number};
use crate::convert::buffers::{Bytes, export, slice};
use crate::convert::indices::list_of;
use crate::error::{to_py, without_gil};
use crate::read::state::ReaderState;

/// Parses a list payload. Numbers, text and JSON become Python objects; bytes become memoryviews;
/// arrays become read-only arrays.
pub(crate) fn list_owned<'py>(
    py: Python<'py>,
    state: &ReaderState,
    field: FieldIndex,
    item: &FieldType,
    record: u64,
    bytes: Vec<u8>,
) -> PyResult<Bound<'py, PyAny>> {
    let bytes = Arc::new(bytes);
    let view = export(py, Bytes::Owned(Arc::clone(&bytes)))?.into_bound(py);
    let items = state.reader.items(field, record, &bytes).map_err(to_py)?;
    Builder { state, field, record, view: &view, offset: 0, bytes: &bytes }.list(item, &items)
}

/// Reads the lists of many records.
pub(crate) fn lists_of<'py>(
    py: Python<'py>,
    state: &ReaderState,
    field: FieldIndex,
    item: &FieldType,
    records: &Records<'_>,
) -> PyResult<Bound<'py, PyList>> {
    let reader = &state.reader;
    // The threads copy and check the payloads into one shared buffer. The bytes must not change
    // while they are parsed.
    let read = without_gil(py, |control| reader.read_batch_owned(field, records, Verify::Always, control));
    let (bytes, places) = read?;
    let all = Arc::new(bytes);
    let view = export(py, Bytes::Owned(Arc::clone(&all)))?.into_bound(py);
    let list = |(&record, place): (&u64, Option<(u64, u64)>)| {
        let Some((offset, length)) = place else { return Ok(py.None().into_bound(py)) };
        let bytes = all.get(offset as usize..(offset + length) as usize).unwrap_or_default();
        let items = reader.items(field, record, bytes).map_err(to_py)?;
        Builder { state, field, record, view: &view, offset, bytes }.list(item, &items)
    };
    list_of(py, records.iter().zip(places).map(list))
}

struct Builder<'a, 'py> {
    state: &'a ReaderState,
    field: FieldIndex,
    record: u64,
    view: &'a Bound<'py, PyAny>,
    /// The offset of the list in the view.
    offset: u64,
    bytes: &'a [u8],
}

impl<'py> Builder<'_, 'py> {
    fn list(&self, kind: &FieldType, items: &[ListItem]) -> PyResult<Bound<'py, PyAny>> {
        let py = self.view.py();
        if let (FieldType::Scalar(dtype), [all]) = (kind, items) {
            return self.numbers(*dtype, all);
        }
        Ok(list_of(py, items.iter().map(|item| self.item(kind, item)))?.into_any())
    }

    fn numbers(&self, dtype: DType, all: &ListItem) -> PyResult<Bound<'py, PyAny>> {
        let py = self.view.py();
        if dtype == DType::BFloat16 {
            let numbers = self.bytes[all.range.clone()].chunks_exact(2).map(|bytes| number(py, dtype, bytes));
            return Ok(list_of(py, numbers)?.into_any());
        }
        let offset = self.offset + all.range.start as u64;
        array_over(self.view, offset, dtype, all.shape.iter().copied())?.call_method0(intern!(py, "tolist"))
    }

    fn item(&self, kind: &FieldType, item: &ListItem) -> PyResult<Bound<'py, PyAny>> {
        let offset = self.offset + item.range.start as u64;
        match kind {
            FieldType::Array(array) => array_over(self.view, offset, array.dtype(), item.shape.iter().copied()),
            FieldType::String | FieldType::Json => {
                let text = std::str::from_utf8(&self.bytes[item.range.clone()]);
                let text = text.map_err(|_| self.bad("an item is not valid UTF-8"))?;
                if *kind == FieldType::Json {
                    return self.state.parsed(self.view.py(), self.field, self.record, text);
                }
                Ok(PyString::from_bytes(self.view.py(), text.as_bytes())?.into_any())
            }
            _ => slice(self.view, offset, item.range.len() as u64),
        }
    }

    fn bad(&self, detail: &str) -> PyErr {
        to_py(self.state.reader.damaged(self.field, self.record, Damage::List(detail.to_owned())))
    }
}
