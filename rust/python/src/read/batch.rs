//! `Batch`: the result of `Reader.read_batch`.

use std::sync::Arc;

use fastrecord_core::{FieldType, Records};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use crate::convert::indices::list_of;
use crate::error::to_py;
use crate::read::state::ReaderState;
use crate::read::unopened::Unopened;
use crate::read::values::Values;

/// Records read in one call: a mapping of field name to values.
///
/// Fields of type image and bytes are `Payloads`, sequences of N read-only memoryviews that keep
/// the mapping alive. Scalars are numpy arrays (N,). Arrays of a fixed shape are stacked:
/// (N, *shape). Both own their memory. Arrays of a variable shape are `Arrays`. Strings are a list
/// of N str, and JSON values a list of N objects.
#[pyclass(module = "fastrecord", frozen, mapping)]
pub(crate) struct Batch {
    pub(crate) state: Arc<ReaderState>,
    pub(crate) records: Records<'static>,
    pub(crate) fields: Vec<(String, Values)>,
    /// What brings the file's parts, as texts are read only when they are asked for.
    pub(crate) shard: Option<Arc<Unopened>>,
}

#[pymethods]
impl Batch {
    /// Return the number of records.
    fn __len__(&self) -> usize {
        self.records.len()
    }

    fn __getitem__(&self, py: Python<'_>, field: &str) -> PyResult<Py<PyAny>> {
        let found = self.fields.iter().find(|(name, _)| name == field);
        let Some((_, values)) = found else {
            let known = self.keys().join(", ");
            return Err(PyKeyError::new_err(format!("no field {field:?} in this batch: it has {known}")));
        };
        match values {
            Values::Ready(values) => Ok(values.clone_ref(py)),
            Values::Texts(position, cell) => {
                if let Some(list) = cell.get() {
                    return Ok(list.clone_ref(py));
                }
                let read = || py.detach(|| self.state.reader.strings(*position, &self.records)).map_err(to_py);
                let texts = match &self.shard {
                    Some(shard) => shard.reading(py, Some(&[field]), Some(&self.records), true, read)?,
                    None => read()?,
                };
                let json = self.state.reader.schema()[*position].kind == FieldType::Json;
                let value = |(text, &record): (Option<String>, &u64)| match text {
                    Some(text) if json => self.state.parsed(py, *position, record, &text),
                    Some(text) => Ok(PyString::from_bytes(py, text.as_bytes())?.into_any()),
                    None => Ok(py.None().into_bound(py)),
                };
                let list = list_of(py, texts.into_iter().zip(self.records.iter()).map(value))?;
                Ok(cell.get_or_init(|| list.into_any().unbind()).clone_ref(py))
            }
        }
    }

    fn __contains__(&self, field: &Bound<'_, PyAny>) -> bool {
        field.cast::<PyString>().is_ok_and(|name| self.fields.iter().any(|(n, _)| name == n.as_str()))
    }

    /// Return the names of the fields.
    fn keys(&self) -> Vec<String> {
        self.fields.iter().map(|(name, _)| name.clone()).collect()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyList::new(py, self.keys())?.try_iter()?.into_any())
    }

    fn __repr__(&self) -> String {
        format!("<fastrecord.Batch of {} records: {}>", self.records.len(), self.keys().join(", "))
    }
}
