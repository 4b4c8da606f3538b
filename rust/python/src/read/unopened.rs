//! `Unopened`: the file behind a `Reader` that a manifest named. It is opened when something is read
//! from it, and may be closed again when others are.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use fastrecord_core::{Access, Shard, SnapshotId, Verify, from_hex, hex, most_open};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::convert::verify::Check;
use crate::error::to_py;
use crate::logging::{delivered, follow};
use crate::read::reader::{Reader, access_from};
use crate::read::state::ReaderState;

/// Open shards of all data sets, in the order of their opening. Each lock of this module is held
/// briefly and only with the GIL, so no fork finds it locked.
static OPEN: Mutex<VecDeque<Arc<ReaderState>>> = Mutex::new(VecDeque::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A shard, and how it is read.
pub(crate) struct Unopened {
    pub(crate) shard: Arc<Shard>,
    pub(crate) access: Access,
    pub(crate) verify: Verify,
    state: Mutex<Weak<ReaderState>>,
}

impl Unopened {
    /// Returns the open file.
    pub(crate) fn state(&self) -> PyResult<Arc<ReaderState>> {
        if let Some(state) = lock(&self.state).upgrade() {
            return Ok(state);
        }
        Python::attach(|py| {
            follow(py)?;
            let reader = py.detach(|| self.shard.open(self.access, None)).map_err(to_py);
            let state = ReaderState::new(py, delivered(py, reader)?, self.verify)?;
            *lock(&self.state) = Arc::downgrade(&state);
            let mut open = lock(&OPEN);
            open.push_back(Arc::clone(&state));
            let closed = (open.len() > most_open()).then(|| open.pop_front());
            drop(open);
            drop(closed); // unmapping takes time
            Ok(state)
        })
    }

    /// Closes the file, except for views of it.
    pub(crate) fn close(&self) {
        let Some(state) = lock(&self.state).upgrade() else { return };
        let mut open = lock(&OPEN);
        let place = open.iter().position(|other| Arc::ptr_eq(other, &state));
        let closed = place.and_then(|place| open.remove(place));
        drop(open);
        drop(closed);
    }
}

impl Drop for Unopened {
    fn drop(&mut self) {
        self.close();
    }
}

/// Return a reader of a shard that a manifest names (docs/manifest.md); the file is opened when
/// something is read from it. `fastrecord.dataset` uses it, and a pickled reader of a shard.
///
/// Args:
///     path: The file.
///     access, verify: As in `Reader`.
///     file_id, commit, records, bytes, footer_crc: What the manifest says of it.
///
/// Raises:
///     ValueError: a file id is not 32 hexadecimal digits.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // the columns of a manifest
pub(crate) fn open_shard(
    path: PathBuf,
    access: &str,
    verify: Check,
    file_id: &str,
    commit: u64,
    records: u64,
    bytes: u64,
    footer_crc: u32,
) -> PyResult<Reader> {
    let access = access_from(access)?;
    let Some(file_id) = from_hex(file_id) else {
        return Err(PyValueError::new_err(format!("a file id is 32 hexadecimal digits, not {file_id:?}")));
    };
    let snapshot = SnapshotId { file_id, commit, footer: bytes.saturating_sub(Shard::FOOTER) };
    let shard = Arc::new(Shard { path, snapshot, records, footer_crc });
    Ok(Reader::unopened(Arc::new(Unopened { shard, access, verify: verify.0, state: Mutex::default() })))
}

impl Unopened {
    /// Returns the function and the arguments that pickle calls in the other process.
    pub(crate) fn reduced<'py>(
        &self,
        py: Python<'py>,
        path: &Path,
        access: &str,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let (open, shard) = (py.import("fastrecord._core")?.getattr("open_shard")?, &*self.shard);
        let verify = Check(self.verify).object(py)?;
        let (id, commit) = (hex(&shard.snapshot.file_id), shard.snapshot.commit);
        let of = (path.as_os_str(), access, verify, id, commit, shard.records, shard.bytes(), shard.footer_crc);
        Ok((open, of.into_pyobject(py)?))
    }
}
