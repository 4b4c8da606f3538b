//! `fastrecord.Writer`.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use fastrecord_core::{Column, Error, Mode, Schema, Value, Writer as CoreWriter, WriterOptions};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyMapping, PyTuple, PyType};

use crate::convert::indices::{absolute, from_json, schema_from, schema_to, to_json};
use crate::error::{SchemaError, to_py, without_gil};
use crate::exclusive::InUse;
use crate::logging::{delivered, follow};
use crate::write::compression::compression_dict;
use crate::write::field_filler::Filler;
use crate::write::recode::{on_error_from, recode_from, tally_dict};
use crate::write::records::beside_files;
use crate::write::unclosed::OpenWriter;

/// The one writer of a file: append records, commit, close.
///
/// Args:
///     path: The .frec file.
///     schema: A Schema, or a mapping of name to type. May be None to append; if given then, it must be the file's.
///     mode: "x" creates the file and refuses an existing one; "a" goes on behind the last commit of an existing one (a torn
///         tail is cut off); "w" writes under a temporary name beside it and takes its place at close: until then no commit counts, and
///         the old file is there, and stays if an exception leaves the block. Where there is none, as "x".
///     metadata: The file's own key/values, JSON-able; with mode "a" they are added to those that the file has, in place of any
///         of the same name. "classes" (list of class names, position = label) is read by data sets.
///     complete: False while a bulk import is under way: data sets refuse the file until `writer.complete = True`. By default a
///         new file is complete, and a file that is appended to stays what it was.
///     commit_bytes: Commit by itself after so many bytes, so that memory and what a crash can lose stay bounded.
///
/// A `with` block commits and closes at its end; if an exception leaves it, what is not committed is dropped, and a new file
/// without any commit is removed (as is all of one that was to replace another). A writer belongs to the process that opened it.
/// One that is neither closed nor aborted loses the same, with a ResourceWarning and a line in the log that count the records.
///
/// Raises:
///     FileExistsError, FileNotFoundError: by mode. LockedError: another writer has it open; names it.
///     SchemaError: the schema is not allowed, or not the file's. CorruptFileError: the file to append to is damaged.
///
/// Calls from several threads come one after the other. A signal handler that uses the writer in the middle of one of its calls
/// gets a RuntimeError.
#[pyclass(module = "fastrecord", frozen)]
pub(crate) struct Writer {
    /// As the user gave it; the core has the absolute one, which stays right when the process changes its directory.
    path: PathBuf,
    /// Fields may be added to it.
    schema: RwLock<Arc<Schema>>,
    open: Arc<OpenWriter>,
}

