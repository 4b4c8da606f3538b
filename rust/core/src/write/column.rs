//! `ColumnBuffer`: the entries of one column since the last commit, which are written as chunks.
//! Small chunks are merged.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::chunk::{Chunk, Encoding, Part};
use crate::format::extent::EXTENT_LEN;
use crate::format::layout::{BLOCK, CHUNK_ALIGN, u64_at};
use crate::format::schema::{Field, Schema};
use crate::write::compress::Packing;
use crate::write::writer::Writer;

/// Chunks below this many bytes are merged as in a binary counter, so that many small commits leave
/// few chunks.
const SMALL: u64 = 128 << 10;
/// This many chunks at the end of a column, each below [`LARGE`] bytes, are merged into one.
const MANY: usize = 256;
const LARGE: u64 = 32 << 20;

/// One column of the file that is being written.
#[derive(Debug)]
pub(crate) struct ColumnBuffer {
    pub(crate) field: u32,
    part: Part,
    /// The number of columns of the field from this one on.
    pub(crate) parts: usize,
    /// Its payloads begin at multiples of this.
    pub(crate) alignment: u64,
    /// Whether its payloads are gathered in the heap.
    heaped: bool,
    /// The shape of arrays that are payloads.
    pub(crate) shape: Arc<[Option<u64>]>,
    encoding: Encoding,
    width: u16,
    /// Chunks of the last commit, in order.
    pub(crate) chunks: Vec<Chunk>,
    /// Entries of records that are not committed.
    pub(crate) pending: Vec<u8>,
    /// How its payloads are compressed, if they are.
    pub(crate) packing: Option<Packing>,
    /// Texts: from here on, offsets in `pending` are relative to a heap that is not written yet.
    unplaced: usize,
}

impl ColumnBuffer {
    pub(crate) fn for_schema(schema: &Schema) -> Vec<Self> {
        schema.fields().iter().flat_map(Self::for_field).collect()
    }

    /// The columns of one field.
    pub(crate) fn for_field(field: &Field) -> Vec<Self> {
        let mut columns = Vec::new();
        let parts = field.kind.parts();
        for part in (0..parts).map(Part) {
            let Some((encoding, width)) = field.kind.column(part) else { continue };
            columns.push(Self {
                field: field.id,
                part,
                parts: (parts - part.0).into(),
                alignment: field.kind.alignment(),
                heaped: field.kind.holds_text(),
                shape: field.kind.payload_array().map_or_else(|| [].into(), |array| array.shape().into()),
                encoding,
                width,
                chunks: Vec::new(),
                pending: Vec::new(),
                packing: field.compression.as_ref().filter(|_| part == Part::MAIN).map(Packing::new),
                unplaced: 0,
            });
        }
        columns
    }

    /// The key of the column in the directory.
    pub(crate) fn key(&self) -> (u32, Part) {
        (self.field, self.part)
    }

    /// Whether its payloads are gathered in the heap, as texts are.
    pub(crate) fn is_heaped(&self) -> bool {
        self.heaped
    }

    /// Whether its entries are extents.
    pub(crate) fn has_extents(&self) -> bool {
        self.encoding == Encoding::Extents
    }

    /// Turns offsets into the heap into offsets into the file. The heap was written at `at`.
    pub(crate) fn place_texts(&mut self, at: u64) {
        for entry in self.pending[self.unplaced..].as_chunks_mut::<EXTENT_LEN>().0 {
            let offset = at + u64_at(entry, 0);
            entry[..8].copy_from_slice(&offset.to_le_bytes());
        }
        self.unplaced = self.pending.len();
    }

    /// The number of the first chunk to merge with the pending entries, if any chunk is to be
    /// merged.
    ///
    /// At the last commit of a session a column of values becomes one chunk, so that readers can
    /// view it. This happens only if it writes no more bytes than the session has: a small append
    /// to a large file stays small. `committed` is the first record of the pending entries.
    pub(crate) fn merge_from(&self, last: bool, session_bytes: u64, committed: u64) -> Option<usize> {
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
        if last && self.encoding == Encoding::Values && sizes.iter().sum::<u64>() <= session_bytes {
            from = 0;
        }
        // Only adjacent chunks can become one; records without a value leave a gap.
        let gap = self.chunks.windows(2).rposition(|pair| pair[0].end_record() != pair[1].first);
        from = from.max(gap.map_or(0, |before| before + 1));
        let new = usize::from(!self.pending.is_empty());
        if new > 0 && self.chunks.last().is_some_and(|chunk| chunk.end_record() != committed) {
            return None;
        }
        let merged = sizes.len() - from;
        (merged > 0 && merged + new > 1).then_some(from)
    }
}

/// The check table of a chunk that is being written. Counts bytes and computes CRCs.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) crcs: Vec<u8>,
    crc: u32,
    filled: usize,
}

