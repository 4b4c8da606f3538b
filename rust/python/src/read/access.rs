//! How a file is accessed, by name; and what pickle calls to open the same snapshot elsewhere.

use std::path::Path;

use fastrecord_core::{Access, FileId, from_hex, hex};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::convert::verify::Check;
use crate::error::path_text;
use crate::read::state::ReaderState;

pub(crate) fn access_from(name: &str) -> PyResult<Access> {
    match name {
        "mmap" => Ok(Access::Mmap),
        "pread" => Ok(Access::Pread),
        other => Err(PyValueError::new_err(format!("access is \"mmap\" or \"pread\", not {other:?}"))),
    }
}

pub(crate) fn access_name(access: Access) -> &'static str {
    if access == Access::Mmap { "mmap" } else { "pread" }
}

pub(crate) fn file_id_from(text: &str) -> PyResult<FileId> {
    let wrong = || PyValueError::new_err(format!("a file id is 32 hexadecimal digits, not {text:?}"));
    from_hex(text).ok_or_else(wrong)
}

/// Returns the function and the arguments that pickle calls in the other process.
pub(crate) fn reduced<'py>(
    py: Python<'py>,
    state: &ReaderState,
    path: &Path,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
    let (reader, id) = (&state.reader, state.reader.snapshot());
    let open = py.import("fastrecord._core")?.getattr("open_snapshot")?;
    let (access, file, verify) = (access_name(reader.access()), hex(&id.file_id), Check(state.verify).object(py)?);
    let arguments = (path_text(py, path), access, reader.threads(), file, id.commit, id.footer, id.crc, verify);
    Ok((open, arguments.into_pyobject(py)?))
}
