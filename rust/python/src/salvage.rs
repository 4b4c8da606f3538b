//! `fastrecord._core.Salvage`: what is left of a damaged file.

use std::path::PathBuf;

use fastrecord_core::{Loss, Salvage as CoreSalvage, Verify};
use numpy::PyArray1;
use pyo3::prelude::*;

use crate::error::{Progress, without_gil};
use crate::read::reader::Reader;

/// Look for the newest commit of a damaged file that can be read, and find out which of its records can be. The file is only read.
///
/// Args:
///     path: The file.
///     progress: Called with (bytes of payloads checked, bytes in all), now and then; an exception in it ends the search.
///
/// Raises:
///     CorruptFileError: there is nothing to be saved. OSError: the file can not be opened or read.
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
        let mut shown = Progress::new(progress.as_ref());
        let outcome = without_gil(py, |interrupted| {
            let mut core = CoreSalvage::open(&path, None, interrupted)?;
            let total = core.reader().bytes();
            core.check(|done| shown.tell((done, total)) || interrupted())?;
            Ok(core)
        });
        let core = shown.outcome(outcome)?;
        Ok(Self { path, core })
    }

    /// A Reader of the commit. It gives what was saved; of lost records what it gives is worth nothing.
    fn reader(&self, py: Python<'_>) -> PyResult<Reader> {
        Reader::with(py, self.path.clone(), self.core.reader().clone(), Verify::default())
    }

    /// Return the numbers of records that can be saved, int64 (N,), of those from `first` to before `end`.
    fn saved<'py>(&self, py: Python<'py>, first: u64, end: u64) -> Bound<'py, PyArray1<i64>> {
        let runs = self.core.saved().into_iter().map(|run| run.start.max(first)..run.end.min(end));
        PyArray1::from_iter(py, runs.flatten().map(u64::cast_signed))
    }

    /// How many records can be saved.
    #[getter]
    fn saved_records(&self) -> u64 {
        self.core.saved().iter().map(|run| run.end - run.start).sum()
    }

    /// What is lost, in record order: (first record, the one behind the last, field or None, why).
    #[getter]
    fn losses(&self) -> Vec<(u64, u64, Option<String>, String)> {
        let row = |loss: &Loss| (loss.records.start, loss.records.end, loss.field.clone(), loss.why.clone());
        self.core.losses().iter().map(row).collect()
    }

    /// What of the file's structure is damaged, or was taken from an older commit.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.core.notes().to_vec()
    }

    /// Whether anything is damaged.
    #[getter]
    fn damaged(&self) -> bool {
        self.core.is_damaged()
    }

    /// Records that the file had, as far as anything tells.
    #[getter]
    fn records(&self) -> u64 {
        self.core.records()
    }

    /// Whether there was a later commit of which nothing tells how many records it added.
    #[getter]
    fn lost_unknown(&self) -> bool {
        self.core.lost_unknown()
    }
}
