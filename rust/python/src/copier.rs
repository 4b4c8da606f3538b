//! `fastrecord._core.Copier`: a new file made of records of others.

use std::ffi::OsString;
use std::path::PathBuf;

use fastrecord_core::{Copier as CoreCopier, Error, Mode, Renumber};
use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::convert::indices::{absolute, int64_array, positions, to_json};
use crate::error::{Progress, to_py, without_gil};
use crate::exclusive::Turns;
use crate::logging::{delivered, follow};
use crate::read::reader::Reader;

/// Write a new file of records of others: payloads as they are stored, never decoded.
///
/// Args:
///     path: The file to write. Nothing can be read of it before `commit`; leaving a `with` block without that removes it.
///     like: An open Reader: its fields are the new file's.
///     records: How many will be copied: room is left for their entries.
///     overwrite: Take the place of an existing file, at `close`; else one is refused.
///     verify: Compare the checksum of each payload on the way.
///
/// Raises:
///     FileExistsError, LockedError, OSError: as `Writer`.
#[pyclass(module = "fastrecord._core", frozen)]
pub(crate) struct Copier {
    path: PathBuf,
    core: Turns<CoreCopier>,
}

impl Copier {
    /// Runs one copy; an exception of `progress` ends it.
    fn copy(
        &self,
        py: Python<'_>,
        progress: Option<Py<PyAny>>,
        work: impl FnOnce(&mut CoreCopier, &mut dyn FnMut(u64) -> bool) -> fastrecord_core::Result<()> + Send,
    ) -> PyResult<()> {
        let mut guard = self.core.take(py, &self.path)?;
        let copier = &mut *guard;
        let mut shown = Progress::new(progress.as_ref());
        let outcome = without_gil(py, |interrupted| work(copier, &mut |bytes| shown.tell((bytes,)) || interrupted()));
        drop(guard);
        delivered(py, shown.outcome(outcome))
    }
}

fn renumbering(given: Option<(String, PyReadonlyArray1<'_, i64>)>) -> Vec<Renumber> {
    let numbers = given.map(|(field, numbers)| Renumber { field, numbers: numbers.as_array().to_vec() });
    numbers.into_iter().collect()
}

#[pymethods]
impl Copier {
    #[new]
    #[pyo3(signature = (path, like, records, *, overwrite = false, verify = false))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        like: &Bound<'_, Reader>,
        records: u64,
        overwrite: bool,
        verify: bool,
    ) -> PyResult<Self> {
        let state = like.get().state()?;
        let mode = if overwrite { Mode::Overwrite } else { Mode::Create };
        let place = absolute(&path);
        follow(py)?;
        let copier = py.detach(|| CoreCopier::create(&place, &state.reader, mode, records, verify));
        let copier = copier.map_err(|error| match error {
            Error::Io { path: named, source } if named == place => to_py(Error::Io { path: path.clone(), source }),
            error => to_py(error),
        });
        let copier = delivered(py, copier)?;
        Ok(Self { path, core: Turns::new(copier) })
    }

    /// Copy `count` records of a reader from `first` on; their payloads will lie as they do in its file.
    ///
    /// Args:
    ///     renumber: An int64 field and new values by old value, int64 (K,); negative values stay.
    ///     progress: Called with the bytes written so far, now and then.
    /// Raises:
    ///     SchemaError: other fields, or a value without a new one. CorruptFileError: damage. OSError: a read or a write failed.
    #[pyo3(signature = (reader, first, count, *, renumber = None, progress = None))]
    fn copy_run(
        &self,
        py: Python<'_>,
        reader: &Bound<'_, Reader>,
        first: u64,
        count: u64,
        renumber: Option<(String, PyReadonlyArray1<'_, i64>)>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let (state, renumber) = (reader.get().state()?, renumbering(renumber));
        let run = first..first.saturating_add(count);
        self.copy(py, progress, |copier, progress| copier.copy_run(&state.reader, run, &renumber, progress))
    }

    /// Copy records in the order of `rows`, int64 (N,); unless it is ascending, their payloads will lie in this order too.
    #[pyo3(signature = (reader, rows, *, progress = None))]
    fn copy_rows(
        &self,
        py: Python<'_>,
        reader: &Bound<'_, Reader>,
        rows: PyReadonlyArray1<'_, i64>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let state = reader.get().state()?;
        let rows = positions(&rows, state.reader.len())?;
        self.copy(py, progress, |copier, progress| copier.copy_rows(&state.reader, &rows, &[], progress))
    }

    /// Write the columns: no record can be added any more, and little is left to do for `commit`.
    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        let mut guard = self.core.take(py, &self.path)?;
        let copier = &mut *guard;
        let settled = py.detach(|| copier.settle()).map_err(to_py);
        drop(guard);
        delivered(py, settled)
    }

    /// Make the file durable with these key/values; `close` gives it its name.
    #[pyo3(signature = (metadata, *, complete = true))]
    fn commit(&self, py: Python<'_>, metadata: &Bound<'_, PyAny>, complete: bool) -> PyResult<()> {
        let metadata = to_json(metadata)?;
        let mut guard = self.core.take(py, &self.path)?;
        let copier = &mut *guard;
        let committed = py.detach(|| copier.commit(metadata, complete)).map_err(to_py);
        drop(guard);
        delivered(py, committed)
    }

    /// Give the committed file its name, in the place of the one that it replaces.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let mut guard = self.core.take(py, &self.path)?;
        let copier = &mut *guard;
        let closed = py.detach(|| copier.close()).map_err(to_py);
        drop(guard);
        delivered(py, closed)
    }

    /// Remove what was written, unless it is closed.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        if self.core.is_from_another_process() {
            return Ok(());
        }
        let mut guard = self.core.take(py, &self.path)?;
        let copier = &mut *guard;
        py.detach(|| copier.abort());
        Ok(())
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.abort(py)
    }

    /// Records copied so far.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.core.take(py, &self.path)?.len() as usize)
    }

    /// The path that it was opened by.
    #[getter]
    fn path(&self) -> OsString {
        self.path.clone().into_os_string()
    }

    /// Bytes written so far.
    #[getter]
    fn bytes_written(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.core.take(py, &self.path)?.bytes_written())
    }
}

/// Return about how many bytes each of `count` records from `first` on takes in a file, int64 (count,).
#[pyfunction]
pub(crate) fn stored_bytes<'py>(
    py: Python<'py>,
    reader: &Bound<'py, Reader>,
    first: u64,
    count: u64,
) -> PyResult<Bound<'py, PyAny>> {
    let state = reader.get().state()?;
    let end = first.checked_add(count).ok_or_else(|| PyIndexError::new_err("the run is out of range"))?;
    let bytes = py.detach(|| state.reader.stored_bytes(first..end)).map_err(to_py)?;
    Ok(int64_array(py, bytes))
}
