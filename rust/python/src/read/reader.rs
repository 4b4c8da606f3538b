//! The class `fastrecord.Reader`: argument checks and conversion. It does not parse the format.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use fastrecord_core::{Codec, Depth, Error, Reader as CoreReader, SnapshotId, Verify, hex, verify};
use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyRange, PyTuple};

use crate::convert::buffers::with_writable;
use crate::convert::compression::stored_dict;
use crate::convert::indices::{absolute, from_json, int64_array, schema_to};
use crate::convert::verify::Check;
use crate::error::{path_text, to_py, with_progress, without_gil};
use crate::logging::{deliver, delivered, follow};
use crate::read::access::{access_from, access_name, reduced};
use crate::read::batch::Batch;
use crate::read::out::check_out;
use crate::read::state::{Place, ReaderState};
use crate::read::unopened::Unopened;
use crate::read::verify_report::report_dict;

/// Read a file as of its newest commit at the time of opening. Later appends are invisible until
/// `refresh()`.
///
/// Args:
///     path: The .frec file.
///     access: "mmap" maps the file and returns records as views without copying. "pread" maps
///         nothing: every read copies, and every disk failure raises an exception. It reads the
///         index into memory at first use (32 bytes per record and field).
///     threads: Maximum number of threads for one call. The default is the number of CPUs that the
///         process may run on.
///     verify: When to compare images, bytes and arrays with their CRCs. "once" checks a payload
///         when this reader first takes it from the mapping, and remembers that in one bit per
///         record and field. True checks on every read, False never. System calls (all reads with
///         access="pread") may return different bytes each time, so there "once" checks every time.
///         Strings, JSON values, lists and compressed values are always checked. This setting
///         applies to `reader[i]`, iteration, and every call without its own `verify`.
///
/// A reader can be shared by threads, forked, and pickled. A copy in another process opens the same
/// snapshot, and refuses a file that was replaced. Views keep the mapping alive after `close()`.
///
/// Raises:
///     FileNotFoundError, PermissionError: raised by the system.
///     CorruptFileError: the file is not a .frec file, is damaged or truncated, or has no commit.
///     UnsupportedVersionError: a newer fastrecord wrote the file.
#[pyclass(module = "fastrecord", frozen, sequence)]
pub(crate) struct Reader {
    /// The path as the user gave it.
    path: PathBuf,
    /// The absolute path. It stays valid when the process changes its working directory.
    absolute: PathBuf,
    held: Mutex<Held>,
}

/// The file of a `Reader`.
#[derive(Clone)]
enum Held {
    Open(Arc<ReaderState>),
    /// Opened at each use, and perhaps closed between them.
    Unopened(Arc<Unopened>),
    Closed,
}

fn check_threads(threads: Option<usize>) -> PyResult<Option<usize>> {
    if threads == Some(0) { Err(PyValueError::new_err("threads is at least 1")) } else { Ok(threads) }
}

impl Reader {
    pub(crate) fn with(py: Python<'_>, path: PathBuf, reader: CoreReader, verify: Verify) -> PyResult<Self> {
        let held = Held::Open(ReaderState::new(py, reader, verify)?);
        Ok(Self { absolute: absolute(&path), path, held: Mutex::new(held) })
    }

    /// A reader that opens its file when something is read from it.
    pub(crate) fn unopened(unopened: Arc<Unopened>) -> Self {
        let path = unopened.shard.path.clone();
        let absolute = if unopened.is_remote() { path.clone() } else { absolute(&path) };
        Self { absolute, path, held: Mutex::new(Held::Unopened(unopened)) }
    }

