//! `to_py`, which converts core errors to Python exceptions, and `without_gil`, which runs work
//! without the GIL.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use fastrecord_core::image::DecodeError as CoreDecodeError;
use fastrecord_core::{Control, Damage, Error, Result};
use pyo3::exceptions::{PyIndexError, PyKeyError, PyMemoryError, PyOSError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

/// Marks a failed allocation while copying a valid value: a `MemoryError`, not a `SchemaError`.
pub(crate) const NO_MEMORY: &str = "no memory for a copy of the value";

/// The names of the exceptions of python/fastrecord/errors.py. Each takes its text, its code, and the path, the
/// record and the field that it is about.
pub(crate) const EXCEPTIONS: [&str; 7] = [
    "CorruptFileError",
    "DecodeError",
    "FastRecordError",
    "LockedError",
    "NoCommitError",
    "SchemaError",
    "UnsupportedVersionError",
];
pyo3::import_exception!(fastrecord.errors, CorruptFileError);
pyo3::import_exception!(fastrecord.errors, DecodeError);
pyo3::import_exception!(fastrecord.errors, FastRecordError);
pyo3::import_exception!(fastrecord.errors, LockedError);
pyo3::import_exception!(fastrecord.errors, NoCommitError);
pyo3::import_exception!(fastrecord.errors, SchemaError);
pyo3::import_exception!(fastrecord.errors, UnsupportedVersionError);

/// Converts an image decoding error to an exception.
pub(crate) fn not_decoded(error: &CoreDecodeError) -> PyErr {
    match error {
        CoreDecodeError::Memory { .. } => PyMemoryError::new_err(error.to_string()),
        _ => DecodeError::new_err((error.to_string(), error.code())),
    }
}

/// Builds `OSError(errno, text, path)`. Python turns it into `FileNotFoundError` or
/// `PermissionError`.
fn os_error(path: PathBuf, source: &io::Error, place: &str, message: String) -> PyErr {
    match source.raw_os_error() {
        // Report `MemoryError` as everywhere else, for example when the process has no address
        // space left for a mapping.
        Some(_) if source.kind() == ErrorKind::OutOfMemory => PyMemoryError::new_err(message),
        Some(errno) => {
            let text = source.to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            let text = match source.kind() {
                ErrorKind::NotFound if is_remote(&path) => {
                    "it is not a file of this machine: FastRecordDataset reads URLs (s3, gs, az, https, file)"
                }
                ErrorKind::NotFound if path.is_symlink() => {
                    "the link leads to a file that does not exist: remove the link, or create the file"
                }
                _ => text,
            };
            let path = if is_remote(&path) { without_secrets(&path) } else { path };
            let path = Python::attach(|py| path_text(py, &path).unbind());
            PyOSError::new_err((errno, format!("{text}{place}"), path))
        }
        None if source.kind() == ErrorKind::UnexpectedEof => {
            let text = format!("the file ended early: it was truncated while it was being read{place}");
            CorruptFileError::new_err((text, "FR303", path.display().to_string()))
        }
        None => PyOSError::new_err(message),
    }
}

/// Returns a path as `os.fsdecode` does: in a locale that is not UTF-8, only this text leads to the file.
pub(crate) fn path_text<'py>(py: Python<'py>, path: &Path) -> Bound<'py, PyAny> {
    let text = path.to_string_lossy();
    let plain = || PyString::new(py, &text).into_any();
    if text.is_ascii() {
        return plain();
    }
    let bytes = PyBytes::new(py, path.as_os_str().as_bytes());
    py.import("os").and_then(|os| os.call_method1("fsdecode", (bytes,))).unwrap_or_else(|_| plain())
}

/// Returns a URL without the user and the query in it, which may be secret.
fn without_secrets(url: &Path) -> PathBuf {
    let text = url.to_string_lossy();
    let (scheme, rest) = text.split_once("://").unwrap_or(("", &text));
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.rsplit_once('@').map_or(host, |(_, server)| server);
    let path = if scheme.starts_with("http") { path.split('?').next().unwrap_or_default() } else { path };
    PathBuf::from(format!("{scheme}://{host}{path}"))
}

/// Reports whether a path looks like a URL, such as `s3://bucket/train.frec`.
fn is_remote(path: &Path) -> bool {
    let text = path.to_string_lossy();
    text.split_once("://").is_some_and(|(scheme, _)| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    })
}

/// Converts a core error to an exception: the built-in type if there is one, else one of fastrecord's. Each has the
/// attributes `code` and `record`, which survive pickling.
pub(crate) fn to_py(error: Error) -> PyErr {
    let (code, record) = (error.code(), error.place().map(|(record, _)| record));
    let raised = exception(error);
    Python::attach(|py| {
        let value = raised.value(py);
        if value.is_instance_of::<FastRecordError>() {
            return raised;
        }
        match value.setattr("code", code).and_then(|()| value.setattr("record", record)) {
            Ok(()) => raised,
            Err(other) => other,
        }
    })
}

