//! Appending records and committing them: docs/format.md, section 7.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};

use crate::chunks::ColumnBuffer;
use crate::error::{Error, Result};
use crate::layout::{
    CHUNK_LEN, CheckedRange, Chunk, Extent, FileId, Footer, PAGE, Slot, align, encode_superblock, slot_offset,
};
use crate::open::{Commit, Opening};
use crate::schema::{Document, FieldType, Schema};
use crate::storage::Storage;
use crate::sys;

/// One value of a record, as [`Writer::append`] takes it.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// For fields of type image and bytes.
    Bytes(&'a [u8]),
    /// For fields of type string.
    Str(&'a str),
    /// For fields of type int64.
    Int(i64),
    /// For fields of type float64.
    Float(f64),
    /// An image whose size and CRC-32C are known already.
    Image {
        /// The encoded image.
        data: &'a [u8],
        /// Width and height in pixels.
        size: (u32, u32),
        /// CRC-32C of `data`.
        crc: u32,
    },
}

/// What to do with a file that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Make a new file; an existing one is refused.
    Create,
    /// Go on behind the last commit of an existing file.
    Append,
    /// Write under a temporary name, and take the place of an existing file at close.
    Overwrite,
}

/// How a [`Writer`] is opened.
#[derive(Debug, Clone)]
pub struct WriterOptions {
    /// What to do with a file that exists.
    pub mode: Mode,
    /// Commit by itself after so many bytes, so that memory and what a crash can lose are bounded.
    pub commit_bytes: u64,
    /// Whether the file is complete after its next commit.
    pub complete: bool,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self { mode: Mode::Create, commit_bytes: 1 << 30, complete: true }
    }
}

/// Bytes gathered before one write.
const BUFFER: usize = 4 << 20;
/// Bytes written before the kernel is asked to start writing them to the disk.
const WRITEBACK: u64 = 16 << 20;
/// Strings gathered before they are written as one run.
const HEAP: usize = 4 << 20;
/// Index bytes held in memory before a commit, whatever the payloads weigh.
const INDEX: usize = 64 << 20;

/// The one writer of a file. Dropping it without [`Writer::close`] is [`Writer::abort`].
#[derive(Debug)]
pub struct Writer {
    pub(crate) path: PathBuf,
    /// The temporary name that the file has until close.
    temporary: Option<PathBuf>,
    pub(crate) storage: Option<Box<dyn Storage>>,
    process: u32,
    fd: Option<RawFd>,
    id: FileId,
    document: Document,
    document_changed: bool,
    metadata: CheckedRange,
    pub(crate) columns: Vec<ColumnBuffer>,
    heap: Vec<u8>,
    footer: Option<Footer>,
    pub(crate) records: u64,
    buffer: Vec<u8>,
    /// Where the buffer will lie in the file.
    buffer_at: u64,
    writeback_at: u64,
    commit_start: u64,
    pub(crate) session_start: u64,
    commit_bytes: u64,
    failed: Option<String>,
}

impl Writer {
    /// Opens a file for writing and takes its lock.
    ///
    /// `schema` may be left out to append.
    ///
    /// # Errors
    /// The file exists (create) or does not (append), is locked by another writer, damaged, or has another schema.
    pub fn open(
        path: &Path,
        schema: Option<Schema>,
        user: Option<Map<String, Json>>,
        options: &WriterOptions,
    ) -> Result<Self> {
        let io = |e| Error::io(path, e);
        let new_schema = || schema.clone().ok_or_else(|| Error::Schema("a new file needs a schema".to_owned()));
        let mut temporary = None;
        let file = match options.mode {
            Mode::Append => OpenOptions::new().read(true).write(true).open(path).map_err(io)?,
            Mode::Create => {
                new_schema()?;
                OpenOptions::new().read(true).write(true).create_new(true).open(path).map_err(io)?
            }
            Mode::Overwrite => {
                new_schema()?;
                if path.is_dir() {
                    return Err(io(io::Error::from(io::ErrorKind::IsADirectory)));
                }
                remove_stale_temporaries(path);
                let name = temporary.insert(temporary_name(path)?);
                OpenOptions::new().read(true).write(true).create_new(true).open(name).map_err(io)?
            }
        };
        if !sys::try_lock(&file).map_err(io)? {
            return Err(Error::Locked { path: path.to_owned(), holder: sys::lock_holder(&file) });
        }
        let fd = file.as_raw_fd();
        sys::close_in_children(fd);
        let opened = match options.mode {
            Mode::Append => Self::append_to(path, Box::new(file), schema.as_ref(), options),
            Mode::Create | Mode::Overwrite => new_schema().and_then(|schema| {
                let document = Document::new(schema, Map::new(), options.complete);
                Self::create_on(path, Box::new(file), document, options)
            }),
        };
        let mut writer = match opened {
            Ok(writer) => writer,
            Err(error) => {
                sys::forget_fd(fd);
                if options.mode != Mode::Append {
                    let _ = std::fs::remove_file(temporary.as_deref().unwrap_or(path));
                }
                return Err(error);
            }
        };
        writer.temporary = temporary;
        writer.fd = Some(fd);
        if let Some(user) = user {
            writer.set_metadata(user);
        }
        Ok(writer)
    }

