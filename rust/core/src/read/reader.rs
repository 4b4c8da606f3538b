//! `Reader`: a file as of one commit. Never writes to the file.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value as Json};

use crate::error::damage::Damage;
use crate::error::{Error, Result};
use crate::format::extent::Extent;
use crate::format::field_type::FieldType;
use crate::format::layout::FORMAT_VERSION;
use crate::format::schema::{FieldIndex, Schema};
use crate::memory;
use crate::parallel::pool;
use crate::read::index::{Column, Index};
use crate::read::mapping::Mapping;
use crate::read::records::Records;
use crate::read::snapshot::{Access, Snapshot, SnapshotId};
use crate::read::source::Source;
use crate::sys::sigbus;

/// A snapshot of a file. Clones are cheap and share it; any number of threads may read.
#[derive(Debug, Clone)]
pub struct Reader {
    pub(super) inner: Arc<Snapshot>,
}

impl Reader {
    /// The path that the file was opened by.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// How the reader gets at the bytes.
    pub fn access(&self) -> Access {
        self.inner.access
    }

    /// The most threads that work on one call.
    pub fn threads(&self) -> usize {
        let wanted = self.inner.wanted_threads.unwrap_or(usize::MAX);
        *self.inner.threads.get_or_init(|| wanted.clamp(1, pool::default_threads()))
    }

    /// Records in the snapshot.
    pub fn len(&self) -> u64 {
        self.inner.footer.records
    }

    /// Whether the snapshot has no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The identifier of this snapshot.
    pub fn snapshot(&self) -> SnapshotId {
        let footer = &self.inner.footer;
        let (commit, footer, crc) = (footer.commit, footer.offset, Some(self.inner.guard.crc()));
        SnapshotId { file_id: self.inner.id, commit, footer, crc }
    }

    /// The format version of the file.
    pub fn version(&self) -> u32 {
        FORMAT_VERSION // the only version so far; others are refused
    }

    /// Bytes from the start of the file to the end of the commit.
    pub fn bytes(&self) -> u64 {
        self.inner.footer.end()
    }

    /// Bytes after the commit when the file was opened: an unfinished commit or a torn tail.
    pub fn tail_bytes(&self) -> u64 {
        self.inner.file_length.saturating_sub(self.inner.footer.end())
    }

    /// The fields that every record has.
    pub fn schema(&self) -> &Schema {
        &self.inner.metadata.schema
    }

    /// The user's own keys and values.
    pub fn metadata(&self) -> &Map<String, Json> {
        &self.inner.metadata.user
    }

    /// False during a bulk import, and after one that was stopped.
    pub fn complete(&self) -> bool {
        self.inner.metadata.complete
    }

    /// The mapping for views; `None` if the file is read by system calls.
    pub fn mapping(&self) -> Option<&Arc<Mapping>> {
        self.inner.views.as_ref().map(|views| &views[0])
    }

    /// The mapping for views that are read in random order; `None` if the file is read by system
    /// calls.
    pub fn random_mapping(&self) -> Option<&Arc<Mapping>> {
        self.inner.views.as_ref().map(|views| &views[1])
    }

    /// Looks a field up by its name.
    ///
    /// # Errors
    /// [`Error::NoField`] lists the known fields.
    pub fn field(&self, name: &str) -> Result<FieldIndex> {
        self.schema().find(name).ok_or_else(|| {
            let names: Vec<&str> = self.schema().fields().iter().map(|f| f.name.as_str()).collect();
            Error::NoField { path: self.path().to_owned(), field: name.to_owned(), known: names.join(", ") }
        })
    }

    /// The open file, for reads by system calls.
    pub(crate) fn file(&self) -> &Arc<File> {
        &self.inner.file
    }

    /// Where batches in random order are read from.
    pub(crate) fn source(&self) -> &Source {
        &self.inner.random
    }

    pub(crate) fn index(&self) -> &Index {
        &self.inner.index
    }

    /// Whether the CRC of the footer depends on all values of the commit. Writers before this left the
    /// contents of columns out.
    pub fn covers_content(&self) -> bool {
        self.inner.footer.covers_content
    }

    /// The offset that payloads lie below.
    pub(crate) fn data_end(&self) -> u64 {
        self.inner.footer.offset
    }

    /// Checks that the file is unchanged, after a read by a system call that no checksum covers.
    pub(crate) fn check_after_read(&self) -> Result<()> {
        self.inner.guard.check_after(&self.inner.file)
    }

    pub(crate) fn kind(&self, field: FieldIndex) -> &FieldType {
        &self.schema()[field].kind
    }

    pub(crate) fn main_column(&self, field: FieldIndex) -> &Column {
        self.inner.index.main(field)
    }

