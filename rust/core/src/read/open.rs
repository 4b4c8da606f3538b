//! Opens a [`Reader`] at the newest commit, at a given snapshot, or at a commit that repair found.

use crate::error::Error;
use crate::error::Result;
use crate::file::find_commit::Commit;
use crate::file::find_commit::Opening;
use crate::format::dictionary::Dictionary;
use crate::format::layout::Footer;
use crate::format::layout::hex;
use crate::format::schema::Field;
use crate::read::guard::SnapshotGuard;
use crate::read::index::Index;
use crate::read::mapping::Guarded;
use crate::read::mapping::Mapping;
use crate::read::mapping::Pattern;
use crate::read::reader::Reader;
use crate::read::seen::Seen;
use crate::read::snapshot::Access;
use crate::read::snapshot::Snapshot;
use crate::read::snapshot::SnapshotId;
use crate::read::source::Source;
use crate::sys::files::open_regular;
use crate::sys::files::same_file;
use crate::sys::{self, DiskWatch};
use std::fs::File;
use std::fs::OpenOptions;
use std::path::Path;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

impl Reader {
    /// Opens a file at its newest commit.
    ///
    /// `threads` bounds the threads that work on one call. The default is all CPUs that the process
    /// may run on.
    ///
    /// # Errors
    /// The file cannot be opened, is not a .frec file, has a newer version, is damaged or
    /// truncated, or has no commit.
    pub fn open(path: &Path, access: Access, threads: Option<usize>) -> Result<Self> {
        let file = open_regular(path)?;
        let opening = Opening::new(path, file.as_ref())?;
        let footer = opening.newest()?;
        Self::load(path, path, access, threads, Arc::clone(&file), opening, footer)
    }

    /// Opens the same snapshot that another reader had.
    ///
    /// # Errors
    /// As [`Reader::open`], and [`Error::Replaced`] if the path now holds another file.
    pub fn open_snapshot(path: &Path, access: Access, threads: Option<usize>, wanted: SnapshotId) -> Result<Self> {
        Self::open_snapshot_at(path, path, access, threads, wanted)
    }

    /// The same for a file that lies at `place` and is called `path`.
    pub(crate) fn open_snapshot_at(
        path: &Path,
        place: &Path,
        access: Access,
        threads: Option<usize>,
        wanted: SnapshotId,
    ) -> Result<Self> {
        let file = open_regular(place)?;
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
        let reader = Self::load(path, place, access, threads, Arc::clone(&file), opening, footer)?;
        let found = reader.inner.guard.crc();
        match wanted.crc {
            Some(crc) if crc != found => {
                Err(replaced(format!("the commit of a twin, with the footer {found:08x}, not {crc:08x}")))
            }
            _ => Ok(reader),
        }
    }

    fn load(
        path: &Path,
        place: &Path,
        access: Access,
        threads: Option<usize>,
        file: Arc<File>,
        opening: Opening<'_>,
        footer: Footer,
    ) -> Result<Self> {
        let commit = opening.load(footer)?;
        Self::of_commit(path, place, access, threads, file, commit)
    }

    /// A reader of a commit that has been found.
    pub(crate) fn of_commit(
        path: &Path,
        place: &Path,
        access: Access,
        threads: Option<usize>,
        file: Arc<File>,
        commit: Commit,
    ) -> Result<Self> {
        let io = |e| Error::io(path, e);
        let Commit { id, footer, directory, metadata, file_length } = commit;
        let guard = Arc::new(SnapshotGuard::new(path, &file, id, &footer)?);
        let (views, source, random) = match access {
            Access::Mmap => {
                // Views have their own mappings. After a failed read by the core, pages of the
                // core's mapping become zeros; a view must never see them.
                let view = |pattern| Mapping::new(path, &file, footer.end(), pattern).map(Arc::new).map_err(io);
                let lost = Arc::new(AtomicU64::new(0));
                let own = |pattern| {
                    Guarded::new(&file, &guard, &lost, pattern).map(|map| Source::Mapped(Arc::new(map))).map_err(io)
                };
                let views = [view(Pattern::Normal)?, view(Pattern::Random)?];
                (Some(views), own(Pattern::Normal)?, own(Pattern::Random)?)
            }
            Access::Pread => {
                // Advice applies to one open file, so batches need their own.
                let random = sys::open(OpenOptions::new().read(true), place).map_err(io)?;
                if !same_file(&file, &random).map_err(io)? {
                    let (expected, found) = (format!("file {}", hex(&id)), "another file".to_owned());
                    return Err(Error::Replaced { path: path.to_owned(), expected, found });
                }
                sys::advise_random(&random);
                (None, Source::File(Arc::clone(&file)), Source::File(Arc::new(random)))
            }
        };
        let index = Index::new(path, &directory, &footer, &metadata.schema, &source)?;
        let of = |field: &Field| {
            field.compression.iter().flat_map(|c| &c.dictionaries).copied().map(Dictionary::new).collect()
        };
        let dictionaries = metadata.schema.fields().iter().map(of).collect();
        let (commit, records, bytes) = (footer.commit, footer.records, footer.end());
        log::debug!(target: "fastrecord_core::snapshot", "{}: opened at commit {commit}: {records} records, {bytes} bytes", path.display());
        let seen = Seen::new(&metadata.schema, records);
        let inner = Snapshot {
            path: path.to_owned(),
            access,
            wanted_threads: threads,
            threads: OnceLock::new(),
            id,
            footer,
            metadata,
            file_length,
            index,
            dictionaries,
            file,
            views,
            random,
            guard,
            disk: DiskWatch::default(),
            advice: OnceLock::new(),
            seen,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Looks for a newer commit and opens it. Returns `None` if this commit is the newest and can
    /// be read.
    ///
    /// # Errors
    /// As [`Reader::open`], and [`Error::Replaced`] if the path now holds another file.
    pub fn refresh(&self) -> Result<Option<Self>> {
        let new = Self::open(self.path(), self.inner.access, self.inner.wanted_threads)?;
        if new.inner.id != self.inner.id {
            let expected = format!("file {}", hex(&self.inner.id));
            let found = format!("file {}", hex(&new.inner.id));
            return Err(Error::Replaced { path: self.path().to_owned(), expected, found });
        }
        // Bytes that could not be read before may be readable again.
        let lost = matches!(&self.inner.random, Source::Mapped(map) if map.lost_at().is_some());
        let io = |e| Error::io(self.path(), e);
        // A copy of the file has the same id, but may have been damaged since.
        if !lost && same_file(&self.inner.file, &new.inner.file).map_err(io)? {
            self.inner.seen.hand_on(&new.inner.seen);
        }
        Ok((lost || new.inner.footer.commit > self.inner.footer.commit).then_some(new))
    }
}