impl Table {
    pub(crate) fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(BLOCK - self.filled));
            self.crc = crate::format::crc::crc32c_append(self.crc, now);
            self.filled += now.len();
            if self.filled == BLOCK {
                self.end_block();
            }
            bytes = rest;
        }
    }

    pub(crate) fn end_block(&mut self) {
        if self.filled > 0 {
            self.crcs.extend_from_slice(&self.crc.to_le_bytes());
            (self.crc, self.filled) = (0, 0);
        }
    }
}

impl Writer {
    /// Writes a column's pending entries as a chunk, merged with older chunks where that is due.
    pub(crate) fn write_column(&mut self, number: usize, last: bool) -> Result<()> {
        let (session_bytes, committed) = (self.position() - self.session_start, self.committed());
        let column = &mut self.columns[number];
        let from = column.merge_from(last, session_bytes, committed);
        if column.pending.is_empty() && from.is_none() {
            return Ok(());
        }
        let pending = std::mem::take(&mut column.pending);
        column.unplaced = 0;
        let merged = column.chunks.split_off(from.unwrap_or(column.chunks.len()));
        let field = column.field;
        if !merged.is_empty() {
            log::debug!(target: "fastrecord_core::chunks", "{}: field {field}: {} chunks become one", self.path.display(), merged.len());
        }
        match self.write_chunk(number, &merged, &pending, self.records) {
            // A damaged chunk stays where it is, and reading it is an error; appending continues
            // after it. No directory ever names the part copied so far.
            Err(error @ Error::Corrupt { .. }) => {
                log::warn!(
                    target: "fastrecord_core::chunks",
                    "{}: field {field}: a damaged chunk stays where it is: {}",
                    self.path.display(),
                    error.coded()
                );
                self.columns[number].chunks.extend(merged);
                if pending.is_empty() { Ok(()) } else { self.write_chunk(number, &[], &pending, self.records) }
            }
            other => other,
        }
    }

    /// Writes a column's pending entries as a separate chunk. Its last entry is record `end - 1`.
    pub(crate) fn write_pending(&mut self, number: usize, end: u64) -> Result<()> {
        let column = &mut self.columns[number];
        let pending = std::mem::take(&mut column.pending);
        column.unplaced = 0;
        if pending.is_empty() { Ok(()) } else { self.write_chunk(number, &[], &pending, end) }
    }

    fn write_chunk(&mut self, number: usize, merged: &[Chunk], pending: &[u8], end: u64) -> Result<()> {
        let column = &self.columns[number];
        let (field, part, encoding, width) = (column.field, column.part, column.encoding, column.width);
        let pending_count = (pending.len() / usize::from(width)) as u64;
        let first = merged.first().map_or(end - pending_count, |chunk| chunk.first);
        self.pad(CHUNK_ALIGN)?;
        let offset = self.position();
        let mut table = Table::default();
        for chunk in merged {
            self.copy_chunk(chunk, &mut table)?;
        }
        table.add(pending);
        self.put(pending)?;
        table.end_block();
        self.pad(8)?;
        self.put(&table.crcs)?;
        let count = merged.iter().map(|c| c.count).sum::<u64>() + pending_count;
        self.columns[number].chunks.push(Chunk { field, part, encoding, width, first, count, offset });
        Ok(())
    }

    /// Copies the entries of an older chunk, a few blocks at a time, and checks each block.
    fn copy_chunk(&mut self, chunk: &Chunk, table: &mut Table) -> Result<()> {
        const STEP: usize = 256 * BLOCK;
        let (table_at, blocks) = chunk.table();
        let mut stored = vec![0; blocks as usize * 4];
        let mut piece = vec![0; STEP.min(chunk.length() as usize)];
        let read = |this: &Self, bytes: &mut [u8], at| {
            this.storage()?.read_at(bytes, at).map_err(|e| Error::io(&this.path, e))
        };
        read(self, &mut stored, table_at)?;
        let mut done = 0;
        while done < chunk.length() {
            let length = (STEP as u64).min(chunk.length() - done) as usize;
            read(self, &mut piece[..length], chunk.offset + done)?;
            for (i, block) in piece[..length].chunks(BLOCK).enumerate() {
                let number = done as usize / BLOCK + i;
                let stored = u32::from_le_bytes(stored.as_chunks().0[number]);
                let computed = crate::format::crc::crc32c(block);
                if stored != computed {
                    let at = chunk.offset + done + (i * BLOCK) as u64;
                    let detail = format!("stored CRC {stored:#010x}, computed {computed:#010x} (from byte {at})");
                    return Err(Error::corrupt(&self.path, "index", detail));
                }
            }
            table.add(&piece[..length]);
            let bytes = std::mem::take(&mut piece);
            self.put(&bytes[..length])?;
            piece = bytes;
            done += length as u64;
        }
        Ok(())
    }
}
