//! `to_py`, which converts core errors to Python exceptions, and `without_gil`, which runs work
//! without the GIL.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use fastrecord_core::image::DecodeError as CoreDecodeError;
use fastrecord_core::{Control, Damage, Error, Result, code_of};
use pyo3::create_exception;
use pyo3::exceptions::{
    PyException, PyIndexError, PyKeyError, PyMemoryError, PyOSError, PyRuntimeError, PyTypeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

/// Marks a failed allocation while copying a valid value: a `MemoryError`, not a `SchemaError`.
pub(crate) const NO_MEMORY: &str = "no memory for a copy of the value";

create_exception!(fastrecord, FastRecordError, PyException, "Base class of the errors of fastrecord.");
create_exception!(fastrecord, CorruptFileError, FastRecordError, "Bytes break the format, or a checksum differs.");
create_exception!(
    fastrecord,
    NoCommitError,
    CorruptFileError,
    "The file's writer was stopped before its first commit."
);
create_exception!(fastrecord, SchemaError, FastRecordError, "A schema is not allowed, or a value does not fit it.");
create_exception!(fastrecord, LockedError, FastRecordError, "Another writer has the file open.");
create_exception!(fastrecord, DecodeError, FastRecordError, "Bytes are not an image, or one that cannot be decoded.");
create_exception!(fastrecord, UnsupportedVersionError, FastRecordError, "The file was written by a newer fastrecord.");

/// Return the code at the end of an error's message, such as "FR302", or None. This is
/// `FastRecordError.code`.
///
/// The code comes from the message because a worker process passes on nothing else. In a message of
/// several lines, such as a worker's traceback, the last line that ends with a code counts.
#[pyfunction]
pub(crate) fn error_code(error: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    Ok(code_of(&error.str()?.to_string_lossy()).map(str::to_owned))
}

/// Adds the property `code` to `FastRecordError`, and the default of `record`.
pub(crate) fn add_code(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let property = py.import("builtins")?.getattr("property")?;
    let doc =
        PyString::new(py, "The error's code, such as \"FR302\": docs/errors.md explains it. None without a code.");
    let code = property.call1((module.getattr("error_code")?, py.None(), py.None(), doc))?;
    let class = module.getattr("FastRecordError")?;
    class.setattr("record", py.None())?;
    class.setattr("code", code)
}

/// Appends a code of docs/errors.md to a message.
pub(crate) fn coded(message: impl std::fmt::Display, code: &str) -> String {
    format!("{message} [{code}]")
}

/// Converts an image decoding error to an exception.
pub(crate) fn not_decoded(error: &CoreDecodeError) -> PyErr {
    match error {
        CoreDecodeError::Memory { .. } => PyMemoryError::new_err(error.to_string()),
        _ => DecodeError::new_err(coded(error, error.code())),
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
        None if source.kind() == ErrorKind::UnexpectedEof => CorruptFileError::new_err(format!(
            "{}: the file ended early: it was truncated while it was being read{place} [FR303]",
            path.display()
        )),
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

/// Converts a core error to an exception: the built-in type if there is one, else our own type with
/// a code. An error about one value has the attribute `record`, which survives pickling.
pub(crate) fn to_py(error: Error) -> PyErr {
    let record = error.place().map(|(record, _)| record);
    let raised = exception(error);
    let Some(record) = record else { return raised };
    Python::attach(|py| match raised.value(py).setattr("record", record) {
        Ok(()) => raised,
        Err(other) => other,
    })
}

fn exception(error: Error) -> PyErr {
    let (message, coded) = (error.to_string(), error.coded());
    match error {
        Error::Io { path, source } => os_error(path, &source, "", message),
        Error::Unreadable { path, place, source } => os_error(path, &source, &format!(" ({place})"), message),
        Error::NoLocks { path, source } => {
            let way_out = ": its file system has no locks: write on a local disk, and copy the file from there [FR608]";
            os_error(path, &source, way_out, message)
        }
        // Callers expect the system's error. The recovery advice goes into a note.
        Error::WriteFailed { path, source, safe } => {
            let note = format!("{}: {safe}", path.display());
            let raised = os_error(path, &source, "", message);
            Python::attach(|py| match raised.value(py).call_method1("add_note", (note,)) {
                Ok(_) => raised,
                Err(other) => other,
            })
        }
        Error::Lost { .. } | Error::Replace { .. } => PyOSError::new_err(message),
        Error::NotFrec { .. } | Error::Corrupt { .. } | Error::Truncated { .. } | Error::NothingLeft { .. } => {
            CorruptFileError::new_err(coded)
        }
        Error::NoCommit { .. } => NoCommitError::new_err(coded),
        Error::Version { .. } | Error::Unsupported { .. } => UnsupportedVersionError::new_err(coded),
        Error::OutOfRange { .. } => PyIndexError::new_err(message),
        Error::NoField { .. } => PyKeyError::new_err(message),
        Error::FieldType { .. } => PyTypeError::new_err(message),
        Error::Memory { .. }
        | Error::TooLarge { .. }
        | Error::Value { damage: Damage::Image(CoreDecodeError::Memory { .. }), .. } => PyMemoryError::new_err(message),
        Error::Threads(_) => PyRuntimeError::new_err(coded),
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
        | Error::Filling { .. } => SchemaError::new_err(coded),
        Error::NotAnImage { .. } | Error::Value { damage: Damage::Image(_), .. } => DecodeError::new_err(coded),
        Error::Value { .. } => CorruptFileError::new_err(coded),
        Error::Locked { .. } => LockedError::new_err(coded),
        // `Error` is non-exhaustive for other crates only. The remaining variants are Missing,
        // WriterFailed, WrongProcess, Replaced.
        _ => FastRecordError::new_err(coded),
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