    /// Checks that the file has not been replaced or truncated, and installs the SIGBUS handler.
    ///
    /// The handler turns a fault during a read through the mapping into an error. Every method that
    /// reads from the file calls this first: `extents`, `values`, `column`, `verify`.
    pub(crate) fn check_file(&self) -> Result<()> {
        match &self.inner.random {
            Source::Mapped(_) => {
                sigbus::arm();
                // `Guarded::read` itself detects that the file was overwritten.
                self.inner.guard.check_size(&self.inner.file)
            }
            Source::File(file) => self.inner.guard.check(file),
        }
    }

    /// The error for a payload that a system call could not read.
    pub(crate) fn failed_read(&self, field: FieldIndex, record: u64, source: io::Error) -> Error {
        if source.kind() == io::ErrorKind::UnexpectedEof
            && let Err(error) = self.check_file()
        {
            return error;
        }
        Error::unreadable(self.path(), &format!("record {record}, field {}", self.name_of(field)), source)
    }

    /// Adds the record to an error about an unreadable page of a mapping.
    pub(crate) fn name_lost(&self, field: FieldIndex, records: &[u64], extents: &[Extent], mut error: Error) -> Error {
        if let (Error::Lost { place, .. } | Error::Unreadable { place, .. }, Source::Mapped(map)) =
            (&mut error, &self.inner.random)
            && let Some(at) = map.lost_at()
            // Compares whole pages: the record may cover only a part of the lost page.
            && let Some(i) = extents.iter().position(|e| e.stored > 0 && e.offset <= at | 4095 && at < e.offset + e.stored)
            && let Some(record) = records.get(i)
        {
            *place = format!("record {record}, field {}", self.name_of(field));
        }
        error
    }

    pub(crate) fn name_of(&self, field: FieldIndex) -> String {
        self.schema()[field].name.clone()
    }

    /// The error for a damaged value.
    pub fn damaged(&self, field: FieldIndex, record: u64, damage: Damage) -> Error {
        Error::Value { path: self.path().to_owned(), record, field: self.name_of(field), damage }
    }

    pub(crate) fn missing(&self, field: FieldIndex, record: u64) -> Error {
        Error::Missing { path: self.path().to_owned(), record, field: self.name_of(field) }
    }

    pub(crate) fn wrong_type(&self, field: FieldIndex, expected: &str) -> Error {
        Error::FieldType {
            path: self.path().to_owned(),
            field: self.name_of(field),
            found: self.kind(field).to_string(),
            expected: expected.to_owned(),
        }
    }

    /// Checks record numbers from users. Negative numbers count from the end.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] names the first number that is out of range.
    pub fn resolve(&self, numbers: &[i64]) -> Result<Records<'static>> {
        let mut records = memory::room(numbers.len())?;
        for &number in numbers {
            records.push(self.resolve_one(number)?);
        }
        Ok(Records { numbers: Cow::Owned(records), end: self.len() })
    }

    /// Checks one record number from a user. A negative number counts from the end.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    #[inline]
    pub fn resolve_one(&self, number: i64) -> Result<u64> {
        let len = self.len();
        let record = if number < 0 { number.wrapping_add_unsigned(len) } else { number }.cast_unsigned();
        if record < len { Ok(record) } else { Err(self.out_of_range(number)) }
    }

    /// Checks record numbers.
    ///
    /// # Errors
    /// As [`Reader::resolve`].
    pub fn records<'a>(&self, numbers: impl Into<Cow<'a, [u64]>>) -> Result<Records<'a>> {
        let (numbers, end) = (numbers.into(), self.len());
        match numbers.iter().find(|&&record| record >= end) {
            Some(record) => Err(self.out_of_range(record.cast_signed())),
            None => Ok(Records { numbers, end }),
        }
    }

    /// Checks a range of records.
    ///
    /// # Errors
    /// As [`Reader::resolve`], and too little memory for the numbers.
    pub fn run(&self, run: Range<u64>) -> Result<Records<'static>> {
        if run.start < run.end && run.end > self.len() {
            return Err(self.out_of_range(run.end.cast_signed() - 1));
        }
        let mut numbers = memory::room(run.end.saturating_sub(run.start) as usize)?;
        numbers.extend(run);
        Ok(Records { numbers: Cow::Owned(numbers), end: self.len() })
    }

    /// The numbers, after a check that they exist in this snapshot too.
    #[inline]
    pub(super) fn own<'a>(&self, records: &'a Records<'_>) -> Result<&'a [u64]> {
        if records.end > self.len() {
            self.records(&records[..])?;
        }
        Ok(records)
    }

    pub(crate) fn out_of_range(&self, record: i64) -> Error {
        Error::OutOfRange { path: self.path().to_owned(), record, len: self.len() }
    }
}
