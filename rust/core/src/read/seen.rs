//! `Verify` and `Seen`: which payloads have been checked. One bit for each record of a field, set
//! by any thread without a lock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::format::schema::{FieldIndex, Schema};
use crate::memory;

/// When the CRC of a payload is checked. Compressed values, texts and lists are always checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Verify {
    /// Never.
    Never,
    /// When the reader first takes it from the mapping. Reads by system calls may return other
    /// bytes each time, so they are always checked.
    #[default]
    Once,
    /// Each time.
    Always,
}

/// The payloads of a snapshot that were found intact in the mapping.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    records: u64,
    /// For each field its id and the bits of its records, 64 to a word. Allocated when the first
    /// bit is set.
    fields: Vec<(u32, OnceLock<Box<[AtomicU64]>>)>,
}

/// Returns no bits if memory is short; each payload is then checked every time.
fn zeros(records: u64) -> Box<[AtomicU64]> {
    let words = 0..records.div_ceil(64) as usize;
    memory::collected(words.map(|_| AtomicU64::default())).unwrap_or_default().into_boxed_slice()
}

impl Seen {
    pub(crate) fn new(schema: &Schema, records: u64) -> Self {
        Self { records, fields: schema.fields().iter().map(|field| (field.id, OnceLock::new())).collect() }
    }

    /// Copies what is known to the same records of the same file at a later commit, which has not
    /// been read yet.
    pub(crate) fn hand_on(&self, later: &Self) {
        for (id, bits) in &self.fields {
            let same = later.fields.iter().find(|(other, _)| other == id);
            if let (Some(bits), Some((_, same))) = (bits.get(), same) {
                let grown = zeros(later.records);
                for (to, from) in grown.iter().zip(bits) {
                    to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
                }
                let _ = same.set(grown);
            }
        }
    }

    /// The bits of a field, for [`is_set`]; empty until one is set.
    #[inline]
    pub(crate) fn bits(&self, field: FieldIndex) -> &[AtomicU64] {
        self.fields.get(field.position()).and_then(|(_, bits)| bits.get()).map_or(&[], |bits| bits)
    }

    /// Remembers that a payload is intact.
    pub(crate) fn set(&self, field: FieldIndex, record: u64) {
        let Some((_, bits)) = self.fields.get(field.position()) else { return };
        if let Some(word) = bits.get_or_init(|| zeros(self.records)).get((record / 64) as usize) {
            // Relaxed: a bit is about bytes of the file, not about memory that another thread
            // wrote.
            word.fetch_or(1 << (record % 64), Ordering::Relaxed);
        }
    }
}

/// Whether the bit of a record is set.
#[inline]
pub(crate) fn is_set(bits: &[AtomicU64], record: u64) -> bool {
    bits.get((record / 64) as usize).is_some_and(|word| word.load(Ordering::Relaxed) >> (record % 64) & 1 == 1)
}
