//! The class `fastrecord.Writer`: argument checks and conversion. It does not write bytes itself.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fastrecord_core::{
    Codec, Column, Error, FieldType, ImageCounts, Ingest, Mode, Source, Value, Writer as CoreWriter, WriterOptions,
};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyMapping, PyTuple, PyType};

use crate::convert::compression::stored_dict;
use crate::convert::indices::{absolute, from_json, schema_from, schema_to, to_json};
use crate::error::{SchemaError, path_text, to_py};
use crate::logging::{delivered, follow};
use crate::write::new_field::NewFieldWriter;
use crate::write::recode::{on_error_from, recode_from, tally_dict};
use crate::write::records::{beside_inputs, columns_from, images_from, record_from};
use crate::write::state::WriterState;

/// The only writer of a file: appends records, commits, closes.
///
/// Args:
///     path: The .frec file.
///     schema: A Schema, or a mapping of name to type. With mode "a" it may be None; if given, it
///         must equal the file's schema.
///     mode: "x" creates the file and refuses an existing one. "a" appends after the last commit of
///         an existing file and cuts off a torn tail. "w" writes under a temporary name in the same
///         folder and replaces the old file at close. Until then no commit takes effect, and the
///         old file stays; it also stays if an exception leaves the block. Without an old file, "w"
///         acts as "x".
///     metadata: The file's key/value metadata, JSON-serializable. With mode "a" it is merged into
///         the file's metadata, and new values replace old ones. Data sets read the key "classes"
///         (list of class names, position = label).
///     complete: False while a bulk import is in progress: data sets refuse the file until
///         `writer.complete = True`. By default a new file is complete, and an appended file keeps
///         its setting.
///     commit_bytes: Commit automatically after this many bytes. This bounds memory use and the
///         data that a crash can lose.
///
/// A `with` block commits and closes at its end. If an exception leaves it, uncommitted records are
/// dropped. A new file without any commit is then removed, and so is a replacement file. A writer
/// belongs to the process that opened it. A writer that is neither closed nor aborted loses the
/// same records; a ResourceWarning and a log line count them.
///
/// Raises:
///     FileExistsError, FileNotFoundError: depends on the mode. LockedError: another writer has the
///     file open; names it.
///     SchemaError: the schema is invalid, or differs from the file's. CorruptFileError: the file
///     to append to is damaged.
///
/// Calls from several threads run one after the other. A signal handler that uses the writer during
/// one of its calls gets a RuntimeError.
#[pyclass(module = "fastrecord", frozen)]
pub(crate) struct Writer {
    state: Arc<WriterState>,
}

/// Builds the `FileExistsError`, with the ways out.
fn exists_already(path: &Path, source: &io::Error) -> PyErr {
    let text = "File exists: choose mode=\"a\" (add to it), mode=\"w\" (replace it) or another path";
    PyOSError::new_err((source.raw_os_error(), text, Python::attach(|py| path_text(py, path).unbind())))
}

