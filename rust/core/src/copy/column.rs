//! `CopyColumn`: a column of a copy, which places its entries while payloads are copied.

use std::mem;

use crate::error::Result;
use crate::format::chunk::Chunk;
use crate::format::field_type::FieldType;
use crate::format::schema::Schema;
use crate::write::column::{ChunkWriter, ColumnKey};
use crate::write::output::Output;

/// Bytes of entries that are held in memory when no space is reserved for them.
const HELD: usize = 1 << 20;

/// A column of the copy.
#[derive(Debug)]
pub(super) struct CopyColumn {
    /// Position of its field in the schema of the copy.
    pub field: usize,
    pub key: ColumnKey,
    /// Its payloads begin at multiples of this.
    pub alignment: u64,
    /// Whether its payloads are kept apart from other fields' payloads.
    pub text: bool,
    /// Whether its field holds images.
    pub image: bool,
    /// The expected number of entries.
    pub expected: u64,
    /// The reserved space that is being filled.
    room: Option<ChunkWriter>,
    /// Entries that are not in a chunk yet and have no reserved space.
    entries: Vec<u8>,
    /// The record after the last entry.
    end: u64,
    /// The chunks written so far, in order.
    chunks: Vec<Chunk>,
}

impl CopyColumn {
    /// The columns of a file.
    pub(super) fn for_schema(schema: &Schema, expected: u64) -> Vec<Self> {
        let columns = schema.fields().iter().enumerate().flat_map(|(field, row)| {
            ColumnKey::of(row).map(move |key| Self {
                field,
                key,
                alignment: row.kind.alignment(),
                text: row.kind.holds_text(),
                image: row.kind == FieldType::Image,
                expected,
                room: None,
                entries: Vec::new(),
                end: 0,
                chunks: Vec::new(),
            })
        });
        columns.collect()
    }

    /// Whether further entries can join the last ones in their reserved space.
    pub(super) fn has_room(&self) -> bool {
        self.room.is_some()
    }

    /// Adds entries. `whole` means that the source has an entry for each of its records.
    pub(super) fn add(&mut self, output: &mut Output, bytes: &[u8], whole: bool) -> Result<()> {
        let count = bytes.len() as u64 / u64::from(self.key.width);
        let left = self.expected.saturating_sub(self.end);
        if count == 0 {
            return Ok(());
        }
        if whole && self.room.is_none() && self.entries.is_empty() && left >= count {
            self.room = Some(ChunkWriter::reserve(output, self.key, left)?);
        }
        match &mut self.room {
            Some(room) if room.has_room(bytes.len() as u64) => room.add(output, bytes)?,
            _ => {
                self.end_room(output)?;
                self.entries.extend_from_slice(bytes);
            }
        }
        self.end += count;
        if self.entries.len() >= HELD { self.end_chunk(output) } else { Ok(()) }
    }

    /// Skips records that have no entry: the entries before them become a chunk.
    pub(super) fn leave_out(&mut self, output: &mut Output, count: u64) -> Result<()> {
        self.end_chunk(output)?;
        self.end += count;
        Ok(())
    }

    /// Makes a chunk of the last entries.
    pub(super) fn end_chunk(&mut self, output: &mut Output) -> Result<()> {
        self.end_room(output)?;
        let entries = mem::take(&mut self.entries);
        if !entries.is_empty() {
            let mut chunk = ChunkWriter::begin(output, self.key)?;
            chunk.add(output, &entries)?;
            self.end_writer(output, chunk)?;
        }
        Ok(())
    }

    /// Makes a chunk of the space that is being filled.
    fn end_room(&mut self, output: &mut Output) -> Result<()> {
        self.room.take().map_or(Ok(()), |room| self.end_writer(output, room))
    }

    fn end_writer(&mut self, output: &mut Output, writer: ChunkWriter) -> Result<()> {
        let first = self.end - writer.count();
        self.chunks.push(writer.end(output, first)?);
        Ok(())
    }

    /// Takes the chunks written so far.
    pub(super) fn take_chunks(&mut self) -> Vec<Chunk> {
        mem::take(&mut self.chunks)
    }
}