    fn held(&self) -> Held {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the open file.
    pub(crate) fn state(&self) -> PyResult<Arc<ReaderState>> {
        match self.held() {
            Held::Open(state) => Ok(state),
            Held::Unopened(unopened) => unopened.state(),
            Held::Closed => Err(self.closed_error()),
        }
    }

    /// Returns what a manifest says of the file; None if it was opened without one.
    pub(crate) fn shard(&self) -> PyResult<Option<Arc<Unopened>>> {
        match self.held() {
            Held::Open(_) => Ok(None),
            Held::Unopened(unopened) => Ok(Some(unopened)),
            Held::Closed => Err(self.closed_error()),
        }
    }

    /// Has values brought here from where the file lies, if that is elsewhere; see [`Unopened::need`].
    pub(crate) fn need(
        &self,
        py: Python<'_>,
        fields: Option<&[&str]>,
        records: Option<&[u64]>,
        payloads: bool,
    ) -> PyResult<Option<Py<PyAny>>> {
        match self.held() {
            Held::Unopened(unopened) => unopened.need(py, fields, records, payloads),
            Held::Open(_) | Held::Closed => Ok(None),
        }
    }

    /// Reads values, after they were brought here if the file lies elsewhere; see [`Unopened::reading`].
    pub(crate) fn reading<T>(
        &self,
        py: Python<'_>,
        fields: Option<&[&str]>,
        records: Option<&[u64]>,
        payloads: bool,
        mut read: impl FnMut() -> PyResult<T>,
    ) -> PyResult<T> {
        match self.held() {
            Held::Unopened(unopened) => unopened.reading(py, fields, records, payloads, read),
            Held::Open(_) | Held::Closed => read(),
        }
    }

    /// Mends the copy of a file that lies elsewhere; see [`Unopened::mend`].
    fn mend(&self, py: Python<'_>, fields: Option<&[&str]>, records: Option<&[u64]>, payloads: bool) -> PyResult<bool> {
        match self.held() {
            Held::Unopened(unopened) => unopened.mend(py, fields, records, payloads),
            Held::Open(_) | Held::Closed => Ok(false),
        }
    }

    /// Returns where values go: to copies if views of them would not last.
    fn place(&self, copy: bool) -> Place {
        Place::from(copy || matches!(self.held(), Held::Unopened(unopened) if unopened.passing))
    }

    fn snapshot(&self) -> PyResult<SnapshotId> {
        Ok(match self.shard()? {
            Some(named) => named.shard.snapshot,
            None => self.state()?.reader.snapshot(),
        })
    }

    fn closed_error(&self) -> PyErr {
        to_py(Error::ReaderClosed { path: self.path.clone() })
    }

    fn replace(&self, held: Held) -> Held {
        std::mem::replace(&mut *self.held.lock().unwrap_or_else(PoisonError::into_inner), held)
    }
}

#[pymethods]
impl Reader {
    #[new]
    #[pyo3(
        signature = (path, access = "mmap", *, threads = None, verify = Check(Verify::Once)),
        text_signature = "(path, access='mmap', *, threads=None, verify='once')"
    )]
    fn new(py: Python<'_>, path: PathBuf, access: &str, threads: Option<usize>, verify: Check) -> PyResult<Self> {
        let (access, threads) = (access_from(access)?, check_threads(threads)?);
        follow(py)?;
        let reader = py.detach(|| CoreReader::open(&path, access, threads)).map_err(to_py);
        let reader = delivered(py, reader)?;
        Self::with(py, path, reader, verify.0)
    }

    /// Return the number of records.
    fn __len__(&self) -> PyResult<usize> {
        let records = match self.shard()? {
            Some(named) => named.shard.records,
            None => self.state()?.reader.len(),
        };
        Ok(records as usize)
    }

    /// Return one record as a dict of field name to value; negative numbers count from the end.
    ///
    /// Images and bytes are read-only memoryviews of the mapping. Arrays are read-only numpy arrays
    /// over it. The reader's `verify` decides when payloads are checked against their CRCs, by
    /// default at the first read.
    fn __getitem__<'py>(&self, py: Python<'py>, record: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        let state = self.state()?;
        let record = state.record(record)?;
        self.reading(py, None, Some(&[record]), true, || state.row(py, record, self.place(false)))
    }

    /// Iterate over all records, in the form of `reader[i]`.
    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (builtins, numbers) = (slf.py().import("builtins")?, PyRange::new(slf.py(), 0, slf.len()?.cast_signed())?);
        builtins.call_method1("map", (slf.getattr("__getitem__")?, numbers))
    }

    /// Return one field of one record.
    ///
    /// `verify` decides whether a payload is checked against its CRC; the default is the reader's
    /// setting. With `copy`, images and bytes are `bytes`, and arrays own their memory. Nothing is
    /// then a view of the mapping, and a read failure raises here.
    #[pyo3(signature = (record, field, *, verify = None, copy = false))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        record: &Bound<'py, PyAny>,
        field: &str,
        verify: Option<Check>,
        copy: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let state = self.state()?;
        let record = state.record(record)?;
        self.reading(py, Some(&[field]), Some(&[record]), true, || {
            state.value(py, state.field(field)?, record, state.verify(verify), self.place(copy))
        })
    }

    /// Return all values of a scalar field, shape (N,), read-only.
    ///
    /// Arrays of at most 64 bytes have columns too, shape (N, *shape).
    ///
    /// "image.width" and "image.height" are uint32. The result is a view of the mapping if the
    /// column is one chunk, as it is after a file was written and closed. Otherwise, or with
    /// `copy`, it is a copy, made once.
    #[pyo3(signature = (name, *, copy = false))]
    fn column<'py>(&self, py: Python<'py>, name: &str, copy: bool) -> PyResult<Bound<'py, PyAny>> {
        self.reading(py, Some(&[name]), None, false, || self.state()?.column(py, name, copy.into()))
    }

    /// Return the size of each record's value in bytes, int64 (N,), without reading any value.
    ///
    /// The default is all records. Scalar fields have no lengths.
    #[pyo3(signature = (field, indices = None))]
    fn lengths<'py>(
        &self,
        py: Python<'py>,
        field: &str,
        indices: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let state = self.state()?;
        let (records, number) = (state.records_or_all(indices)?, state.field(field)?);
        let lengths = || py.detach(|| state.reader.lengths(number, &records)).map_err(to_py);
        Ok(int64_array(py, self.reading(py, Some(&[field]), None, false, lengths)?))
    }

    /// Return the CRC-32C of each record's stored bytes, uint32 (N,), from the index, without
    /// reading any value.
    ///
    /// The default is all records. A missing value has 0. Fields without payloads (scalars, arrays
    /// of at most 64 bytes) have no checksums.
    ///
    /// Equal values have equal checksums if they are stored in the same way: the checksum is about
    /// the bytes in the file. A compressed value counts as compressed. An image counts with the
    /// side bytes that follow it, such as the crop index of an image packed with `crop_index`. An index that `fastrecord index` added lies elsewhere and does not
    /// count.
    #[pyo3(signature = (field, indices = None))]
    fn checksums<'py>(
        &self,
        py: Python<'py>,
        field: &str,
        indices: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let state = self.state()?;
        let (records, number) = (state.records_or_all(indices)?, state.field(field)?);
        let checksums = || py.detach(|| state.reader.checksums(number, &records)).map_err(to_py);
        Ok(PyArray1::from_vec(py, self.reading(py, Some(&[field]), None, false, checksums)?).into_any())
    }

    /// Return how the values of each compressed field are stored: field -> dict. Reads their index
    /// entries, 32 bytes per record.
    ///
    /// "codec" is "lz4" or "zstd". "level" is the zstd level, or None. "dictionaries" lists the ids
    /// of the dictionaries in the file. "bytes" is the size of all values, and "stored" is their
    /// stored size. "ratio" is "bytes" divided by "stored", or None without values.
    fn compression<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let state = self.state()?;
        let _kept = self.need(py, None, None, false)?;
        let dict = PyDict::new(py);
        for (position, field) in state.reader.schema().iter() {
            let Some(compression) = &field.compression else { continue };
            let sizes = py.detach(|| state.reader.sizes(position)).map_err(to_py)?;
            let level = (compression.codec == Codec::Zstd).then_some(compression.level);
            let row = stored_dict(py, Some(compression.codec.name()), level, compression.dictionaries(), sizes)?;
            dict.set_item(&field.name, row)?;
        }
        Ok(dict)
    }

    /// Read many records in one call, without the GIL.
    ///
    /// Args:
    ///     indices: Record numbers: any 1-D integer sequence or array. Repeats are allowed;
    ///         negative numbers count from the end.
    ///     fields: Names of the fields to read; all by default.
    ///     verify: When to check payloads against their CRCs: "once", True or False. The default is
    ///         the reader's setting.
    ///     copy: Copy payloads into one new buffer per field, on all threads. Reading a view of the
    ///         mapping raises a bus error, which ends the process, if the file was truncated or its
    ///         disk fails. A copy raises an exception instead.
    /// Returns:
    ///     A Batch. Its payloads are views of the mapping. With `copy`, with access="pread", or if
    ///     one value is compressed, they are views of one new buffer.
    /// Raises:
    ///     IndexError: a number is out of range. KeyError: the field does not exist.
    ///     CorruptFileError: damage; names file, record and field. OSError: the disk fails.
    #[pyo3(signature = (indices, fields = None, *, verify = None, copy = false))]
    fn read_batch(
        &self,
        py: Python<'_>,
        indices: &Bound<'_, PyAny>,
        fields: Option<Vec<String>>,
        verify: Option<Check>,
        copy: bool,
    ) -> PyResult<Batch> {
        let state = self.state()?;
        let records = state.records(indices)?;
        let names: Option<Vec<&str>> = fields.as_ref().map(|names| names.iter().map(String::as_str).collect());
        let (verify, place) = (state.verify(verify), self.place(copy));
        let read = || state.fields(py, &records, fields.as_deref(), verify, place);
        let fields = self.reading(py, names.as_deref(), Some(&records), true, read)?;
        deliver(py)?;
        Ok(Batch { state, records, fields, shard: self.shard()? })
    }

    /// Copy the values of many records back to back into a writable buffer, on all threads and
    /// without the GIL.
    ///
    /// Args:
    ///     indices: As in `read_batch`.
    ///     field: A field of any type except scalars. For a string, a JSON value or a list, the
    ///         stored bytes are copied.
    ///     out: Any writable contiguous buffer (bytearray, numpy array, CPU tensor). No other
    ///         thread may use it during the call. For arrays of a fixed shape: an array or tensor
    ///         (N, *shape) of their dtype, or flat memory.
    ///     verify: When to check payloads against their CRCs: "once", True or False. The default is
    ///         the reader's setting.
    /// Returns:
    ///     Offsets, int64 (N + 1,): payload i is out[offsets[i]:offsets[i + 1]].
    /// Raises:
    ///     ValueError: the buffer is too small, or has the wrong dtype or shape; nothing was
    ///     written. BufferError: it is read-only or not contiguous.
    ///     CorruptFileError, FastRecordError (a record without a value): parts of the buffer may
    ///     have been written.
    #[pyo3(signature = (indices, field, out, *, verify = None))]
    fn read_batch_into<'py>(
        &self,
        py: Python<'py>,
        indices: &Bound<'py, PyAny>,
        field: &str,
        out: &Bound<'py, PyAny>,
        verify: Option<Check>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let state = self.state()?;
        let (reader, verify) = (&state.reader, state.verify(verify));
        let records = state.records(indices)?;
        let number = state.field(field)?;
        let read = || {
            check_out(out, &reader.schema()[number].kind, records.len())?;
            with_writable(out, |bytes| {
                without_gil(py, |control| reader.read_batch_into(number, &records, bytes, verify, control))
            })
        };
        let starts = self.reading(py, Some(&[field]), Some(&records), true, read)?;
        deliver(py)?;
        Ok(int64_array(py, starts))
    }

    /// Ask the kernel to read the payloads of records into the page cache, without waiting. Return
    /// their size in bytes.
    fn prefetch(&self, py: Python<'_>, indices: &Bound<'_, PyAny>, field: &str) -> PyResult<u64> {
        let state = self.state()?;
        let records = state.records(indices)?;
        let _kept = self.need(py, Some(&[field]), Some(&records), true)?;
        let field = state.field(field)?;
        without_gil(py, |control| state.reader.prefetch(field, &records, control))
    }

    /// Advance to the newest commit; return True if there is one. Earlier views and batches do not
    /// change.
    fn refresh(&self, py: Python<'_>) -> PyResult<bool> {
        let state = self.state()?;
        follow(py)?;
        let newer = py.detach(|| state.reader.refresh()).map_err(to_py);
        let newer = delivered(py, newer)?;
        // `refresh` returns the same commit again if part of it could not be read through the
        // mapping.
        let found = newer.as_ref().is_some_and(|reader| reader.snapshot() != state.reader.snapshot());
        if let Some(reader) = newer {
            drop(self.replace(Held::Open(ReaderState::new(py, reader, state.verify)?)));
        }
        Ok(found)
    }

    /// Check every checksum in the file, on all threads.
    ///
    /// Args:
    ///     progress: Called periodically with (bytes done, total bytes).
    ///     deep: Check the values too: decode all pixels of every image, decompress values, and
    ///         check texts, JSON, lists and bools. Each thread holds one value at a time.
    /// Returns:
    ///     A dict with these keys. "ok" is a bool. "records" is the number of records, and "bytes"
    ///     the payload bytes read. "errors" is a list of str, each naming file, record and field.
    ///     "damaged" lists dicts "record", "field", "key", "error" for the errors about one value;
    ///     the key is None if it cannot be read. "decoded" counts images. "undecoded" counts images
    ///     of kinds that are not decoded here; only their checksums were checked. "tail_bytes" is
    ///     the size of the data after the last commit: a commit in progress, or a torn tail.
    /// Raises:
    ///     OSError: the disk fails. MemoryError: too little memory for a value.
    #[pyo3(signature = (*, progress = None, deep = false))]
    fn verify<'py>(&self, py: Python<'py>, progress: Option<Py<PyAny>>, deep: bool) -> PyResult<Bound<'py, PyDict>> {
        let state = self.state()?;
        let _kept = self.need(py, None, None, true)?;
        let reader = &state.reader;
        let check = || {
            follow(py)?;
            let report = with_progress(py, progress.as_ref(), Some(reader.bytes()), |control| {
                verify(reader, if deep { Depth::Values } else { Depth::Checksums }, control)
            });
            delivered(py, report)
        };
        let mut report = check()?;
        if !report.errors.is_empty() && self.mend(py, None, None, true)? {
            report = check()?;
        }
        report_dict(py, report, reader.tail_bytes())
    }

    /// Release the file. The mapping ends with its last view. Closing twice is allowed.
    fn close(&self) {
        if let Held::Unopened(unopened) = self.replace(Held::Closed) {
            unopened.close();
        }
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        self.close();
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        if let Some(named) = self.shard()? {
            return named.reduced(py, &self.absolute);
        }
        reduced(py, &*self.state()?, &self.absolute)
    }

    fn __repr__(&self) -> String {
        match self.state() {
            Ok(state) => {
                let (records, schema) = (state.reader.len(), state.reader.schema().describe());
                format!("<fastrecord.Reader '{}': {records} records, {schema}>", self.path.display())
            }
            Err(_) => format!("<fastrecord.Reader '{}': closed>", self.path.display()),
        }
    }

    /// Show the file in a notebook: its fields and some of its records.
    #[pyo3(name = "_repr_html_")]
    fn repr_html<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("fastrecord.look.notebook")?.call_method1("reader_html", (slf,))
    }

    /// The path given to the constructor.
    #[getter]
    fn path<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        path_text(py, &self.path)
    }

    /// The access mode: "mmap" or "pread".
    #[getter]
    fn access(&self) -> PyResult<&'static str> {
        Ok(access_name(match self.shard()? {
            Some(named) => named.access,
            None => self.state()?.reader.access(),
        }))
    }

    /// Whether `close()` was called.
    #[getter]
    fn closed(&self) -> bool {
        matches!(self.held(), Held::Closed)
    }

    /// The schema of every record, a `fastrecord.Schema`.
    #[getter]
    fn schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        schema_to(py, self.state()?.reader.schema())
    }

    /// The file's key/value metadata, a new dict each time.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        from_json(py, &serde_json::Value::Object(self.state()?.reader.metadata().clone()).to_string())
    }

    /// False while a bulk import is in progress, or if it was interrupted.
    #[getter]
    fn complete(&self) -> PyResult<bool> {
        Ok(self.state()?.reader.complete())
    }

    /// The file's random id, 32 hexadecimal digits. A copy of a file keeps the id.
    #[getter]
    fn file_id(&self) -> PyResult<String> {
        Ok(hex(&self.snapshot()?.file_id))
    }

    /// The checksum of the commit's footer. Two commits of a file with the same number and the same
    /// checksum have the same content.
    #[getter]
    fn footer_crc(&self) -> PyResult<u32> {
        Ok(self.snapshot()?.crc.unwrap_or_default())
    }

    /// Whether `footer_crc` depends on all values. Files of earlier versions left the contents of
    /// columns out; the next commit puts them in.
    #[getter]
    fn covers_content(&self) -> PyResult<bool> {
        Ok(self.state()?.reader.covers_content())
    }

    /// The number of the opened commit, from 1.
    #[getter]
    fn commit(&self) -> PyResult<u64> {
        Ok(self.snapshot()?.commit)
    }

    /// The format version of the file.
    #[getter]
    fn version(&self) -> PyResult<u32> {
        Ok(self.state()?.reader.version())
    }

    /// File size in bytes up to the end of the commit.
    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        Ok(match self.shard()? {
            Some(named) => named.shard.bytes(),
            None => self.state()?.reader.bytes(),
        })
    }

    /// Bytes after the commit when the file was opened: a commit in progress, or a torn tail.
    #[getter]
    fn tail_bytes(&self) -> PyResult<u64> {
        Ok(self.state()?.reader.tail_bytes())
    }
}
