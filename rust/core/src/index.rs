//! The columns of a snapshot: record number -> entry, each block checked when it is first read.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::error::{Error, Result};
use crate::layout::{BLOCK, CHUNK_LEN, Chunk, Encoding, Footer, Part, u32_at};
use crate::map::Guarded;
use crate::schema::{Field, Schema};

/// Where the bytes of a snapshot are read from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// A mapping of all of it.
    Mapped(Arc<Guarded>),
    /// System calls; chunks are read whole at first touch.
    File(Arc<File>),
}

impl Source {
    /// Calls `work` with all bytes, if they are mapped, and returns what it does if what it read was there.
    #[allow(clippy::inline_always)] // around the loop over a batch's records
    #[inline(always)]
    pub(crate) fn with<T>(&self, work: impl FnOnce(Option<&[u8]>) -> Result<T>) -> Result<T> {
        match self {
            Self::Mapped(map) => map.read(|bytes| work(Some(bytes)))?,
            Self::File(_) => work(None),
        }
    }
}

/// What is called with a number of records and their entries, if they have any.
type Each<'a> = dyn FnMut(u64, Option<&[u8]>) -> Result<()> + 'a;

/// All columns of one snapshot.
#[derive(Debug)]
pub(crate) struct Index {
    columns: Vec<Column>,
    /// For each field the number of its first column, and how many it has.
    by_field: Vec<(usize, u8)>,
}

/// One column of a field.
#[derive(Debug)]
pub(crate) struct Column {
    /// For messages: `image` or `image.width`.
    name: String,
    pub(crate) width: usize,
    pub(crate) chunks: Vec<ChunkData>,
}

/// One chunk and what is known of its blocks.
#[derive(Debug)]
pub(crate) struct ChunkData {
    pub(crate) chunk: Chunk,
    source: Source,
    /// One bit a block: it was checked.
    checked: Vec<AtomicU64>,
    loaded: OnceLock<Vec<u8>>,
}

/// The chunks of a directory whose CRC has been checked, in the order that it has them in.
///
/// # Errors
/// An entry that docs/format.md, section 4 has a reader refuse.
pub(crate) fn decode_directory(path: &Path, directory: &[u8], footer: &Footer, schema: &Schema) -> Result<Vec<Chunk>> {
    let bad = |i: usize, detail: String| Error::corrupt(path, format!("directory entry {i}"), detail);
    let mut chunks: Vec<Chunk> = Vec::with_capacity(directory.len() / CHUNK_LEN);
    let (mut bytes_in_all, mut entries_in_all) = (0, 0);
    let fields: HashMap<u32, &Field> = schema.fields().iter().map(|field| (field.id, field)).collect();
    for (i, bytes) in directory.chunks_exact(CHUNK_LEN).enumerate() {
        let chunk = Chunk::decode(bytes, footer).map_err(|detail| bad(i, detail))?;
        let Some(field) = fields.get(&chunk.field) else {
            return Err(bad(i, format!("field id {} is not in the schema", chunk.field)));
        };
        if field.kind.column(chunk.part) != Some((chunk.encoding, chunk.width)) {
            return Err(bad(i, format!("not a column of field {}, which is {}", field.name, field.kind)));
        }
        if let Some(before) = chunks.last() {
            let (last, this) = ((before.field, before.part), (chunk.field, chunk.part));
            if last > this || (last == this && before.end_record() > chunk.first) {
                return Err(bad(i, "out of order, or it overlaps the entry before it".to_owned()));
            }
        }
        // Each lies within the file; so do all of them together, or what is read into memory could be many times the file.
        bytes_in_all += chunk.end() - chunk.offset;
        if bytes_in_all > footer.offset {
            return Err(bad(i, "the chunks up to here have more bytes than the file".to_owned()));
        }
        // Bounded by the bytes: an entry has one at least.
        entries_in_all += chunk.count;
        chunks.push(chunk);
    }
    // Each record has a value of some field. Else a few bytes could say any number of records, and whoever goes through them
    // would never come to an end.
    if entries_in_all < footer.records {
        let detail = format!("its columns have {entries_in_all} entries for {} records", footer.records);
        return Err(Error::corrupt(path, format!("directory of commit {}", footer.commit), detail));
    }
    Ok(chunks)
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
            for part in (0..field.kind.parts()).map(Part) {
                let Some((_, width)) = field.kind.column(part) else { continue };
                let chunks = groups.remove(&(field.id, part)).unwrap_or_default();
                let chunks = chunks.into_iter().map(|chunk| ChunkData::new(chunk, source.clone())).collect();
                let name = format!("{}{}", field.name, field.kind.part_suffix(part));
                columns.push(Column { name, width: width.into(), chunks });
            }
        }
        Ok(Self { columns, by_field })
    }

    /// A column of the field at a position of the schema; `None` if its type has no such part.
    pub(crate) fn column(&self, field: usize, part: Part) -> Option<&Column> {
        let &(first, parts) = self.by_field.get(field)?;
        if part.0 < parts { self.columns.get(first + usize::from(part.0)) } else { None }
    }

    pub(crate) fn columns(&self) -> &[Column] {
        &self.columns
    }

    pub(crate) fn columns_mut(&mut self) -> &mut [Column] {
        &mut self.columns
    }
}

