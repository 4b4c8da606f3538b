//! The result of `Reader.read_batch`: `Batch`, and its `Payloads`.

use std::sync::{Arc, OnceLock};

use fastrecord_core::memory::collected;
use fastrecord_core::{FieldIndex, FieldType, Records};
use pyo3::exceptions::{PyIndexError, PyKeyError, PyOverflowError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PySlice, PyString};

use crate::convert::buffers::slice;
use crate::convert::indices::{int64_array, list_of};
use crate::error::to_py;
use crate::read::state::ReaderState;
use crate::read::unopened::Unopened;

/// The values of one field of a batch.
pub(crate) enum Values {
    /// A `Payloads` or a numpy array.
    Ready(Py<PyAny>),
    /// Texts or parsed JSON, created at first access.
    Texts(FieldIndex, OnceLock<Py<PyAny>>),
}

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

/// The payloads of one field of a batch: a sequence of N read-only memoryviews, each created on
/// access.
///
/// A missing value is None. A view keeps the mapping (or the buffer that holds it) alive, also
/// after the reader is closed.
#[pyclass(module = "fastrecord", frozen, sequence)]
pub(crate) struct Payloads {
    pub(crate) view: Py<PyAny>,
    pub(crate) ranges: Arc<Vec<Option<(u64, u64)>>>,
}

fn payload<'py>(view: &Bound<'py, PyAny>, range: Option<(u64, u64)>) -> PyResult<Bound<'py, PyAny>> {
    match range {
        Some((offset, length)) => slice(view, offset, length),
        None => Ok(view.py().None().into_bound(view.py())),
    }
}

#[pymethods]
impl Payloads {
    fn __len__(&self) -> usize {
        self.ranges.len()
    }

    /// Return one memoryview, or a list of them for a slice.
    fn __getitem__<'py>(&self, py: Python<'py>, position: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (view, length) = (self.view.bind(py), self.ranges.len().cast_signed());
        if let Ok(slice) = position.cast::<PySlice>() {
            let slice = slice.indices(length)?;
            let at = (0..slice.slicelength.cast_signed()).map(|i| (slice.start + i * slice.step).cast_unsigned());
            return Ok(list_of(py, at.map(|at| payload(view, self.ranges[at])))?.into_any());
        }
        let at = match position.extract::<isize>() {
            Ok(at) if at < 0 => usize::try_from(at + length).ok(),
            Ok(at) => usize::try_from(at).ok(),
            Err(error) if error.is_instance_of::<PyOverflowError>(py) => None,
            Err(error) => return Err(error),
        };
        let Some(range) = at.and_then(|at| self.ranges.get(at)) else {
            let message = format!("payload {position} is out of range: the batch has {length}");
            return Err(PyIndexError::new_err(message));
        };
        payload(view, *range)
    }

    fn __iter__(&self, py: Python<'_>) -> PayloadIterator {
        PayloadIterator { view: self.view.clone_ref(py), ranges: Arc::clone(&self.ranges), next: 0 }
    }

    /// Return all memoryviews as a list.
    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let view = self.view.bind(py);
        list_of(py, self.ranges.iter().map(|range| payload(view, *range)))
    }

    /// The size of each payload in bytes, int64 (N,); 0 for a missing value.
    #[getter]
    fn lengths<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let lengths = self.ranges.iter().map(|range| range.map_or(0, |(_, length)| length));
        Ok(int64_array(py, collected(lengths).map_err(to_py)?))
    }

    fn __repr__(&self) -> String {
        format!("<fastrecord.Payloads: {} read-only memoryviews>", self.ranges.len())
    }
}

#[pyclass(module = "fastrecord._core")]
pub(crate) struct PayloadIterator {
    view: Py<PyAny>,
    ranges: Arc<Vec<Option<(u64, u64)>>>,
    next: usize,
}

#[pymethods]
impl PayloadIterator {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(range) = self.ranges.get(self.next) else { return Ok(None) };
        self.next += 1;
        payload(self.view.bind(py), *range).map(Some)
    }

    fn __length_hint__(&self) -> usize {
        self.ranges.len() - self.next
    }
}
