//! Opening a file as of one commit, and naming that commit to other processes.

use crate::format::layout::hex;
use crate::sys::files::open_regular;
use crate::sys::files::same_file;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Arc, OnceLock};

use crate::error::{Error, Result};
use crate::file::find_commit::{Commit, Opening};
use crate::format::dictionary::Dictionary;
use crate::format::layout::{FileId, Footer};
use crate::format::metadata::Document;
use crate::format::schema::{Field, Schema};
use crate::parallel::pool;
use crate::read::chunk::Source;
use crate::read::index::Index;
use crate::read::mapping::{Guarded, Mapping, Pattern, Seal};
use crate::read::reader::Reader;
use crate::read::seen::Seen;
use crate::sys;

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

impl Reader {
    /// Opens a file at its newest commit.
    ///
    /// `threads` bounds the threads that work on one call; by default all CPUs that the process may run on.
    ///
    /// # Errors
    /// The file cannot be opened, is no .frec file, of a newer version, damaged, truncated, or has no commit.
    pub fn open(path: &Path, access: Access, threads: Option<usize>) -> Result<Self> {
        let file = open_regular(path)?;
        let opening = Opening::new(path, file.as_ref())?;
        let footer = opening.newest()?;
        Self::load(path, access, threads, Arc::clone(&file), opening, footer)
    }

    /// Opens the very snapshot that another reader had.
    ///
    /// # Errors
    /// As [`Reader::open`], and [`Error::Replaced`] if the path holds another file now.
    pub fn open_snapshot(path: &Path, access: Access, threads: Option<usize>, wanted: SnapshotId) -> Result<Self> {
        let file = open_regular(path)?;
        let opening = Opening::new(path, file.as_ref())?;
        let replaced = |found: String| {
            let expected = format!("file {} at commit {}", hex(&wanted.file_id), wanted.commit);
            Error::Replaced { path: path.to_owned(), expected, found }
        };
        if opening.id != wanted.file_id {
            return Err(replaced(format!("file {}", hex(&opening.id))));
        }
        let footer = opening.footer_at(wanted.footer)?.filter(|f| f.commit == wanted.commit);
        let footer = footer.ok_or_else(|| replaced("the same file without that commit".to_owned()))?;
        Self::load(path, access, threads, Arc::clone(&file), opening, footer)
    }

    fn load(
        path: &Path,
        access: Access,
        threads: Option<usize>,
        file: Arc<File>,
        opening: Opening<'_>,
        footer: Footer,
    ) -> Result<Self> {
        let commit = opening.load(footer)?;
        Self::of_commit(path, access, threads, file, commit, |_, _| Ok(()))
    }

    /// A reader of a commit that has been looked up; `mend` may change its columns before anybody reads them.
    pub(crate) fn of_commit(
        path: &Path,
        access: Access,
        threads: Option<usize>,
        file: Arc<File>,
        commit: Commit,
        mend: impl FnOnce(&mut Index, &Schema) -> Result<()>,
    ) -> Result<Self> {
        let io = |e| Error::io(path, e);
        let Commit { id, footer, directory, document, file_length } = commit;
        let seal = Arc::new(Seal::new(path, &file, id, &footer)?);
        let (views, source, random) = match access {
            Access::Mmap => {
                // Views have mappings of their own: where a read of the core fails, its mapping becomes zeros, which no view may see.
                let view = |pattern| Mapping::new(path, &file, footer.end(), pattern).map(Arc::new).map_err(io);
                let lost = Arc::new(AtomicU64::new(0));
                let own = |pattern| {
                    Guarded::new(&file, &seal, &lost, pattern).map(|map| Source::Mapped(Arc::new(map))).map_err(io)
                };
                let views = [view(Pattern::Normal)?, view(Pattern::Random)?];
                (Some(views), own(Pattern::Normal)?, own(Pattern::Random)?)
            }
            Access::Pread => {
                // Advice belongs to an open file, so batches need one of their own.
                let random = sys::open(OpenOptions::new().read(true), path).map_err(io)?;
                if !same_file(&file, &random).map_err(io)? {
                    let (expected, found) = (format!("file {}", hex(&id)), "another file".to_owned());
                    return Err(Error::Replaced { path: path.to_owned(), expected, found });
                }
                sys::advise_random(&random);
                (None, Source::File(Arc::clone(&file)), Source::File(Arc::new(random)))
            }
        };
        let mut index = Index::new(path, &directory, &footer, &document.schema, &source)?;
        mend(&mut index, &document.schema)?;
        let copies = index.columns().iter().map(|_| OnceLock::new()).collect();
        let of = |field: &Field| {
            field.compression.iter().flat_map(|c| &c.dictionaries).copied().map(Dictionary::new).collect()
        };
        let dictionaries = document.schema.fields().iter().map(of).collect();
        let advice = sys::largest_advice(&file);
        let (commit, records, bytes) = (footer.commit, footer.records, footer.end());
        log::debug!(target: "fastrecord_core::snapshot", "{}: opened at commit {commit}: {records} records, {bytes} bytes", path.display());
        let seen = Seen::new(&document.schema, records);
        let inner = Snapshot {
            path: path.to_owned(),
            access,
            threads: threads.unwrap_or(usize::MAX).clamp(1, pool::default_threads()),
            id,
            footer,
            document,
            file_length,
            index,
            copies,
            dictionaries,
            file,
            views,
            random,
            seal,
            blocks_seen: AtomicI64::new(-1),
            advice,
            seen,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Looks for a newer commit and opens it; `None` if this is the newest, and can be read.
    ///
    /// # Errors
    /// As [`Reader::open`], and [`Error::Replaced`] if the path holds another file now.
    pub fn refresh(&self) -> Result<Option<Self>> {
        let new = Self::open(self.path(), self.inner.access, Some(self.inner.threads))?;
        if new.inner.id != self.inner.id {
            let expected = format!("file {}", hex(&self.inner.id));
            let found = format!("file {}", hex(&new.inner.id));
            return Err(Error::Replaced { path: self.path().to_owned(), expected, found });
        }
        // What could not be read of this one may be there again.
        let lost = matches!(&self.inner.random, Source::Mapped(map) if map.lost_at().is_some());
        let io = |e| Error::io(self.path(), e);
        // A copy of the file has its id, and may have been damaged since.
        if !lost && same_file(&self.inner.file, &new.inner.file).map_err(io)? {
            self.inner.seen.hand_on(&new.inner.seen);
        }
        Ok((lost || new.inner.footer.commit > self.inner.footer.commit).then_some(new))
    }
}
