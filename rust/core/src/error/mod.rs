//! `Error` and `Result`: what can go wrong in this crate. Imports no other folder.

pub(crate) mod code;
pub(crate) mod damage;
pub(crate) mod decode;
pub(crate) mod recovery;

use std::io;
use std::path::{Path, PathBuf};

use crate::error::damage::Damage;
use crate::error::recovery::Recovery;

/// The result of every operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The errors of this crate, one variant for each thing that a caller could do differently.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages describe the fields
pub enum Error {
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: io::Error },

    #[error("{path}: {source}: {recovery}", path = path.display())]
    WriteFailed { path: PathBuf, source: io::Error, recovery: Recovery },

    #[error("{path}: not a .frec file: {reason}", path = path.display())]
    NotFrec { path: PathBuf, reason: String },

    #[error("{path}: the file has format version {found}, this fastrecord reads up to {supported}: upgrade fastrecord", path = path.display())]
    Version { path: PathBuf, found: u32, supported: u32 },

    #[error("{path}: {what}: written by a newer fastrecord: upgrade fastrecord", path = path.display())]
    Unsupported { path: PathBuf, what: String },

    #[error(
        "{path}: the file holds no commit: its writer was stopped before the first one, or is still writing it; if no writer is running, delete the file and write it again",
        path = path.display()
    )]
    NoCommit { path: PathBuf },

    #[error("{path}: the {part} is damaged: {detail}", path = path.display())]
    Corrupt { path: PathBuf, part: String, detail: String },

    #[error("{path}: {what}: the limit is {limit}: {way_out}", path = path.display())]
    Limit { path: PathBuf, what: String, limit: u64, way_out: String },

    #[error("{path}: the file is truncated: it has {found} bytes, and its commit {commit} ends at {expected}: copy it again, or restore it", path = path.display())]
    Truncated { path: PathBuf, found: u64, expected: u64, commit: u64 },

    #[error("{path}: {place}: {source}", path = path.display())]
    Unreadable { path: PathBuf, place: String, source: io::Error },

    #[error("{path}: the file system has no locks: {source}", path = path.display())]
    NoLocks { path: PathBuf, source: io::Error },

    #[error(
        "{path}: {place}: a page of the file's mapping could not be read, but the file is unchanged: its disk or mount may have failed briefly: open it again",
        path = path.display()
    )]
    Lost { path: PathBuf, place: String },

    #[error("{path}: record {record}, field {field}: {damage}", path = path.display())]
    Value { path: PathBuf, record: u64, field: String, damage: Damage },

    #[error("{path}: nothing can be saved: {detail}", path = path.display())]
    NothingLeft { path: PathBuf, detail: String },

    #[error("{path}: record {record} is out of range: the file has {len} records", path = path.display())]
    OutOfRange { path: PathBuf, record: i64, len: u64 },

    #[error("{path}: record {record}, field {field}: the record has no value", path = path.display())]
    Missing { path: PathBuf, record: u64, field: String },

    #[error("{path}: no field {field:?}: the file has {known}", path = path.display())]
    NoField { path: PathBuf, field: String, known: String },

    #[error("{path}: field {field} is of type {found}: {expected}", path = path.display())]
    FieldType { path: PathBuf, field: String, found: String, expected: String },

    #[error("{path}: the batch needs {needed} bytes, the buffer has {given}: nothing was written", path = path.display())]
    BufferTooSmall { path: PathBuf, needed: u64, given: u64 },

    #[error("schema: {0}")]
    Schema(String),

    #[error("{path}: {detail}", path = path.display())]
    Contents { path: PathBuf, detail: String },

    #[error("{path}: record {record}, field {field}: {detail}", path = path.display())]
    BadValue { path: PathBuf, record: u64, field: String, detail: String },

    #[error("{path}: field {field:?} cannot be added: {detail}", path = path.display())]
    AddField { path: PathBuf, field: String, detail: String },

    #[error(
        "{path}: field {field:?} was not added: {missing} of the {records} records have no value: give one for each, in record order",
        path = path.display(),
        missing = records - filled
    )]
    Unfilled { path: PathBuf, field: String, filled: u64, records: u64 },

    #[error("{path}: field {field:?} is being added: commit or drop it first", path = path.display())]
    Filling { path: PathBuf, field: String },

    #[error("{path}: the file's schema is {found}, not {given}: leave the schema out to append", path = path.display())]
    SchemaMismatch { path: PathBuf, found: String, given: String },

    #[error("{input}: {detail}", input = input.display())]
    NotAnImage { input: PathBuf, detail: String },

    #[error("{path}: cannot be replaced ({source}): the finished file is {finished}", path = path.display(), finished = finished.display())]
    Replace { path: PathBuf, finished: PathBuf, source: io::Error },

    #[error("{path}: {what}: {left}", path = path.display())]
    NameLost { path: PathBuf, what: &'static str, left: String },

    #[error("{path}: another writer has it open{holder}", path = path.display())]
    Locked { path: PathBuf, holder: String },

    #[error("{path}: the writer is closed", path = path.display())]
    WriterClosed { path: PathBuf },

    #[error("{path}: the writer stopped after a failed write ({cause}): {recovery}", path = path.display())]
    WriterFailed { path: PathBuf, cause: String, recovery: Recovery },

    #[error("{path}: a writer belongs to the process that opened it (pid {owner}), this is pid {here}", path = path.display())]
    WrongProcess { path: PathBuf, owner: u32, here: u32 },

    #[error("{path}: the reader is closed", path = path.display())]
    ReaderClosed { path: PathBuf },

    #[error("{path}: the file was replaced: expected {expected}, found {found}: open it anew", path = path.display())]
    Replaced { path: PathBuf, expected: String, found: String },

    #[error("{0}")]
    Plan(String),

    #[error("no memory for a batch of {bytes} bytes")]
    Memory { bytes: u64 },

    #[error("{path}: record {record}, field {field}: no memory for {bytes} bytes: read it on a machine with more memory, or with fewer threads", path = path.display())]
    TooLarge { path: PathBuf, record: u64, field: String, bytes: u64 },

    #[error(
        "no thread can be started ({0}): raise the limit of processes (`ulimit -u`, `pids.max`) or of memory (`ulimit -v`)"
    )]
    Threads(io::Error),

    #[error(
        "a loader's threads are in the process that began to iterate (pid {owner}), this is pid {here}: iterate anew"
    )]
    ForkedLoader { owner: u32, here: u32 },

    #[error("the loader's threads were closed before the batch was whole: iterate anew")]
    LoaderClosed,

    #[error("interrupted")]
    Interrupted,

    #[error("internal error: {0}: please report it")]
    Internal(&'static str),
}

