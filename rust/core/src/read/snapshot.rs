//! Opening a file as of one commit, and naming that commit to other processes.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, OnceLock};

use crate::format::dictionary::Dictionary;
use crate::format::layout::{FileId, Footer};
use crate::format::metadata::Document;
use crate::read::index::Index;
use crate::read::mapping::Mapping;
use crate::read::seal::Seal;
use crate::read::seen::Seen;
use crate::read::source::Source;

/// How a reader gets at the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// By a mapping: views cost nothing. What the core reads of it and cannot get is an error; a view that is read where the
    /// file cannot be read any more is a SIGBUS.
    Mmap,
    /// By system calls alone: nothing is mapped, every read is a copy, every failure an error.
    Pread,
}

/// What names one snapshot of one file; a reader in another process opens it again by this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotId {
    /// The file's random id.
    pub file_id: FileId,
    /// The commit's number.
    pub commit: u64,
    /// Where the commit's footer lies.
    pub footer: u64,
}

#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) path: PathBuf,
    pub(crate) access: Access,
    pub(crate) threads: usize,
    pub(crate) id: FileId,
    pub(crate) footer: Footer,
    pub(crate) document: Document,
    pub(crate) file_length: u64,
    pub(crate) index: Index,
    /// Copies of columns that are not one chunk of a mapping, made once each.
    pub(crate) copies: Vec<OnceLock<Arc<Vec<u8>>>>,
    /// For each field those that its payloads may need.
    pub(crate) dictionaries: Vec<Vec<Dictionary>>,
    /// For the size check, for advice, and for reading in order.
    pub(crate) file: Arc<File>,
    /// For views, of single records and columns, and of batches in random order.
    pub(crate) views: Option<[Arc<Mapping>; 2]>,
    /// For batches in random order: the kernel reads what is asked for and no more.
    pub(crate) random: Source,
    /// What the file holds as long as it is this one.
    pub(crate) seal: Arc<Seal>,
    /// [`sys::blocks_read`] as of the last batch.
    pub(crate) blocks_seen: AtomicI64,
    /// The most bytes that one piece of advice asks for.
    pub(crate) advice: u64,
    /// The payloads that need no further check.
    pub(crate) seen: Seen,
}
