//! `RecordIterator`: iterates over the records of a reader.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::read::reader::Reader;

#[pyclass(module = "fastrecord._core")]
pub(crate) struct RecordIterator {
    reader: Py<Reader>,
    next: usize,
}

impl RecordIterator {
    pub(crate) fn new(reader: Py<Reader>) -> Self {
        Self { reader, next: 0 }
    }
}

#[pymethods]
impl RecordIterator {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let reader = self.reader.get();
        if self.next >= reader.__len__()? {
            return Ok(None);
        }
        self.next += 1;
        reader.__getitem__(py, &(self.next - 1).into_pyobject(py)?.into_any()).map(Some)
    }
}
