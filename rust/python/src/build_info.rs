//! Build and file facts for diagnostics: limits, library versions, CPU features, chunks, page
//! cache.

use std::path::PathBuf;

use fastrecord_core::limits;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert::indices::int64_array;
use crate::error::to_py;
use crate::read::reader::Reader;

/// Return the limits beyond which input is refused: name -> number.
#[pyfunction]
pub(crate) fn all_limits(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in limits::limits() {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}

/// Return the built-in libraries: name -> version.
#[pyfunction]
pub(crate) fn libraries(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    texts(py, fastrecord_core::libraries())
}

/// Return the CPU instructions in use: purpose -> name.
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

/// Return how many bytes of a file are in the page cache, and its size. Reads none of its bytes.
///
/// For a file that the caller does not own and cannot write to, the system reports all bytes as
/// cached.
#[pyfunction]
pub(crate) fn resident_bytes(py: Python<'_>, path: PathBuf) -> PyResult<(u64, u64)> {
    py.detach(|| fastrecord_core::resident_bytes(&path)).map_err(to_py)
}

/// Return the largest number of chunks of any column in a reader's snapshot.
#[pyfunction]
pub(crate) fn count_chunks(reader: &Bound<'_, Reader>) -> PyResult<usize> {
    Ok(reader.get().state()?.reader.chunks())
}

/// Return the kind of each record's side bytes, int64 (N,): 0 none, 2 a crop index, and
/// any other kind as it is stored.
#[pyfunction]
pub(crate) fn side_kinds<'py>(
    py: Python<'py>,
    reader: &Bound<'py, Reader>,
    field: &str,
    records: Vec<i64>,
) -> PyResult<Bound<'py, PyAny>> {
    let state = reader.get().state()?;
    let _kept = reader.get().need(py, Some(&[field]), None, true)?;
    let kinds = py.detach(|| {
        let field = state.reader.field(field)?;
        state.reader.side_kinds(field, &state.reader.resolve(&records)?)
    });
    Ok(int64_array(py, kinds.map_err(to_py)?.into_iter().map(u64::from).collect()))
}

/// Return how each record's value is stored, int64 (N,), as docs/format.md numbers it: 0 as it is, 1 by
/// lz4, 2 by zstd, 3 as a packed JPEG. 0 for a missing value.
#[pyfunction]
pub(crate) fn codecs<'py>(
    py: Python<'py>,
    reader: &Bound<'py, Reader>,
    field: &str,
    records: Vec<i64>,
) -> PyResult<Bound<'py, PyAny>> {
    let state = reader.get().state()?;
    let _kept = reader.get().need(py, Some(&[field]), None, false)?;
    let codecs = py.detach(|| {
        let field = state.reader.field(field)?;
        state.reader.codecs(field, &state.reader.resolve(&records)?)
    });
    Ok(int64_array(py, codecs.map_err(to_py)?.into_iter().map(|codec| codec as u64).collect()))
}

/// Return the bytes of all values of a field, and the bytes that they take without side bytes.
#[pyfunction]
pub(crate) fn value_bytes(py: Python<'_>, reader: &Bound<'_, Reader>, field: &str) -> PyResult<(u64, u64)> {
    let state = reader.get().state()?;
    let _kept = reader.get().need(py, Some(&[field]), None, false)?;
    py.detach(|| state.reader.sizes(state.reader.field(field)?)).map_err(to_py)
}
