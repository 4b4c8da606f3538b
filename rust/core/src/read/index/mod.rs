//! `Index`: the columns of a snapshot, which map a record number to an entry.

mod chunk;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::error::{Error, Result};
use crate::format::chunk::{Chunk, Part};
use crate::format::directory::decode_directory;
use crate::format::layout::{BLOCK, Footer};
use crate::format::schema::{FieldIndex, Schema};
use crate::read::index::chunk::ChunkData;
use crate::read::records::Records;
use crate::read::source::Source;

/// Called with a number of records and their entries; `None` if they have no entries.
type Each<'a> = dyn FnMut(u64, Option<&[u8]>) -> Result<()> + 'a;

/// All columns of one snapshot.
#[derive(Debug)]
pub(crate) struct Index {
    columns: Vec<Column>,
    /// For each field the position of its first column, and the number of its columns.
    by_field: Vec<(usize, u8)>,
}

/// One column of a field.
#[derive(Debug)]
pub(crate) struct Column {
    /// The name in messages: `image` or `image.width`.
    name: String,
    pub(crate) width: usize,
    pub(crate) chunks: Vec<ChunkData>,
    /// All entries, if they are not one chunk of a mapping. Made once.
    pub(super) copy: OnceLock<Arc<Vec<u8>>>,
}

impl Index {
    /// Decodes a directory whose CRC has been checked.
    pub(crate) fn new(
        path: &Path,
        directory: &[u8],
        footer: &Footer,
        schema: &Schema,
        source: &Source,
    ) -> Result<Self> {
        let mut groups: BTreeMap<(u32, Part), Vec<Chunk>> = BTreeMap::new();
        for chunk in decode_directory(path, directory, footer, schema)? {
            groups.entry((chunk.field, chunk.part)).or_default().push(chunk);
        }
        let (mut columns, mut by_field) = (Vec::new(), Vec::with_capacity(schema.fields().len()));
        for field in schema.fields() {
            by_field.push((columns.len(), field.kind.parts()));
            for (part, _, width) in field.kind.columns() {
                let chunks = groups.remove(&(field.id, part)).unwrap_or_default();
                let chunks = chunks.into_iter().map(|chunk| ChunkData::new(chunk, source.clone())).collect();
                let name = format!("{}{}", field.name, field.kind.part_suffix(part));
                columns.push(Column { name, width: width.into(), chunks, copy: OnceLock::new() });
            }
        }
        Ok(Self { columns, by_field })
    }

    /// A column of a field; `None` if its type has no such part.
    pub(crate) fn column(&self, field: FieldIndex, part: Part) -> Option<&Column> {
        let (first, parts) = self.by_field[field.position()];
        if part.0 < parts { self.columns.get(first + usize::from(part.0)) } else { None }
    }

    /// The column of the field's values or extents.
    pub(crate) fn main(&self, field: FieldIndex) -> &Column {
        &self.columns[self.by_field[field.position()].0]
    }

    /// All columns of a field.
    pub(crate) fn of_field(&self, field: FieldIndex) -> &[Column] {
        let (first, parts) = self.by_field[field.position()];
        &self.columns[first..first + usize::from(parts)]
    }

    pub(crate) fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The first record at or after `from` that has an entry in any column; at most `end`.
    pub(crate) fn first_covered(&self, from: u64, end: u64) -> u64 {
        let covered = |column: &Column| {
            let next = column.chunks.partition_point(|data| data.chunk.end_record() <= from);
            column.chunks.get(next).map(|data| data.chunk.first.max(from))
        };
        self.columns.iter().filter_map(covered).min().unwrap_or(end).min(end)
    }
}

impl Column {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Calls `each` with the entry of each record, in the given order. An entry is `None` where the
    /// field is missing.
    #[allow(clippy::inline_always)] // the loop over a batch's records; measured
    #[inline(always)]
    pub(crate) fn for_each<const WIDTH: usize>(
        &self,
        path: &Path,
        records: &Records<'_>,
        mut each: impl FnMut(usize, Option<&[u8; WIDTH]>) -> Result<()>,
    ) -> Result<()> {
        self.walk(path, records, WIDTH, |i, entry| each(i, entry.and_then(|entry| entry.try_into().ok())))
    }

    /// Copies the entries of records to `out`, without gaps. Fails with `missing` for the first
    /// record without an entry.
    pub(crate) fn gather(
        &self,
        path: &Path,
        records: &Records<'_>,
        out: &mut [u8],
        missing: impl Fn(usize) -> Error,
    ) -> Result<()> {
        match self.width {
            1 => self.gather_of::<1>(path, records, out, missing),
            2 => self.gather_of::<2>(path, records, out, missing),
            4 => self.gather_of::<4>(path, records, out, missing),
            8 => self.gather_of::<8>(path, records, out, missing),
            16 => self.gather_of::<16>(path, records, out, missing),
            32 => self.gather_of::<32>(path, records, out, missing),
            64 => self.gather_of::<64>(path, records, out, missing),
            width => {
                let mut parts = out.chunks_exact_mut(width);
                self.walk(path, records, width, |i, entry| {
                    let entry = entry.ok_or_else(|| missing(i))?;
                    if let Some(part) = parts.next() {
                        part.copy_from_slice(entry);
                    }
                    Ok(())
                })
            }
        }
    }

