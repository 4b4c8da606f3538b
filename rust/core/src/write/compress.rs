//! `Packing` and the `Writer` methods that compress payloads on their way into the file.

use std::collections::VecDeque;
use std::mem;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::codec::choose::{Sample, Settled, choose, train};
use crate::codec::{Codec, Encoder};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::format::compression::Compression;
use crate::format::dictionary::DictionaryRange;
use crate::format::extent::Extent;
use crate::memory;
use crate::parallel::pool::{Pool, default_threads};
use crate::write::writer::Writer;

/// Limits of the values held in memory until their compression is chosen: their number and bytes.
/// Training a dictionary takes many small values, so it may hold more.
const HELD: usize = 1024;
const HELD_TO_TRAIN: usize = 16 << 10;
const HELD_BYTES: usize = 8 << 20;
/// The limit for all fields of a file together, in bytes.
const HELD_IN_ALL: usize = 64 << 20;
/// The bytes of values that a thread compresses at a time.
const GROUP: usize = 32 << 10;
/// The largest scratch buffer, in bytes, that is kept from one value to the next.
const KEEP: usize = 16 << 20;

/// How one field's payloads are compressed, with the byte counts so far.
#[derive(Debug)]
pub(crate) struct Packing {
    wanted: Compression,
    /// `None` while values are held, or if they are stored uncompressed.
    encoder: Option<Arc<Encoder>>,
    sample: Option<Sample>,
    level: i32,
    dictionary: Option<u32>,
    why: String,
    raw: u64,
    stored: u64,
    /// Values that threads have compressed in advance, in order.
    ready: VecDeque<Ready>,
}

/// How a field is compressed, as [`Writer::compression`] reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// The field's name.
    pub field: String,
    /// [`Codec::None`] if values are stored uncompressed, or if `undecided`.
    pub codec: Codec,
    /// The zstd level.
    pub level: Option<i32>,
    /// The id of the dictionary.
    pub dictionary: Option<u32>,
    /// Whether the first values are still being gathered.
    pub undecided: bool,
    /// Bytes of the values that this writer has appended.
    pub raw: u64,
    /// Bytes stored for them.
    pub stored: u64,
    /// The reason for the choice, with the numbers that it is based on.
    pub why: String,
}

/// A value in its stored form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stored<'a> {
    pub bytes: &'a [u8],
    pub raw: u64,
    pub codec: Codec,
    pub crc: u32,
}

/// A value that a thread has compressed in advance.
#[derive(Debug)]
struct Ready {
    /// `None` if the value is stored uncompressed.
    bytes: Option<Vec<u8>>,
    codec: Codec,
    crc: u32,
}

impl Packing {
    /// For a field without values.
    pub(crate) fn new(wanted: &Compression) -> Self {
        let mut this = Self::settled(wanted);
        if wanted.is_auto() || wanted.train > 0 {
            (this.encoder, this.sample) = (None, Some(Sample::default()));
            "undecided".clone_into(&mut this.why);
        }
        this
    }

    /// For a field that has values and no dictionary.
    fn settled(wanted: &Compression) -> Self {
        let encoder = match wanted.codec {
            Codec::None => None,
            Codec::Lz4 => Some(Encoder::Lz4),
            Codec::Zstd => Some(Encoder::zstd(wanted.level)),
        };
        let (wanted, level, why) = (wanted.clone(), wanted.level, "as the schema says".to_owned());
        let encoder = encoder.map(Arc::new);
        Self { wanted, encoder, sample: None, level, dictionary: None, why, raw: 0, stored: 0, ready: VecDeque::new() }
    }

    /// For a field that has values: uses its last dictionary.
    ///
    /// # Errors
    /// zstd rejects the dictionary; the error is text.
    fn with_dictionary(wanted: &Compression, dictionary: &[u8]) -> std::result::Result<Self, String> {
        let mut this = Self::settled(wanted);
        if wanted.codec == Codec::Zstd {
            this.encoder = Some(Arc::new(Encoder::with_dictionary(wanted.level, dictionary)?));
            this.dictionary = crate::codec::dictionary_id(dictionary);
        }
        Ok(this)
    }

