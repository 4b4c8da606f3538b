//! `FieldEncoder`: turns the values of one field into payloads, compressed as the schema says or as
//! the first values decide. It does not write.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::OnceLock;

use crate::codec::choose::{Sample, Settled, choose, train};
use crate::codec::{Codec, Encoder};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::format::compression::Compression;
use crate::format::crc::crc32c;
use crate::memory;
use crate::parallel::pool::{Pool, default_threads};

/// Limits of the values held in memory until their compression is chosen: their number and bytes.
/// Training a dictionary takes many small values, so it may hold more.
const HELD: usize = 1024;
const HELD_TO_TRAIN: usize = 16 << 10;
const HELD_BYTES: usize = 8 << 20;
/// The bytes of values that a thread compresses at a time.
const GROUP: usize = 32 << 10;
/// The largest scratch buffer, in bytes, that is kept from one value to the next.
pub(super) const KEEP: usize = 16 << 20;

/// How a field is compressed, as [`Writer::compression`](crate::Writer::compression) reports it.
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
#[derive(Debug, Clone)]
pub(super) struct Payload<'a> {
    pub bytes: Cow<'a, [u8]>,
    /// Extra data for the decoder of an image.
    pub side: &'a [u8],
    pub raw: u64,
    pub codec: Codec,
    pub crc: u32,
}

impl<'a> Payload<'a> {
    fn of(value: &[u8], bytes: Cow<'a, [u8]>, codec: Codec, crc: u32) -> Self {
        Self { bytes, side: &[], raw: value.len() as u64, codec, crc }
    }

    /// A value that is stored as it is.
    pub(super) fn plain(value: &'a [u8]) -> Self {
        Self::of(value, Cow::Borrowed(value), Codec::None, crc32c(value))
    }

    /// An image with its side bytes. `crc` is of both.
    pub(super) fn image(data: &'a [u8], side: &'a [u8], crc: u32) -> Self {
        Self { side, ..Self::of(data, Cow::Borrowed(data), Codec::None, crc) }
    }

    /// The bytes that it takes in the file.
    pub(super) fn stored(&self) -> u64 {
        (self.bytes.len() + self.side.len()) as u64
    }

    /// Compresses a value. It stays as it is without an encoder, or if it does not shrink.
    fn new(encoder: Option<&Encoder>, value: &'a [u8], scratch: &'a mut Vec<u8>) -> Result<Self> {
        let Some(encoder) = encoder else { return Ok(Self::plain(value)) };
        let made = encoder.encode(value, scratch).map_err(|_| Error::Memory { bytes: value.len() as u64 })?;
        let Some(bytes) = made else { return Ok(Self::plain(value)) };
        Ok(Self::of(value, Cow::Borrowed(bytes), encoder.codec(), crc32c(bytes)))
    }
}

/// A value that a thread has compressed in advance.
#[derive(Debug)]
pub(super) struct Ready {
    /// `None` if the value is stored uncompressed.
    bytes: Option<Vec<u8>>,
    codec: Codec,
    crc: u32,
}

/// How one field's values are compressed, with the byte counts so far.
#[derive(Debug)]
pub(super) struct FieldEncoder {
    wanted: Compression,
    /// `None` while values are held, or if they are stored uncompressed.
    encoder: Option<Encoder>,
    /// The first values, until they decide how all are compressed.
    sample: Option<Sample>,
    level: i32,
    dictionary: Option<u32>,
    why: String,
    raw: u64,
    stored: u64,
    /// Values that threads have compressed in advance, in order.
    ready: VecDeque<Ready>,
}

/// How further values of a field are compressed, and the first ones, which decided it.
pub(super) struct Decision {
    /// `None`: they are stored as they are.
    pub compression: Option<Compression>,
    /// The dictionary to write into the file and into the schema row.
    pub dictionary: Option<Vec<u8>>,
    pub first: Sample,
}

impl FieldEncoder {
    /// For a field without values.
    pub(super) fn new(wanted: &Compression) -> Self {
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
        Self { wanted, encoder, sample: None, level, dictionary: None, why, raw: 0, stored: 0, ready: VecDeque::new() }
    }

