//! The read-only mappings of a snapshot: those that views lie in, and those that the core itself reads.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use memmap2::{Advice, Mmap, MmapOptions};

use crate::error::{Error, Result};
use crate::format::layout::hex;
use crate::format::layout::{FileId, Footer, PAGE};
use crate::sys::sigbus::{self, Listed};

/// How a mapping will be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// The kernel reads ahead as it sees fit.
    Normal,
    /// The kernel reads the pages touched and no more.
    Random,
}

fn map(file: &File, length: u64, pattern: Pattern) -> io::Result<Mmap> {
    let length = usize::try_from(length).map_err(io::Error::other)?;
    // SAFETY: `map` requires that the mapped bytes do not change while a slice of them is alive. The mapping ends at a
    // footer, and writers never rewrite or truncate below one (docs/format.md, section 7) but for the slots in page
    // 0, which are read by `read_at` and never through a mapping. If another program truncates or overwrites the
    // file all the same, a read faults or gets other bytes: the core reads inside of `Guarded::read`, which makes an error
    // of that; views are not read by the core.
    let map = unsafe { MmapOptions::new().len(length).map(file) }?;
    if pattern == Pattern::Random {
        map.advise(Advice::Random)?;
    }
    Ok(map)
}

/// The bytes of a file up to the end of one footer, for views: whoever reads a page that the file has not any more, or that its
/// disk cannot read, gets a SIGBUS. The core never does.
#[derive(Debug)]
pub struct Mapping {
    // Before the mapping, as fields are dropped in this order.
    _listed: Listed,
    map: Mmap,
}

impl Mapping {
    pub(crate) fn new(path: &Path, file: &File, length: u64, pattern: Pattern) -> io::Result<Self> {
        let map = map(file, length, pattern)?;
        let words = format!(
            "fastrecord: {}: a view of the file's mapping was read where the file cannot be read any more: it was cut short, or its disk or mount failed. A bus error follows. Copies (copy=True) and access=\"pread\" get an exception instead.\n",
            path.display()
        );
        Ok(Self { _listed: Listed::new(&map, &words), map })
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }
}

/// What a file holds as long as it is the one that was opened: its id, and the snapshot's footer.
#[derive(Debug, Clone)]
pub(crate) struct Seal {
    path: PathBuf,
    id: FileId,
    commit: u64,
    at: u64,
    end: u64,
    fields: [u8; FIELDS_LEN],
    crc: [u8; 4],
}

const FOOTER_LEN: usize = PAGE as usize;
/// The part of a footer that says something. Behind it is nothing but its CRC, at the very end: that is gone, too, where the
/// file was cut short within this page and has got its length again.
const FIELDS_LEN: usize = 104;
const CRC_AT: usize = FOOTER_LEN - 4;
/// Where the file id lies.
const ID_AT: usize = 16;

fn id_in(path: &Path, file: &File) -> Result<FileId> {
    let mut id = FileId::default();
    file.read_exact_at(&mut id, ID_AT as u64).map_err(|e| Error::unreadable(path, "superblock", e))?;
    Ok(id)
}

impl Seal {
    /// # Errors
    /// [`Error::Truncated`], [`Error::Replaced`]: the footer is not there any more. Those of the system.
    pub(crate) fn new(path: &Path, file: &File, id: FileId, footer: &Footer) -> Result<Self> {
        // As it lies there: of a damaged file that is being salvaged the footers tell the id.
        let seen = id_in(path, file)?;
        let (path, commit, at, end) = (path.to_owned(), footer.commit, footer.offset, footer.end());
        let mut seal = Self { path, id: seen, commit, at, end, fields: [0; FIELDS_LEN], crc: [0; 4] };
        let page = seal.footer(file)?;
        if Footer::decode(&seal.path, &page, at, &id)? != Some(*footer) {
            return Err(seal.replaced());
        }
        seal.fields.copy_from_slice(&page[..FIELDS_LEN]);
        seal.crc.copy_from_slice(&page[CRC_AT..]);
        Ok(seal)
    }

    /// The page of the footer, as it is now.
    fn footer(&self, file: &File) -> Result<[u8; FOOTER_LEN]> {
        self.check_size(file)?;
        let mut page = [0; FOOTER_LEN];
        file.read_exact_at(&mut page, self.at).map_err(|e| Error::unreadable(&self.path, "footer", e))?;
        Ok(page)
    }

    fn is_footer(&self, page: &[u8]) -> bool {
        page[..FIELDS_LEN] == self.fields && page[CRC_AT..] == self.crc
    }

    fn fits(&self, bytes: &[u8]) -> bool {
        bytes.get(ID_AT..ID_AT + self.id.len()) == Some(&self.id[..])
            && bytes.get(self.at as usize..self.end as usize).is_some_and(|page| self.is_footer(page))
    }

    fn replaced(&self) -> Error {
        self.not_here("other bytes in the place of that commit".to_owned())
    }