    fn is_full(&self) -> bool {
        let most = if self.wanted.train > 0 { HELD_TO_TRAIN } else { HELD };
        self.sample.as_ref().is_some_and(|sample| sample.len() >= most || sample.bytes() >= HELD_BYTES)
    }

    /// Bytes of values that are held until the compression is chosen.
    pub(crate) fn held(&self) -> usize {
        self.sample.as_ref().map_or(0, Sample::bytes)
    }

    pub(crate) fn is_sampling(&self) -> bool {
        self.sample.is_some()
    }

    fn report(&self, field: String) -> Packed {
        let codec = self.encoder.as_ref().map_or(Codec::None, |encoder| encoder.codec());
        Packed {
            field,
            codec,
            level: (codec == Codec::Zstd).then_some(self.level),
            dictionary: self.dictionary,
            undecided: self.is_sampling(),
            raw: self.raw,
            stored: self.stored,
            why: self.why.clone(),
        }
    }
}

/// Compresses a value. Returns it uncompressed without an encoder, or if the encoder does not
/// compress it.
fn pack<'a>(encoder: Option<&Encoder>, value: &'a [u8], scratch: &'a mut Vec<u8>) -> Result<Stored<'a>> {
    let made = match encoder {
        Some(encoder) => {
            let made = encoder.encode(value, scratch).map_err(|_| Error::Memory { bytes: value.len() as u64 })?;
            made.map(|made| (made, encoder.codec()))
        }
        None => None,
    };
    let (bytes, codec) = made.unwrap_or((value, Codec::None));
    Ok(Stored { bytes, raw: value.len() as u64, codec, crc: crate::format::crc::crc32c(bytes) })
}

impl Writer {
    /// How each compressed field's values are stored, in schema order, with the bytes that this
    /// writer has appended.
    pub fn compression(&self) -> Vec<Packed> {
        self.columns.iter().filter_map(|c| Some(c.packing.as_ref()?.report(self.field_name(c.field)))).collect()
    }

    /// Whether values are held back until their compression is chosen. Appending may then take a
    /// while.
    pub(crate) fn is_sampling(&self) -> bool {
        self.columns.iter().any(|c| c.packing.as_ref().is_some_and(Packing::is_sampling))
    }

    /// Appends a value to a field that may be compressed.
    pub(crate) fn append_packed(&mut self, column: usize, value: &[u8]) -> Result<()> {
        let Some(packing) = &mut self.columns[column].packing else {
            let (raw, crc) = (value.len() as u64, crate::format::crc::crc32c(value));
            return self.append_stored(column, Stored { bytes: value, raw, codec: Codec::None, crc });
        };
        if let Some(sample) = &mut packing.sample {
            sample.push(value);
            let full = packing.is_full();
            if full || self.held() >= HELD_IN_ALL {
                return self.settle(column);
            }
            return Ok(());
        }
        if let Some(Ready { bytes, codec, crc }) = packing.ready.pop_front() {
            let raw = value.len() as u64;
            return self.append_stored(column, Stored { bytes: bytes.as_deref().unwrap_or(value), raw, codec, crc });
        }
        let encoder = packing.encoder.clone();
        let mut scratch = mem::take(&mut self.scratch);
        let packed = pack(encoder.as_deref(), value, &mut scratch);
        let appended = packed.and_then(|stored| self.append_stored(column, stored));
        if scratch.capacity() <= KEEP {
            self.scratch = scratch;
        }
        appended
    }

    /// Whether the values of a column are compressed and their codec is already chosen.
    pub(crate) fn packs(&self, column: usize) -> bool {
        self.columns[column].packing.as_ref().is_some_and(|packing| packing.encoder.is_some())
    }

