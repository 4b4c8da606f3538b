//! `OpenWriter`: warns about writers that were never closed, on collection or at interpreter exit.

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use fastrecord_core::Writer as CoreWriter;
use pyo3::exceptions::PyResourceWarning;
use pyo3::prelude::*;

use crate::exclusive::Turns;
use crate::logging::{deliver, follow, is_closed};

/// The log target for events of writers: docs/logging.md.
const LOG: &str = "fastrecord_core::writer";

/// Writers that may be open at interpreter exit. Only threads that hold the GIL lock it, and none
/// runs Python code while it does. Therefore no other thread holds the lock during a fork.
static OPEN: Mutex<Vec<Weak<OpenWriter>>> = Mutex::new(Vec::new());

/// A core writer that warns if it is dropped before it is closed.
pub(crate) struct OpenWriter {
    path: PathBuf,
    pub(crate) core: Turns<CoreWriter>,
    warned: AtomicBool,
}

impl OpenWriter {
    pub(crate) fn new(path: PathBuf, writer: CoreWriter) -> Arc<Self> {
        let open = Arc::new(Self { path, core: Turns::new(writer), warned: AtomicBool::new(false) });
        let mut all = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&open));
        open
    }

    /// Logs and warns, once, if records would be lost now.
    fn warn(&self, py: Python<'_>) {
        let Some(Some(records)) = self.core.look(CoreWriter::unsaved) else { return };
        if self.warned.swap(true, Ordering::Relaxed) {
            return;
        }
        let lost = match records {
            0 => "what it changed is not committed, and is lost".to_owned(),
            1 => "1 record is not committed, and is lost".to_owned(),
            _ => format!("{records} records are not committed, and are lost"),
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

impl Drop for OpenWriter {
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