    /// Starts a new file on any storage; for tests that break writes.
    ///
    /// # Errors
    /// Those of the storage.
    pub fn create_in(path: &Path, storage: Box<dyn Storage>, schema: Schema, options: &WriterOptions) -> Result<Self> {
        Self::create_on(path, storage, Document::new(schema, Map::new(), options.complete), options)
    }

    fn create_on(path: &Path, storage: Box<dyn Storage>, document: Document, options: &WriterOptions) -> Result<Self> {
        let mut id = FileId::default();
        getrandom::fill(&mut id).map_err(|e| Error::io(path, io::Error::other(e.to_string())))?;
        storage.write_at(&encode_superblock(&id), 0).map_err(|e| Error::io(path, e))?;
        Ok(Self::assemble(path, storage, id, document, options, PAGE))
    }

    /// Goes on behind the last commit in any storage; for tests that break writes.
    ///
    /// # Errors
    /// Those of the storage, and damage.
    pub fn append_in(path: &Path, storage: Box<dyn Storage>, options: &WriterOptions) -> Result<Self> {
        Self::append_to(path, storage, None, options)
    }

    fn append_to(
        path: &Path,
        storage: Box<dyn Storage>,
        schema: Option<&Schema>,
        options: &WriterOptions,
    ) -> Result<Self> {
        let opening = Opening::new(path, storage.as_ref())?;
        let footer = opening.newest()?;
        let Commit { id, directory, document, file_length, .. } = opening.load(footer)?;
        if let Some(given) = schema.filter(|given| !given.same_fields(&document.schema)) {
            let (found, given) = (document.schema.describe(), given.describe());
            return Err(Error::SchemaMismatch { path: path.to_owned(), found, given });
        }
        if file_length > footer.end() {
            storage.set_len(footer.end()).map_err(|e| Error::io(path, e))?;
        }
        let changed = document.complete != options.complete;
        let mut writer = Self::assemble(path, storage, id, document, options, footer.end());
        for (i, bytes) in directory.chunks_exact(CHUNK_LEN).enumerate() {
            let bad = |detail| Error::corrupt(path, format!("directory entry {i}"), detail);
            let chunk = Chunk::decode(bytes, &footer).map_err(bad)?;
            let column = writer.columns.iter_mut().find(|c| c.holds(&chunk));
            column.ok_or_else(|| bad("not a column of the schema".to_owned()))?.chunks.push(chunk);
        }
        writer.footer = Some(footer);
        writer.metadata = footer.metadata;
        writer.records = footer.records;
        writer.document.complete = options.complete;
        writer.document_changed = changed;
        Ok(writer)
    }

    fn assemble(
        path: &Path,
        storage: Box<dyn Storage>,
        id: FileId,
        document: Document,
        options: &WriterOptions,
        at: u64,
    ) -> Self {
        Self {
            path: path.to_owned(),
            temporary: None,
            storage: Some(storage),
            process: std::process::id(),
            fd: None,
            id,
            columns: ColumnBuffer::for_schema(&document.schema),
            document,
            document_changed: true,
            metadata: CheckedRange::default(),
            heap: Vec::new(),
            footer: None,
            records: 0,
            buffer: Vec::with_capacity(BUFFER),
            buffer_at: at,
            writeback_at: at,
            commit_start: at,
            session_start: at,
            commit_bytes: options.commit_bytes.max(1),
            failed: None,
        }
    }

    /// The file that is being written.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The fields of every record.
    pub fn schema(&self) -> &Schema {
        &self.document.schema
    }

    /// Records in the file, those not yet committed included.
    pub fn len(&self) -> u64 {
        self.records
    }

