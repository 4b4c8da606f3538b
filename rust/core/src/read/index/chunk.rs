//! `ChunkData`: one chunk of a column and the source of its bytes. Each block is checked when it is
//! first read.

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::format::chunk::{Chunk, Encoding};
use crate::format::crc::crc32c;
use crate::format::layout::BLOCK;
use crate::memory::copied;
use crate::read::source::Source;

/// The longest check table that is checked when a block of its chunk is first read.
const SHORT_TABLE: u64 = 64 << 10;
const WITHOUT_TABLE: Error = Error::Internal("a chunk was read without its check table");

/// One chunk, and which of its blocks have been checked.
#[derive(Debug)]
pub(crate) struct ChunkData {
    pub(crate) chunk: Chunk,
    pub(crate) source: Source,
    /// One bit for each block that has been checked.
    checked: Vec<AtomicU64>,
    /// Whether the check table has been checked.
    table_checked: AtomicBool,
    loaded: OnceLock<Vec<u8>>,
}

impl ChunkData {
    pub(crate) fn new(chunk: Chunk, source: Source) -> Self {
        let checked = (0..chunk.table().1.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { chunk, source, checked, table_checked: AtomicBool::new(false), loaded: OnceLock::new() }
    }

    /// Offset of the entries in the file, if they are read from a mapping.
    pub(crate) fn mapped_at(&self) -> Option<u64> {
        matches!(self.source, Source::Mapped(_)).then_some(self.chunk.offset)
    }

    /// The entries, and after them (at the next multiple of 8) the check table, not yet checked.
    ///
    /// `mapped` is the argument that [`Source::with`] passes.
    pub(crate) fn bytes<'a>(&'a self, path: &Path, name: &str, mapped: Option<&'a [u8]>) -> Result<&'a [u8]> {
        let length = (self.chunk.end() - self.chunk.offset) as usize;
        match &self.source {
            Source::Mapped(_) => {
                let start = self.chunk.offset as usize;
                mapped.and_then(|bytes| bytes.get(start..start + length)).ok_or_else(|| {
                    Error::corrupt(path, format!("column {name}"), "its chunk lies outside of the mapping")
                })
            }
            Source::File(file) => {
                if let Some(bytes) = self.loaded.get() {
                    return Ok(bytes);
                }
                let mut bytes = crate::memory::zeros(length)?;
                file.read_exact_at(&mut bytes, self.chunk.offset)
                    .map_err(|e| Error::unreadable(path, &format!("index of field {name}"), e))?;
                // Two threads may both have loaded it; the first result stays.
                let _ = self.loaded.set(bytes);
                Ok(self.loaded.get().map_or(&[], Vec::as_slice))
            }
        }
    }

    /// Checks every block.
    pub(crate) fn check_all(&self, path: &Path, name: &str) -> Result<()> {
        self.source.with(|file| self.checked_bytes(path, name, file).map(drop))
    }

    /// A copy of all entries, after checking every block.
    pub(crate) fn copy(&self, path: &Path, name: &str) -> Result<Vec<u8>> {
        self.source.with(|file| copied(self.checked_bytes(path, name, file)?))
    }

    /// All entries, after checking every block.
    pub(crate) fn checked_bytes<'a>(&'a self, path: &Path, name: &str, mapped: Option<&'a [u8]>) -> Result<&'a [u8]> {
        let bytes = self.bytes(path, name, mapped)?;
        for block in 0..self.chunk.table().1 as usize {
            self.check(path, name, bytes, block)?;
        }
        self.check_table(path, name, bytes)?;
        Ok(&bytes[..self.chunk.length() as usize])
    }

    /// The records and the error of each damaged block.
    ///
    /// # Errors
    /// Failed reads.
    pub(crate) fn damaged_blocks(&self, path: &Path, name: &str) -> Result<Vec<(Range<u64>, Error)>> {
        self.source.with(|mapped| {
            let bytes = self.bytes(path, name, mapped)?;
            let damaged = |block| Some((self.records_of(block), self.check_block(path, name, bytes, block).err()?));
            let mut found: Vec<_> = (0..self.chunk.table().1 as usize).filter_map(damaged).collect();
            let all = self.chunk.first..self.chunk.end_record();
            found.extend(self.check_table(path, name, bytes).err().map(|error| (all, error)));
            Ok(found)
        })
    }

    /// The records whose entries lie in a block, or partly in it.
    fn records_of(&self, block: usize) -> Range<u64> {
        let (width, length) = (usize::from(self.chunk.width), self.chunk.length() as usize);
        let (start, end) = (block * BLOCK, (block * BLOCK + BLOCK).min(length));
        self.chunk.first + (start / width) as u64..self.chunk.first + end.div_ceil(width) as u64
    }

    #[inline]
    pub(crate) fn check(&self, path: &Path, name: &str, bytes: &[u8], block: usize) -> Result<()> {
        let Some(word) = self.checked.get(block / 64) else { return Ok(()) };
        if word.load(Ordering::Relaxed) >> (block % 64) & 1 == 1 {
            return Ok(());
        }
        self.check_block(path, name, bytes, block)?;
        if 4 * self.chunk.table().1 <= SHORT_TABLE {
            self.check_table(path, name, bytes)?;
        }
        word.fetch_or(1 << (block % 64), Ordering::Relaxed);
        Ok(())
    }

    /// Checks the CRC of one block. `bytes` holds the chunk and its check table.
    #[cold]
    fn check_block(&self, path: &Path, name: &str, bytes: &[u8], block: usize) -> Result<()> {
        let (start, end) = (block * BLOCK, (block * BLOCK + BLOCK).min(self.chunk.length() as usize));
        let entries = bytes.get(start..end);
        let stored = self.table(bytes).and_then(|table| table.get(4 * block..)?.first_chunk());
        let (Some(entries), Some(stored)) = (entries, stored) else { return Err(WITHOUT_TABLE) };
        let crcs = (u32::from_le_bytes(*stored), crc32c(entries));
        if crcs.0 == crcs.1 { Ok(()) } else { Err(self.damaged(path, name, self.records_of(block), start..end, crcs)) }
    }

    /// Checks the CRC of the check table. If it differs, and so does a block from its entry, the damage
    /// is only there. `bytes` holds the chunk and its check table.
    #[cold]
    fn check_table(&self, path: &Path, name: &str, bytes: &[u8]) -> Result<()> {
        let Some(stored) = self.chunk.table_crc.filter(|_| !self.table_checked.load(Ordering::Relaxed)) else {
            return Ok(());
        };
        let table = self.table(bytes).ok_or(WITHOUT_TABLE)?;
        let crcs = (stored, crc32c(table));
        let mut blocks = 0..self.chunk.table().1 as usize;
        if crcs.0 != crcs.1 && blocks.all(|block| self.check_block(path, name, bytes, block).is_ok()) {
            let records = self.chunk.first..self.chunk.end_record();
            return Err(self.damaged(path, name, records, bytes.len() - table.len()..bytes.len(), crcs));
        }
        self.table_checked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The check table in the bytes of the chunk.
    fn table<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        bytes.get((self.chunk.table().0 - self.chunk.offset) as usize..)
    }

    /// The error of bytes of the chunk whose CRC is another than the stored one.
    fn damaged(&self, path: &Path, name: &str, records: Range<u64>, bytes: Range<usize>, crcs: (u32, u32)) -> Error {
        let what = match self.chunk.encoding {
            Encoding::Extents => "index",
            Encoding::Values => "values",
        };
        let part = format!("{what} of field {name}, records {} to {}", records.start, records.end - 1);
        let (stored, computed) = crcs;
        let (from, to) = (self.chunk.offset + bytes.start as u64, self.chunk.offset + bytes.end as u64);
        let detail = format!("stored CRC {stored:#010x}, computed {computed:#010x} (bytes {from} to {to})");
        Error::corrupt(path, part, detail)
    }
}
