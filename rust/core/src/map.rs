//! The read-only mapping of a snapshot.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use memmap2::{Advice, Mmap, MmapOptions};

/// How a mapping will be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// The kernel reads ahead as it sees fit.
    Normal,
    /// The kernel reads the pages touched and no more.
    Random,
}

/// The bytes of a file up to the end of one footer.
#[derive(Debug)]
pub struct Mapping {
    map: Mmap,
}

impl Mapping {
    pub(crate) fn new(file: &File, length: u64, pattern: Pattern) -> io::Result<Self> {
        let length = usize::try_from(length).map_err(io::Error::other)?;
        // SAFETY: `map` requires that the mapped bytes do not change while a slice of them is alive. The mapping ends at a
        // footer, and writers never rewrite or truncate below one (docs/format.md, section 7) but for the slots in page
        // 0, which are read by `read_at` and never through a mapping. If another program truncates or overwrites the
        // file all the same, a read gets SIGBUS or other bytes; readers check the file's size before each batch to
        // make that unlikely.
        let map = unsafe { MmapOptions::new().len(length).map(file) }?;
        if pattern == Pattern::Random {
            map.advise(Advice::Random)?;
        }
        Ok(Self { map })
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }
}
