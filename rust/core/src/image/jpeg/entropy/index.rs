//! `Index`: places in the coded data of a JPEG where decoding can begin.

use crc_fast::{CrcAlgorithm, Digest};

use super::MOST_COMPONENTS;
use crate::memory;

/// Length of the side bytes before the entries.
const HEAD: usize = 12;
/// The checksum is the head's last part.
const CRC: usize = 8;

/// The first of the side bytes: their kind.
const KIND: u8 = 2;

/// A place between two MCUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// The next bit, counted from the start of the coded data. After a restart marker it is the
    /// first bit behind the marker.
    pub(super) bit: usize,
    /// The last first coefficient of each component.
    pub(super) predictions: [i32; MOST_COMPONENTS],
}

/// The entries of an image: the start of each row of MCUs, and every few MCUs in it.
#[derive(Debug, Default)]
pub(in crate::image::jpeg) struct Index {
    /// MCUs between two entries of a row.
    interval: u32,
    /// Entries in a row.
    per_row: u32,
    components: usize,
    entries: Vec<Entry>,
    /// Where the coded data end, in bytes.
    end: usize,
}

impl Index {
    /// Begins an index of an image with this many MCUs in a row.
    pub(super) const fn new(interval: u32, columns: u32, components: usize) -> Self {
        Self { interval, per_row: columns.div_ceil(interval), components, entries: Vec::new(), end: 0 }
    }

    /// Leaves out every other entry of a row.
    pub(in crate::image::jpeg) fn thin(&mut self) {
        let rows = self.entries.chunks(self.per_row as usize);
        self.entries = rows.flat_map(|row| row.iter().step_by(2)).copied().collect();
        self.interval *= 2;
        self.per_row = self.per_row.div_ceil(2);
    }

    /// The memory of the entries, in bytes.
    pub(in crate::image::jpeg) const fn memory(&self) -> usize {
        size_of::<Entry>() * self.entries.capacity()
    }

    /// Returns `None` if memory is short.
    pub(super) fn push(&mut self, entry: Entry) -> Option<()> {
        memory::reserve(&mut self.entries, 1).ok()?;
        self.entries.push(entry);
        Some(())
    }

    pub(super) const fn set_end(&mut self, end: usize) {
        self.end = end;
    }

    pub(in crate::image::jpeg) const fn interval(&self) -> u32 {
        self.interval
    }

    /// Where the coded data end, in bytes.
    pub(in crate::image::jpeg) const fn end(&self) -> usize {
        self.end
    }

    /// Returns the entry with this number in a row. The one after a row's last is the next row's
    /// first; `None` after the last of all.
    pub(super) fn entry(&self, row: u32, number: u32) -> Option<Entry> {
        self.entries.get((row * self.per_row + number.min(self.per_row)) as usize).copied()
    }

    /// Reads side bytes for an image with these MCUs (columns, rows) and components; reports
    /// whether they fit.
    pub(in crate::image::jpeg) fn read(&mut self, side: &[u8], mcus: (u32, u32), components: usize) -> Option<()> {
        let (head, mut rest) = side.split_at_checked(HEAD)?;
        if head[0] != KIND || head[1] == 0 || head[2..4] != [0, 0] {
            return None;
        }
        self.interval = head[1].into();
        self.components = components;
        self.per_row = mcus.0.div_ceil(self.interval);
        self.end = u32::from_le_bytes(*head[4..].first_chunk()?) as usize;
        // The entries are differences. A wrong one would shift all that follow, and they would still
        // fit each other.
        if checksum(&head[..CRC], rest) != u32::from_le_bytes(*head[CRC..].first_chunk()?) {
            return None;
        }
        let count = u64::from(self.per_row) * u64::from(mcus.1);
        // Each entry takes at least a byte for each of its numbers.
        if components > MOST_COMPONENTS || count * (1 + components as u64) > rest.len() as u64 {
            return None;
        }
        self.entries.clear();
        memory::reserve(&mut self.entries, count as usize).ok()?;
        let mut last = Entry::default();
        for _ in 0..count {
            last.bit = last.bit.checked_add(number(&mut rest)? as usize)?;
            for prediction in &mut last.predictions[..components] {
                let change = number(&mut rest)?;
                let change = (change >> 1).cast_signed() ^ -(change & 1).cast_signed();
                *prediction = prediction.wrapping_add(change);
            }
            if last.bit > 8 * self.end {
                return None;
            }
            self.entries.push(last);
        }
        rest.is_empty().then_some(())
    }

    /// Returns the side bytes.
    pub(in crate::image::jpeg) fn write(&self) -> Option<Vec<u8>> {
        let mut out = vec![KIND, u8::try_from(self.interval).ok()?, 0, 0];
        out.extend(u32::try_from(self.end).ok()?.to_le_bytes());
        out.extend([0; HEAD - CRC]);
        let mut last = Entry::default();
        for entry in &self.entries {
            put_number(u32::try_from(entry.bit - last.bit).ok()?, &mut out);
            for (now, before) in entry.predictions.iter().zip(last.predictions).take(self.components) {
                let change = now.wrapping_sub(before);
                put_number((change << 1 ^ change >> 31).cast_unsigned(), &mut out);
            }
            last = *entry;
        }
        let crc = checksum(&out[..CRC], &out[HEAD..]).to_le_bytes();
        out[CRC..HEAD].copy_from_slice(&crc);
        Some(out)
    }
}

/// CRC-32C of the head's first part and the entries.
fn checksum(head: &[u8], entries: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(head);
    digest.update(entries);
    digest.finalize() as u32
}

/// Reads a number in groups of seven bits, the lowest first; all but the last have the top bit set.
fn number(bytes: &mut &[u8]) -> Option<u32> {
    let mut number = 0;
    for shift in (0..32).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u32::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            // There is one way to write a number: no empty groups, no bits above the 32nd.
            let groups = 1 + shift / 7;
            return (number >> shift == u32::from(byte) && (groups == 1 || byte > 0)).then_some(number);
        }
    }
    None
}

fn put_number(mut number: u32, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
