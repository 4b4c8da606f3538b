//! Helpers for the file-level tests: seeded records, two independent ways to read a whole file, and
//! files assembled from docs/format.md alone.
#![allow(dead_code)] // every test crate uses a part of it

pub mod damage;
pub mod faulty;
pub mod places;
pub mod rich;
pub mod story;
pub mod tape;
pub mod torture;
pub mod values;

use std::path::Path;

use fastrecord_core::{
    Access, ArrayType, ColumnBytes, DType, Datum, FieldIndex, FieldType, Mode, Reader, Result, Schema, Value, Verify,
    Writer, WriterOptions,
};
use tempfile::TempDir;

/// Fields by their number, for tests that made the schema.
pub trait Nth {
    fn nth(&self, number: usize) -> FieldIndex;
}

impl Nth for Reader {
    fn nth(&self, number: usize) -> FieldIndex {
        self.schema().iter().nth(number).unwrap().0
    }
}

/// `SplitMix64`: random enough for tests. The seed of a failure reproduces it.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ word >> 31
    }

    /// A number in `0..limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(length + 7);
        while out.len() < length {
            out.extend(self.next().to_le_bytes());
        }
        out.truncate(length);
        out
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

/// One value of a record, as written and as read.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    Image(Vec<u8>, (u32, u32)),
    Bytes(Vec<u8>),
    Text(String),
    Int(i64),
    /// Compares the bits, so that NaN equals itself.
    Float(u64),
    Missing,
}

pub type Row = Vec<Cell>;

pub const ALL_TYPES: [(&str, FieldType); 5] = [
    ("image", FieldType::Image),
    ("data", FieldType::Bytes),
    ("key", FieldType::String),
    ("label", FieldType::Scalar(DType::Int64)),
    ("weight", FieldType::Scalar(DType::Float64)),
];

pub fn all_types() -> Schema {
    Schema::new(ALL_TYPES).unwrap()
}

/// A PNG header followed by arbitrary bytes: packing only reads the header.
pub fn png(width: u32, height: u32, rest: &[u8]) -> Vec<u8> {
    let mut out = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
    out.extend(width.to_be_bytes());
    out.extend(height.to_be_bytes());
    out.extend([8, 2, 0, 0, 0]);
    out.extend(rest);
    out
}

/// A record of random values; variable-length ones have at most `most` bytes.
pub fn random_row(rng: &mut Rng, schema: &Schema, most: u64) -> Row {
    let length = |rng: &mut Rng| if rng.chance(20) { 0 } else { rng.below(most + 1) as usize };
    let cell = |rng: &mut Rng, kind| match kind {
        FieldType::Image => {
            let size = (1 + rng.below(70_000) as u32, 1 + rng.below(70_000) as u32);
            let rest = length(rng);
            Cell::Image(png(size.0, size.1, &rng.bytes(rest)), size)
        }
        FieldType::Bytes => {
            let length = length(rng);
            Cell::Bytes(rng.bytes(length))
        }
        FieldType::String => {
            let letters = ['a', '/', 'é', '猫', '\u{1F408}', '\0'];
            let length = length(rng) / 2;
            Cell::Text((0..length).map(|_| letters[rng.below(6) as usize]).collect())
        }
        FieldType::Scalar(DType::Int64) => Cell::Int(rng.next().cast_signed()),
        FieldType::Scalar(DType::Float64) => Cell::Float(rng.next()),
        other => panic!("make values of {other:?}"),
    };
    let kinds: Vec<FieldType> = schema.fields().iter().map(|f| f.kind.clone()).collect();
    kinds.into_iter().map(|kind| cell(rng, kind)).collect()
}

pub fn value(cell: &Cell) -> Value<'_> {
    match cell {
        Cell::Image(data, _) | Cell::Bytes(data) => Value::Bytes(data),
        Cell::Text(text) => Value::Str(text),
        Cell::Int(value) => Value::Int(*value),
        Cell::Float(bits) => Value::Float(f64::from_bits(*bits)),
        Cell::Missing => panic!("a writer takes every value"),
    }
}

pub fn append(writer: &mut Writer, row: &Row) -> Result<u64> {
    let values: Vec<Value<'_>> = row.iter().map(value).collect();
    writer.append(&values)
}