fn exception(error: Error) -> PyErr {
    let message = error.to_string();
    let code = error.code();
    let place = error.place();
    let (record, field) = place.map(|(record, field)| (record, field.to_owned())).unzip();
    let path = error.path().map(|path| path.display().to_string());
    // What the message begins with, the exception holds as values.
    let text = path.as_ref().and_then(|path| message.strip_prefix(path)?.strip_prefix(": ")).unwrap_or(&message);
    let value = place.map(|(record, field)| format!("record {record}, field {field}: "));
    let text = value.and_then(|value| text.strip_prefix(&value)).unwrap_or(text).to_owned();
    let said = (text, code, path, record, field);
    match error {
        Error::Io { path, source } => os_error(path, &source, "", message),
        Error::Unreadable { path, place, source } => os_error(path, &source, &format!(" ({place})"), message),
        Error::NoLocks { path, source } => {
            let way_out = ": its file system has no locks: write on a local disk, and copy the file from there [FR608]";
            os_error(path, &source, way_out, message)
        }
        // Callers expect the system's error. The recovery advice goes into a note.
        Error::WriteFailed { path, source, recovery } => {
            let note = format!("{}: {recovery}", path.display());
            let raised = os_error(path, &source, "", message);
            Python::attach(|py| match raised.value(py).call_method1("add_note", (note,)) {
                Ok(_) => raised,
                Err(other) => other,
            })
        }
        Error::Lost { .. } | Error::Replace { .. } => PyOSError::new_err(message),
        Error::NotFrec { .. } | Error::Corrupt { .. } | Error::Truncated { .. } | Error::NothingLeft { .. } => {
            CorruptFileError::new_err(said)
        }
        Error::NoCommit { .. } => NoCommitError::new_err(said),
        Error::Version { .. } | Error::Unsupported { .. } => UnsupportedVersionError::new_err(said),
        Error::OutOfRange { .. } => PyIndexError::new_err(message),
        Error::NoField { .. } => PyKeyError::new_err(message),
        Error::FieldType { .. } => PyTypeError::new_err(message),
        Error::Memory { .. }
        | Error::TooLarge { .. }
        | Error::Value { damage: Damage::Image(CoreDecodeError::Memory { .. }), .. } => PyMemoryError::new_err(message),
        Error::Threads(_) => PyRuntimeError::new_err(format!("{message} [{code}]")),
        Error::ForkedLoader { .. } | Error::LoaderClosed => PyRuntimeError::new_err(message),
        Error::Plan(_) | Error::BufferTooSmall { .. } | Error::ReaderClosed { .. } | Error::WriterClosed { .. } => {
            PyValueError::new_err(message)
        }
        Error::Schema(_)
        | Error::Contents { .. }
        | Error::BadValue { .. }
        | Error::SchemaMismatch { .. }
        | Error::AddField { .. }
        | Error::Unfilled { .. }
        | Error::Filling { .. } => SchemaError::new_err(said),
        Error::NotAnImage { .. } | Error::Value { damage: Damage::Image(_), .. } => DecodeError::new_err(said),
        Error::Value { .. } => CorruptFileError::new_err(said),
        Error::Locked { .. } => LockedError::new_err(said),
        // `Error` is non-exhaustive for other crates only. The remaining variants are Missing,
        // WriterFailed, WrongProcess, Replaced.
        _ => FastRecordError::new_err(said),
    }
}

/// Runs `work` without the GIL. Its error becomes a Python exception; an exception of a signal
/// handler (Ctrl-C) ends the work and is raised instead.
pub(crate) fn without_gil<T: Send>(py: Python<'_>, work: impl FnOnce(&dyn Control) -> Result<T> + Send) -> PyResult<T> {
    with_progress(py, None, None, work)
}

/// As [`without_gil`], and calls `progress` with the bytes done, and with `total` if it is given.
/// Its exception ends the work too.
pub(crate) fn with_progress<T: Send>(
    py: Python<'_>,
    progress: Option<&Py<PyAny>>,
    total: Option<u64>,
    work: impl FnOnce(&dyn Control) -> Result<T> + Send,
) -> PyResult<T> {
    let (outcome, raised) = py.detach(|| {
        let caller = PythonCaller { progress, total, raised: Cell::default() };
        (work(&caller), caller.raised.into_inner())
    });
    // Return what Python raised, whatever the result of the work: it is raised only once.
    raised.map_or_else(|| outcome.map_err(to_py), Err)
}

/// The control of a call from Python.
struct PythonCaller<'a> {
    progress: Option<&'a Py<PyAny>>,
    total: Option<u64>,
    /// The first exception of a signal handler or of `progress`.
    raised: Cell<Option<PyErr>>,
}

impl PythonCaller<'_> {
    /// Calls `work` with the GIL, unless an exception was raised before. Returns whether there is
    /// one.
    fn raised(&self, work: impl FnOnce(Python<'_>) -> PyResult<()>) -> bool {
        let raised = self.raised.take().or_else(|| {
            // An exiting interpreter cannot attach threads that are still running.
            Python::try_attach(work).and_then(PyResult::err)
        });
        let any = raised.is_some();
        self.raised.set(raised);
        any
    }
}

impl Control for PythonCaller<'_> {
    fn is_stopped(&self) -> bool {
        #[allow(clippy::redundant_closure_for_method_calls)] // the method fixes the lifetime
        self.raised(|py| py.check_signals())
    }

    fn report(&self, bytes: u64) {
        let Some(progress) = self.progress else { return };
        self.raised(|py| match self.total {
            Some(total) => progress.call1(py, (bytes, total)).map(drop),
            None => progress.call1(py, (bytes,)).map(drop),
        });
    }
}
