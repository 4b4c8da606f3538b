//! The one writer of a file, the values and options that it takes, and what is safe when it fails: docs/format.md, section 7.

use crate::sys::files;
use crate::write::value::Value;
use std::collections::BTreeMap;
use std::mem;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};

use crate::error::recovery::{Obstacle, Safe};
use crate::error::{Error, Result};
use crate::file::lock;
use crate::file::storage::Storage;
use crate::format::layout::{CheckedRange, FileId, Footer};
use crate::format::metadata::Document;
use crate::format::schema::Schema;
use crate::limits::check_metadata;
use crate::write::add_field::Filling;
use crate::write::column::ColumnBuffer;
use crate::write::tally::Tally;

/// What the log calls a writer, wherever its code lies: docs/logging.md.
pub(crate) const LOG: &str = "fastrecord_core::writer";

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
    /// Write under a temporary name, and take the place of an existing file at close; until then no commit counts. Where there
    /// is none, as `Create`.
    Overwrite,
}

/// How a [`Writer`] is opened.
#[derive(Debug, Clone)]
pub struct WriterOptions {
    /// What to do with a file that exists.
    pub mode: Mode,
    /// Commit by itself after so many bytes, so that memory and what a crash can lose are bounded.
    pub commit_bytes: u64,
    /// Whether the file is complete after its next commit; `None`: a new one is, others stay what they were.
    pub complete: Option<bool>,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self { mode: Mode::Create, commit_bytes: 1 << 30, complete: None }
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
    pub(crate) identity: Option<files::Identity>,
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
    /// Kinds of images among them that are not decoded here, and how many there are.
    pub(crate) foreign: BTreeMap<String, u64>,
    /// For compressing.
    pub(crate) scratch: Vec<u8>,
}

impl Writer {
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

    /// Records that dropping this writer would lose; `None` if nothing would be lost, or an error has already said so.
    pub fn unsaved(&self) -> Option<u64> {
        if self.check_usable().is_err() {
            return None;
        }
        let committed = if self.temporary.is_some() { 0 } else { self.committed() };
        let saved = self.temporary.is_none() && !self.document_changed && self.fillings.is_empty();
        (!saved || self.records > committed).then_some(self.records - committed)
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

    /// Kinds of images that [`Writer::append_files`] has appended and that are not decoded here, and how many of each.
    pub fn foreign(&self) -> &BTreeMap<String, u64> {
        &self.foreign
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
                error @ Error::NameLost { .. } => (error, self.safe(Obstacle::NoName)),
                error => (error, self.safe(Obstacle::Other)),
            };
            log::error!(target: "fastrecord_core::writer", "{}: the writer goes no further: {}", self.path.display(), error.coded());
            self.failed.get_or_insert(Failed { cause, safe });
            error
        })
    }

    fn safe(&self, obstacle: Obstacle) -> Safe {
        // What has no name yet goes with its writer, whatever was committed.
        let replaces = self.temporary.is_some();
        let footer = self.footer.filter(|_| !replaces);
        Safe {
            commit: footer.map_or(0, |footer| footer.commit),
            records: footer.map_or(0, |footer| footer.records),
            replaces,
            under_way: self.under_way && !replaces,
            obstacle,
        }
    }
}
