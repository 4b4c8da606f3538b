//! `Chunk`, one directory entry: a column chunk holds the fixed-width entries of one field for a
//! run of records.

use crate::format::extent::EXTENT_LEN;
use crate::format::layout::BLOCK;
use crate::format::layout::CHUNK_ALIGN;
use crate::format::layout::CHUNK_LEN;
use crate::format::layout::Footer;
use crate::format::layout::PAGE;
use crate::format::layout::put;
use crate::format::layout::u16_at;
use crate::format::layout::u32_at;
use crate::format::layout::u64_at;

/// How the entries of a column chunk are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Encoding {
    Values,
    Extents,
}

/// Identifies a column of a field: 0 for the value or extent itself, other numbers for what belongs
/// to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Part(pub u8);

/// One entry of the directory: the location of a run of one column's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub field: u32,
    pub part: Part,
    pub encoding: Encoding,
    pub width: u16,
    pub first: u64,
    pub count: u64,
    pub offset: u64,
    /// The CRC of the check table; `None` in the directory of a footer that does not cover it.
    pub table_crc: Option<u32>,
}

impl Part {
    pub(crate) const MAIN: Self = Self(0);
    /// The width of images.
    pub(crate) const WIDTH: Self = Self(1);
    /// The height of images.
    pub(crate) const HEIGHT: Self = Self(2);
    /// The side bytes of images that lie elsewhere than after the value.
    pub(crate) const SIDE: Self = Self(3);
}

impl Chunk {
    /// Bytes of the entries, without the check table. Decoding has checked that nothing overflows.
    pub(crate) fn length(&self) -> u64 {
        self.count * u64::from(self.width)
    }

    pub(crate) fn end_record(&self) -> u64 {
        self.first + self.count
    }

    /// Offset and number of entries of the check table.
    pub(crate) fn table(&self) -> (u64, u64) {
        let length = self.length();
        ((self.offset + length + 7) & !7, length.div_ceil(BLOCK as u64))
    }

    /// The end of the check table.
    pub(crate) fn end(&self) -> u64 {
        let (offset, blocks) = self.table();
        offset + 4 * blocks
    }

    pub(crate) fn encode(&self) -> [u8; CHUNK_LEN] {
        let mut out = [0; CHUNK_LEN];
        put(&mut out, 0, &self.field.to_le_bytes());
        out[4] = self.part.0;
        out[5] = match self.encoding {
            Encoding::Values => 1,
            Encoding::Extents => 2,
        };
        put(&mut out, 6, &self.width.to_le_bytes());
        for (i, word) in [self.first, self.count, self.offset, self.length()].iter().enumerate() {
            put(&mut out, 8 + 8 * i, &word.to_le_bytes());
        }
        put(&mut out, 40, &self.table_crc.unwrap_or_default().to_le_bytes());
        out
    }

    /// Decodes one directory entry and checks its range against the footer's offset and record
    /// count.
    ///
    /// # Errors
    /// The reason, as text.
    pub(crate) fn decode(bytes: &[u8; CHUNK_LEN], footer: &Footer) -> std::result::Result<Self, String> {
        let part = Part(bytes[4]);
        let encoding = match bytes[5] {
            1 => Encoding::Values,
            2 => Encoding::Extents,
            other => return Err(format!("unknown encoding {other}")),
        };
        let (first, count) = (u64_at(bytes, 8), u64_at(bytes, 16));
        let (offset, width) = (u64_at(bytes, 24), u16_at(bytes, 6));
        let table_crc = footer.covers_content.then(|| u32_at(bytes, 40));
        let reserved = if footer.covers_content { 44 } else { 40 };
        let chunk = Self { field: u32_at(bytes, 0), part, encoding, width, first, count, offset, table_crc };
        if !(1..=64).contains(&width) || (encoding == Encoding::Extents && usize::from(width) != EXTENT_LEN) {
            return Err(format!("an entry width of {width} bytes"));
        }
        if bytes[reserved..].iter().any(|&b| b != 0) {
            return Err("reserved bytes are not zero".to_owned());
        }
        if count == 0 || first.checked_add(count).is_none_or(|end| end > footer.records) {
            return Err(format!("{count} entries from record {first}, of {} records", footer.records));
        }
        let length = count.checked_mul(u64::from(width));
        if length != Some(u64_at(bytes, 32)) {
            return Err(format!("{} bytes for {count} entries of {width} bytes", u64_at(bytes, 32)));
        }
        // Check first that the entries alone lie below the footer: `end` then adds the table
        // without overflow.
        let entries_end = length.and_then(|n| offset.checked_add(n));
        if offset < PAGE || offset % CHUNK_ALIGN != 0 || entries_end.is_none_or(|e| e > footer.offset) {
            return Err(format!("entries at {offset} lie outside of the file"));
        }
        if chunk.end() > footer.offset {
            return Err(format!("the check table of the entries at {offset} lies outside of the file"));
        }
        Ok(chunk)
    }
}
