//! `Writer`: the single writer of a file, its options, and its state after a failure. See
//! docs/format.md, section 7.

use std::collections::HashMap;
use std::mem;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};

use crate::error::recovery::{Cause, Recovery};
use crate::error::{Error, Result};
use crate::file::lock::LockedFile;
use crate::format::chunk::Chunk;
use crate::format::compression::Compression;
use crate::format::dictionary::DictionaryRange;
use crate::format::layout::{CheckedRange, FileId, Footer};
use crate::format::metadata::Metadata;
use crate::format::schema::{Field, Schema};
use crate::limits::check_metadata;
use crate::write::compress::Packed;
use crate::write::field::{FieldWriter, NewFieldWriter, put_dictionary};
use crate::write::output::Output;

/// The log target of a writer in every file of this folder: docs/logging.md.
pub(crate) const LOG: &str = "fastrecord_core::writer";

/// How to treat an existing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Create a new file; an existing one is refused.
    Create,
    /// Continue after the last commit of an existing file.
    Append,
    /// Write under a temporary name and replace an existing file at close; until then no commit
    /// counts. Same as `Create` if the file does not exist.
    Overwrite,
}

/// How a [`Writer`] is opened.
#[derive(Debug, Clone)]
pub struct WriterOptions {
    /// How to treat an existing file.
    pub mode: Mode,
    /// Commit automatically after this many bytes, which bounds memory and the loss after a crash.
    pub commit_bytes: u64,
    /// Whether the file is complete after its next commit. With `None` a new file is complete, and
    /// an existing one keeps its state.
    pub complete: Option<bool>,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self { mode: Mode::Create, commit_bytes: 1 << 30, complete: None }
    }
}

/// Whether a writer can continue.
#[derive(Debug)]
pub(super) enum State {
    Open,
    /// A write failed: further ones would leave holes. The file is held until close or abort.
    Failed {
        cause: String,
        recovery: Recovery,
    },
    /// Closed or aborted, without a failure before.
    Closed,
}

/// The file to replace at close.
#[derive(Debug)]
pub(super) struct Replacing {
    /// The name of the new file until then.
    pub temporary: PathBuf,
    /// The old file; its lock keeps appenders out.
    pub old: LockedFile,
}

/// The single writer of a file. Dropping it without [`Writer::close`] is the same as
/// [`Writer::abort`].
#[derive(Debug)]
pub struct Writer {
    pub(super) replacing: Option<Replacing>,
    pub(super) state: State,
    pub(super) output: Output,
    pub(super) process: u32,
    pub(super) id: FileId,
    pub(super) metadata: Metadata,
    pub(super) metadata_changed: bool,
    /// Whether columns of existing records changed.
    pub(super) columns_changed: bool,
    pub(super) metadata_range: CheckedRange,
    /// One for each field of the schema, in order.
    pub(super) fields: Vec<FieldWriter>,
    /// Fields that are being added.
    pub(super) new_fields: Vec<NewFieldWriter>,
    pub(super) footer: Option<Footer>,
    pub(super) records: u64,
    pub(super) commit_start: u64,
    pub(super) session_start: u64,
    pub(super) commit_bytes: u64,
    /// Whether a footer was written that may not be durable.
    pub(super) footer_pending: bool,
    /// Scratch memory for compressing.
    pub(super) scratch: Vec<u8>,
    /// Buffers for reading files to append. They are kept, because fresh memory costs as much as
    /// reading.
    pub(crate) spare: Vec<Vec<u8>>,
}

impl Writer {
    /// The file that is being written.
    pub fn path(&self) -> &Path {
        self.output.path()
    }

    /// The fields of every record.
    pub fn schema(&self) -> &Schema {
        &self.metadata.schema
    }

    /// Records in the file, including those not yet committed.
    pub fn len(&self) -> u64 {
        self.records
    }

    /// Whether the file has no records.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Records that dropping this writer would lose. `None` if it would lose nothing, or if an
    /// error has already reported the loss.
    pub fn unsaved(&self) -> Option<u64> {
        if self.check_usable().is_err() {
            return None;
        }
        let committed = if self.replacing.is_some() { 0 } else { self.committed() };
        let saved = self.replacing.is_none() && !self.metadata_changed && self.new_fields.is_empty();
        (!saved || self.records > committed).then_some(self.records - committed)
    }

    /// Records that are durable.
    pub fn committed(&self) -> u64 {
        self.footer.map_or(0, |footer| footer.records)
    }

    /// Bytes that this writer has appended.
    pub fn bytes_written(&self) -> u64 {
        self.output.position() - self.session_start
    }

    /// The user's own keys and values.
    pub fn metadata(&self) -> &Map<String, Json> {
        &self.metadata.user
    }

    /// Replaces the user's keys and values; the next commit writes them.
    ///
    /// # Errors
    /// [`Error::Limit`] if they exceed [`MAX_METADATA_BYTES`](crate::limits::MAX_METADATA_BYTES).
    /// The old ones stay, and the writer can continue.
    pub fn set_metadata(&mut self, user: Map<String, Json>) -> Result<()> {
        let before = mem::replace(&mut self.metadata.user, user);
        if let Err(error) = check_metadata(self.path(), self.metadata.encoded_len()) {
            self.metadata.user = before;
            return Err(error);
        }
        self.metadata_changed |= before != self.metadata.user;
        Ok(())
    }