    /// As [`Column::gather`], for a width that is known at compile time: an entry is one load and
    /// one store.
    fn gather_of<const WIDTH: usize>(
        &self,
        path: &Path,
        records: &Records<'_>,
        out: &mut [u8],
        missing: impl Fn(usize) -> Error,
    ) -> Result<()> {
        let mut parts = out.chunks_exact_mut(WIDTH);
        self.for_each::<WIDTH>(path, records, |i, entry| {
            let entry = entry.ok_or_else(|| missing(i))?;
            if let Some(part) = parts.next() {
                part.copy_from_slice(entry);
            }
            Ok(())
        })
    }

    #[allow(clippy::inline_always)] // as above
    #[inline(always)]
    fn walk(
        &self,
        path: &Path,
        records: &Records<'_>,
        width: usize,
        mut each: impl FnMut(usize, Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let Some(last) = self.chunks.last() else {
            return (0..records.len()).try_for_each(|i| each(i, None));
        };
        last.source.with(|file| self.walk_in(file, last, path, records, width, each))
    }

    #[allow(clippy::inline_always)] // as above
    #[inline(always)]
    fn walk_in<'a>(
        &'a self,
        file: Option<&'a [u8]>,
        mut chunk: &'a ChunkData,
        path: &Path,
        records: &Records<'_>,
        width: usize,
        mut each: impl FnMut(usize, Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let mut bytes = chunk.bytes(path, &self.name, file)?;
        // Random entries of a large file are cache misses. Independent loads overlap, so touch all
        // entries first.
        let touched = records.iter().fold(0, |all, &record| {
            let at = record.wrapping_sub(chunk.chunk.first).wrapping_mul(width as u64);
            all ^ bytes.get(at as usize).copied().unwrap_or_default()
        });
        std::hint::black_box(touched);
        for (i, &record) in records.iter().enumerate() {
            if record.wrapping_sub(chunk.chunk.first) >= chunk.chunk.count {
                let Some(found) = self.find(record) else {
                    each(i, None)?;
                    continue;
                };
                chunk = found;
                bytes = chunk.bytes(path, &self.name, file)?;
            }
            let at = (record - chunk.chunk.first) as usize * width;
            let entry = bytes.get(at..at + width);
            let Some(entry) = entry else {
                return Err(Error::corrupt(
                    path,
                    format!("column {}", self.name),
                    "an entry lies outside of its chunk",
                ));
            };
            chunk.check(path, &self.name, bytes, at / BLOCK)?;
            if !BLOCK.is_multiple_of(width) {
                chunk.check(path, &self.name, bytes, (at + width - 1) / BLOCK)?;
            }
            each(i, Some(entry))?;
        }
        Ok(())
    }

    /// Calls `each` with the checked entries of a range of records, one chunk's worth at a time.
    ///
    /// `each` gets the number of records and their bytes; the bytes are `None` where the field is
    /// missing. The caller must have checked the records against the record count.
    pub(crate) fn for_each_stretch(
        &self,
        path: &Path,
        run: Range<u64>,
        mut each: impl FnMut(u64, Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let Some(last) = self.chunks.last() else { return each(run.end - run.start, None) };
        last.source.with(|file| self.stretches_in(file, path, run, &mut each))
    }

    fn stretches_in(&self, file: Option<&[u8]>, path: &Path, run: Range<u64>, each: &mut Each<'_>) -> Result<()> {
        let mut next = run.start;
        let mut number = self.chunks.partition_point(|c| c.chunk.end_record() <= next);
        while next < run.end {
            let Some(data) = self.chunks.get(number).filter(|c| c.chunk.first < run.end) else {
                return each(run.end - next, None);
            };
            if data.chunk.first > next {
                each(data.chunk.first - next, None)?;
                next = data.chunk.first;
            }
            let end = run.end.min(data.chunk.end_record());
            let bytes = data.bytes(path, &self.name, file)?;
            let at = |record: u64| (record - data.chunk.first) as usize * self.width;
            let (from, to) = (at(next), at(end));
            for block in from / BLOCK..to.div_ceil(BLOCK) {
                data.check(path, &self.name, bytes, block)?;
            }
            each(end - next, Some(&bytes[from..to]))?;
            next = end;
            number += 1;
        }
        Ok(())
    }

    fn find(&self, record: u64) -> Option<&ChunkData> {
        let after = self.chunks.partition_point(|c| c.chunk.first <= record);
        let found = self.chunks.get(after.checked_sub(1)?)?;
        (record < found.chunk.end_record()).then_some(found)
    }

    /// The records that have entries, in ranges of at most `most` records.
    pub(crate) fn windows(&self, most: u64) -> impl Iterator<Item = Range<u64>> {
        self.chunks.iter().flat_map(move |data| {
            let (first, end) = (data.chunk.first, data.chunk.end_record());
            (first..end).step_by(most as usize).map(move |start| start..end.min(start + most))
        })
    }

    /// Whether one chunk holds the entries of all records.
    pub(crate) fn single(&self, records: u64) -> Option<&ChunkData> {
        let [only] = &self.chunks[..] else { return None };
        (only.chunk.first == 0 && only.chunk.count == records).then_some(only)
    }

    /// The first record that no chunk covers.
    pub(crate) fn first_missing(&self, records: u64) -> Option<u64> {
        let mut next = 0;
        for data in &self.chunks {
            if data.chunk.first != next {
                return Some(next);
            }
            next = data.chunk.end_record();
        }
        (next < records).then_some(next)
    }

    /// Reads and checks all entries, chunk by chunk. `each` gets the first record of a chunk and
    /// the chunk's bytes.
    pub(crate) fn for_each_chunk(&self, path: &Path, mut each: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        self.chunks.iter().try_for_each(|data| {
            data.source.with(|file| each(data.chunk.first, data.checked_bytes(path, &self.name, file)?))
        })
    }
}
