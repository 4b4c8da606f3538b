//! The class `fastrecord._core.Salvage`: finds the readable records of a damaged file.

use std::path::PathBuf;

use fastrecord_core::{LostRecords, Salvage as CoreSalvage, Verify};
use numpy::PyArray1;
use pyo3::prelude::*;

use crate::error::{with_progress, without_gil};
use crate::read::reader::Reader;

/// Find the newest readable commit of a damaged file, and its readable records. The file is opened
/// read-only.
///
/// Args:
///     path: The file.
///     progress: Called periodically with (payload bytes checked, total bytes). An exception in it
///         ends the search.
///
/// Raises:
///     CorruptFileError: nothing can be saved. OSError: the file cannot be opened or read.
#[pyclass(module = "fastrecord._core", frozen)]
pub(crate) struct Salvage {
    path: PathBuf,
    core: CoreSalvage,
}

#[pymethods]
impl Salvage {
    #[new]
    #[pyo3(signature = (path, *, progress = None))]
    fn new(py: Python<'_>, path: PathBuf, progress: Option<Py<PyAny>>) -> PyResult<Self> {
        let mut core = without_gil(py, |control| CoreSalvage::open(&path, None, control))?;
        let total = core.reader().bytes();
        with_progress(py, progress.as_ref(), Some(total), |control| core.check(control))?;
        Ok(Self { path, core })
    }

    /// Return a Reader of the commit. Values that it returns for lost records are meaningless.
    fn reader(&self, py: Python<'_>) -> PyResult<Reader> {
        Reader::with(py, self.path.clone(), self.core.reader().clone(), Verify::default())
    }

    /// Return int64 (N,): the numbers of the records from `first` to before `end` that can be
    /// saved.
    fn saved<'py>(&self, py: Python<'py>, first: u64, end: u64) -> Bound<'py, PyArray1<i64>> {
        let runs = self.core.saved().into_iter().map(|run| run.start.max(first)..run.end.min(end));
        PyArray1::from_iter(py, runs.flatten().map(u64::cast_signed))
    }

    /// The number of records that can be saved.
    #[getter]
    fn saved_records(&self) -> u64 {
        self.core.saved().iter().map(|run| run.end - run.start).sum()
    }

    /// The losses in record order: (first record, end of the range (exclusive), field or None,
    /// reason).
    #[getter]
    fn losses(&self) -> Vec<(u64, u64, Option<String>, String)> {
        let row = |loss: &LostRecords| (loss.records.start, loss.records.end, loss.field.clone(), loss.why.clone());
        self.core.losses().iter().map(row).collect()
    }

    /// Damage to the file's structure.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.core.notes().to_vec()
    }

    /// Whether anything is damaged.
    #[getter]
    fn damaged(&self) -> bool {
        self.core.is_damaged()
    }

    /// The number of records in the file, as far as it is known.
    #[getter]
    fn records(&self) -> u64 {
        self.core.records()
    }

    /// Whether a later commit added an unknown number of records.
    #[getter]
    fn lost_unknown(&self) -> bool {
        self.core.lost_unknown()
    }
}