impl Error {
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    /// Whether this is about the file as a whole or its disk, and not about some of its bytes.
    pub(crate) fn is_of_the_file(&self) -> bool {
        matches!(
            self,
            Self::Io { .. }
                | Self::Unreadable { .. }
                | Self::Lost { .. }
                | Self::Truncated { .. }
                | Self::Replaced { .. }
        )
    }

    /// A failed read of a part of a file.
    pub(crate) fn unreadable(path: &Path, place: &str, source: io::Error) -> Self {
        Self::Unreadable { path: path.to_owned(), place: place.to_owned(), source }
    }

    /// The record and the field, if the error is about one value.
    #[must_use]
    pub fn place(&self) -> Option<(u64, &str)> {
        match self {
            Self::Value { record, field, .. }
            | Self::BadValue { record, field, .. }
            | Self::TooLarge { record, field, .. }
            | Self::Missing { record, field, .. } => Some((*record, field)),
            _ => None,
        }
    }

    /// The file or the input that this is about.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::NotAnImage { input: path, .. }
            | Self::Io { path, .. }
            | Self::WriteFailed { path, .. }
            | Self::NotFrec { path, .. }
            | Self::Version { path, .. }
            | Self::Unsupported { path, .. }
            | Self::NoCommit { path }
            | Self::Corrupt { path, .. }
            | Self::Limit { path, .. }
            | Self::Truncated { path, .. }
            | Self::Unreadable { path, .. }
            | Self::NoLocks { path, .. }
            | Self::Lost { path, .. }
            | Self::Value { path, .. }
            | Self::NothingLeft { path, .. }
            | Self::OutOfRange { path, .. }
            | Self::Missing { path, .. }
            | Self::NoField { path, .. }
            | Self::FieldType { path, .. }
            | Self::BufferTooSmall { path, .. }
            | Self::Contents { path, .. }
            | Self::BadValue { path, .. }
            | Self::AddField { path, .. }
            | Self::Unfilled { path, .. }
            | Self::Filling { path, .. }
            | Self::SchemaMismatch { path, .. }
            | Self::Replace { path, .. }
            | Self::NameLost { path, .. }
            | Self::Locked { path, .. }
            | Self::WriterClosed { path }
            | Self::WriterFailed { path, .. }
            | Self::WrongProcess { path, .. }
            | Self::ReaderClosed { path }
            | Self::Replaced { path, .. }
            | Self::TooLarge { path, .. } => Some(path),
            Self::Schema(_)
            | Self::Plan(_)
            | Self::Memory { .. }
            | Self::Threads(_)
            | Self::ForkedLoader { .. }
            | Self::LoaderClosed
            | Self::Interrupted
            | Self::Internal(_) => None,
        }
    }

    pub(crate) fn corrupt(path: &Path, part: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Corrupt { path: path.to_owned(), part: part.into(), detail: detail.into() }
    }
}