    /// Whether the file will be marked complete.
    pub fn complete(&self) -> bool {
        self.metadata.complete
    }

    /// Sets whether the file is marked complete; the next commit writes it.
    pub fn set_complete(&mut self, complete: bool) {
        self.metadata_changed |= complete != self.metadata.complete;
        self.metadata.complete = complete;
    }

    /// How each compressed field's values are stored, in schema order, with the bytes that this
    /// writer has appended.
    pub fn compression(&self) -> Vec<Packed> {
        let fields = self.schema().fields().iter().zip(&self.fields);
        let all = fields.chain(self.new_fields.iter().map(|new| (&new.field, &new.writer)));
        all.filter_map(|(row, field)| Some(field.encoder()?.report(&row.name))).collect()
    }

    /// The fields of the schema and those that are being added.
    pub(super) fn all_fields(&self) -> impl Iterator<Item = &FieldWriter> {
        self.fields.iter().chain(self.new_fields.iter().map(|new| &new.writer))
    }

    pub(super) fn all_fields_mut(&mut self) -> impl Iterator<Item = &mut FieldWriter> {
        self.fields.iter_mut().chain(self.new_fields.iter_mut().map(|new| &mut new.writer))
    }

    /// The end of the file, for a caller that writes payloads and columns by itself. It passes every
    /// error to [`Writer::guard`], and the columns to [`Writer::adopt_columns`].
    pub(crate) fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// Takes over columns of `records` records, whose chunks are in the file already. No record can
    /// be appended afterwards.
    pub(crate) fn adopt_columns(&mut self, chunks: impl IntoIterator<Item = Chunk>, records: u64) {
        let mut by_column: HashMap<_, Vec<_>> = HashMap::new();
        for chunk in chunks {
            by_column.entry((chunk.field, chunk.part)).or_default().push(chunk);
        }
        self.fields.iter_mut().for_each(|field| field.adopt(&mut by_column));
        self.records = records;
    }

    /// Takes over a dictionary that payloads of another file use, unless this file already has it.
    ///
    /// `mine` is the position of this file's field. `given` is the compression of the other file's
    /// field. `read` reads the dictionary; its argument is the field's name.
    ///
    /// # Errors
    /// Damage, failed writes, and two dictionaries with the same id.
    pub(crate) fn adopt_dictionary(
        &mut self,
        mine: usize,
        given: &Compression,
        range: &DictionaryRange,
        source: &Path,
        read: impl FnOnce(&str) -> Result<Vec<u8>>,
    ) -> Result<()> {
        let Field { name, compression, .. } = &mut self.metadata.schema.fields_mut()[mine];
        let compression = compression.get_or_insert_with(|| given.with_dictionaries(&[]));
        if let Some(known) = compression.dictionaries.iter().find(|known| known.id == range.id) {
            if (known.length, known.crc) == (range.length, range.crc) {
                return Ok(());
            }
            let (path, id) = (source.display(), range.id);
            return Err(Error::Schema(format!("{path}: field {name}: another dictionary already has the id {id}")));
        }
        compression.dictionaries.push(put_dictionary(&mut self.output, &read(name)?)?);
        self.metadata_changed = true;
        Ok(())
    }

    pub(crate) fn check_usable(&self) -> Result<()> {
        let path = || self.path().to_owned();
        if self.process != std::process::id() {
            return Err(Error::WrongProcess { path: path(), owner: self.process, here: std::process::id() });
        }
        match &self.state {
            State::Open => Ok(()),
            State::Failed { cause, recovery } => {
                Err(Error::WriterFailed { path: path(), cause: cause.clone(), recovery: *recovery })
            }
            State::Closed => Err(Error::WriterClosed { path: path() }),
        }
    }

    /// Remembers a failed write: later writes would leave holes. The error reports what survived.
    pub(crate) fn guard<T>(&mut self, result: Result<T>) -> Result<T> {
        result.map_err(|error| {
            let cause = error.to_string();
            let (error, recovery) = match error {
                Error::Io { path, source } if path == self.path() => {
                    let recovery = self.recovery(Cause::of(&source));
                    (Error::WriteFailed { path, source, recovery }, recovery)
                }
                error @ Error::NameLost { .. } => (error, self.recovery(Cause::NoName)),
                error => (error, self.recovery(Cause::Other)),
            };
            log::error!(target: "fastrecord_core::writer", "{}: the writer stops: {}", self.path().display(), error.coded());
            if matches!(self.state, State::Open) {
                self.state = State::Failed { cause, recovery };
            }
            error
        })
    }

    fn recovery(&self, cause: Cause) -> Recovery {
        // A file without its final name is removed with its writer, whatever was committed.
        let replaces = self.replacing.is_some();
        let footer = self.footer.filter(|_| !replaces);
        Recovery {
            commit: footer.map_or(0, |footer| footer.commit),
            records: footer.map_or(0, |footer| footer.records),
            replaces,
            footer_pending: self.footer_pending && !replaces,
            cause,
        }
    }
}
