//! `ColumnWriter`: the entries of one column since the last commit, which become chunks.
//! `ChunkWriter` writes a chunk with its check table.

use std::collections::HashMap;
use std::mem;

use crate::error::{Error, Result};
use crate::format::chunk::{Chunk, Encoding, Part};
use crate::format::crc::{crc32c, crc32c_append};
use crate::format::extent::EXTENT_LEN;
use crate::format::layout::{BLOCK, CHUNK_ALIGN, align, u64_at};
use crate::format::schema::Field;
use crate::memory;
use crate::write::output::Output;

/// Chunks below this many bytes are merged as in a binary counter, so that many small commits leave
/// few chunks.
const SMALL: u64 = 128 << 10;
/// This many chunks at the end of a column, each below [`LARGE`] bytes, are merged into one.
const MANY: usize = 256;
const LARGE: u64 = 32 << 20;
/// Bytes written into reserved space before the kernel is asked to write them to the disk.
const WRITEBACK: u64 = 4 << 20;

/// What a column is, without its chunks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ColumnKey {
    /// The id of the field.
    pub field: u32,
    pub part: Part,
    pub encoding: Encoding,
    pub width: u16,
}

impl ColumnKey {
    /// The columns of a field, the main one first.
    pub(crate) fn of(field: &Field) -> impl Iterator<Item = Self> {
        field.kind.columns().map(|(part, encoding, width)| Self { field: field.id, part, encoding, width })
    }

    fn chunk(self, first: u64, count: u64, offset: u64, table: &[u8]) -> Chunk {
        let Self { field, part, encoding, width } = self;
        Chunk { field, part, encoding, width, first, count, offset, table_crc: Some(crc32c(table)) }
    }
}

/// One column of the file that is being written.
#[derive(Debug)]
pub(super) struct ColumnWriter {
    key: ColumnKey,
    /// Chunks of the last commit, in order.
    chunks: Vec<Chunk>,
    /// Entries of records that are not committed.
    pending: Vec<u8>,
    /// From here on, offsets in `pending` are relative to strings that are not written yet.
    unresolved: usize,
}

/// When a commit may merge chunks.
#[derive(Debug, Clone, Copy)]
pub(super) struct MergeRule {
    /// Whether the writer is about to close.
    pub last: bool,
    /// Where this writer began to append.
    pub session_start: u64,
    /// The first record of the pending entries.
    pub committed: u64,
}

impl ColumnWriter {
    pub(super) fn new(key: ColumnKey) -> Self {
        Self { key, chunks: Vec::new(), pending: Vec::new(), unresolved: 0 }
    }

    /// Whether its entries are extents.
    pub(super) fn has_extents(&self) -> bool {
        self.key.encoding == Encoding::Extents
    }

    pub(super) fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// Takes over the chunks of this column, which are in the file already.
    pub(super) fn adopt(&mut self, by_column: &mut HashMap<(u32, Part), Vec<Chunk>>) {
        self.chunks.extend(by_column.remove(&(self.key.field, self.key.part)).unwrap_or_default());
    }

    /// Forgets all chunks and entries.
    pub(super) fn clear(&mut self) {
        self.chunks.clear();
        self.take_pending();
    }

    /// Forgets the pending entries.
    pub(super) fn drop_pending(&mut self) {
        self.take_pending();
    }

    /// Writes the pending entries as a separate chunk that replaces the chunks of their records. They
    /// end before record `end`. Returns false if there are none.
    pub(super) fn replace_with_pending(&mut self, output: &mut Output, end: u64) -> Result<bool> {
        let first = end - (self.pending.len() / usize::from(self.key.width)) as u64;
        self.chunks.retain(|chunk| chunk.end_record() <= first || chunk.first >= end);
        self.write_pending(output, end)?;
        self.chunks.sort_by_key(|chunk| chunk.first);
        Ok(first < end)
    }

    /// Bytes of entries that are held in memory.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Makes room, so that [`ColumnWriter::push`] of so many bytes cannot fail.
    pub(super) fn reserve(&mut self, bytes: usize) -> Result<()> {
        memory::reserve(&mut self.pending, bytes)
    }

    /// Adds an entry.
    pub(super) fn push(&mut self, entry: &[u8]) {
        self.pending.extend_from_slice(entry);
    }

    /// Turns offsets of strings into offsets into the file. The strings were written at `at`.
    pub(super) fn resolve_offsets(&mut self, at: u64) {
        for entry in self.pending[self.unresolved..].as_chunks_mut::<EXTENT_LEN>().0 {
            let offset = at + u64_at(entry, 0);
            entry[..8].copy_from_slice(&offset.to_le_bytes());
        }
        self.unresolved = self.pending.len();
    }