impl Writer {
    /// The core's writer for one call. No Python code may run while it is held, but for signal handlers.
    pub(crate) fn lock(&self, py: Python<'_>) -> PyResult<InUse<'_, CoreWriter>> {
        self.open.core.take(py, &self.path)
    }

    /// The fields of every record.
    pub(crate) fn known(&self) -> Arc<Schema> {
        Arc::clone(&self.schema.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes note of fields that the core's writer has now.
    pub(crate) fn note_schema(&self, writer: &CoreWriter) {
        *self.schema.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(writer.schema().clone());
    }

    pub(crate) fn is_from_another_process(&self) -> bool {
        self.open.core.is_from_another_process()
    }

    /// The core's writer for a call that begins or ends something, which may have something to tell.
    fn lock_to_tell(&self, py: Python<'_>) -> PyResult<InUse<'_, CoreWriter>> {
        follow(py)?;
        self.lock(py)
    }
}

/// `FileExistsError`, with the ways out.
fn exists_already(path: &Path, source: &io::Error) -> PyErr {
    let text = "File exists: choose mode=\"a\" (add to it), mode=\"w\" (replace it) or another path";
    PyOSError::new_err((source.raw_os_error(), text, path.as_os_str().to_owned()))
}

#[pymethods]
impl Writer {
    #[new]
    #[pyo3(signature = (path, schema = None, mode = "x", metadata = None, *, complete = None, commit_bytes = 1 << 30))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        schema: Option<&Bound<'_, PyAny>>,
        mode: &str,
        metadata: Option<&Bound<'_, PyAny>>,
        complete: Option<bool>,
        commit_bytes: u64,
    ) -> PyResult<Self> {
        let mode = match mode {
            "x" => Mode::Create,
            "a" => Mode::Append,
            "w" => Mode::Overwrite,
            other => return Err(PyValueError::new_err(format!("mode is \"x\", \"a\" or \"w\", not {other:?}"))),
        };
        if commit_bytes == 0 {
            return Err(PyValueError::new_err("commit_bytes is at least 1"));
        }
        let schema = schema.map(schema_from).transpose()?;
        if schema.is_none() && mode != Mode::Append {
            return Err(SchemaError::new_err(format!("{}: a new file needs a schema [FR401]", path.display())));
        }
        let metadata = metadata.map(to_json).transpose()?;
        let options = WriterOptions { mode, commit_bytes, complete };
        let place = absolute(&path);
        follow(py)?;
        let opened = py.detach(|| CoreWriter::open(&place, schema, metadata, &options));
        let opened = opened.map_err(|error| match error {
            Error::Io { path: named, source } if named == place => match source.kind() {
                ErrorKind::AlreadyExists if options.mode == Mode::Create => exists_already(&path, &source),
                _ => to_py(Error::Io { path: path.clone(), source }),
            },
            error => to_py(error),
        });
        let writer = delivered(py, opened)?;
        let schema = RwLock::new(Arc::new(writer.schema().clone()));
        let open = OpenWriter::new(path.clone(), writer);
        Ok(Self { path, schema, open })
    }

    /// Append one record, a mapping with a value for each field, and return its number.
    ///
    /// Raises:
    ///     SchemaError: a value is missing, unknown or does not fit; names record and field, and nothing was appended.
    ///     OSError: a write failed (a full disk): the file is good up to its last commit, and this writer goes no further.
    fn append(&self, py: Python<'_>, record: &Bound<'_, PyMapping>) -> PyResult<u64> {
        let held = self.record_values(record)?;
        let mut guard = self.lock(py)?;
        let writer = &mut *guard;
        let values: Vec<Value<'_>> = held.iter().map(|h| h.value(py)).collect();
        let bytes = values.iter().map(|value| match value {
            Value::Bytes(bytes) | Value::List(bytes) => bytes.len(),
            Value::Array { data, .. } => data.len(),
            Value::Str(text) => text.len(),
            _ => 8,
        });
        let number =
            if writer.may_write(bytes.sum()) { py.detach(|| writer.append(&values)) } else { writer.append(&values) };
        drop(guard);
        delivered(py, number.map_err(to_py))
    }

    /// Append many records by one call, and return the number of the first.
    ///
    /// Args:
    ///     columns: For each field its values, N of them: for scalars and arrays one array (N, *shape), which is taken without any
    ///         Python a record, or any sequence of what `append` takes.
    /// Raises:
    ///     SchemaError: a value is missing, unknown or does not fit; names record and field, and nothing was appended.
    ///     OSError: a write failed: the file is good up to its last commit, and this writer goes no further.
    ///     KeyboardInterrupt: Ctrl-C, between two records: those before it have been appended.
    fn extend(&self, py: Python<'_>, columns: &Bound<'_, PyMapping>) -> PyResult<u64> {
        let (held, count) = self.held_columns(columns)?;
        let mut guard = self.lock(py)?;
        let writer = &mut *guard;
        let columns: Vec<Column<'_>> = held.iter().map(|column| column.column(py)).collect();
        let first = without_gil(py, |interrupted| writer.extend(&columns, count, interrupted));
        drop(guard);
        delivered(py, first)
    }

    /// Open a new file whose fields are those of a record: a Writer.
    ///
    /// Args:
    ///     path: The .frec file.
    ///     sample: A record. It is looked at, not appended. int, float, bool, complex, str and bytes make fields of type int64,
    ///         float64, bool, complex128, string and bytes (image, if they begin like one); numpy and torch arrays an array
    ///         of their dtype and shape, numpy scalars their type, a dict json, and a list of values of one type a list.
    ///     mode: "x" or "w", as for `Writer`.
    ///     options: What else `Writer` takes.
    /// Raises:
    ///     SchemaError: a value of which no type is known; names the field.
    #[classmethod]
    #[pyo3(signature = (path, sample, mode = "x", **options))]
    fn from_sample<'py>(
        cls: &Bound<'py, PyType>,
        path: PathBuf,
        sample: &Bound<'py, PyAny>,
        mode: &str,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let schema = cls.py().import("fastrecord.schema.infer")?.call_method1("infer_schema", (sample,))?;
        cls.call((path, schema, mode), options)
    }

    /// Append one record for each file, in order; several threads read ahead and recode, without the GIL.
    ///
    /// Args:
    ///     field: The field of type image or bytes that gets the bytes of the files, as they are but for what follows.
    ///     paths: The files, N of them.
    ///     values: For each other field its values, N of them.
    ///     on_error: "raise" stops at the first file that cannot be read or (for an image field) is no image: nothing of it or
    ///         after it is appended, what was before it is. "skip" leaves such files out.
    ///     short_side, max_side: Images whose shorter (longer) side is above so many pixels are made smaller, in proportion, with
    ///         Lanczos' filter, and become JPEGs. Others keep their bytes. Give one of the two, or none.
    ///     quality: Of these JPEGs, 1 to 100; 90 by default. Their colours are as fine as the source's: 4:2:0 where that is a
    ///         JPEG with subsampled colours, else 4:4:4. Rows and columns stay as stored; of the metadata EXIF's orientation is
    ///         kept.
    ///     raw: Store every image as its pixels, in binary PPM. They are those that are stored: EXIF's orientation is lost.
    ///     crop_ready: Rewrite JPEGs without loss, so that a crop is decoded without the rest of its image. Which marker segments
    ///         they keep: "all", "none", or names out of "exif", "icc" and "other" with commas between them. JPEGs of rare
    ///         kinds, damaged ones, very small ones and other formats keep their bytes.
    ///     sixteen_bit: Of images that are decoded for that, grey of 16 bits: "reject" is an error and the default, "scale" divides
    ///         by 257 and rounds, "clip" makes all above 255 white, as Pillow does.
    /// Returns:
    ///     The files that were skipped: (position in `paths`, reason). `recoded` tells what became of the others.
    /// Raises:
    ///     DecodeError: a file is no image, or has to be decoded and cannot be; OSError: it cannot be read, or a write failed.
    ///     Both name the file. ValueError: settings that do not fit each other.
    #[pyo3(signature = (field, paths, values, *, on_error = "raise", short_side = None, max_side = None, quality = None, raw = false, crop_ready = None, sixteen_bit = None))]
    #[allow(clippy::too_many_arguments)] // keywords in Python
    fn append_files(
        &self,
        py: Python<'_>,
        field: &str,
        paths: Vec<PathBuf>,
        values: &Bound<'_, PyMapping>,
        on_error: &str,
        short_side: Option<i64>,
        max_side: Option<i64>,
        quality: Option<i64>,
        raw: bool,
        crop_ready: Option<&str>,
        sixteen_bit: Option<&str>,
    ) -> PyResult<Vec<(usize, String)>> {
        let recode = recode_from(short_side, max_side, quality, raw, crop_ready, sixteen_bit);
        let recode = recode.map_err(PyValueError::new_err)?;
        let on_error = on_error_from(on_error).map_err(PyValueError::new_err)?;
        let schema = self.known();
        let (position, columns) = beside_files(&schema, field, paths.len(), values)?;
        let mut guard = self.lock(py)?;
        let writer = &mut *guard;
        let row = |i: usize| columns.iter().map(|column| column.value(i)).collect::<Vec<_>>();
        let skipped = without_gil(py, |interrupted| {
            writer.append_files(position, &paths, on_error, recode.as_ref(), row, interrupted)
        });
        drop(guard);
        delivered(py, skipped)
    }

    /// Start to add a field to the records of the file; those not yet committed are committed first.
    ///
    /// Give the filler a value for each record, in record order; it commits the field once it is closed, and nothing of it before.
    /// No record is appended meanwhile; several fields may be filled side by side. Afterwards every record needs the field.
    ///
    /// Args:
    ///     name: Of the new field. One that the file has is refused: add "label_v2" beside "label".
    ///     type: `fastrecord.array("float32", (512,))` or another type.
    /// Raises:
    ///     SchemaError: the name is taken, or a name or a type is not allowed.
    #[pyo3(signature = (name, r#type))]
    fn add_field(slf: &Bound<'_, Self>, name: &str, r#type: &Bound<'_, PyAny>) -> PyResult<Filler> {
        let py = slf.py();
        let given = PyDict::new(py);
        given.set_item(name, r#type)?;
        let schema = schema_from(&given)?;
        let [field] = schema.fields() else { return Err(SchemaError::new_err("one field is added at a time [FR401]")) };
        let mut guard = slf.get().lock(py)?;
        let writer = &mut *guard;
        let new = py.detach(|| writer.start_field(field)).map_err(to_py);
        drop(guard);
        let new = delivered(py, new)?;
        Ok(Filler::new(slf.clone().unbind(), new, field.clone()))
    }

    /// Remove a field, durably; what is not yet committed is committed with it. Its bytes stay in the file.
    ///
    /// Readers that are open keep it until they refresh.
    ///
    /// Raises:
    ///     KeyError: no such field. SchemaError: it is the only one.
    fn drop_field(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let mut guard = self.lock_to_tell(py)?;
        let writer = &mut *guard;
        let dropped = py.detach(|| writer.drop_field(name));
        self.note_schema(writer);
        drop(guard);
        delivered(py, dropped.map(|_| ()).map_err(to_py))
    }

    /// Make all records so far durable; returns the number of the commit. Does nothing if there is nothing new.
    ///
    /// Raises:
    ///     OSError: a write failed: the file is good up to its last commit, and this writer goes no further.
    ///     FastRecordError: the file was removed, moved or replaced meanwhile; says where the records are.
    fn commit(&self, py: Python<'_>) -> PyResult<u64> {
        let mut guard = self.lock_to_tell(py)?;
        let writer = &mut *guard;
        let committed = py.detach(|| writer.commit()).map_err(to_py);
        drop(guard);
        delivered(py, committed)
    }

    /// Commit for the last time: `close` then only takes the place of the file that this one replaces.
    #[pyo3(name = "_finish")]
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let mut guard = self.lock_to_tell(py)?;
        let writer = &mut *guard;
        let finished = py.detach(|| writer.finish()).map_err(to_py);
        drop(guard);
        delivered(py, finished)
    }

    /// Commit and release the file, also after a failed write. Closing twice is allowed.
    ///
    /// Raises:
    ///     SchemaError: a new field has no value for some records: it is left out, the rest is committed. (With mode "w" nothing
    ///         takes the old file's place then.)
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let mut guard = self.lock_to_tell(py)?;
        let writer = &mut *guard;
        let closed = py.detach(|| writer.close()).map_err(to_py);
        self.note_schema(writer); // with the fields whose fillers were full
        drop(guard);
        delivered(py, closed)
    }

    /// Drop what is not committed and release the file; a new file without any commit is removed.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_from_another_process() {
            return Ok(()); // a forked child that leaves the block: the file is its parent's
        }
        let mut guard = self.lock_to_tell(py)?;
        let writer = &mut *guard;
        py.detach(|| writer.abort());
        drop(guard);
        delivered(py, Ok(()))
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, py: Python<'_>, exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        let failed = exception.iter().next().is_some_and(|kind| !kind.is_none());
        if failed {
            return self.abort(py);
        }
        self.close(py)
    }

    /// Records in the file, those not yet committed included.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.lock(py)?.len() as usize)
    }

    fn __repr__(&self) -> String {
        format!("<fastrecord.Writer '{}': {}>", self.path.display(), self.known().describe())
    }

    /// The path that it was opened by.
    #[getter]
    fn path(&self) -> OsString {
        self.path.clone().into_os_string()
    }

    /// The fields of every record, a `fastrecord.Schema`.
    #[getter]
    fn schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        schema_to(py, &self.known())
    }

    /// Bytes that this writer has appended to the file.
    #[getter]
    fn bytes_written(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.lock(py)?.bytes_written())
    }

    /// What became of the images that `append_files` has appended, a new dict each time.
    ///
    /// "images": how many; of them "kept": byte for byte; "smaller": by `short_side` or `max_side`; "crop_ready" and "raw": so,
    /// smaller ones included. "bytes_in" and "bytes_out": of the files, and of what is stored of them.
    #[getter]
    fn recoded<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let tally = self.lock(py)?.tally();
        tally_dict(py, tally)
    }

    /// Kinds of images that `append_files` has appended and the core does not decode, such as "AVIF", a new dict each time: kind ->
    /// how many. The loader and data sets decode them by Pillow, if it can.
    #[getter]
    fn foreign<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let guard = self.lock(py)?;
        guard.foreign().clone().into_py_dict(py)
    }

    /// How the compressed fields' values are stored, a new dict each time: field -> dict.
    ///
    /// "codec": "lz4", "zstd", "none" (as they are), or "auto" while the first values are held back; "level": zstd's, or None;
    /// "dictionary": the id of the one in use, or None; "ratio": bytes of the values that this writer has appended to what is
    /// stored of them, or None before any; "reason": why so, with the numbers that "auto" decided by. The choice is logged
    /// under "fastrecord", too.
    #[getter]
    fn compression<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = self.lock(py)?.compression();
        compression_dict(py, all)
    }

    /// Records that are durable.
    #[getter]
    fn committed(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.lock(py)?.committed())
    }

    /// The file's own key/values, a new dict each time; assign a mapping to replace them with the next commit.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let text = serde_json::Value::Object(self.lock(py)?.metadata().clone()).to_string();
        from_json(py, &text)
    }

    #[setter]
    fn set_metadata(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = to_json(value)?;
        self.lock(py)?.set_metadata(value).map_err(to_py)
    }

    /// Whether the file says, from the next commit on, that it is complete.
    #[getter]
    fn complete(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.lock(py)?.complete())
    }

    #[setter]
    fn set_complete(&self, py: Python<'_>, value: bool) -> PyResult<()> {
        self.lock(py)?.set_complete(value);
        Ok(())
    }
}
