//! `Payloads`: the payloads of one field of a batch.

use std::sync::Arc;

use fastrecord_core::memory::collected;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::convert::buffers::slice;
use crate::convert::indices::{int64_array, item_at, list_of};
use crate::error::to_py;

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
        item_at(position, self.ranges.len(), "payload", |at| payload(self.view.bind(py), self.ranges[at]))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.tolist(py)?.try_iter()?.into_any())
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