    /// The number of the first chunk to merge with the pending entries, if any chunk is to be
    /// merged.
    ///
    /// At the last commit of a session a column of values becomes one chunk, so that readers can
    /// view it. This happens only if it writes no more bytes than the session has: a small append
    /// to a large file stays small. `position` is the end of the file.
    pub(super) fn merge_from(&self, rule: MergeRule, position: u64) -> Option<usize> {
        let sizes: Vec<u64> = self.chunks.iter().map(Chunk::length).collect();
        let mut from = sizes.len();
        let mut tail = self.pending.len() as u64;
        while from > 0 && sizes[from - 1] < SMALL && tail * 2 >= sizes[from - 1] {
            from -= 1;
            tail += sizes[from];
        }
        let trailing = sizes.iter().rev().take_while(|&&size| size < LARGE).count();
        if trailing >= MANY {
            from = from.min(sizes.len() - trailing);
        }
        if rule.last && !self.has_extents() && sizes.iter().sum::<u64>() <= position - rule.session_start {
            from = 0;
        }
        // Only adjacent chunks can become one; records without a value leave a gap.
        let gap = self.chunks.windows(2).rposition(|pair| pair[0].end_record() != pair[1].first);
        from = from.max(gap.map_or(0, |before| before + 1));
        let new = usize::from(!self.pending.is_empty());
        if new > 0 && self.chunks.last().is_some_and(|chunk| chunk.end_record() != rule.committed) {
            return None;
        }
        let merged = sizes.len() - from;
        (merged > 0 && merged + new > 1).then_some(from)
    }

    /// Writes the pending entries as a chunk, merged with older chunks where that is due. They end
    /// before record `end`.
    pub(super) fn write(&mut self, output: &mut Output, rule: MergeRule, end: u64) -> Result<()> {
        let Some(from) = self.merge_from(rule, output.position()) else { return self.write_pending(output, end) };
        let (pending, merged) = (self.take_pending(), self.chunks.split_off(from));
        let (path, field) = (output.path().display().to_string(), self.key.field);
        log::debug!(target: "fastrecord_core::chunks", "{path}: field {field}: {} chunks become one", merged.len());
        match self.write_chunk(output, &merged, &pending, end) {
            // A damaged chunk stays where it is, and reading it is an error; appending continues
            // after it. No directory ever names the part copied so far.
            Err(error @ Error::Corrupt { .. }) => {
                let error = error.coded();
                log::warn!(target: "fastrecord_core::chunks", "{path}: field {field}: a damaged chunk is kept: {error}");
                self.chunks.extend(merged);
                if pending.is_empty() { Ok(()) } else { self.write_chunk(output, &[], &pending, end) }
            }
            outcome => outcome,
        }
    }

    /// Writes the pending entries as a separate chunk. They end before record `end`.
    pub(super) fn write_pending(&mut self, output: &mut Output, end: u64) -> Result<()> {
        let pending = self.take_pending();
        if pending.is_empty() { Ok(()) } else { self.write_chunk(output, &[], &pending, end) }
    }

    fn take_pending(&mut self) -> Vec<u8> {
        self.unresolved = 0;
        mem::take(&mut self.pending)
    }

    fn write_chunk(&mut self, output: &mut Output, merged: &[Chunk], pending: &[u8], end: u64) -> Result<()> {
        let mut writer = ChunkWriter::begin(output, self.key)?;
        for chunk in merged {
            copy_chunk(output, chunk, &mut writer)?;
        }
        writer.add(output, pending)?;
        let pending_count = (pending.len() / usize::from(self.key.width)) as u64;
        let first = merged.first().map_or(end - pending_count, |chunk| chunk.first);
        self.chunks.push(writer.end(output, first)?);
        Ok(())
    }
}