    fn not_here(&self, found: String) -> Error {
        let expected = format!("file {} at commit {}", hex(&self.id), self.commit);
        Error::Replaced { path: self.path.clone(), expected, found }
    }

    /// Asks the system whether the file is still as long as the snapshot.
    ///
    /// # Errors
    /// [`Error::Truncated`], and those of the system.
    pub(crate) fn check_size(&self, file: &File) -> Result<()> {
        let found = file.metadata().map_err(|e| Error::io(&self.path, e))?.len();
        if found < self.end {
            return Err(Error::Truncated { path: self.path.clone(), found, expected: self.end, commit: self.commit });
        }
        Ok(())
    }

    /// Asks the system whether the commit's end is still there, after a read that no checksum covers: where the file was cut short
    /// amid it and has got its length again, zeros were read without an error.
    ///
    /// # Errors
    /// As [`Seal::check`].
    pub(crate) fn check_after(&self, file: &File) -> Result<()> {
        let mut page = [0; FOOTER_LEN];
        match file.read_exact_at(&mut page, self.at) {
            Ok(()) if self.is_footer(&page) => Ok(()),
            _ => self.check(file),
        }
    }

    /// Asks the system whether the file is the one that was opened.
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::Replaced`], and those of the system.
    pub(crate) fn check(&self, file: &File) -> Result<()> {
        let page = self.footer(file)?;
        let id = id_in(&self.path, file)?;
        if id != self.id {
            Err(self.not_here(format!("file {}, written over it", hex(&id))))
        } else if self.is_footer(&page) {
            Ok(())
        } else {
            Err(self.replaced())
        }
    }
}

/// The bytes of a file up to the end of one footer, for the core's own reads. No view lies in it.
#[derive(Debug)]
pub(crate) struct Guarded {
    _listed: Listed,
    map: Mmap,
    start: *const u8,
    /// 1 + the offset of a page that could not be read; 0 as long as there is none. For all mappings of a snapshot: what was
    /// lost once is not read again.
    lost: Arc<AtomicU64>,
    seal: Arc<Seal>,
    file: Arc<File>,
}

// SAFETY: the pointer is that of the mapping, which is Send and Sync, and is only used to read.
unsafe impl Send for Guarded {}
// SAFETY: likewise.
unsafe impl Sync for Guarded {}

impl Guarded {
    pub(crate) fn new(file: &Arc<File>, seal: &Arc<Seal>, lost: &Arc<AtomicU64>, pattern: Pattern) -> io::Result<Self> {
        let map = map(file, seal.end, pattern)?;
        let (listed, start) = (Listed::new(&map, ""), map.as_ptr());
        let (file, seal, lost) = (Arc::clone(file), Arc::clone(seal), Arc::clone(lost));
        Ok(Self { _listed: listed, map, start, lost, seal, file })
    }

    /// Runs `work` over all bytes, and returns what it does if all it read was there.
    ///
    /// # Errors
    /// The file was cut short or overwritten, or a page of it could not be read: now, or ever since it was opened.
    #[inline]
    pub(crate) fn read<T>(&self, work: impl FnOnce(&[u8]) -> T) -> Result<T> {
        if self.lost.load(Ordering::Acquire) != 0 {
            return Err(self.cause());
        }
        let length = self.map.len();
        // SAFETY: the range is all of a mapping that lives as long as `self`; its bytes are reached through this method alone, and
        // it is listed. The start is read anew inside, so that no load of the bytes can be moved to before the guard.
        let (value, whole) = unsafe {
            sigbus::guarded((self.start as usize, length), &self.lost, || {
                let bytes = slice::from_raw_parts(ptr::read_volatile(&raw const self.start), length);
                let value = work(bytes);
                // Bytes behind the end of a file that was cut short within a page are zeros without a fault, and other bytes are
                // none either. But then the footer is not there any more.
                fence(Ordering::Acquire);
                (value, self.seal.fits(bytes))
            })
        };
        if !whole {
            let _ = self.lost.compare_exchange(0, self.seal.at + 1, Ordering::SeqCst, Ordering::Relaxed);
        }
        if self.lost.load(Ordering::Acquire) != 0 { Err(self.cause()) } else { Ok(value) }
    }

    /// The place of the first page that could not be read.
    pub(crate) fn lost_at(&self) -> Option<u64> {
        self.lost.load(Ordering::Acquire).checked_sub(1)
    }

    /// What the system says of a file of which something could not be read through the mapping.
    #[cold]
    fn cause(&self) -> Error {
        if let Err(error) = self.seal.check(&self.file) {
            return error;
        }
        let (path, at) = (&self.seal.path, self.lost_at().unwrap_or_default());
        let place = format!("byte {at}");
        let last = self.seal.end.saturating_sub(1);
        match self.file.read_exact_at(&mut [0; 1], at.min(last)) {
            Err(error) => Error::unreadable(path, &place, error),
            Ok(()) => Error::Lost { path: path.clone(), place },
        }
    }
}
