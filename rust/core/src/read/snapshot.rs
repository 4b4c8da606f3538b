//! `Snapshot`: an open file as of one commit, and `SnapshotId`, which names it to other processes.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::OnceLock;

use crate::format::dictionary::Dictionary;
use crate::format::layout::{FileId, Footer};
use crate::format::metadata::Metadata;
use crate::read::guard::SnapshotGuard;
use crate::read::index::Index;
use crate::read::mapping::Mapping;
use crate::read::seen::Seen;
use crate::read::source::Source;
use crate::sys::DiskWatch;

/// How a reader gets at the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// A mapping: views cost nothing. A failed read by the core is an error. Reading a view where
    /// the file can no longer be read raises SIGBUS.
    Mmap,
    /// System calls only: nothing is mapped, every read is a copy, every failure is an error.
    Pread,
}

/// The identifier of one snapshot of one file. A reader in another process reopens the snapshot by
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotId {
    /// The file's random id.
    pub file_id: FileId,
    /// The commit's number.
    pub commit: u64,
    /// The offset of the commit's footer.
    pub footer: u64,
    /// The checksum at the end of the footer: of the page without these 4 bytes. With them, the CRC-32C
    /// of all footers would be the same. `None` if it is not known.
    pub crc: Option<u32>,
}

#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) path: PathBuf,
    pub(super) access: Access,
    /// The threads asked for; None: all CPUs.
    pub(super) wanted_threads: Option<usize>,
    /// Set at first use, as the next one: finding it takes longer than the rest of opening.
    pub(super) threads: OnceLock<usize>,
    pub(super) id: FileId,
    pub(super) footer: Footer,
    pub(super) metadata: Metadata,
    pub(super) file_length: u64,
    pub(super) index: Index,
    /// For each field the dictionaries that its payloads may need.
    pub(super) dictionaries: Vec<Vec<Dictionary>>,
    /// For the size check, for advice, and for sequential reads.
    pub(super) file: Arc<File>,
    /// For views: of single records and columns, and of batches in random order.
    pub(super) views: Option<[Arc<Mapping>; 2]>,
    /// For batches in random order: the kernel reads only the bytes requested.
    pub(super) random: Source,
    /// Checks that the file is still the one that was opened.
    pub(super) guard: Arc<SnapshotGuard>,
    /// Tells whether a batch had to read from the disk.
    pub(super) disk: DiskWatch,
    /// The most bytes that one call for advice covers.
    pub(super) advice: OnceLock<u64>,
    /// The payloads that need no further check.
    pub(super) seen: Seen,
}