    /// Compresses values on several threads before they are appended, in order within each column.
    ///
    /// # Errors
    /// Not enough memory, or an interrupt.
    pub(crate) fn pack_ahead(&mut self, values: &[(usize, &[u8])], control: &dyn Control) -> Result<()> {
        let encoders: Vec<_> =
            self.columns.iter().map(|c| c.packing.as_ref().and_then(|packing| packing.encoder.clone())).collect();
        let mut groups = Vec::new();
        let (mut first, mut bytes) = (0, 0);
        for (i, (_, value)) in values.iter().enumerate() {
            bytes += value.len();
            if bytes >= GROUP || i + 1 == values.len() {
                groups.push(&values[first..=i]);
                (first, bytes) = (i + 1, 0);
            }
        }
        let done: Vec<OnceLock<Vec<Ready>>> = groups.iter().map(|_| OnceLock::new()).collect();
        Pool::current().run(groups.len(), default_threads(), control, |item| {
            let (mut all, mut scratch) = (memory::room(groups[item].len())?, Vec::new());
            for &(column, value) in groups[item] {
                let Stored { bytes, codec, crc, .. } = pack(encoders[column].as_deref(), value, &mut scratch)?;
                let bytes = (codec != Codec::None).then(|| memory::copied(bytes)).transpose()?;
                all.push(Ready { bytes, codec, crc });
            }
            let _ = done[item].set(all); // each item runs once
            Ok(())
        })?;
        let done = done.into_iter().filter_map(OnceLock::into_inner).flatten();
        for (&(column, _), ready) in values.iter().zip(done) {
            if let Some(packing) = &mut self.columns[column].packing {
                packing.ready.push_back(ready);
            }
        }
        Ok(())
    }

    /// Drops values that were compressed but not appended.
    pub(crate) fn drop_ready(&mut self) {
        self.columns.iter_mut().filter_map(|c| c.packing.as_mut()).for_each(|packing| packing.ready.clear());
    }

    /// Appends the bytes of a value, and its extent.
    pub(crate) fn append_stored(&mut self, column: usize, value: Stored<'_>) -> Result<()> {
        let Stored { bytes, raw, codec, crc } = value;
        let stored = bytes.len() as u64;
        let offset = if self.columns[column].is_heaped() {
            // Relative to the heap until the heap is written.
            let offset = self.heap.len() as u64;
            memory::reserve(&mut self.heap, bytes.len())?;
            self.heap.extend_from_slice(bytes);
            offset
        } else {
            // Compressed values need no alignment: they are decompressed into other memory.
            self.pad(if codec == Codec::None { self.columns[column].alignment } else { 1 })?;
            let offset = self.position();
            self.put(bytes)?;
            offset
        };
        let main = &mut self.columns[column];
        main.pending.extend(Extent { offset, stored, raw, crc, codec, missing: false }.encode());
        if let Some(packing) = &mut main.packing {
            packing.raw += raw;
            packing.stored += stored;
        }
        Ok(())
    }

    /// Bytes of values that are held until the compression is chosen.
    pub(crate) fn held(&self) -> usize {
        self.columns.iter().filter_map(|c| c.packing.as_ref()).map(Packing::held).sum()
    }

    /// Chooses the compression of all fields with held values. A field without values stays
    /// undecided.
    pub(crate) fn settle_all(&mut self) -> Result<()> {
        (0..self.columns.len()).try_for_each(|column| self.settle_if_held(column))
    }

    pub(crate) fn settle_if_held(&mut self, column: usize) -> Result<()> {
        let sample = self.columns[column].packing.as_ref().and_then(|p| p.sample.as_ref());
        if sample.is_some_and(|sample| sample.len() > 0) { self.settle(column) } else { Ok(()) }
    }