    /// Whether the file has no record.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Records that are durable.
    pub fn committed(&self) -> u64 {
        self.footer.map_or(0, |footer| footer.records)
    }

    /// Bytes that this writer has appended.
    pub fn bytes_written(&self) -> u64 {
        self.position() - self.session_start
    }

    /// The user's own key/values.
    pub fn metadata(&self) -> &Map<String, Json> {
        &self.document.user
    }

    /// Replaces the user's key/values; the next commit writes them.
    pub fn set_metadata(&mut self, user: Map<String, Json>) {
        self.document_changed |= user != self.document.user;
        self.document.user = user;
    }

    /// Whether the file will say that it is complete.
    pub fn complete(&self) -> bool {
        self.document.complete
    }

    /// Sets whether the file says that it is complete; the next commit writes it.
    pub fn set_complete(&mut self, complete: bool) {
        self.document_changed |= complete != self.document.complete;
        self.document.complete = complete;
    }

    /// Appends one record, a value for each field of the schema in order, and returns its number.
    ///
    /// # Errors
    /// A value does not fit its field (nothing is appended then), or a failed write.
    pub fn append(&mut self, values: &[Value<'_>]) -> Result<u64> {
        self.check_usable()?;
        let sizes = self.check_values(values)?;
        let record = self.records;
        let appended = self.append_checked(values, &sizes);
        self.guard(appended)?;
        self.records = record + 1;
        let pending: usize = self.columns.iter().map(|c| c.pending.len()).sum();
        if self.position() + self.heap.len() as u64 - self.commit_start >= self.commit_bytes || pending >= INDEX {
            self.commit()?;
        }
        Ok(record)
    }

    /// Checks all values before any of them is written; returns the sizes of images.
    fn check_values(&self, values: &[Value<'_>]) -> Result<Vec<(u32, u32)>> {
        let fields = self.document.schema.fields();
        if values.len() != fields.len() {
            return Err(Error::Schema(format!("{} values for {} fields", values.len(), fields.len())));
        }
        let mut sizes = Vec::new();
        for (field, value) in fields.iter().zip(values) {
            match (field.kind, value) {
                (FieldType::Bytes, Value::Bytes(_) | Value::Image { .. })
                | (FieldType::String, Value::Str(_))
                | (FieldType::Int64, Value::Int(_))
                | (FieldType::Float64, Value::Float(_)) => {}
                (FieldType::Image, Value::Image { size, .. }) => sizes.push(*size),
                (FieldType::Image, Value::Bytes(data)) => {
                    let size = crate::probe::image_size(data);
                    sizes.push(size.map_err(|detail| self.bad_value(&field.name, detail))?);
                }
                (kind, _) => return Err(self.bad_value(&field.name, format!("the value is not {}", kind.name()))),
            }
        }
        Ok(sizes)
    }

    fn bad_value(&self, field: &str, detail: String) -> Error {
        Error::BadValue { path: self.path.clone(), record: self.records, field: field.to_owned(), detail }
    }

    fn append_checked(&mut self, values: &[Value<'_>], sizes: &[(u32, u32)]) -> Result<()> {
        let (mut column, mut sizes) = (0, sizes.iter());
        for value in values {
            match *value {
                Value::Int(value) => self.columns[column].pending.extend_from_slice(&value.to_le_bytes()),
                Value::Float(value) => self.columns[column].pending.extend_from_slice(&value.to_le_bytes()),
                Value::Str(text) => {
                    // The offset is relative to the heap until the heap is written.
                    let (offset, stored) = (self.heap.len() as u64, text.len() as u64);
                    let crc = crc32c::crc32c(text.as_bytes());
                    self.columns[column].pending.extend(Extent { offset, stored, crc, missing: false }.encode());
                    self.heap.extend_from_slice(text.as_bytes());
                }
                Value::Bytes(data) => self.append_payload(column, data, crc32c::crc32c(data))?,
                Value::Image { data, crc, .. } => self.append_payload(column, data, crc)?,
            }
            let is_image = self.columns[column].is_image();
            column += 1;
            if is_image {
                let (width, height) = sizes.next().copied().unwrap_or_default();
                self.columns[column].pending.extend_from_slice(&width.to_le_bytes());
                self.columns[column + 1].pending.extend_from_slice(&height.to_le_bytes());
                column += 2;
            }
        }
        if self.heap.len() >= HEAP { self.flush_heap() } else { Ok(()) }
    }

    fn append_payload(&mut self, column: usize, data: &[u8], crc: u32) -> Result<()> {
        self.pad(8)?;
        let extent = Extent { offset: self.position(), stored: data.len() as u64, crc, missing: false };
        self.put(data)?;
        self.columns[column].pending.extend(extent.encode());
        Ok(())
    }

    /// Writes the gathered strings as one run and tells the extents where it lies.
    fn flush_heap(&mut self) -> Result<()> {
        let (at, heap) = (self.position(), mem::take(&mut self.heap));
        self.put(&heap)?;
        for column in self.columns.iter_mut().filter(|c| c.is_string()) {
            column.place_strings(at);
        }
        Ok(())
    }

    /// Where the next byte will lie in the file.
    pub(crate) fn position(&self) -> u64 {
        self.buffer_at + self.buffer.len() as u64
    }

    /// Appends zeros up to a multiple of `to`.
    pub(crate) fn pad(&mut self, to: u64) -> Result<()> {
        const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];
        let at = self.position();
        let padded = align(at, to).ok_or_else(|| Error::io(&self.path, io::ErrorKind::FileTooLarge.into()))?;
        self.put(&ZEROS[..(padded - at) as usize])
    }

    /// Appends bytes.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<()> {
        if self.buffer.len() + bytes.len() > BUFFER {
            self.flush()?;
        }
        if bytes.len() >= BUFFER {
            self.write_at(bytes, self.buffer_at)?;
            self.buffer_at += bytes.len() as u64;
        } else {
            self.buffer.extend_from_slice(bytes);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if !self.buffer.is_empty() {
            let buffer = mem::take(&mut self.buffer);
            let written = self.write_at(&buffer, self.buffer_at);
            self.buffer_at += buffer.len() as u64;
            self.buffer = buffer;
            self.buffer.clear();
            written?;
        }
        let behind = self.buffer_at - self.writeback_at;
        if behind >= WRITEBACK {
            self.storage()?.start_writeback(self.writeback_at, behind);
            self.writeback_at = self.buffer_at;
        }
        Ok(())
    }

    pub(crate) fn storage(&self) -> Result<&dyn Storage> {
        self.storage.as_deref().ok_or_else(|| Error::WriterClosed { path: self.path.clone() })
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.storage()?.write_at(bytes, offset).map_err(|e| Error::io(&self.path, e))
    }

    fn sync(&self) -> Result<()> {
        self.storage()?.sync().map_err(|e| Error::io(&self.path, e))
    }

    /// Makes all records durable; returns the number of the commit. Does nothing if there is nothing new.
    ///
    /// # Errors
    /// A failed write or sync: the file then is good up to the commit before, and this writer refuses to go on.
    pub fn commit(&mut self) -> Result<u64> {
        self.check_usable()?;
        let committed = self.commit_changes(false);
        self.guard(committed)
    }

    fn commit_changes(&mut self, last: bool) -> Result<u64> {
        let committed = self.committed();
        let merges = self.columns.iter().any(|c| c.merge_from(last, self.position() - self.session_start).is_some());
        if let Some(footer) = self.footer {
            if self.records == committed && !self.document_changed && !(last && merges) {
                return Ok(footer.commit);
            }
        }
        self.flush_heap()?;
        for column in 0..self.columns.len() {
            self.write_column(column, last)?;
        }
        if self.document_changed || self.footer.is_none() {
            let bytes = self.document.encode();
            self.metadata = self.put_checked(&bytes)?;
        }
        let mut chunks: Vec<&Chunk> = self.columns.iter().flat_map(|c| &c.chunks).collect();
        chunks.sort_by_key(|c| (c.field, c.part, c.first));
        let bytes: Vec<u8> = chunks.iter().flat_map(|c| c.encode()).collect();
        let directory = self.put_checked(&bytes)?;
        self.pad(PAGE)?;
        self.flush()?;
        let footer = Footer {
            offset: self.buffer_at,
            commit: self.footer.map_or(0, |f| f.commit) + 1,
            records: self.records,
            directory,
            metadata: self.metadata,
            previous: self.footer.map_or(0, |f| f.offset),
        };
        let mut slot = Slot { footer: footer.offset, commit: footer.commit, sealed: false };
        self.write_at(&slot.encode(&self.id), slot_offset(footer.commit))?;
        self.sync()?;
        self.write_at(&footer.encode(&self.id), footer.offset)?;
        self.sync()?;
        if self.footer.is_none() && self.temporary.is_none() && self.fd.is_some() {
            sys::sync_parent(&self.path).map_err(|e| Error::io(&self.path, e))?;
        }
        self.buffer_at = footer.end();
        self.writeback_at = footer.end();
        self.commit_start = footer.end();
        self.footer = Some(footer);
        self.document_changed = false;
        slot.sealed = true;
        self.write_at(&slot.encode(&self.id), slot_offset(footer.commit))?;
        Ok(footer.commit)
    }

    fn put_checked(&mut self, bytes: &[u8]) -> Result<CheckedRange> {
        self.pad(8)?;
        let range = CheckedRange { offset: self.position(), length: bytes.len() as u64, crc: crc32c::crc32c(bytes) };
        self.put(bytes)?;
        Ok(range)
    }

    /// Commits, makes it durable and releases the lock. Closing twice is allowed.
    ///
    /// # Errors
    /// As [`Writer::commit`]; the lock is released all the same.
    pub fn close(&mut self) -> Result<()> {
        if self.storage.is_none() {
            return Ok(());
        }
        self.check_usable()?;
        let closed = self.commit_changes(true).and_then(|_| self.sync());
        self.guard(closed)?;
        if let Some(temporary) = &self.temporary {
            std::fs::rename(temporary, &self.path).map_err(|e| Error::io(&self.path, e))?;
            self.temporary = None;
            sys::sync_parent(&self.path).map_err(|e| Error::io(&self.path, e))?;
        }
        self.release();
        Ok(())
    }

    /// Drops what is not committed and releases the lock. A file without any commit is removed.
    pub fn abort(&mut self) {
        if self.storage.is_some() && self.process == std::process::id() && self.fd.is_some() {
            if let Some(temporary) = &self.temporary {
                let _ = std::fs::remove_file(temporary);
            } else if let Some(footer) = self.footer {
                // A tail left behind would be cut off by the next writer; tidying up here is a courtesy.
                let _ = self.storage.as_ref().map(|s| s.set_len(footer.end()));
            } else {
                let _ = std::fs::remove_file(&self.path);
            }
        }
        self.release();
    }

    fn release(&mut self) {
        if let Some(storage) = self.storage.take() {
            if self.process == std::process::id() {
                if let Some(fd) = self.fd.take() {
                    sys::forget_fd(fd);
                }
            } else {
                // A forked child: the descriptor was closed at the fork, its number may be another file's by now.
                mem::forget(storage);
            }
        }
        self.buffer = Vec::new();
    }

    fn check_usable(&self) -> Result<()> {
        let path = || self.path.clone();
        if self.process != std::process::id() {
            return Err(Error::WrongProcess { path: path(), owner: self.process, here: std::process::id() });
        }
        if let Some(cause) = &self.failed {
            return Err(Error::WriterFailed { path: path(), cause: cause.clone(), records: self.committed() });
        }
        if self.storage.is_none() { Err(Error::WriterClosed { path: path() }) } else { Ok(()) }
    }

    /// Remembers a failed write: what came after it would have holes.
    fn guard<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.failed = Some(error.to_string());
        }
        result
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.abort();
    }
}

const TEMPORARY: &str = ".tmp-";

fn temporary_name(path: &Path) -> Result<PathBuf> {
    let mut random = [0; 4];
    getrandom::fill(&mut random).map_err(|e| Error::io(path, io::Error::other(e.to_string())))?;
    let mut name = path.as_os_str().to_owned();
    name.push(format!("{TEMPORARY}{:08x}", u32::from_le_bytes(random)));
    Ok(name.into())
}

/// Removes temporary files of overwrites that were killed: those that nobody holds the lock of.
fn remove_stale_temporaries(path: &Path) {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (Some(name), Ok(entries)) = (path.file_name().and_then(|n| n.to_str()), std::fs::read_dir(parent)) else {
        return;
    };
    for entry in entries.flatten() {
        let other = entry.file_name();
        let suffix = other.to_str().and_then(|o| o.strip_prefix(name)).and_then(|o| o.strip_prefix(TEMPORARY));
        if suffix.is_some_and(|s| s.len() == 8 && s.bytes().all(|b| b.is_ascii_hexdigit())) {
            if let Ok(file) = File::open(entry.path()) {
                if sys::try_lock(&file).unwrap_or(false) {
                    let _ = std::fs::remove_file(entry.path());
                }
            }
        }
    }
}
