//! Opening, closing and aborting a `Writer`: its file, its lock, the commit it continues from, and
//! the final rename.

use crate::sys::files;
use std::io;
use std::path::Path;

use serde_json::{Map, Value as Json};

use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::file::find_commit::{Commit, Opening};
use crate::file::lock::{self, LockedFile};
use crate::file::replace::{create_temporary, remove_stale_temporaries, temporary_name};
use crate::file::storage::Storage;
use crate::format::chunk::Chunk;
use crate::format::crc::crc32c_append;
use crate::format::directory::decode_directory;
use crate::format::layout::{CheckedRange, FileId, PAGE, encode_superblock};
use crate::format::metadata::Metadata;
use crate::format::schema::Schema;
use crate::write::compress::FieldEncoder;
use crate::write::field::FieldWriter;
use crate::write::output::Output;
use crate::write::writer::{LOG, Mode, Replacing, State, Writer, WriterOptions};

impl Writer {
    /// Opens a file for writing and takes its lock.
    ///
    /// `schema` is optional when appending. `user` holds the user's keys and values; other keys of
    /// the file stay.
    ///
    /// # Errors
    /// The file exists (create) or does not (append), is locked by another writer, is damaged, or
    /// has another schema.
    #[allow(clippy::needless_pass_by_value)] // a schema is made for one file
    pub fn open(
        path: &Path,
        schema: Option<Schema>,
        user: Option<Map<String, Json>>,
        options: &WriterOptions,
    ) -> Result<Self> {
        let io = |e| Error::io(path, e);
        let new_schema = || schema.clone().ok_or_else(|| Error::Schema("a new file needs a schema".to_owned()));
        let resolved = if options.mode == Mode::Overwrite { files::resolve_link(path)? } else { None };
        let path = resolved.as_deref().unwrap_or(path);
        let mut replacing = None;
        let file = match options.mode {
            Mode::Append => lock::open_locked(path)?,
            Mode::Create => {
                new_schema()?;
                lock::create_locked(path)?
            }
            Mode::Overwrite => {
                new_schema()?;
                let file = loop {
                    if let Some(old) = lock::lock_replaced(path)? {
                        let temporary = temporary_name(path)?;
                        let file = create_temporary(&temporary, &old).map_err(io)?;
                        replacing = Some(Replacing { temporary, old });
                        break LockedFile::new(path, file)?;
                    }
                    // With nothing to replace, the file has its name from the start, and its lock
                    // keeps other writers out.
                    match lock::create_locked(path) {
                        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {}
                        outcome => break outcome?,
                    }
                };
                remove_stale_temporaries(path);
                file
            }
        };
        let mut writer = match options.mode {
            Mode::Append => Self::append_to(path, Box::new(file), schema.as_ref(), options)?,
            Mode::Create | Mode::Overwrite => {
                let metadata = Metadata::new(new_schema()?, Map::new(), options.complete.unwrap_or(true));
                Self::create_on(path, Box::new(file), replacing, metadata, options)?
            }
        };
        if let Some(user) = user {
            let mut all = writer.metadata().clone();
            all.extend(user);
            writer.set_metadata(all)?;
        }
        Ok(writer)
    }

    /// Starts a new file on any storage; for tests that inject write failures.
    ///
    /// # Errors
    /// I/O errors of the storage.
    pub fn create_in(path: &Path, storage: Box<dyn Storage>, schema: Schema, options: &WriterOptions) -> Result<Self> {
        let metadata = Metadata::new(schema, Map::new(), options.complete.unwrap_or(true));
        Self::create_on(path, storage, None, metadata, options)
    }

    fn create_on(
        path: &Path,
        storage: Box<dyn Storage>,
        replacing: Option<Replacing>,
        mut metadata: Metadata,
        options: &WriterOptions,
    ) -> Result<Self> {
        metadata.schema.forget_dictionaries();
        // First of all: from here on an error drops the writer, which removes the new file.
        let mut writer = Self::assemble(path, storage, FileId::default(), metadata, options, PAGE);
        writer.replacing = replacing;
        getrandom::fill(&mut writer.id).map_err(|e| Error::io(path, io::Error::other(e.to_string())))?;
        writer.output.write_at(&encode_superblock(&writer.id), 0)?;
        Ok(writer)
    }