/// Copies the entries of an older chunk, a few blocks at a time, and checks each block.
fn copy_chunk(output: &mut Output, chunk: &Chunk, writer: &mut ChunkWriter) -> Result<()> {
    const STEP: usize = 256 * BLOCK;
    let (table_at, blocks) = chunk.table();
    let mut table = vec![0; blocks as usize * 4];
    let mut piece = vec![0; STEP.min(chunk.length() as usize)];
    output.read_at(&mut table, table_at)?;
    if chunk.table_crc.is_some_and(|stored| stored != crc32c(&table)) {
        return Err(Error::corrupt(output.path(), "index", format!("the check table at {table_at} is another")));
    }
    let mut done = 0;
    while done < chunk.length() {
        let length = (STEP as u64).min(chunk.length() - done) as usize;
        let piece = &mut piece[..length];
        output.read_at(piece, chunk.offset + done)?;
        for (i, block) in piece.chunks(BLOCK).enumerate() {
            let number = done as usize / BLOCK + i;
            let (stored, computed) = (u32::from_le_bytes(table.as_chunks().0[number]), crc32c(block));
            if stored != computed {
                let at = chunk.offset + done + (i * BLOCK) as u64;
                let detail = format!("stored CRC {stored:#010x}, computed {computed:#010x} (from byte {at})");
                return Err(Error::corrupt(output.path(), "index", detail));
            }
        }
        writer.add(output, piece)?;
        done += length as u64;
    }
    Ok(())
}

/// A chunk that is being written, at the end of the file or into reserved space.
#[derive(Debug)]
pub(crate) struct ChunkWriter {
    key: ColumnKey,
    offset: u64,
    /// Bytes of entries written.
    length: u64,
    table: CheckTable,
    reserved: Option<Reserved>,
}

#[derive(Debug)]
struct Reserved {
    /// Bytes of entries that fit.
    capacity: u64,
    /// The offset from which writeback was not requested yet.
    writeback_at: u64,
}

impl ChunkWriter {
    /// Begins a chunk at the end of the file. Until it ends, nothing else may be appended.
    pub(crate) fn begin(output: &mut Output, key: ColumnKey) -> Result<Self> {
        output.pad(CHUNK_ALIGN)?;
        Ok(Self { key, offset: output.position(), length: 0, table: CheckTable::default(), reserved: None })
    }

    /// Reserves space for a chunk of `count` entries. Other bytes may be appended before it ends.
    pub(crate) fn reserve(output: &mut Output, key: ColumnKey, count: u64) -> Result<Self> {
        let sizes = || {
            let capacity = count.checked_mul(key.width.into())?;
            Some((capacity, align(capacity, 8)?.checked_add(capacity.div_ceil(BLOCK as u64) * 4)?))
        };
        let (capacity, bytes) = sizes().ok_or_else(|| output.error(std::io::ErrorKind::FileTooLarge.into()))?;
        let offset = output.reserve(bytes, CHUNK_ALIGN)?;
        let reserved = Some(Reserved { capacity, writeback_at: offset });
        Ok(Self { key, offset, length: 0, table: CheckTable::default(), reserved })
    }

    /// Whether so many further bytes of entries fit.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.reserved.as_ref().is_none_or(|reserved| reserved.capacity - self.length >= bytes)
    }

    /// Adds whole entries.
    pub(crate) fn add(&mut self, output: &mut Output, entries: &[u8]) -> Result<()> {
        match &mut self.reserved {
            None => output.put(entries)?,
            Some(reserved) => {
                let at = self.offset + self.length;
                output.write_at(entries, at)?;
                let end = at + entries.len() as u64;
                if end - reserved.writeback_at >= WRITEBACK {
                    output.start_writeback(reserved.writeback_at, end - reserved.writeback_at)?;
                    reserved.writeback_at = end;
                }
            }
        }
        self.table.add(entries);
        self.length += entries.len() as u64;
        Ok(())
    }

    /// Writes the check table. `first` is the record of the first entry.
    pub(crate) fn end(self, output: &mut Output, first: u64) -> Result<Chunk> {
        let count = self.count();
        let table = self.table.end();
        if self.reserved.is_some() {
            output.write_at(&table, (self.offset + self.length).next_multiple_of(8))?;
        } else {
            output.pad(8)?;
            output.put(&table)?;
        }
        Ok(self.key.chunk(first, count, self.offset, &table))
    }

    /// The number of entries written.
    pub(crate) fn count(&self) -> u64 {
        self.length / u64::from(self.key.width)
    }
}

/// The checksums of the blocks of a chunk.
#[derive(Debug, Default)]
struct CheckTable {
    crcs: Vec<u8>,
    crc: u32,
    filled: usize,
}

impl CheckTable {
    fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(BLOCK - self.filled));
            self.crc = crc32c_append(self.crc, now);
            self.filled += now.len();
            if self.filled == BLOCK {
                self.end_block();
            }
            bytes = rest;
        }
    }

    fn end_block(&mut self) {
        if self.filled > 0 {
            self.crcs.extend_from_slice(&self.crc.to_le_bytes());
            (self.crc, self.filled) = (0, 0);
        }
    }

    fn end(mut self) -> Vec<u8> {
        self.end_block();
        self.crcs
    }
}
