//! What this build and a file are like: limits, libraries, instructions, chunks and the page cache.

use std::path::PathBuf;

use fastrecord_core::limits;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert::indices::int64_array;
use crate::error::to_py;
use crate::read::reader::Reader;

/// Return what is refused because it is too large: name -> number.
#[pyfunction]
pub(crate) fn all_limits(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in limits::limits() {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}

/// Return the libraries that are built in: name -> version.
#[pyfunction]
pub(crate) fn libraries(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    texts(py, fastrecord_core::libraries())
}

/// Return which instructions of this processor are used: what for -> name.
#[pyfunction]
pub(crate) fn instructions(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    texts(py, fastrecord_core::instructions())
}

fn texts<'py, const N: usize>(py: Python<'py>, pairs: [(&'static str, String); N]) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, text) in pairs {
        dict.set_item(name, text)?;
    }
    Ok(dict)
}

/// Return how many bytes of a file are in the page cache, and how many it has. Nothing of it is read.
///
/// Of a file that the caller may neither write to nor owns, all seem to be there.
#[pyfunction]
pub(crate) fn resident_bytes(py: Python<'_>, path: PathBuf) -> PyResult<(u64, u64)> {
    py.detach(|| fastrecord_core::resident_bytes(&path)).map_err(to_py)
}

/// Return the chunks of the column of a reader's snapshot that has the most of them.
#[pyfunction]
pub(crate) fn count_chunks(reader: &Bound<'_, Reader>) -> PyResult<usize> {
    Ok(reader.get().state()?.reader.chunks())
}

/// Return how many bytes lie behind the values of records for a decoder's use, int64 (N,).
#[pyfunction]
pub(crate) fn side_lengths<'py>(
    py: Python<'py>,
    reader: &Bound<'py, Reader>,
    field: &str,
    records: Vec<i64>,
) -> PyResult<Bound<'py, PyAny>> {
    let state = reader.get().state()?;
    let lengths = py.detach(|| {
        let field = state.reader.field(field)?;
        state.reader.side_lengths(field, &state.reader.resolve(&records)?)
    });
    Ok(int64_array(py, lengths.map_err(to_py)?))
}