    /// Continues after the last commit in any storage; for tests that inject write failures.
    ///
    /// # Errors
    /// I/O errors of the storage, and damage.
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
            let detail = "no commit can follow it: commit numbers end here";
            return Err(Error::corrupt(path, format!("footer of commit {}", footer.commit), detail));
        }
        let Commit { id, directory, mut metadata, file_length, .. } = opening.load(footer)?;
        if let Some(given) = schema.filter(|given| !given.same_fields(&metadata.schema)) {
            let (found, given) = (metadata.schema.describe(), given.describe());
            return Err(Error::SchemaMismatch { path: path.to_owned(), found, given });
        }
        // In a file without records the compression is not decided yet.
        let decided = footer.records > 0;
        if let Some((found, given)) = schema.filter(|_| decided).and_then(|s| metadata.schema.other_compression(s)) {
            return Err(Error::SchemaMismatch { path: path.to_owned(), found, given });
        }
        if let Some(given) = schema.filter(|_| !decided) {
            metadata.schema.take_compression(given);
        }
        let mut chunks = decode_directory(path, &directory, &footer, &metadata.schema)?;
        for chunk in chunks.iter_mut().filter(|chunk| chunk.table_crc.is_none()) {
            chunk.table_crc = Some(table_crc(storage.as_ref(), chunk).map_err(|e| Error::io(path, e))?);
        }
        if file_length > footer.end() {
            // The truncation must be durable before anything is written there: after a crash no old
            // tail may follow a new one.
            storage.set_len(footer.end()).and_then(|()| storage.sync()).map_err(|e| Error::io(path, e))?;
            let (path, tail) = (path.display(), file_length - footer.end());
            log::warn!(target: LOG, "{path}: {tail} bytes after commit {} were cut off: an interrupted writer left them", footer.commit);
        }
        let mut writer = Self::assemble(path, storage, id, metadata, options, footer.end());
        writer.footer = Some(footer); // first of all: a writer without a commit removes its file
        writer.adopt_columns(chunks, footer.records);
        writer.load_dictionaries(footer.offset)?;
        writer.metadata_range = footer.metadata;
        writer.metadata_changed = false;
        if let Some(complete) = options.complete {
            writer.set_complete(complete);
        }
        Ok(writer)
    }

    fn assemble(
        path: &Path,
        storage: Box<dyn Storage>,
        id: FileId,
        metadata: Metadata,
        options: &WriterOptions,
        at: u64,
    ) -> Self {
        Self {
            replacing: None,
            state: State::Open,
            output: Output::new(path, storage, at),
            process: std::process::id(),
            id,
            fields: metadata.schema.fields().iter().map(FieldWriter::new).collect(),
            metadata,
            metadata_changed: true,
            columns_changed: false,
            new_fields: Vec::new(),
            metadata_range: CheckedRange::default(),
            footer: None,
            records: 0,
            commit_start: at,
            session_start: at,
            commit_bytes: options.commit_bytes.max(1),
            footer_pending: false,
            scratch: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Prepares the dictionaries of the fields when appending to a file. `limit` is the offset of
    /// its footer.
    fn load_dictionaries(&mut self, limit: u64) -> Result<()> {
        for (row, field) in self.metadata.schema.fields().iter().zip(&mut self.fields) {
            let Some(compression) = &row.compression else { continue };
            // Only zstd uses a dictionary; a merge may leave some in a field of another codec.
            let zstd = compression.codec == Codec::Zstd;
            let Some(range) = compression.dictionaries.last().filter(|_| zstd) else { continue };
            let path = self.output.path();
            let bytes = range.read(path, &row.name, limit, |bytes, at| self.output.read_at(bytes, at))?;
            let encoder = FieldEncoder::with_dictionary(compression, &bytes);
            field.set_encoder(encoder.map_err(|detail| range.corrupt(path, &row.name, detail))?);
        }
        Ok(())
    }

    /// Commits durably and releases the lock. Closing twice is allowed.
    ///
    /// # Errors
    /// As [`Writer::commit`], and [`Error::Unfilled`] for a new field without values for some
    /// records. The rest is then committed, unless the file was to replace another. The lock is
    /// released in every case.
    pub fn close(&mut self) -> Result<()> {
        if matches!(self.state, State::Closed) {
            return Ok(());
        }
        let closed = self.check_usable().and_then(|()| {
            let filled = self.end_new_fields();
            if filled.is_err() && (matches!(self.state, State::Failed { .. }) || self.replacing.is_some()) {
                return filled;
            }
            let closed = self.commit_and_take_place();
            self.guard(closed).and(filled)
        });
        match closed {
            Ok(()) => self.release(),
            Err(_) => self.abort(), // removes a tail or a temporary file
        }
        closed
    }

    /// Makes the last commit, so that [`Writer::close`] has nothing to write. When several writers
    /// replace files together, all of them allocate their disk space before the first one renames
    /// its file.
    ///
    /// # Errors
    /// As [`Writer::commit`].
    pub fn finish(&mut self) -> Result<()> {
        self.check_usable()?;
        let committed = self.commit_durably();
        self.output.free();
        self.guard(committed)
    }

    fn commit_durably(&mut self) -> Result<()> {
        self.commit_changes(true)?;
        self.output.sync()
    }

    fn commit_and_take_place(&mut self) -> Result<()> {
        self.commit_durably()?;
        if let Some(Replacing { temporary, old }) = self.replacing.take() {
            // If this fails, the complete file stays under its temporary name, so hours of work are
            // not lost.
            let replaced = old.still_at(self.path());
            replaced.and_then(|()| std::fs::rename(&temporary, self.path())).map_err(|source| {
                let path = self.path().to_owned();
                Error::Replace { path, finished: temporary, source }
            })?;
            self.output.storage()?.sync_name(self.path()).map_err(|e| self.output.error(e))?;
            log::info!(target: LOG, "{}: the old file was replaced", self.path().display());
        }
        Ok(())
    }

    /// Drops the uncommitted records and releases the lock. Removes a file without any commit.
    pub fn abort(&mut self) {
        if let (Ok(storage), true) = (self.output.storage(), self.process == std::process::id()) {
            if let Some(replacing) = &self.replacing {
                storage.remove_name(&replacing.temporary);
            } else if let (Some(footer), false) = (self.footer, self.footer_pending) {
                // The next writer would remove the tail, but until then it would keep a full disk
                // full. Keep it if a footer was written that may not be durable: a reader may have
                // opened it since.
                storage.free_tail(footer.end());
            } else if self.footer.is_none() {
                storage.remove_name(self.path());
            }
        }
        self.release();
    }

    /// [`Writer::abort`] for a new file. Removes the file even if it was committed.
    pub(crate) fn discard(&mut self) {
        let committed = self.replacing.is_none() && self.footer.is_some() && !self.footer_pending;
        if let (Ok(storage), true) = (self.output.storage(), committed && self.process == std::process::id()) {
            storage.remove_name(self.path());
        }
        self.abort();
    }

    fn release(&mut self) {
        self.output.release();
        self.spare = Vec::new();
        self.replacing = None;
        if matches!(self.state, State::Open) {
            self.state = State::Closed;
        }
    }
}

/// Computes the CRC of a check table that the directory has none of. Entries that are damaged already
/// still differ from their blocks.
fn table_crc(storage: &dyn Storage, chunk: &Chunk) -> io::Result<u32> {
    let (offset, blocks) = chunk.table();
    let (mut piece, mut crc) = ([0; PAGE as usize], 0);
    for at in (0..4 * blocks).step_by(piece.len()) {
        let length = piece.len().min((4 * blocks - at) as usize);
        storage.read_at(&mut piece[..length], offset + at)?;
        crc = crc32c_append(crc, &piece[..length]);
    }
    Ok(crc)
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.abort();
    }
}