    /// Chooses how a field is compressed from the held values, and appends them.
    fn settle(&mut self, column: usize) -> Result<()> {
        let Some(packing) = &mut self.columns[column].packing else { return Ok(()) };
        let Some(sample) = packing.sample.take() else { return Ok(()) };
        let wanted = packing.wanted.clone();
        let settled = if wanted.is_auto() { choose(&sample) } else { train(&sample, wanted.level, wanted.train) };
        let Settled { encoder, level, dictionary, why } =
            settled.map_err(|_| Error::Memory { bytes: sample.bytes() as u64 })?;
        let written = dictionary.map(|bytes| self.put_dictionary(&bytes)).transpose()?;
        let decided = encoder.as_ref().map(|encoder| {
            let mut decided = Compression::new(encoder.codec());
            decided.level = level;
            decided.dictionaries.extend(written);
            decided
        });
        self.set_compression(self.columns[column].field, decided);
        if let Some(packing) = &mut self.columns[column].packing {
            packing.encoder = encoder.map(Arc::new);
            packing.level = level;
            packing.dictionary = written.map(|d| d.id);
            packing.why = why;
        }
        if let Some(packing) = &self.columns[column].packing {
            let packed = packing.report(self.field_name(self.columns[column].field));
            let level = packed.level.map_or_else(String::new, |level| format!(" level {level}"));
            let Packed { field, codec, why, .. } = packed;
            log::info!(target: "fastrecord_core::packing", "{}: field {field}: compression {}{level}: {why}", self.path.display(), codec.name());
        }
        sample.values().try_for_each(|value| self.append_packed(column, value))
    }

    /// Prepares the dictionaries of the fields when appending to a file. `limit` is the offset of
    /// its footer.
    pub(crate) fn load_dictionaries(&mut self, limit: u64) -> Result<()> {
        for field in self.document.schema.fields() {
            let Some(compression) = &field.compression else { continue };
            let Some(range) = compression.dictionaries.last() else { continue };
            let read = |bytes: &mut [u8], at| self.storage()?.read_at(bytes, at).map_err(|e| Error::io(&self.path, e));
            let bytes = range.read(&self.path, &field.name, limit, read)?;
            let packing = Packing::with_dictionary(compression, &bytes)
                .map_err(|detail| range.corrupt(&self.path, &field.name, detail))?;
            let main = self.columns.iter_mut().find(|c| c.field == field.id && c.packing.is_some());
            if let Some(main) = main {
                main.packing = Some(packing);
            }
        }
        Ok(())
    }

    /// Copies a dictionary that payloads of another file may use, unless this file already has it.
    ///
    /// `mine` is the position of this file's field. `given` is the compression of the other file's
    /// field. `read` reads the dictionary; its argument is the field's name.
    ///
    /// # Errors
    /// Damage, failed writes, and two dictionaries with the same id.
    pub(crate) fn adopt_dictionary(
        &mut self,
        mine: usize,
        given: &Compression,
        range: &DictionaryRange,
        source: &Path,
        read: impl FnOnce(&str) -> Result<Vec<u8>>,
    ) -> Result<()> {
        let field = &self.document.schema.fields()[mine];
        let (id, name) = (field.id, field.name.clone());
        let mut row = field.compression.clone().unwrap_or_else(|| given.with_dictionaries(&[]));
        if let Some(known) = row.dictionaries.iter().find(|known| known.id == range.id) {
            if (known.length, known.crc) == (range.length, range.crc) {
                return Ok(());
            }
            let path = source.display();
            let detail = format!("{path}: field {name}: another dictionary has the id {} already", range.id);
            return Err(Error::Schema(detail));
        }
        row.dictionaries.push(self.put_dictionary(&read(&name)?)?);
        self.set_compression(id, Some(row));
        Ok(())
    }

    fn put_dictionary(&mut self, bytes: &[u8]) -> Result<DictionaryRange> {
        self.pad(8)?;
        let id = crate::codec::dictionary_id(bytes).unwrap_or_default();
        let range = DictionaryRange {
            id,
            offset: self.position(),
            length: bytes.len() as u64,
            crc: crate::format::crc::crc32c(bytes),
        };
        self.put(bytes)?;
        Ok(range)
    }
}