impl Writer {
    /// Appends files or images, with the values of the other fields.
    fn ingest(
        &self,
        py: Python<'_>,
        field: &str,
        source: Source<'_>,
        values: &Bound<'_, PyMapping>,
        on_error: &str,
        recode: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<(usize, PyErr)>> {
        let recode = recode.map(recode_from).transpose()?.flatten();
        let on_error = on_error_from(on_error)?;
        let schema = self.state.schema();
        let inputs = match source {
            Source::Files(paths) => (paths.len(), "files"),
            Source::Memory(images) => (images.len(), "images"),
        };
        let (field, held) = beside_inputs(&schema, field, inputs, values)?;
        let kinds = schema.fields().iter().map(|field| &field.kind).enumerate();
        let kinds = kinds.filter(|(i, _)| *i != field).map(|(_, kind)| kind);
        let columns: Vec<(Column<'_>, &FieldType)> = held.iter().map(|column| column.column(py)).zip(kinds).collect();
        let row = |i: usize| {
            let mut row = Vec::with_capacity(1 + columns.len());
            row.extend(columns.iter().map(|(column, kind)| column.get(kind, i)));
            row
        };
        let input = Ingest { field, source, on_error, recode: recode.as_ref() };
        let mut tally = ImageCounts::default();
        let skipped = self.state.call_long(py, |writer, control| input.append_to(writer, &mut tally, row, control));
        self.state.tally().add(tally);
        Ok(skipped?.into_iter().map(|(position, error)| (position, to_py(error))).collect())
    }
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
            return Err(SchemaError::new_err(("a new file needs a schema", "FR401", path.display().to_string())));
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
        Ok(Self { state: WriterState::new(path, writer) })
    }

    /// Append one record, a mapping with a value for each field, and return its number.
    ///
    /// Raises:
    ///     SchemaError: a value is missing, unknown or does not fit; names record and field;
    ///     nothing was appended.
    ///     OSError: a write failed (a full disk). The file is intact up to its last commit; this
    ///     writer cannot continue.
    fn append(&self, py: Python<'_>, record: &Bound<'_, PyMapping>) -> PyResult<u64> {
        let values = record_from(&self.state, record)?;
        let values: Vec<Value<'_>> = values.iter().map(|value| value.value(py)).collect();
        let bytes = values.iter().map(Value::input_bytes).sum();
        self.state.append(py, bytes, |writer| writer.append(&values))
    }

    /// Append many records in one call, and return the number of the first.
    ///
    /// Args:
    ///     columns: N values for each field. Scalars and arrays can be one array (N, *shape), which
    ///         is read without Python code per record. Any sequence of values that `append` accepts
    ///         also works.
    /// Raises:
    ///     SchemaError: a value is missing, unknown or does not fit; names record and field;
    ///     nothing was appended.
    ///     OSError: a write failed. The file is intact up to its last commit; this writer cannot
    ///     continue.
    ///     KeyboardInterrupt: Ctrl-C, between two records. The records before it have been
    ///     appended.
    fn extend(&self, py: Python<'_>, columns: &Bound<'_, PyMapping>) -> PyResult<u64> {
        let (columns, count) = columns_from(&self.state, columns)?;
        let columns: Vec<Column<'_>> = columns.iter().map(|column| column.column(py)).collect();
        self.state.call_long(py, |writer, control| writer.extend(&columns, count, control))
    }

    /// Create a file whose fields are inferred from a record, and return its Writer.
    ///
    /// Args:
    ///     path: The .frec file.
    ///     sample: A record. It is inspected, not appended. int, float, bool, complex, str and
    ///         bytes become fields of type int64, float64, bool, complex128, string and bytes
    ///         (image, if they begin like one). numpy and torch arrays become an array of their
    ///         dtype and shape, and numpy scalars their type. A dict becomes json, and a list of
    ///         values of one type becomes a list.
    ///     mode: "x" or "w", as for `Writer`.
    ///     options: Other arguments of `Writer`.
    /// Raises:
    ///     SchemaError: the type of a value cannot be inferred; names the field.
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

    /// Append one record for each file, in order; several threads read ahead and recode, without
    /// the GIL.
    ///
    /// Args:
    ///     field: The field of type image or bytes that receives the bytes of the files, unchanged
    ///         unless `recode` changes them.
    ///     paths: The files, N of them.
    ///     values: N values for each other field, as for `extend`.
    ///     on_error: "raise" stops at the first file that cannot be read or (for an image field) is
    ///         not an image. Files before it are appended; that file and later ones are not. "skip"
    ///         leaves such files out.
    ///     recode: How images are changed before they are stored, a `fastrecord.Recode`. None: not at
    ///         all.
    /// Returns:
    ///     The skipped files: (position in `paths`, error). `recoded` counts what happened to the
    ///     others.
    /// Raises:
    ///     DecodeError: a file is not an image, or must be decoded and cannot be. OSError: it
    ///     cannot be read, or a write failed. Both name the file. SchemaError: a value does not fit
    ///     its field.
    #[pyo3(signature = (field, paths, values, *, on_error = "raise", recode = None))]
    fn append_files(
        &self,
        py: Python<'_>,
        field: &str,
        paths: Vec<PathBuf>,
        values: &Bound<'_, PyMapping>,
        on_error: &str,
        recode: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<(usize, PyErr)>> {
        self.ingest(py, field, Source::Files(&paths), values, on_error, recode)
    }

    /// Append one record for each image in memory, in order; several threads recode ahead, without
    /// the GIL.
    ///
    /// As `append_files`, which describes the other arguments, with the same bytes in the file.
    /// Without `recode`, the calling thread does everything: it copies an image sooner
    /// than it wakes another thread.
    ///
    /// Args:
    ///     field: The field of type image or bytes that receives the images.
    ///     images: N bytes-like objects. They are not copied before they are written, and must not
    ///         change during the call.
    ///     values: N values for each other field, as for `extend`.
    ///     on_error: "raise" stops at the first bytes that are not an image, or that must be decoded
    ///         and cannot be. Images before them are appended; later ones are not. "skip" leaves
    ///         such images out.
    /// Returns:
    ///     The skipped images: (position in `images`, error). `recoded` counts what happened to
    ///     the others.
    /// Raises:
    ///     DecodeError: bytes are not an image, or must be decoded and cannot be; names the
    ///     position. SchemaError: an image is not a bytes-like object, or a value does not fit its
    ///     field. OSError: a write failed.
    #[pyo3(signature = (field, images, values, *, on_error = "raise", recode = None))]
    fn append_images(
        &self,
        py: Python<'_>,
        field: &str,
        images: &Bound<'_, PyAny>,
        values: &Bound<'_, PyMapping>,
        on_error: &str,
        recode: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<(usize, PyErr)>> {
        let images = images_from(images)?;
        let images: Vec<&[u8]> = images.payloads(py);
        self.ingest(py, field, Source::Memory(&images), values, on_error, recode)
    }

    /// Start to add a field to the records of the file. Uncommitted records are committed first.
    ///
    /// Give the filler a value for each record, in record order. It commits the field when it is
    /// closed, and nothing before. Meanwhile records cannot be appended, but several fields can be
    /// filled at once. Afterwards every record needs the field.
    ///
    /// Args:
    ///     name: Name of the new field. An existing name is refused: add "label_v2" next to
    ///         "label".
    ///     type: `fastrecord.array("float32", (512,))` or another type.
    /// Raises:
    ///     SchemaError: the name is taken, or the name or the type is not allowed.
    #[pyo3(signature = (name, r#type))]
    fn add_field(slf: &Bound<'_, Self>, name: &str, r#type: &Bound<'_, PyAny>) -> PyResult<NewFieldWriter> {
        let py = slf.py();
        let given = PyDict::new(py);
        given.set_item(name, r#type)?;
        let schema = schema_from(&given)?;
        let [field] = schema.fields() else {
            return Err(SchemaError::new_err(("one field is added at a time", "FR401")));
        };
        let state = &slf.get().state;
        let new = state.call(py, |writer| writer.start_field(field))?;
        Ok(NewFieldWriter::new(Arc::clone(state), new, field.clone()))
    }

    /// Remove a field, durably. Uncommitted records are committed with it. Its bytes stay in the
    /// file.
    ///
    /// Open readers keep the field until they refresh.
    ///
    /// Raises:
    ///     KeyError: the field does not exist. SchemaError: it is the only field.
    fn drop_field(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.state.call(py, |writer| writer.drop_field(name).map(drop))
    }

    /// Make all appended records durable, and return the number of the commit. Does nothing without
    /// changes.
    ///
    /// Raises:
    ///     OSError: a write failed. The file is intact up to its last commit; this writer cannot
    ///     continue.
    ///     FastRecordError: the file was removed, moved or replaced meanwhile; names the place of
    ///     the records.
    fn commit(&self, py: Python<'_>) -> PyResult<u64> {
        self.state.call(py, CoreWriter::commit)
    }

    /// Commit for the last time. `close` then only replaces the old file.
    #[pyo3(name = "_finish")]
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        self.state.call(py, CoreWriter::finish)
    }

    /// Commit and release the file, also after a failed write. Closing twice is allowed.
    ///
    /// Raises:
    ///     SchemaError: a new field lacks values for some records. The field is dropped, and the
    ///     rest is committed. (With mode "w" the old file is then not replaced.)
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.state.call(py, CoreWriter::close)
    }

    /// Drop uncommitted records and release the file. A new file without any commit is removed.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        if self.state.is_from_another_process() {
            return Ok(()); // a forked child that leaves the block: the file belongs to its parent
        }
        self.state.call(py, |writer| {
            writer.abort();
            Ok(())
        })
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

    /// Return the number of records in the file, including uncommitted ones.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.state.lock(py)?.len() as usize)
    }

