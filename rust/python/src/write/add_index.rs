//! `add_crop_index`: argument checks, and counts as a dict.

use std::path::PathBuf;

use fastrecord_core::{Error, IndexCounts, IndexOptions, add_crop_index as add_to};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};

use crate::convert::indices::absolute;
use crate::error::with_progress;
use crate::logging::{delivered, follow};

/// Add the crop index to the images of a field, in one or more commits.
///
/// Args:
///     path: The .frec file.
///     field: A field of type image.
///     rebuild: Make all indexes again.
///     commit_records: Commit after this many records, or after 20 seconds.
///     progress: Called periodically with the number of records done.
/// Returns:
///     The number of images: "indexed" now, "present" before, "without" any index,
///     and "packed"; and "bytes", the size of the new indexes.
#[pyfunction]
#[pyo3(signature = (path, field, *, rebuild = false, commit_records = 1 << 20, progress = None))]
pub(crate) fn add_crop_index<'py>(
    py: Python<'py>,
    path: PathBuf,
    field: &str,
    rebuild: bool,
    commit_records: u64,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let place = absolute(&path);
    let options = IndexOptions { rebuild, commit_records };
    follow(py)?;
    let tally = with_progress(py, progress.as_ref(), None, |control| {
        add_to(&place, field, &options, control).map_err(|error| match error {
            Error::Io { path: named, source } if named == place => Error::Io { path: path.clone(), source },
            error => error,
        })
    });
    let IndexCounts { indexed, present, without, packed, bytes } = delivered(py, tally)?;
    let rows = [("indexed", indexed), ("present", present), ("without", without), ("packed", packed), ("bytes", bytes)];
    rows.into_py_dict(py)
}
