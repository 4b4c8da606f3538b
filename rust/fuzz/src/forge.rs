//! `Forge` assembles a file of one commit from docs/format.md: the target sets the content, and
//! every checksum is right.

use super::bytes::put;
use super::seal::{FOOTER_MAGIC, MAGIC, PAGE, seal_commit, seal_superblock};

pub const VALUES: u8 = 1;
pub const EXTENTS: u8 = 2;

/// The parts of a file.
#[derive(Debug, Clone)]
pub struct Forge {
    /// The first page and all payloads and chunks so far.
    pub bytes: Vec<u8>,
    /// Entries of 64 bytes.
    pub directory: Vec<u8>,
    /// JSON.
    pub metadata: Vec<u8>,
    /// The values of the footer's fields.
    pub records: u64,
}

fn pad(bytes: &mut Vec<u8>, to: usize) {
    bytes.resize(bytes.len().next_multiple_of(to), 0);
}

impl Forge {
    /// Creates a file with these schema rows.
    pub fn new(rows: &str, records: u64) -> Self {
        let metadata = format!(r#"{{"schema": {rows}, "next_field_id": 99, "complete": true, "metadata": {{}}}}"#);
        let mut bytes = vec![0; PAGE];
        put(&mut bytes, 0, MAGIC);
        put(&mut bytes, 16, b"0123456789abcdef");
        seal_superblock(&mut bytes);
        Self { bytes, directory: Vec::new(), metadata: metadata.into_bytes(), records }
    }

    /// Appends a payload; returns its place.
    pub fn payload(&mut self, payload: &[u8]) -> u64 {
        pad(&mut self.bytes, 64);
        let at = self.bytes.len();
        self.bytes.extend(payload);
        at as u64
    }

    /// Appends a chunk for the records from 0 on, and its directory entry. `build` adds the check
    /// table.
    pub fn chunk(&mut self, field: u32, part: u8, encoding: u8, width: u16, entries: &[u8]) {
        let at = self.payload(entries);
        let count = entries.len() as u64 / u64::from(width);
        pad(&mut self.bytes, 8);
        let table = 4 * entries.len().div_ceil(PAGE);
        self.bytes.resize(self.bytes.len() + table, 0);
        self.entry(field, (part, encoding), width, [0, count, at, entries.len() as u64]);
    }

    /// Appends a directory entry; `words` are first record, count, offset and length.
    pub fn entry(&mut self, field: u32, (part, encoding): (u8, u8), width: u16, words: [u64; 4]) {
        let mut entry = [0; 64];
        put(&mut entry, 0, &field.to_le_bytes());
        (entry[4], entry[5]) = (part, encoding);
        put(&mut entry, 6, &width.to_le_bytes());
        for (i, word) in words.into_iter().enumerate() {
            put(&mut entry, 8 + 8 * i, &word.to_le_bytes());
        }
        self.directory.extend(entry);
    }

    /// Returns the whole file, sealed; `tweak` may change the footer before that.
    pub fn build(mut self, tweak: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut footer = [0; PAGE];
        for (at, bytes) in [(72, &self.metadata), (56, &self.directory)] {
            pad(&mut self.bytes, 8);
            put(&mut footer, at, &(self.bytes.len() as u64).to_le_bytes());
            put(&mut footer, at + 8, &(bytes.len() as u64).to_le_bytes());
            self.bytes.extend(bytes);
        }
        pad(&mut self.bytes, PAGE);
        let at = self.bytes.len();
        put(&mut footer, 0, FOOTER_MAGIC);
        put(&mut footer, 8, &1_u32.to_le_bytes());
        put(&mut footer, 12, &1_u32.to_le_bytes());
        put(&mut footer, 16, &self.bytes[16..32]);
        for (i, word) in [at as u64, 1, self.records].into_iter().enumerate() {
            put(&mut footer, 32 + 8 * i, &word.to_le_bytes());
        }
        tweak(&mut footer);
        self.bytes.extend(footer);
        seal_commit(&mut self.bytes, at);
        self.bytes
    }
}

/// An extent; the CRC is computed when the file is built.
pub fn extent(offset: u64, stored: u64, raw: u64, codec: u8, flags: u8) -> [u8; 32] {
    let mut out = [0; 32];
    for (i, word) in [offset, stored, raw].into_iter().enumerate() {
        put(&mut out, 8 * i, &word.to_le_bytes());
    }
    (out[28], out[29]) = (codec, flags);
    out
}