/// Appends a record whose image has side bytes.
#[allow(clippy::similar_names)] // `side` and `size` are the fields' names
pub fn append_with_side(writer: &mut Writer, row: &Row, side: &[u8]) -> Result<u64> {
    let with_side = |cell| match cell {
        &Cell::Image(ref data, pixels) => {
            Value::Image { data, side, size: pixels, crc: crc32c::crc32c_append(crc32c::crc32c(data), side) }
        }
        other => value(other),
    };
    let values: Vec<Value<'_>> = row.iter().map(with_side).collect();
    writer.append(&values)
}

pub fn append_all(writer: &mut Writer, rows: &[Row]) {
    for row in rows {
        append(writer, row).unwrap();
    }
}

pub fn options(mode: Mode) -> WriterOptions {
    WriterOptions { mode, ..WriterOptions::default() }
}

/// A temporary folder, in memory if the system offers that: syncs cost nothing there, and the tests
/// do thousands.
pub fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.unwrap()
}

pub fn open(path: &Path) -> Reader {
    Reader::open(path, Access::Mmap, None).unwrap()
}

/// Reads a number from the environment.
pub fn variable(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: no number")))
}

pub fn never() -> bool {
    false
}

/// The bytes of a fixed-width column, in whichever place the file stores them.
pub fn column_bytes(reader: &Reader, name: &str) -> Result<(ArrayType, Vec<u8>)> {
    let (kind, bytes) = reader.column(name)?;
    let bytes = match bytes {
        ColumnBytes::Mapped(offset, length) => {
            reader.mapping().unwrap().bytes()[offset as usize..(offset + length) as usize].to_vec()
        }
        ColumnBytes::Copied(bytes) => bytes.to_vec(),
    };
    Ok((kind, bytes))
}

fn u32_column(reader: &Reader, name: &str) -> Result<Vec<u32>> {
    let (kind, bytes) = column_bytes(reader, name)?;
    assert_eq!(kind, ArrayType::scalar(DType::UInt32));
    Ok(bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect())
}

/// Reads everything in a file by whole columns and batches, with checksums.
pub fn read_by_batch(reader: &Reader) -> Result<Vec<Row>> {
    let records = reader.run(0..reader.len())?;
    let mut rows: Vec<Row> = vec![Vec::new(); records.len()];
    for (field, definition) in reader.schema().iter() {
        let kind = definition.kind.clone();
        match kind {
            FieldType::Image | FieldType::Bytes => {
                let sizes = if kind == FieldType::Image {
                    let widths = u32_column(reader, &format!("{}.width", definition.name))?;
                    let heights = u32_column(reader, &format!("{}.height", definition.name))?;
                    widths.into_iter().zip(heights).collect()
                } else {
                    vec![(0, 0); records.len()]
                };
                let (bytes, offsets) = reader.read_batch_copy(field, &records, Verify::Always, &never)?;
                let lengths = reader.lengths(field, &records)?;
                for (i, row) in rows.iter_mut().enumerate() {
                    let value = bytes[offsets[i] as usize..offsets[i + 1] as usize].to_vec();
                    assert_eq!(value.len() as u64, lengths[i]);
                    let image = kind == FieldType::Image;
                    row.push(if image { Cell::Image(value, sizes[i]) } else { Cell::Bytes(value) });
                }
            }
            FieldType::String => {
                let texts = reader.strings(field, &records)?;
                rows.iter_mut().zip(texts).for_each(|(row, text)| row.push(text.map_or(Cell::Missing, Cell::Text)));
            }
            _ => {
                let (_, bytes) = column_bytes(reader, &definition.name)?;
                assert_eq!(bytes, reader.values(field, &records)?);
                let words: Vec<[u8; 8]> = bytes.chunks_exact(8).map(|b| b.try_into().unwrap()).collect();
                let int = kind == FieldType::Scalar(DType::Int64);
                let cell = |w| if int { Cell::Int(i64::from_le_bytes(w)) } else { Cell::Float(u64::from_le_bytes(w)) };
                rows.iter_mut().zip(words).for_each(|(row, word)| row.push(cell(word)));
            }
        }
    }
    Ok(rows)
}

