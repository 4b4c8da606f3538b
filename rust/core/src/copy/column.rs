//! `CopyColumn`: a column of a copy, which places its entries while payloads are copied.

use std::io;

use crate::error::{Error, Result};
use crate::format::chunk::{Chunk, Encoding, Part};
use crate::format::layout::{BLOCK, CHUNK_ALIGN, align};
use crate::format::schema::Schema;
use crate::write::column::Table;
use crate::write::writer::Writer;

/// Bytes of entries that are held in memory when no space is reserved for them.
const HELD: usize = 1 << 20;
/// Bytes of entries written before the kernel is asked to write them to the disk.
const WRITEBACK: u64 = 4 << 20;

/// A column of the copy.
#[derive(Debug)]
pub(crate) struct CopyColumn {
    /// Position among the columns of the writer.
    number: usize,
    /// Position in the schema of the copy.
    pub field: usize,
    id: u32,
    pub part: Part,
    pub encoding: Encoding,
    width: u16,
    /// Its payloads begin at multiples of this.
    pub alignment: u64,
    /// Whether its payloads are kept apart from other fields' payloads.
    pub text: bool,
    /// The expected number of entries.
    expected: u64,
    /// The reserved space of the chunk that is being filled.
    room: Option<Room>,
    /// Entries that are not in a chunk yet and have no reserved space.
    entries: Vec<u8>,
    /// The record after the last entry.
    end: u64,
}

/// Reserved space in the file for the entries of one chunk.
#[derive(Debug)]
struct Room {
    offset: u64,
    /// The number of entries that fit.
    capacity: u64,
    /// The number of entries written.
    count: u64,
    table: Table,
    /// The offset from which writeback was not requested yet.
    writeback_at: u64,
}

/// Bytes of a number of entries and their check table.
fn chunk_bytes(count: u64, width: u16) -> Option<u64> {
    let length = count.checked_mul(u64::from(width))?;
    align(length, 8)?.checked_add(length.div_ceil(BLOCK as u64) * 4)
}

impl Writer {
    /// Reserves space for bytes that are written later. Returns its offset.
    fn reserve(&mut self, bytes: u64) -> Result<u64> {
        self.pad(CHUNK_ALIGN)?;
        self.flush()?;
        let at = self.buffer_at;
        let end = at.checked_add(bytes).ok_or_else(|| Error::io(&self.path, io::ErrorKind::FileTooLarge.into()))?;
        (self.buffer_at, self.writeback_at) = (end, end);
        Ok(at)
    }
}

impl CopyColumn {
    /// The columns of a file, in the order of its writer.
    pub(crate) fn for_schema(schema: &Schema, expected: u64) -> Vec<Self> {
        let mut columns = Vec::new();
        for (field, definition) in schema.fields().iter().enumerate() {
            let kind = &definition.kind;
            for part in (0..kind.parts()).map(Part) {
                let Some((encoding, width)) = kind.column(part) else { continue };
                columns.push(Self {
                    number: columns.len(),
                    field,
                    id: definition.id,
                    part,
                    encoding,
                    width,
                    alignment: kind.alignment(),
                    text: kind.holds_text(),
                    expected,
                    room: None,
                    entries: Vec::new(),
                    end: 0,
                });
            }
        }
        columns
    }

    /// Whether further entries can join the last ones in their reserved space.
    pub(crate) fn has_room(&self) -> bool {
        self.room.is_some()
    }

    /// Adds entries. `whole` means that the source has an entry for each of its records.
    pub(crate) fn add(&mut self, writer: &mut Writer, bytes: &[u8], whole: bool) -> Result<()> {
        let count = bytes.len() as u64 / u64::from(self.width);
        let left = self.expected.saturating_sub(self.end);
        if count == 0 {
            return Ok(());
        }
        if whole && self.room.is_none() && self.entries.is_empty() && left >= count {
            self.make_room(writer, left)?;
        }
        match &mut self.room {
            Some(room) if room.capacity - room.count >= count => {
                let at = room.offset + room.count * u64::from(self.width);
                writer.write_at(bytes, at)?;
                room.table.add(bytes);
                room.count += count;
                let end = at + bytes.len() as u64;
                if end - room.writeback_at >= WRITEBACK {
                    writer.storage()?.start_writeback(room.writeback_at, end - room.writeback_at);
                    room.writeback_at = end;
                }
            }
            _ => {
                self.end_room(writer)?;
                self.entries.extend_from_slice(bytes);
            }
        }
        self.end += count;
        if self.entries.len() >= HELD { self.end_chunk(writer) } else { Ok(()) }
    }

    fn make_room(&mut self, writer: &mut Writer, capacity: u64) -> Result<()> {
        let too_large = || Error::io(&writer.path, io::ErrorKind::FileTooLarge.into());
        let bytes = chunk_bytes(capacity, self.width).ok_or_else(too_large)?;
        let offset = writer.reserve(bytes)?;
        self.room = Some(Room { offset, capacity, count: 0, table: Table::default(), writeback_at: offset });
        Ok(())
    }

    /// Skips records that have no entry: the entries before them become a chunk.
    pub(crate) fn leave_out(&mut self, writer: &mut Writer, count: u64) -> Result<()> {
        self.end_chunk(writer)?;
        self.end += count;
        Ok(())
    }

    /// Makes a chunk of the last entries.
    pub(crate) fn end_chunk(&mut self, writer: &mut Writer) -> Result<()> {
        self.end_room(writer)?;
        let entries = std::mem::take(&mut self.entries);
        if entries.is_empty() {
            return Ok(());
        }
        writer.pad(CHUNK_ALIGN)?;
        let offset = writer.position();
        let mut table = Table::default();
        table.add(&entries);
        table.end_block();
        writer.put(&entries)?;
        writer.pad(8)?;
        writer.put(&table.crcs)?;
        self.list_chunk(writer, offset, entries.len() as u64 / u64::from(self.width));
        Ok(())
    }

    /// Makes a chunk of the space that is being filled.
    fn end_room(&mut self, writer: &mut Writer) -> Result<()> {
        let Some(mut room) = self.room.take() else { return Ok(()) };
        room.table.end_block();
        let end = room.offset + room.count * u64::from(self.width);
        writer.write_at(&room.table.crcs, end.next_multiple_of(8))?;
        self.list_chunk(writer, room.offset, room.count);
        Ok(())
    }

    fn list_chunk(&self, writer: &mut Writer, offset: u64, count: u64) {
        let (field, part, encoding, width) = (self.id, self.part, self.encoding, self.width);
        let chunk = Chunk { field, part, encoding, width, first: self.end - count, count, offset };
        writer.columns[self.number].chunks.push(chunk);
    }
}
