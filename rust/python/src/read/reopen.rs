//! Pickling of `Reader`: another process opens the same snapshot.

use std::path::{Path, PathBuf};

use fastrecord_core::{Reader as CoreReader, SnapshotId, Verify, from_hex, hex};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::convert::verify::Check;
use crate::error::{path_text, to_py};
use crate::logging::{delivered, follow};
use crate::read::reader::{Reader, access_from};

/// Returns the function and the arguments that pickle calls in the other process.
pub(crate) fn reduced<'py>(
    py: Python<'py>,
    reader: &CoreReader,
    path: &Path,
    access: &str,
    verify: Verify,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
    let id = reader.snapshot();
    let open = py.import("fastrecord._core")?.getattr("open_snapshot")?;
    let (file, verify) = (hex(&id.file_id), Check(verify).object(py)?);
    let arguments = (path_text(py, path), access, reader.threads(), file, id.commit, id.footer, id.crc, verify);
    Ok((open, arguments.into_pyobject(py)?))
}

/// Open the same snapshot as another process. Used by a pickled Reader, and for snapshots of data sets,
/// which may lack the CRC of the footer.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // the arguments of the pickled reader
pub(crate) fn open_snapshot(
    py: Python<'_>,
    path: PathBuf,
    access: &str,
    threads: Option<usize>,
    file_id: &str,
    commit: u64,
    footer: u64,
    footer_crc: Option<u32>,
    verify: Check,
) -> PyResult<Reader> {
    let Some(file_id) = from_hex(file_id) else {
        return Err(PyValueError::new_err(format!("a file id is 32 hexadecimal digits, not {file_id:?}")));
    };
    let (access, wanted) = (access_from(access)?, SnapshotId { file_id, commit, footer, crc: footer_crc });
    follow(py)?;
    let reader = py.detach(|| CoreReader::open_snapshot(&path, access, threads, wanted)).map_err(to_py);
    let reader = delivered(py, reader)?;
    Reader::with(py, path, reader, verify.0)
}