    fn __repr__(&self) -> String {
        format!("<fastrecord.Writer '{}': {}>", self.state.path().display(), self.state.schema().describe())
    }

    /// The path given to the constructor.
    #[getter]
    fn path<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        path_text(py, self.state.path())
    }

    /// The schema of every record, a `fastrecord.Schema`.
    #[getter]
    fn schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        schema_to(py, &self.state.schema())
    }

    /// Bytes that this writer has appended to the file.
    #[getter]
    fn bytes_written(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.state.lock(py)?.bytes_written())
    }

    /// What happened to the images appended by `append_files` and `append_images`, a new dict each
    /// time.
    ///
    /// "images" is the number of images. "kept" counts those stored byte for byte, and "smaller"
    /// those shrunk by `short_side` or `max_side`. "crop_index", "packed" and "raw" count images
    /// stored that way, including kept and shrunk ones: a packed JPEG is kept if readers give the
    /// image as it was given. "bytes_in" is the size of the images as given, and "bytes_out" their
    /// stored size.
    #[getter]
    fn recoded<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        tally_dict(py, &self.state.tally())
    }

    /// Kinds of appended images that the core does not decode, such as "AVIF", a new dict each
    /// time: kind -> count.
    ///
    /// Counts only images from `append_files` and `append_images`. The loader and data sets decode
    /// them with Pillow, if it can.
    #[getter]
    fn foreign<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.state.tally().foreign.clone().into_py_dict(py)
    }

    /// Return how the values of each compressed field are stored: field -> dict, as
    /// `Reader.compression`, for the values that this writer has appended.
    ///
    /// "codec" may also be "none" (uncompressed), and is None until the first values decide. The
    /// choice of "auto" is logged with its reason under "fastrecord".
    fn compression<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = self.state.lock(py)?.compression();
        let dict = PyDict::new(py);
        for field in all {
            let dictionaries = field.dictionary.into_iter().collect();
            let codec = field.codec.map(Codec::name);
            let row = stored_dict(py, codec, field.level, dictionaries, (field.raw, field.stored))?;
            dict.set_item(field.field, row)?;
        }
        Ok(dict)
    }

    /// Number of durable records.
    #[getter]
    fn committed(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.state.lock(py)?.committed())
    }

    /// The file's key/value metadata, a new dict each time. Assign a mapping to replace it with the
    /// next commit.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let text = serde_json::Value::Object(self.state.lock(py)?.metadata().clone()).to_string();
        from_json(py, &text)
    }

    #[setter]
    fn set_metadata(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = to_json(value)?;
        self.state.lock(py)?.set_metadata(value).map_err(to_py)
    }

    /// Whether the file is marked complete from the next commit on.
    #[getter]
    fn complete(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.state.lock(py)?.complete())
    }

    #[setter]
    fn set_complete(&self, py: Python<'_>, value: bool) -> PyResult<()> {
        self.state.lock(py)?.set_complete(value);
        Ok(())
    }
}
