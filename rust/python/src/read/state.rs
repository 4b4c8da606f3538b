//! `ReaderState`: the open file of a `Reader`, and the memory that batches reuse.

use std::sync::{Arc, OnceLock};

use fastrecord_core::{BufferPool, Damage, FieldIndex, Reader as CoreReader, Records, Verify};
use pyo3::exceptions::{PyRecursionError, PyValueError};
use pyo3::prelude::*;

use crate::convert::buffers::{Bytes, export};
use crate::convert::indices::{from_json, index, indices};
use crate::convert::verify::Check;
use crate::error::to_py;

/// A core reader, and the memoryviews that all views are slices of.
pub(crate) struct ReaderState {
    pub(crate) reader: CoreReader,
    /// The view for single records and columns; `None` if nothing is mapped.
    pub(crate) view: Option<Py<PyAny>>,
    /// The view for batches in random order.
    pub(super) random: Option<Py<PyAny>>,
    /// For each field, the memory of earlier batches, for reuse.
    spares: Vec<OnceLock<Arc<BufferPool>>>,
    /// The default of `verify` for each call.
    pub(crate) verify: Verify,
}

/// Where values of a record lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the mapping, if there is one.
    View,
    /// In memory of their own.
    Copy,
}

impl From<bool> for Place {
    fn from(copy: bool) -> Self {
        if copy { Self::Copy } else { Self::View }
    }
}

/// Batches per field whose memory is kept for reuse: the batch in use and the next one.
const SPARES: usize = 2;

impl ReaderState {
    pub(crate) fn new(py: Python<'_>, reader: CoreReader, verify: Verify) -> PyResult<Arc<Self>> {
        let of = |map: Option<&Arc<_>>| map.map(|map| export(py, Bytes::Mapped(Arc::clone(map)))).transpose();
        let (view, random) = (of(reader.mapping())?, of(reader.random_mapping())?);
        let spares = reader.schema().fields().iter().map(|_| OnceLock::new()).collect();
        Ok(Arc::new(Self { reader, view, random, spares, verify }))
    }

    /// Returns the memoryview for batches in random order; `None` if nothing is mapped.
    pub(crate) fn random(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.random.as_ref().map(|view| view.clone_ref(py))
    }

    /// Returns the memory for batches of a field. A forked child does not use its parent's: that
    /// lock may never be released.
    pub(super) fn spares(&self, field: FieldIndex) -> Arc<BufferPool> {
        let spares = self.spares[field.position()].get_or_init(|| BufferPool::new(SPARES));
        if spares.is_ours() { Arc::clone(spares) } else { BufferPool::new(0) }
    }

    /// Looks a field up by its name.
    pub(crate) fn field(&self, name: &str) -> PyResult<FieldIndex> {
        self.reader.field(name).map_err(to_py)
    }

    /// Checks one record number.
    pub(crate) fn record(&self, given: &Bound<'_, PyAny>) -> PyResult<u64> {
        self.reader.resolve_one(index(given)?).map_err(to_py)
    }

    /// Checks record numbers.
    pub(crate) fn records(&self, given: &Bound<'_, PyAny>) -> PyResult<Records<'static>> {
        self.reader.resolve(&indices(given)?).map_err(to_py)
    }

    /// As [`ReaderState::records`]; all records without numbers.
    pub(crate) fn records_or_all(&self, given: Option<&Bound<'_, PyAny>>) -> PyResult<Records<'static>> {
        given.map_or_else(|| self.reader.run(0..self.reader.len()).map_err(to_py), |given| self.records(given))
    }

    /// The given setting of `verify`, or the reader's default.
    pub(crate) fn verify(&self, given: Option<Check>) -> Verify {
        given.map_or(self.verify, |check| check.0)
    }

    /// Parses a record's JSON text.
    pub(crate) fn parsed<'py>(
        &self,
        py: Python<'py>,
        field: FieldIndex,
        record: u64,
        text: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        from_json(py, text).map_err(|error| {
            // Pass KeyboardInterrupt through; it is not a parse error.
            if !error.is_instance_of::<PyValueError>(py) && !error.is_instance_of::<PyRecursionError>(py) {
                return error;
            }
            to_py(self.reader.damaged(field, record, Damage::Json(error.value(py).to_string())))
        })
    }
}
