//! The class `fastrecord._core.Copier`: writes a new file from records of other files.

use std::path::PathBuf;

use fastrecord_core::{
    Control, Conversion, Copier as CoreCopier, Error, Mode, Renumber, stored_bytes as core_stored_bytes,
};
use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::convert::indices::{absolute, int64_array, positions, to_json};
use crate::error::{path_text, to_py, with_progress};
use crate::exclusive::Exclusive;
use crate::logging::{delivered, follow};
use crate::read::reader::Reader;

/// Write a new file from records of other files. Payloads are copied as stored, never decoded, unless
/// images are to be packed or restored.
///
/// Args:
///     path: The file to write. It cannot be read before `commit`. Leaving a `with` block without a
///         commit removes it.
///     like: An open Reader. The new file gets its fields.
///     records: Number of records to copy; reserves space for their entries.
///     overwrite: Replace an existing file at `close`. Otherwise an existing file is refused.
///     verify: Check the CRC of each payload while copying.
///     packed: Store JPEGs as packed coefficients (True), or packed ones as the files that they were
///         (False). None keeps each image as it is stored. Damaged images stay as they are, unless
///         they are verified.
///
/// Raises:
///     FileExistsError, LockedError, OSError: as `Writer`.
#[pyclass(module = "fastrecord._core", frozen)]
pub(crate) struct Copier {
    path: PathBuf,
    core: Exclusive<CoreCopier>,
}

impl Copier {
    /// Runs one copy. An exception in `progress` ends it.
    fn copy(
        &self,
        py: Python<'_>,
        progress: Option<Py<PyAny>>,
        work: impl FnOnce(&mut CoreCopier, &dyn Control) -> fastrecord_core::Result<()> + Send,
    ) -> PyResult<()> {
        let mut guard = self.core.take(py, &self.path)?;
        let copier = &mut *guard;
        let outcome = with_progress(py, progress.as_ref(), None, |control| work(copier, control));
        drop(guard);
        delivered(py, outcome)
    }
}

fn renumbering(given: Option<(String, PyReadonlyArray1<'_, i64>)>) -> Vec<Renumber> {
    let numbers = given.map(|(field, numbers)| Renumber { field, numbers: numbers.as_array().to_vec() });
    numbers.into_iter().collect()
}

#[pymethods]
impl Copier {
    #[new]
    #[pyo3(signature = (path, like, records, *, overwrite = false, verify = false, packed = None))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        like: &Bound<'_, Reader>,
        records: u64,
        overwrite: bool,
        verify: bool,
        packed: Option<bool>,
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
        let mut copier = delivered(py, copier)?;
        if let Some(packed) = packed {
            copier.convert(if packed { Conversion::Pack } else { Conversion::Restore });
        }
        Ok(Self { path, core: Exclusive::new(copier) })
    }

    /// Copy `count` records of a reader, starting at `first`. Their payloads keep the layout of the
    /// source file.
    ///
    /// Args:
    ///     renumber: An int64 field and the new value for each old value, int64 (K,). Negative
    ///         values do not change.
    ///     progress: Called periodically with the number of bytes written so far.
    /// Raises:
    ///     SchemaError: the fields differ, or a value has no new value. CorruptFileError: damage.
    ///     OSError: a read or a write failed.
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
        let _kept = reader.get().need(py, None, Some(&run.clone().collect::<Vec<_>>()), true)?;
        self.copy(py, progress, |copier, control| copier.copy_run(&state.reader, run, &renumber, control))
    }

    /// Copy records in the order of `rows`, int64 (N,). Their payloads are laid out in this order,
    /// unless `rows` is ascending.
    #[pyo3(signature = (reader, rows, *, renumber = None, progress = None))]
    fn copy_rows(
        &self,
        py: Python<'_>,
        reader: &Bound<'_, Reader>,
        rows: PyReadonlyArray1<'_, i64>,
        renumber: Option<(String, PyReadonlyArray1<'_, i64>)>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let (state, renumber) = (reader.get().state()?, renumbering(renumber));
        let rows = positions(&rows, state.reader.len())?;
        let _kept = reader.get().need(py, None, Some(&rows), true)?;
        self.copy(py, progress, |copier, control| copier.copy_rows(&state.reader, &rows, &renumber, control))
    }

    /// Write the columns. Afterwards no record can be added, and `commit` has little left to do.
    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        let mut guard = self.core.take(py, &self.path)?;
        let copier = &mut *guard;
        let settled = py.detach(|| copier.settle()).map_err(to_py);
        drop(guard);
        delivered(py, settled)
    }

    /// Make the file durable with this metadata. `close` then gives it its name.
    #[pyo3(signature = (metadata, *, complete = true))]
    fn commit(&self, py: Python<'_>, metadata: &Bound<'_, PyAny>, complete: bool) -> PyResult<()> {
        let metadata = to_json(metadata)?;
        let mut guard = self.core.take(py, &self.path)?;
        let copier = &mut *guard;
        let committed = py.detach(|| copier.commit(metadata, complete)).map_err(to_py);
        drop(guard);
        delivered(py, committed)
    }

    /// Rename the committed file to its final name, replacing an existing file.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let mut guard = self.core.take(py, &self.path)?;
        let copier = &mut *guard;
        let closed = py.detach(|| copier.close()).map_err(to_py);
        drop(guard);
        delivered(py, closed)
    }

    /// Remove the file, unless it is closed.
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

    /// Return the number of records copied so far.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.core.take(py, &self.path)?.len() as usize)
    }

    /// The path given to the constructor.
    #[getter]
    fn path<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        path_text(py, &self.path)
    }

    /// The number of images that were packed or restored, and of those that could not be packed.
    #[getter]
    fn converted(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let counts = self.core.take(py, &self.path)?.converted();
        Ok((counts.converted, counts.unchanged))
    }

    /// Bytes written so far.
    #[getter]
    fn bytes_written(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.core.take(py, &self.path)?.bytes_written())
    }
}

/// Return the approximate stored size in bytes of each of `count` records starting at `first`,
/// int64 (count,).
#[pyfunction]
pub(crate) fn stored_bytes<'py>(
    py: Python<'py>,
    reader: &Bound<'py, Reader>,
    first: u64,
    count: u64,
) -> PyResult<Bound<'py, PyAny>> {
    let state = reader.get().state()?;
    let end = first.checked_add(count).ok_or_else(|| PyIndexError::new_err("the run is out of range"))?;
    let _kept = reader.get().need(py, None, None, false)?;
    let bytes = py.detach(|| core_stored_bytes(&state.reader, first..end)).map_err(to_py)?;
    Ok(int64_array(py, bytes))
}
