//! Appending records and committing them: docs/format.md, section 7.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};

use crate::append::BUFFER;
use crate::chunks::ColumnBuffer;
use crate::document::Document;
use crate::error::{Error, Result};
use crate::fill::Filling;
use crate::index::decode_directory;
use crate::layout::{CheckedRange, FileId, Footer, PAGE, encode_superblock};
use crate::limits::check_metadata;
use crate::lock;
use crate::open::{Commit, Opening};
use crate::recode::Tally;
use crate::safe::{Obstacle, Safe};
use crate::schema::Schema;
use crate::storage::Storage;
use crate::sys;
use crate::temporary::{create_temporary, remove_stale_temporaries, temporary_name};

/// One value of a record, as [`Writer::append`] takes it.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// For fields of type image and bytes.
    Bytes(&'a [u8]),
    /// For fields of type string and json; what is JSON, the caller has made sure.
    Str(&'a str),
    /// For fields of type int64.
    Int(i64),
    /// For fields of type float64.
    Float(f64),
    /// For fields of any scalar type: the number, little-endian.
    Number(&'a [u8]),
    /// For fields of type array.
    Array {
        /// The numbers, little-endian, in C order.
        data: &'a [u8],
        /// All dimensions.
        shape: &'a [u64],
    },
    /// For fields of type list: what [`encode_list`](crate::encode_list) or [`encode_numbers`](crate::encode_numbers) made.
    List(&'a [u8]),
    /// An image whose size and CRC-32C are known already.
    Image {
        /// The encoded image.
        data: &'a [u8],
        /// What a decoder may use beside it, as [`CropReady::side`](crate::image::CropReady::side); else empty.
        side: &'a [u8],
        /// Width and height in pixels.
        size: (u32, u32),
        /// CRC-32C of `data` and, behind it, `side`.
        crc: u32,
    },
}

impl<'a> Value<'a> {
    /// The bytes that a compressed field would compress.
    pub(crate) fn packed(&self) -> Option<&'a [u8]> {
        match *self {
            Self::Bytes(data) | Self::List(data) | Self::Array { data, .. } | Self::Image { data, .. } => Some(data),
            Self::Str(text) => Some(text.as_bytes()),
            _ => None,
        }
    }
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

/// Why a writer goes no further.
#[derive(Debug)]
pub(crate) struct Failed {
    cause: String,
    safe: Safe,
}

/// The one writer of a file. Dropping it without [`Writer::close`] is [`Writer::abort`].
#[derive(Debug)]
pub struct Writer {
    pub(crate) path: PathBuf,
    /// The temporary name that the file has until close.
    pub(crate) temporary: Option<PathBuf>,
    /// The file whose place it will take; its lock keeps appenders out of it.
    pub(crate) replaced: Option<lock::Lock>,
    /// Of the file that this writer made or opened: another may have its path by now.
    pub(crate) identity: Option<lock::Identity>,
    pub(crate) storage: Option<Box<dyn Storage>>,
    pub(crate) process: u32,
    pub(crate) fd: Option<RawFd>,
    pub(crate) id: FileId,
    pub(crate) document: Document,
    pub(crate) document_changed: bool,
    pub(crate) metadata: CheckedRange,
    /// Of the schema's fields, then of those that are being added.
    pub(crate) columns: Vec<ColumnBuffer>,
    /// Fields that are being added.
    pub(crate) fillings: Vec<Filling>,
    pub(crate) heap: Vec<u8>,
    pub(crate) footer: Option<Footer>,
    pub(crate) records: u64,
    pub(crate) buffer: Vec<u8>,
    /// Where the buffer will lie in the file.
    pub(crate) buffer_at: u64,
    pub(crate) writeback_at: u64,
    pub(crate) commit_start: u64,
    pub(crate) session_start: u64,
    pub(crate) commit_bytes: u64,
    pub(crate) failed: Option<Failed>,
    /// Whether a footer was written that may not be durable.
    pub(crate) under_way: bool,
    /// What became of the images of files.
    pub(crate) tally: Tally,
    /// For compressing.
    pub(crate) scratch: Vec<u8>,
}

impl Writer {
    /// Opens a file for writing and takes its lock.
    ///
    /// `schema` may be left out to append.
    ///
    /// # Errors
    /// The file exists (create) or does not (append), is locked by another writer, damaged, or has another schema.
    #[allow(clippy::needless_pass_by_value)] // a schema is made for the one file that it is given to
    pub fn open(
        path: &Path,
        schema: Option<Schema>,
        user: Option<Map<String, Json>>,
        options: &WriterOptions,
    ) -> Result<Self> {
        let io = |e| Error::io(path, e);
        let new_schema = || schema.clone().ok_or_else(|| Error::Schema("a new file needs a schema".to_owned()));
        let (mut temporary, mut replaced) = (None, None);
        let file = match options.mode {
            Mode::Append => lock::open_locked(path)?,
            Mode::Create => {
                new_schema()?;
                OpenOptions::new().read(true).write(true).create_new(true).open(path).map_err(io)?
            }
            Mode::Overwrite => {
                new_schema()?;
                replaced = lock::lock_replaced(path)?;
                remove_stale_temporaries(path);
                let name = temporary.insert(temporary_name(path)?);
                create_temporary(name, replaced.as_ref()).map_err(io)?
            }
        };
        let fd = file.as_raw_fd();
        let identity = lock::identity(&file).map_err(io)?;
        if options.mode != Mode::Append {
            lock::lock(path, &file)?;
        }
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
        writer.replaced = replaced;
        writer.identity = Some(identity);
        writer.fd = Some(fd);
        if let Some(user) = user {
            writer.set_metadata(user)?;
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

    fn create_on(
        path: &Path,
        storage: Box<dyn Storage>,
        mut document: Document,
        options: &WriterOptions,
    ) -> Result<Self> {
        document.schema.forget_dictionaries();
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
        if footer.commit + 1 == u64::MAX {
            let detail = "no commit can come behind it, as its number would be no valid one";
            return Err(Error::corrupt(path, format!("footer of commit {}", footer.commit), detail));
        }
        let Commit { id, directory, mut document, file_length, .. } = opening.load(footer)?;
        if let Some(given) = schema.filter(|given| !given.same_fields(&document.schema)) {
            let (found, given) = (document.schema.describe(), given.describe());
            return Err(Error::SchemaMismatch { path: path.to_owned(), found, given });
        }
        // A file without records does not tell how its values would be compressed.
        let decided = footer.records > 0;
        if let Some((found, given)) = schema.filter(|_| decided).and_then(|s| document.schema.other_compression(s)) {
            return Err(Error::SchemaMismatch { path: path.to_owned(), found, given });
        }
        if let Some(given) = schema.filter(|_| !decided) {
            document.schema.take_compression(given);
        }
        let chunks = decode_directory(path, &directory, &footer, &document.schema)?;
        if file_length > footer.end() {
            // Durable before anything is written there: after a crash no old tail may lie behind a new one.
            storage.set_len(footer.end()).and_then(|()| storage.sync()).map_err(|e| Error::io(path, e))?;
            let (path, tail) = (path.display(), file_length - footer.end());
            log::warn!("{path}: {tail} bytes behind commit {} were cut off: their writer was stopped", footer.commit);
        }
        let changed = document.complete != options.complete;
        let mut writer = Self::assemble(path, storage, id, document, options, footer.end());
        let mut by_column: HashMap<_, Vec<_>> = HashMap::new();
        for chunk in chunks {
            by_column.entry((chunk.field, chunk.part)).or_default().push(chunk);
        }
        for column in &mut writer.columns {
            column.chunks = by_column.remove(&column.key()).unwrap_or_default();
        }
        writer.load_dictionaries(footer.offset)?;
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
            replaced: None,
            identity: None,
            storage: Some(storage),
            process: std::process::id(),
            fd: None,
            id,
            columns: ColumnBuffer::for_schema(&document.schema),
            document,
            document_changed: true,
            fillings: Vec::new(),
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
            under_way: false,
            tally: Tally::default(),
            scratch: Vec::new(),
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

    /// What became of the images that [`Writer::append_files`] has appended.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// The user's own key/values.
    pub fn metadata(&self) -> &Map<String, Json> {
        &self.document.user
    }

    /// Replaces the user's key/values; the next commit writes them.
    ///
    /// # Errors
    /// [`Error::Limit`] if there are more than [`MAX_METADATA_BYTES`](crate::limits::MAX_METADATA_BYTES) of them; those before
    /// stay, and the writer goes on.
    pub fn set_metadata(&mut self, user: Map<String, Json>) -> Result<()> {
        let before = mem::replace(&mut self.document.user, user);
        if let Err(error) = check_metadata(&self.path, self.document.encoded_len()) {
            self.document.user = before;
            return Err(error);
        }
        self.document_changed |= before != self.document.user;
        Ok(())
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

    /// Commits, makes it durable and releases the lock. Closing twice is allowed.
    ///
    /// # Errors
    /// As [`Writer::commit`], and [`Error::Unfilled`] for a new field that some records have no value of: the rest is committed
    /// then, unless the file was to replace another. The lock is released all the same.
    pub fn close(&mut self) -> Result<()> {
        if self.storage.is_none() && self.failed.is_none() {
            return Ok(());
        }
        let closed = self.check_usable().and_then(|()| {
            let filled = self.end_fillings();
            if filled.is_err() && (self.failed.is_some() || self.temporary.is_some()) {
                return filled;
            }
            let closed = self.commit_and_take_place();
            self.guard(closed).and(filled)
        });
        match closed {
            Ok(()) => self.release(),
            Err(_) => self.abort(), // there may be a tail or a temporary file to tidy up
        }
        closed
    }

    fn commit_and_take_place(&mut self) -> Result<()> {
        self.commit_changes(true)?;
        self.sync()?;
        if let Some(temporary) = self.temporary.take() {
            // If this fails the file is whole, under its temporary name: what took hours is not thrown away.
            std::fs::rename(&temporary, &self.path).map_err(|source| {
                let path = self.path.clone();
                Error::Replace { path, finished: temporary, source }
            })?;
            sys::sync_parent(&self.path).map_err(|e| Error::io(&self.path, e))?;
            let what =
                if self.replaced.is_some() { "the file of before was replaced" } else { "the file has its name" };
            log::info!("{}: {what}", self.path.display());
        }
        Ok(())
    }

    /// Drops what is not committed and releases the lock. A file without any commit is removed.
    pub fn abort(&mut self) {
        if self.storage.is_some() && self.process == std::process::id() && self.fd.is_some() {
            if let Some(temporary) = &self.temporary {
                self.remove(temporary);
            } else if let (Some(footer), false) = (self.footer, self.under_way) {
                // A tail left behind would be cut off by the next writer; until then it would keep a full disk full. Not if a
                // footer was written that may not be durable: a reader may have opened it since.
                let _ = self.storage.as_ref().map(|s| s.set_len(footer.end()));
            } else if self.footer.is_none() {
                self.remove(&self.path);
            }
        }
        self.release();
    }

    /// Removes the file that this writer made, if the path still leads to it.
    fn remove(&self, path: &Path) {
        if self.identity.is_some_and(|identity| lock::leads_to(path, identity).unwrap_or(false)) {
            let _ = std::fs::remove_file(path);
        }
    }

    fn release(&mut self) {
        if let Some(storage) = self.storage.take() {
            if self.process == std::process::id() {
                if let Some(fd) = self.fd.take() {
                    sys::forget_fd(fd);
                    // Closing alone would leave the lock to children that were just forked and have not closed their copy yet.
                    sys::unlock(fd);
                }
            } else {
                // A forked child: the descriptor was closed at the fork, its number may be another file's by now.
                mem::forget(storage);
            }
        }
        self.replaced = None;
        self.buffer = Vec::new();
    }

    pub(crate) fn check_usable(&self) -> Result<()> {
        let path = || self.path.clone();
        if self.process != std::process::id() {
            return Err(Error::WrongProcess { path: path(), owner: self.process, here: std::process::id() });
        }
        if let Some(Failed { cause, safe }) = &self.failed {
            return Err(Error::WriterFailed { path: path(), cause: cause.clone(), safe: *safe });
        }
        if self.storage.is_none() { Err(Error::WriterClosed { path: path() }) } else { Ok(()) }
    }

    /// Remembers a failed write: what came after it would have holes. The error says what is safe.
    pub(crate) fn guard<T>(&mut self, result: Result<T>) -> Result<T> {
        result.map_err(|error| {
            let cause = error.to_string();
            let (error, safe) = match error {
                Error::Io { path, source } if path == self.path => {
                    let safe = self.safe(Obstacle::of(&source));
                    (Error::WriteFailed { path, source, safe }, safe)
                }
                error => (error, self.safe(Obstacle::Other)),
            };
            log::error!("{}: the writer goes no further: {}", self.path.display(), error.coded());
            self.failed.get_or_insert(Failed { cause, safe });
            error
        })
    }

    fn safe(&self, obstacle: Obstacle) -> Safe {
        Safe {
            commit: self.footer.map_or(0, |footer| footer.commit),
            records: self.committed(),
            replaces: self.replaced.is_some(),
            under_way: self.under_way,
            obstacle,
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.abort();
    }
}
