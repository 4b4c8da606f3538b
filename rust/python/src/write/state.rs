//! `WriterState`: the core's writer under the classes `Writer` and `NewFieldWriter`. Warns about writers that
//! were never closed, on collection or at interpreter exit.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use fastrecord_core::{Control, ImageCounts, Schema, Writer as CoreWriter};
use pyo3::exceptions::PyResourceWarning;
use pyo3::prelude::*;

use crate::convert::indices::bad_value;
use crate::error::{to_py, without_gil};
use crate::exclusive::{Exclusive, ExclusiveGuard};
use crate::logging::{deliver, delivered, follow, is_closed};

/// The log target for events of writers: docs/logging.md.
const LOG: &str = "fastrecord_core::writer";

/// Writers that may be open at interpreter exit. Only threads that hold the GIL lock it, and none
/// runs Python code while it does. Therefore no other thread holds the lock during a fork.
static OPEN: Mutex<Vec<Weak<WriterState>>> = Mutex::new(Vec::new());

/// A core writer, as the classes over it share it. It warns if it is dropped before it is closed.
pub(crate) struct WriterState {
    /// The path as the user gave it. The core holds the absolute path, which survives a change of
    /// the working directory.
    path: PathBuf,
    core: Exclusive<CoreWriter>,
    /// The schema so far; adding and dropping fields changes it.
    schema: RwLock<Arc<Schema>>,
    /// Counts of the images appended from files.
    tally: Mutex<ImageCounts>,
    warned: AtomicBool,
}

impl WriterState {
    pub(crate) fn new(path: PathBuf, writer: CoreWriter) -> Arc<Self> {
        let schema = RwLock::new(Arc::new(writer.schema().clone()));
        let (core, tally, warned) = (Exclusive::new(writer), Mutex::default(), AtomicBool::new(false));
        let state = Arc::new(Self { path, core, schema, tally, warned });
        let mut all = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&state));
        state
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Locks the core's writer for one call. Only signal handlers may run Python code while it is
    /// held.
    pub(crate) fn lock(&self, py: Python<'_>) -> PyResult<ExclusiveGuard<'_, CoreWriter>> {
        self.core.take(py, &self.path)
    }

    /// Runs a call of the core's writer without the GIL, and delivers what it logs.
    pub(crate) fn call<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut CoreWriter) -> fastrecord_core::Result<T> + Send,
    ) -> PyResult<T> {
        follow(py)?;
        let mut guard = self.lock(py)?;
        let writer = &mut *guard;
        let outcome = py.detach(|| work(writer)).map_err(to_py);
        let mut schema = self.schema.write().unwrap_or_else(PoisonError::into_inner);
        if **schema != *writer.schema() {
            *schema = Arc::new(writer.schema().clone());
        }
        drop((schema, guard));
        delivered(py, outcome)
    }

    /// As [`WriterState::call`], for a call that may take long: Ctrl-C ends it.
    pub(crate) fn call_long<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut CoreWriter, &dyn Control) -> fastrecord_core::Result<T> + Send,
    ) -> PyResult<T> {
        let mut guard = self.lock(py)?;
        let writer = &mut *guard;
        let outcome = without_gil(py, |control| work(writer, control));
        drop(guard);
        delivered(py, outcome)
    }

    /// Runs a call that appends this many bytes. It keeps the GIL if the call is short: switching
    /// threads would take longer.
    pub(crate) fn append<T: Send>(
        &self,
        py: Python<'_>,
        bytes: usize,
        work: impl FnOnce(&mut CoreWriter) -> fastrecord_core::Result<T> + Send,
    ) -> PyResult<T> {
        let mut guard = self.lock(py)?;
        let writer = &mut *guard;
        let outcome = if writer.may_write(bytes) { py.detach(|| work(writer)) } else { work(writer) };
        drop(guard);
        delivered(py, outcome.map_err(to_py))
    }

    /// Returns the schema.
    pub(crate) fn schema(&self) -> Arc<Schema> {
        Arc::clone(&self.schema.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn is_from_another_process(&self) -> bool {
        self.core.is_from_another_process()
    }

    /// Builds the error for a value of the record `ahead` places after the last one.
    pub(crate) fn bad_value(&self, py: Python<'_>, ahead: u64, field: &str, detail: &str) -> PyErr {
        self.lock(py).map_or_else(|error| error, |writer| bad_value(writer.path(), writer.len() + ahead, field, detail))
    }

    pub(crate) fn tally(&self) -> MutexGuard<'_, ImageCounts> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs and warns, once, if records would be lost now.
    fn warn(&self, py: Python<'_>) {
        let Some(Some(records)) = self.core.look(CoreWriter::unsaved) else { return };
        if self.warned.swap(true, Ordering::Relaxed) {
            return;
        }
        let lost = match records {
            0 => "uncommitted changes are lost".to_owned(),
            1 => "1 uncommitted record is lost".to_owned(),
            _ => format!("{records} uncommitted records are lost"),
        };
        let path = self.path.display();
        let text = format!("{path}: the writer was never closed: {lost}: use a `with` block, or call close()");
        // No caller can receive a handler's KeyboardInterrupt, or a warning that a filter turns
        // into an error.
        let told = follow(py).and_then(|()| {
            log::warn!(target: LOG, "{text}");
            deliver(py)
        });
        let category = py.get_type::<PyResourceWarning>();
        let warned = CString::new(text).map_err(PyErr::from).and_then(|text| PyErr::warn(py, &category, &text, 1));
        for error in [told, warned].into_iter().filter_map(Result::err) {
            error.write_unraisable(py, None);
        }
    }
}

impl Drop for WriterState {
    fn drop(&mut self) {
        if is_closed() {
            return;
        }
        Python::try_attach(|py| {
            let pending = PyErr::take(py); // collection may run while an exception is pending
            self.warn(py);
            if let Some(error) = pending {
                error.restore(py);
            }
        });
    }
}

/// Warns of all open writers at interpreter exit. The interpreter does not collect every object
/// then.
pub(crate) fn warn_of_all(py: Python<'_>) {
    let open: Vec<_> = OPEN.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect();
    for writer in open {
        writer.warn(py);
    }
}