/// Reads everything in a file value by value, with checksums, except image sizes.
pub fn read_one_by_one(reader: &Reader) -> Result<Vec<Row>> {
    let cell = |field: FieldIndex, record: u64| {
        Ok(match reader.datum(field, record, Verify::Always)? {
            Datum::Payload(offset, length) => {
                let bytes = reader.payload(field, record, Verify::Always)?;
                if let Some(map) = reader.mapping() {
                    assert_eq!(map.bytes()[offset as usize..(offset + length) as usize], bytes);
                }
                if reader.schema()[field].kind == FieldType::Image {
                    Cell::Image(bytes, (0, 0))
                } else {
                    Cell::Bytes(bytes)
                }
            }
            Datum::Decompressed(bytes) => Cell::Bytes(bytes),
            Datum::Str(text) => Cell::Text(text),
            Datum::Int(value) => Cell::Int(value),
            Datum::Float(value) => Cell::Float(value.to_bits()),
            Datum::Missing => Cell::Missing,
            other @ Datum::Values(_) => panic!("read values of {other:?}"),
        })
    };
    (0..reader.len()).map(|record| reader.schema().iter().map(|(field, _)| cell(field, record)).collect()).collect()
}

/// Converts records to the form that [`read_one_by_one`] returns.
pub fn without_sizes(rows: &[Row]) -> Vec<Row> {
    let plain = |cell: &Cell| match cell {
        Cell::Image(bytes, _) => Cell::Image(bytes.clone(), (0, 0)),
        other => other.clone(),
    };
    rows.iter().map(|row| row.iter().map(plain).collect()).collect()
}

/// Asserts that a file holds exactly these records, whichever way it is read.
pub fn assert_holds(path: &Path, rows: &[Row]) {
    for access in [Access::Mmap, Access::Pread] {
        for threads in [Some(1), None] {
            let reader = Reader::open(path, access, threads).unwrap();
            assert_eq!(reader.len(), rows.len() as u64);
            assert_eq!(read_by_batch(&reader).unwrap(), rows, "{access:?}, {threads:?} threads");
        }
        let reader = Reader::open(path, access, None).unwrap();
        assert_eq!(read_one_by_one(&reader).unwrap(), without_sizes(rows), "{access:?}");
    }
}

pub fn u32_at(bytes: &[u8], at: u64) -> u32 {
    u32::from_le_bytes(bytes[at as usize..at as usize + 4].try_into().unwrap())
}

pub fn u64_at(bytes: &[u8], at: u64) -> u64 {
    u64::from_le_bytes(bytes[at as usize..at as usize + 8].try_into().unwrap())
}

pub fn put(bytes: &mut [u8], at: usize, what: &[u8]) {
    bytes[at..at + what.len()].copy_from_slice(what);
}

fn pad(bytes: &mut Vec<u8>, to: usize) {
    bytes.resize(bytes.len().next_multiple_of(to), 0);
}

/// A file of one commit, assembled from docs/format.md without this crate's writer. All checksums
/// are right, even if other fields are invalid.
pub struct Forge {
    pub id: [u8; 16],
    /// The bytes of the file up to the end of the last chunk or payload.
    pub bytes: Vec<u8>,
    pub directory: Vec<[u8; 64]>,
    pub metadata: Vec<u8>,
    pub records: u64,
}

pub const VALUES: u8 = 1;
pub const EXTENTS: u8 = 2;