    /// For a field that has values: uses its last dictionary.
    ///
    /// # Errors
    /// zstd rejects the dictionary; the error is text.
    pub(super) fn with_dictionary(wanted: &Compression, dictionary: &[u8]) -> std::result::Result<Self, String> {
        let mut this = Self::settled(wanted);
        if wanted.codec == Codec::Zstd {
            this.encoder = Some(Encoder::with_dictionary(wanted.level, dictionary)?);
            this.dictionary = crate::codec::dictionary_id(dictionary);
        }
        Ok(this)
    }

    /// Holds a value until the compression is chosen. Returns false once it is.
    pub(super) fn hold(&mut self, value: &[u8]) -> bool {
        self.sample.as_mut().is_some_and(|sample| {
            sample.push(value);
            true
        })
    }

    /// Bytes of held values; `None` once the compression is chosen.
    pub(super) fn held(&self) -> Option<usize> {
        self.sample.as_ref().map(Sample::bytes)
    }

    /// Whether enough values are held to choose the compression.
    pub(super) fn has_enough(&self) -> bool {
        let most = if self.wanted.train > 0 { HELD_TO_TRAIN } else { HELD };
        self.sample.as_ref().is_some_and(|sample| sample.len() >= most || sample.bytes() >= HELD_BYTES)
    }

    /// Chooses the compression from the held values. `None` without any: the choice stays open.
    pub(super) fn choose(&mut self) -> Result<Option<Decision>> {
        let Some(first) = self.sample.take_if(|sample| sample.len() > 0) else { return Ok(None) };
        let (level, most) = (self.wanted.level, self.wanted.train);
        let settled = if self.wanted.is_auto() { choose(&first) } else { train(&first, level, most) };
        let Settled { encoder, level, dictionary, why } =
            settled.map_err(|_| Error::Memory { bytes: first.bytes() as u64 })?;
        self.encoder = encoder;
        (self.level, self.why) = (level, why);
        self.dictionary = dictionary.as_deref().and_then(crate::codec::dictionary_id);
        let compression = self.encoder.as_ref().map(|encoder| {
            let mut compression = Compression::new(encoder.codec());
            compression.level = level;
            compression
        });
        Ok(Some(Decision { compression, dictionary, first }))
    }

    /// The stored form of the next value.
    pub(super) fn encode<'a>(&mut self, value: &'a [u8], scratch: &'a mut Vec<u8>) -> Result<Payload<'a>> {
        let payload = if let Some(Ready { bytes, codec, crc }) = self.ready.pop_front() {
            Payload::of(value, bytes.map_or(Cow::Borrowed(value), Cow::Owned), codec, crc)
        } else {
            Payload::new(self.encoder.as_ref(), value, scratch)?
        };
        self.raw += payload.raw;
        self.stored += payload.stored();
        Ok(payload)
    }

    /// The encoder of further values, if they are compressed and the compression is chosen.
    pub(super) fn encoder(&self) -> Option<&Encoder> {
        self.encoder.as_ref()
    }

    /// Takes a value that [`compress_ahead`] has made. Values are taken in order.
    pub(super) fn put_ready(&mut self, ready: Ready) {
        self.ready.push_back(ready);
    }

    /// Drops values that were compressed but not appended.
    pub(super) fn drop_ready(&mut self) {
        self.ready.clear();
    }

    pub(super) fn report(&self, field: &str) -> Packed {
        let codec = self.encoder.as_ref().map_or(Codec::None, |encoder| encoder.codec());
        Packed {
            field: field.to_owned(),
            codec,
            level: (codec == Codec::Zstd).then_some(self.level),
            dictionary: self.dictionary,
            undecided: self.sample.is_some(),
            raw: self.raw,
            stored: self.stored,
            why: self.why.clone(),
        }
    }
}

/// Compresses values on the threads of the pool. Returns them in order.
///
/// # Errors
/// Not enough memory, or an interrupt.
pub(super) fn compress_ahead(values: &[(&Encoder, &[u8])], control: &dyn Control) -> Result<Vec<Ready>> {
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
        for &(encoder, value) in groups[item] {
            let Payload { bytes, codec, crc, .. } = Payload::new(Some(encoder), value, &mut scratch)?;
            let bytes = (codec != Codec::None).then(|| memory::copied(&bytes)).transpose()?;
            all.push(Ready { bytes, codec, crc });
        }
        let _ = done[item].set(all); // each item runs once
        Ok(())
    })?;
    Ok(done.into_iter().filter_map(OnceLock::into_inner).flatten().collect())
}
