//! Readers of a snapshot that was named elsewhere: by a pickled reader, or by a manifest.

use std::path::PathBuf;
use std::sync::Arc;

use fastrecord_core::{Reader as CoreReader, SnapshotId};
use pyo3::prelude::*;

use crate::convert::verify::Check;
use crate::error::to_py;
use crate::logging::{delivered, follow};
use crate::read::access::{access_from, file_id_from};
use crate::read::reader::Reader;
use crate::read::unopened::{About, Contents, Unopened};

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
    let (access, file_id) = (access_from(access)?, file_id_from(file_id)?);
    let wanted = SnapshotId { file_id, commit, footer, crc: footer_crc };
    follow(py)?;
    let reader = py.detach(|| CoreReader::open_snapshot(&path, access, threads, wanted)).map_err(to_py);
    let reader = delivered(py, reader)?;
    Reader::with(py, path, reader, verify.0)
}

/// Return a reader of a shard that a manifest names (docs/manifest.md); the file is opened when
/// something is read from it. `fastrecord.dataset` uses it, and a pickled reader of a shard.
///
/// Args:
///     path: The file.
///     access, verify: As in `Reader`.
///     about: What the manifest says of it: file id, commit, records, bytes, CRC of the footer.
///     supply: Brings parts of the file to `path` before they are read, if it lies elsewhere
///         (`fastrecord.store`).
///     contents: What it holds, if that is known: another file is refused when it is opened.
///
/// Raises:
///     ValueError: a file id is not 32 hexadecimal digits.
#[pyfunction]
#[pyo3(signature = (path, access, verify, about, supply = None, contents = None))]
pub(crate) fn open_shard(
    path: PathBuf,
    access: &str,
    verify: Check,
    about: About,
    supply: Option<Py<PyAny>>,
    contents: Option<PyRef<'_, Contents>>,
) -> PyResult<Reader> {
    let how = (access_from(access)?, verify.0);
    Ok(Reader::unopened(Arc::new(Unopened::new(path, how, about, supply, contents)?)))
}