impl Forge {
    pub fn new(fields: &str, records: u64) -> Self {
        let id = *b"0123456789abcdef";
        let mut bytes = vec![0; 4096];
        put(&mut bytes, 0, b"\x89FREC\r\n\x1a\n\x01");
        put(&mut bytes, 16, &id);
        seal_superblock(&mut bytes);
        let metadata = format!(r#"{{"schema": {fields}, "next_field_id": 99, "complete": true, "metadata": {{}}}}"#);
        Self { id, bytes, directory: Vec::new(), metadata: metadata.into(), records }
    }

    /// Appends a payload and returns its extent.
    pub fn payload(&mut self, payload: &[u8]) -> [u8; 32] {
        pad(&mut self.bytes, 8);
        let at = self.bytes.len() as u64;
        self.bytes.extend(payload);
        extent(at, payload.len() as u64, crc32c::crc32c(payload))
    }

    /// Appends a chunk with its check table, and its directory entry.
    pub fn chunk(&mut self, field: u32, part: u8, encoding: u8, width: u16, first: u64, entries: &[u8]) {
        pad(&mut self.bytes, 64);
        let at = self.bytes.len() as u64;
        self.bytes.extend(entries);
        pad(&mut self.bytes, 8);
        for block in entries.chunks(4096) {
            self.bytes.extend(crc32c::crc32c(block).to_le_bytes());
        }
        let table = at as usize + entries.len().next_multiple_of(8);
        let count = entries.len() as u64 / u64::from(width);
        let mut entry = entry(field, part, encoding, width, [first, count, at, entries.len() as u64]);
        put(&mut entry, 40, &crc32c::crc32c(&self.bytes[table..]).to_le_bytes());
        self.directory.push(entry);
    }

    /// Returns the whole file; `tweak` may change the footer before its CRC is computed.
    pub fn build(&self, tweak: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut out = self.bytes.clone();
        pad(&mut out, 8);
        let directory = self.directory.concat();
        let mut footer = vec![0; 4096];
        let mut range = |at: usize, crc: usize, bytes: &[u8]| {
            put(&mut footer, at, &(out.len() as u64).to_le_bytes());
            put(&mut footer, at + 8, &(bytes.len() as u64).to_le_bytes());
            put(&mut footer, crc, &crc32c::crc32c(bytes).to_le_bytes());
            out.extend(bytes);
            pad(&mut out, 8);
        };
        range(72, 92, &self.metadata);
        range(56, 88, &directory);
        pad(&mut out, 4096);
        put(&mut footer, 0, b"FRECEND\n");
        put(&mut footer, 8, &1_u32.to_le_bytes());
        put(&mut footer, 12, &1_u32.to_le_bytes());
        put(&mut footer, 16, &self.id);
        put(&mut footer, 32, &(out.len() as u64).to_le_bytes());
        put(&mut footer, 40, &1_u64.to_le_bytes());
        put(&mut footer, 48, &self.records.to_le_bytes());
        tweak(&mut footer);
        let crc = crc32c::crc32c(&footer[..4092]);
        put(&mut footer, 4092, &crc.to_le_bytes());
        out.extend(footer);
        out
    }
}

/// Corrects the CRC of a superblock.
pub fn seal_superblock(page: &mut [u8]) {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&page[..12]), &page[16..32]);
    put(page, 12, &crc.to_le_bytes());
}

/// One slot with a right CRC.
pub fn slot(id: &[u8; 16], footer: u64, commit: u64, state: u64) -> [u8; 32] {
    let mut out = [0; 32];
    for (i, word) in [footer, commit, state].into_iter().enumerate() {
        put(&mut out, 8 * i, &word.to_le_bytes());
    }
    let crc = crc32c::crc32c_append(crc32c::crc32c(&out[..28]), id);
    put(&mut out, 28, &crc.to_le_bytes());
    out
}

pub fn extent(offset: u64, length: u64, crc: u32) -> [u8; 32] {
    let mut out = [0; 32];
    for (i, word) in [offset, length, length].into_iter().enumerate() {
        put(&mut out, 8 * i, &word.to_le_bytes());
    }
    put(&mut out, 24, &crc.to_le_bytes());
    out
}

/// An extent whose last `side` bytes are side bytes.
pub fn extent_with_side(offset: u64, stored: u64, side: u64, crc: u32) -> [u8; 32] {
    let mut out = extent(offset, stored, crc);
    put(&mut out, 16, &(stored - side).to_le_bytes());
    out[29] = 2;
    out
}

/// A directory entry, without the CRC of the check table; `words` are first, count, offset and length.
pub fn entry(field: u32, part: u8, encoding: u8, width: u16, words: [u64; 4]) -> [u8; 64] {
    let mut out = [0; 64];
    put(&mut out, 0, &field.to_le_bytes());
    (out[4], out[5]) = (part, encoding);
    put(&mut out, 6, &width.to_le_bytes());
    for (i, word) in words.into_iter().enumerate() {
        put(&mut out, 8 + 8 * i, &word.to_le_bytes());
    }
    out
}
