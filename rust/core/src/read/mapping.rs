//! `Mapping` and `Guarded`: the read-only mappings of a snapshot, for views and for the core's own
//! reads.
#![allow(unsafe_code)]

use crate::read::guard::SnapshotGuard;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use memmap2::{Advice, Mmap, MmapOptions};

use crate::error::{Error, Result};
use crate::sys::sigbus::{self, Listed};

/// How a mapping will be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// The kernel chooses its read-ahead.
    Normal,
    /// The kernel reads only the pages touched.
    Random,
}

fn map(file: &File, length: u64, pattern: Pattern) -> io::Result<Mmap> {
    let length = usize::try_from(length).map_err(io::Error::other)?;
    // SAFETY: `map` requires that the mapped bytes do not change while a slice of them is alive.
    // The mapping ends at a footer. Writers never rewrite or truncate below a footer
    // (docs/format.md, section 7), except for the slots in page 0. The slots are read by `read_at`,
    // never through a mapping. If another program truncates or overwrites the file, a read faults
    // or gets other bytes. The core reads inside `Guarded::read`, which turns that into an error.
    // The core does not read views.
    let map = unsafe { MmapOptions::new().len(length).map(file) }?;
    if pattern == Pattern::Random {
        map.advise(Advice::Random)?;
    }
    Ok(map)
}

/// The bytes of a file up to the end of one footer, for views. Reading a page that is past the end
/// of a truncated file, or that the disk cannot read, raises SIGBUS. Only views do this; the core
/// never reads through this mapping.
#[derive(Debug)]
pub struct Mapping {
    // Declared before the mapping because fields are dropped in this order.
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

/// The bytes of a file up to the end of one footer, for the core's own reads. Views never use this
/// mapping.
#[derive(Debug)]
pub(crate) struct Guarded {
    _listed: Listed,
    map: Mmap,
    start: *const u8,
    /// 1 + the offset of a page that could not be read, or 0. All mappings of a snapshot share it:
    /// a lost page is not read again.
    lost: Arc<AtomicU64>,
    guard: Arc<SnapshotGuard>,
    file: Arc<File>,
}

// SAFETY: the pointer points into the mapping, which is Send and Sync, and is only used to read.
unsafe impl Send for Guarded {}
// SAFETY: as above.
unsafe impl Sync for Guarded {}

impl Guarded {
    pub(crate) fn new(
        file: &Arc<File>,
        guard: &Arc<SnapshotGuard>,
        lost: &Arc<AtomicU64>,
        pattern: Pattern,
    ) -> io::Result<Self> {
        let map = map(file, guard.end, pattern)?;
        let (listed, start) = (Listed::new(&map, ""), map.as_ptr());
        let (file, guard, lost) = (Arc::clone(file), Arc::clone(guard), Arc::clone(lost));
        Ok(Self { _listed: listed, map, start, lost, guard, file })
    }

    /// Runs `work` over all bytes. Returns its result if all bytes that it read were there.
    ///
    /// # Errors
    /// The file was truncated or overwritten, or a page could not be read, now or at any time since
    /// it was opened.
    #[inline]
    pub(crate) fn read<T>(&self, work: impl FnOnce(&[u8]) -> T) -> Result<T> {
        if self.lost.load(Ordering::Acquire) != 0 {
            return Err(self.cause());
        }
        let length = self.map.len();
        // SAFETY: the range is the whole mapping, which lives as long as `self` and is listed. Its
        // bytes are reached only through this method. The start is read again inside, so that no
        // load of the bytes can move before the guard.
        let (value, whole) = unsafe {
            sigbus::guarded((self.start as usize, length), &self.lost, || {
                let bytes = slice::from_raw_parts(ptr::read_volatile(&raw const self.start), length);
                let value = work(bytes);
                // If the file was truncated within a page, the bytes after its end are zeros
                // without a fault; overwritten bytes do not fault either. In both cases the footer
                // is gone.
                fence(Ordering::Acquire);
                (value, self.guard.fits(bytes))
            })
        };
        if !whole {
            let _ = self.lost.compare_exchange(0, self.guard.at + 1, Ordering::SeqCst, Ordering::Relaxed);
        }
        if self.lost.load(Ordering::Acquire) != 0 { Err(self.cause()) } else { Ok(value) }
    }

    /// The offset of the first page that could not be read.
    pub(crate) fn lost_at(&self) -> Option<u64> {
        self.lost.load(Ordering::Acquire).checked_sub(1)
    }

    /// The system's error for a file that could not be read through the mapping.
    #[cold]
    fn cause(&self) -> Error {
        if let Err(error) = self.guard.check(&self.file) {
            return error;
        }
        let (path, at) = (&self.guard.path, self.lost_at().unwrap_or_default());
        let place = format!("byte {at}");
        let last = self.guard.end.saturating_sub(1);
        match self.file.read_exact_at(&mut [0; 1], at.min(last)) {
            Err(error) => Error::unreadable(path, &place, error),
            Ok(()) => Error::Lost { path: path.clone(), place },
        }
    }
}
