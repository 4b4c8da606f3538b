//! `Unopened`: the file behind a `Reader` that a manifest named. It is opened when something is read
//! from it, and may be closed again when others are.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use fastrecord_core::{Access, Contents as CoreContents, Shard, SnapshotId, Verify, hex, most_open};
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};
use serde_json::Value as Json;

use crate::convert::indices::{int64_array, schema_from, schema_to};
use crate::convert::verify::Check;
use crate::error::{CorruptFileError, FastRecordError, SchemaError, path_text, to_py};
use crate::logging::{delivered, follow};
use crate::read::access::{access_name, file_id_from};
use crate::read::state::ReaderState;

/// Open shards of all data sets, in the order of their opening. Each lock of this module is held
/// briefly and only with the GIL, so no fork finds it locked.
static OPEN: Mutex<VecDeque<Arc<ReaderState>>> = Mutex::new(VecDeque::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a manifest says of a shard: file id, commit, records, bytes, and the CRC of its footer.
pub(crate) type About = (String, u64, u64, u64, u32);

/// A shard, and how it is read.
pub(crate) struct Unopened {
    pub(crate) shard: Arc<Shard>,
    pub(crate) access: Access,
    pub(crate) verify: Verify,
    /// What brings the file's parts to `shard.path`, if the file itself lies elsewhere.
    supply: Option<Py<PyAny>>,
    /// Whether values may be given up after they were read, so that views of them would change.
    pub(crate) passing: bool,
    state: Mutex<Weak<ReaderState>>,
}

impl Unopened {
    /// A shard at a path. `supply` brings its parts, if it lies elsewhere.
    pub(crate) fn new(
        path: PathBuf,
        (access, verify): (Access, Verify),
        about: About,
        supply: Option<Py<PyAny>>,
        contents: Option<PyRef<'_, Contents>>,
    ) -> PyResult<Self> {
        let (file_id, commit, records, bytes, crc) = about;
        let passing = |supply: &Py<PyAny>| Python::attach(|py| supply.getattr(py, "passing")?.extract::<bool>(py));
        let passing = supply.as_ref().map(passing).transpose()?.unwrap_or(false);
        let footer = bytes.saturating_sub(Shard::FOOTER);
        let snapshot = SnapshotId { file_id: file_id_from(&file_id)?, commit, footer, crc: Some(crc) };
        let contents = contents.map(|contents| Arc::clone(&contents.core));
        let shard = Arc::new(Shard { path, snapshot, records, contents, place: OnceLock::new() });
        Ok(Self { shard, access, verify, supply, passing, state: Mutex::default() })
    }

    /// Returns the open file.
    pub(crate) fn state(&self) -> PyResult<Arc<ReaderState>> {
        if let Some(state) = lock(&self.state).upgrade() {
            return Ok(state);
        }
        Python::attach(|py| {
            self.bring_head(py)?;
            follow(py)?;
            let open = || py.detach(|| self.shard.open(self.access, None)).map_err(to_py);
            let reader = match open() {
                Err(error) if self.mend_head(py, &error)? => open(),
                opened => opened,
            };
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

    /// Has what opening reads brought here, if the file lies elsewhere.
    fn bring_head(&self, py: Python<'_>) -> PyResult<()> {
        let Some(supply) = &self.supply else { return Ok(()) };
        if self.shard.place.get().is_none() {
            self.set_place(supply.call_method0(py, "open")?.extract(py)?);
        }
        Ok(())
    }

    /// Has what opening reads brought again, if an error says that it is not what it was when it came.
    fn mend_head(&self, py: Python<'_>, error: &PyErr) -> PyResult<bool> {
        let Some(supply) = &self.supply else { return Ok(false) };
        let is_damage = error.is_instance_of::<FastRecordError>(py) && !error.is_instance_of::<SchemaError>(py);
        if is_damage { supply.call_method0(py, "mend_head")?.extract(py) } else { Ok(false) }
    }

    /// Has values brought here from where the file lies. What it returns is kept until they have been
    /// read: as long as it lives, they stay here.
    ///
    /// Without `records`, all are meant; without `payloads`, only the columns of the fields.
    pub(crate) fn need(
        &self,
        py: Python<'_>,
        fields: Option<&[&str]>,
        records: Option<&[u64]>,
        payloads: bool,
    ) -> PyResult<Option<Py<PyAny>>> {
        let Some(supply) = &self.supply else { return Ok(None) };
        self.bring_head(py)?;
        let records = records.map(|records| int64_array(py, records.to_vec()));
        supply.call_method1(py, "need", (fields.map(<[_]>::to_vec), records, payloads)).map(Some)
    }

    /// Has values brought here as [`Unopened::need`] does, and reads them. Once more if the copy here is
    /// damaged, after it was mended.
    pub(crate) fn reading<T>(
        &self,
        py: Python<'_>,
        fields: Option<&[&str]>,
        records: Option<&[u64]>,
        payloads: bool,
        mut read: impl FnMut() -> PyResult<T>,
    ) -> PyResult<T> {
        let _kept = self.need(py, fields, records, payloads)?;
        match read() {
            Err(error)
                if error.is_instance_of::<CorruptFileError>(py) && self.mend(py, fields, records, payloads)? =>
            {
                read()
            }
            done => done,
        }
    }

    /// Has values brought again that differ from their checksums here, after `need` has brought them.
    /// Returns whether it helps to read again.
    pub(crate) fn mend(
        &self,
        py: Python<'_>,
        fields: Option<&[&str]>,
        records: Option<&[u64]>,
        payloads: bool,
    ) -> PyResult<bool> {
        let Some(supply) = &self.supply else { return Ok(false) };
        let records = records.map(|records| int64_array(py, records.to_vec()));
        supply.call_method1(py, "mend", (fields.map(<[_]>::to_vec), records, payloads))?.extract(py)
    }

    /// Returns what brings the file's parts, and whether it is known where to.
    pub(crate) fn supply(&self, py: Python<'_>) -> (Option<Py<PyAny>>, bool) {
        (self.supply.as_ref().map(|supply| supply.clone_ref(py)), self.shard.place.get().is_some())
    }

    /// Notes where the file's parts are brought to.
    pub(crate) fn set_place(&self, place: PathBuf) {
        // Another thread may have set the same place.
        let _ = self.shard.place.set(place);
    }

    /// Whether the file lies elsewhere.
    pub(crate) fn is_remote(&self) -> bool {
        self.supply.is_some()
    }

    /// Returns the function and the arguments that pickle calls in the other process.
    pub(crate) fn reduced<'py>(
        &self,
        py: Python<'py>,
        path: &Path,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let (open, shard) = (py.import("fastrecord._core")?.getattr("open_shard")?, &*self.shard);
        let verify = Check(self.verify).object(py)?;
        let SnapshotId { file_id, commit, crc, .. } = shard.snapshot;
        let supply = self.supply.as_ref().map(|supply| supply.clone_ref(py));
        let contents = shard.contents.clone().map(|core| Bound::new(py, Contents { core })).transpose()?;
        let about = (hex(&file_id), commit, shard.records, shard.bytes(), crc);
        let of = (path_text(py, path), access_name(self.access), verify, about, supply, contents);
        Ok((open, of.into_pyobject(py)?))
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

/// What a manifest says that some shards hold.
///
/// Args:
///     schema: Their fields.
///     classes: Their class names, or None.
#[pyclass(module = "fastrecord._core", frozen)]
pub(crate) struct Contents {
    core: Arc<CoreContents>,
}

#[pymethods]
impl Contents {
    #[new]
    fn new(schema: &Bound<'_, PyAny>, classes: Option<Vec<String>>) -> PyResult<Self> {
        let (schema, classes) = (schema_from(schema)?, classes.into());
        Ok(Self { core: Arc::new(CoreContents { schema, classes }) })
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
        let core = &slf.get().core;
        let names = core.classes.as_array().map(|names| names.iter().filter_map(Json::as_str).collect::<Vec<_>>());
        Ok((slf.get_type(), (schema_to(slf.py(), &core.schema)?, names).into_pyobject(slf.py())?))
    }
}