impl Column {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Calls `each` with the entry of each record, in the order given; an entry is `None` where the field is missing.
    ///
    /// Records must have been checked against the record count.
    #[allow(clippy::inline_always)] // the loop over a batch's records; measured
    #[inline(always)]
    pub(crate) fn for_each<const WIDTH: usize>(
        &self,
        path: &Path,
        records: &[u64],
        mut each: impl FnMut(usize, Option<&[u8; WIDTH]>) -> Result<()>,
    ) -> Result<()> {
        self.walk(path, records, WIDTH, |i, entry| each(i, entry.and_then(|entry| entry.try_into().ok())))
    }

    /// Copies the entries of records to `out`, one behind the other; `missing` is called for the first one without an entry.
    pub(crate) fn gather(
        &self,
        path: &Path,
        records: &[u64],
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

    /// As [`Column::gather`], for a width that the compiler knows: an entry is then a load and a store.
    fn gather_of<const WIDTH: usize>(
        &self,
        path: &Path,
        records: &[u64],
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

    #[allow(clippy::inline_always)] // likewise
    #[inline(always)]
    fn walk(
        &self,
        path: &Path,
        records: &[u64],
        width: usize,
        mut each: impl FnMut(usize, Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let Some(last) = self.chunks.last() else {
            return (0..records.len()).try_for_each(|i| each(i, None));
        };
        last.source.with(|file| self.walk_in(file, last, path, records, width, each))
    }

    #[allow(clippy::inline_always)] // likewise
    #[inline(always)]
    fn walk_in<'a>(
        &'a self,
        file: Option<&'a [u8]>,
        mut chunk: &'a ChunkData,
        path: &Path,
        records: &[u64],
        width: usize,
        mut each: impl FnMut(usize, Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let mut bytes = chunk.bytes(path, &self.name, file)?;
        // Random entries of a large file are cache misses. Loads that nothing waits for overlap, so touch all entries first.
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

    /// Calls `each` with the entries of a run of records, checked, as many at a time as one chunk holds: how many, and their
    /// bytes, or `None` where the field is missing.
    ///
    /// Records must have been checked against the record count.
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
            each(end - next, Some(bytes.get(from..to).unwrap_or_default()))?;
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

    /// Reads and checks all entries, chunk by chunk; `each` gets the first record of a chunk and its bytes.
    pub(crate) fn for_each_chunk(&self, path: &Path, mut each: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        self.chunks.iter().try_for_each(|data| {
            data.source.with(|file| each(data.chunk.first, data.checked_bytes(path, &self.name, file)?))
        })
    }
}

impl ChunkData {
    pub(crate) fn new(chunk: Chunk, source: Source) -> Self {
        let blocks = match source {
            Source::Mapped(_) => chunk.table().1,
            Source::File(_) => 0, // checked when it is loaded
        };
        let checked = (0..blocks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { chunk, source, checked, loaded: OnceLock::new() }
    }

    /// A chunk whose entries are these, which nobody checks any more.
    pub(crate) fn mended(chunk: Chunk, source: Source, entries: Vec<u8>) -> Self {
        Self { chunk, source, checked: Vec::new(), loaded: OnceLock::from(entries) }
    }

    /// Where the entries lie in the file, if they are read from a mapping.
    pub(crate) fn mapped_at(&self) -> Option<u64> {
        matches!(self.source, Source::Mapped(_)).then_some(self.chunk.offset)
    }

    /// The entries, behind them (from the next multiple of 8 on) the check table. Unchecked if mapped.
    ///
    /// `mapped` is what [`Source::with`] gives.
    fn bytes<'a>(&'a self, path: &Path, name: &str, mapped: Option<&'a [u8]>) -> Result<&'a [u8]> {
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
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, self.chunk.offset)
                    .map_err(|e| Error::unreadable(path, &format!("index of field {name}"), e))?;
                for block in 0..self.chunk.table().1 as usize {
                    self.check_block(path, name, &bytes, block)?;
                }
                // Two threads may both have loaded it; the first one's stays.
                let _ = self.loaded.set(bytes);
                Ok(self.loaded.get().map_or(&[], Vec::as_slice))
            }
        }
    }

    /// Checks every block.
    pub(crate) fn check_all(&self, path: &Path, name: &str) -> Result<()> {
        self.source.with(|file| self.checked_bytes(path, name, file).map(drop))
    }

    /// A copy of all entries, every block of them checked.
    pub(crate) fn copy(&self, path: &Path, name: &str) -> Result<Vec<u8>> {
        self.source.with(|file| self.checked_bytes(path, name, file).map(<[u8]>::to_vec))
    }

    /// All entries, every block of them checked.
    fn checked_bytes<'a>(&'a self, path: &Path, name: &str, mapped: Option<&'a [u8]>) -> Result<&'a [u8]> {
        let bytes = self.bytes(path, name, mapped)?;
        for block in 0..self.chunk.table().1 as usize {
            self.check(path, name, bytes, block)?;
        }
        Ok(bytes.get(..self.chunk.length() as usize).unwrap_or_default())
    }

    /// What is wrong with each block that is damaged.
    pub(crate) fn damaged_blocks(&self, path: &Path, name: &str) -> Vec<Error> {
        let Err(error) = self.check_all(path, name) else { return Vec::new() };
        let (start, end) = (self.chunk.offset as usize, self.chunk.end() as usize);
        let each = |bytes: &[u8]| -> Vec<Error> {
            let blocks = 0..self.chunk.table().1 as usize;
            blocks.filter_map(|block| self.check_block(path, name, bytes, block).err()).collect()
        };
        let found = self.source.with(|mapped| {
            if let Some(bytes) = mapped {
                return Ok(each(bytes.get(start..end).unwrap_or_default()));
            }
            let Source::File(file) = &self.source else { return Ok(Vec::new()) };
            let mut read = vec![0; end - start];
            file.read_exact_at(&mut read, self.chunk.offset).map_err(|e| Error::io(path, e))?;
            Ok(each(&read))
        });
        match found {
            Ok(found) if !found.is_empty() => found,
            _ => vec![error],
        }
    }

    #[inline]
    fn check(&self, path: &Path, name: &str, bytes: &[u8], block: usize) -> Result<()> {
        let Some(word) = self.checked.get(block / 64) else { return Ok(()) };
        if word.load(Ordering::Relaxed) >> (block % 64) & 1 == 1 {
            return Ok(());
        }
        self.check_block(path, name, bytes, block)?;
        word.fetch_or(1 << (block % 64), Ordering::Relaxed);
        Ok(())
    }

    /// Compares the CRC of one block of the bytes of the chunk and its check table.
    #[cold]
    pub(crate) fn check_block(&self, path: &Path, name: &str, bytes: &[u8], block: usize) -> Result<()> {
        let length = self.chunk.length() as usize;
        let table = (self.chunk.table().0 - self.chunk.offset) as usize;
        let (start, end) = (block * BLOCK, (block * BLOCK + BLOCK).min(length));
        let computed = crate::crc::crc32c(bytes.get(start..end).unwrap_or_default());
        let stored = u32_at(bytes, table + 4 * block);
        if stored == computed {
            return Ok(());
        }
        let width = usize::from(self.chunk.width);
        let first = self.chunk.first + (start / width) as u64;
        let last = self.chunk.first + ((end - 1) / width) as u64;
        let at = self.chunk.offset + start as u64;
        let what = match self.chunk.encoding {
            Encoding::Extents => "index",
            Encoding::Values => "values",
        };
        let part = format!("{what} of field {name}, records {first} to {last}");
        let detail = format!(
            "stored CRC {stored:#010x}, computed {computed:#010x} (bytes {at} to {})",
            at + (end - start) as u64
        );
        Err(Error::corrupt(path, part, detail))
    }
}
