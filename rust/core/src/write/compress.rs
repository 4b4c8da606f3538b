//! `FieldEncoder`: turns the values of one field into payloads, compressed as the schema says or as
//! the first values decide. It does not write.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::mem;
use std::sync::OnceLock;

use crate::codec::choose::{CodecChoice, Sample, choose, train};
use crate::codec::{Codec, Encoder};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::format::compression::{Choice, Compression};
use crate::format::crc::crc32c;
use crate::format::schema::Field;
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
    /// [`Codec::None`] if values are stored uncompressed; `None` until the first values decide.
    pub codec: Option<Codec>,
    /// The zstd level.
    pub level: Option<i32>,
    /// The id of the dictionary.
    pub dictionary: Option<u32>,
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

    /// A packed JPEG of `length` bytes.
    pub(super) fn packed_jpeg(packed: &'a [u8], length: u64, crc: u32) -> Self {
        Self { bytes: Cow::Borrowed(packed), side: &[], raw: length, codec: Codec::PackedJpeg, crc }
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
    state: State,
    /// The zstd level.
    level: i32,
    dictionary: Option<u32>,
    why: String,
    raw: u64,
    stored: u64,
    /// Values that threads have compressed in advance, in order.
    ready: VecDeque<Ready>,
}

#[derive(Debug)]
enum State {
    /// The first values, until they decide how all are compressed.
    Choosing(Choice, Sample),
    /// `None`: values are stored uncompressed.
    Chosen(Option<Encoder>),
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
    /// For a field that has no values yet, or has no dictionary. `None` if it is not compressed.
    pub(super) fn new(field: &Field) -> Option<Self> {
        let (codec, level) = match (&field.compression, field.choice) {
            (None, None) => return None,
            (None, Some(_)) => (Codec::None, 0),
            (Some(compression), _) => (compression.codec, compression.level),
        };
        let encoder = match codec {
            // The schema names no packed JPEGs: they come one by one.
            Codec::None | Codec::PackedJpeg => None,
            Codec::Lz4 => Some(Encoder::Lz4),
            Codec::Zstd => Some(Encoder::zstd(level)),
        };
        Some(match field.choice {
            None => Self::with(State::Chosen(encoder), level, "as the schema says"),
            Some(choice) => Self::with(State::Choosing(choice, Sample::default()), level, "the first values decide"),
        })
    }

    /// For a field that has values: uses its last dictionary.
    ///
    /// # Errors
    /// zstd rejects the dictionary; the error is text.
    pub(super) fn with_dictionary(compression: &Compression, bytes: &[u8]) -> std::result::Result<Self, String> {
        let encoder = Encoder::with_dictionary(compression.level, bytes)?;
        let dictionary = crate::codec::dictionary_id(bytes);
        Ok(Self { dictionary, ..Self::with(State::Chosen(Some(encoder)), compression.level, "as the schema says") })
    }

    fn with(state: State, level: i32, why: &str) -> Self {
        Self { state, level, dictionary: None, why: why.to_owned(), raw: 0, stored: 0, ready: VecDeque::new() }
    }

    /// Holds a value until the compression is chosen. Returns false once it is.
    pub(super) fn hold(&mut self, value: &[u8]) -> bool {
        match &mut self.state {
            State::Choosing(_, sample) => {
                sample.push(value);
                true
            }
            State::Chosen(_) => false,
        }
    }

    /// Bytes of held values; `None` once the compression is chosen.
    pub(super) fn held(&self) -> Option<usize> {
        match &self.state {
            State::Choosing(_, sample) => Some(sample.bytes()),
            State::Chosen(_) => None,
        }
    }

    /// Whether enough values are held to choose the compression.
    pub(super) fn has_enough(&self) -> bool {
        let (most, sample) = match &self.state {
            State::Choosing(Choice::Codec, sample) => (HELD, sample),
            State::Choosing(Choice::Dictionary(_), sample) => (HELD_TO_TRAIN, sample),
            State::Chosen(_) => return false,
        };
        sample.len() >= most || sample.bytes() >= HELD_BYTES
    }

    /// Chooses the compression from the held values. `None` without any: the choice stays open.
    pub(super) fn choose(&mut self) -> Result<Option<Decision>> {
        let State::Choosing(choice, sample) = &mut self.state else { return Ok(None) };
        if sample.len() == 0 {
            return Ok(None);
        }
        let settled = match *choice {
            Choice::Codec => choose(sample),
            Choice::Dictionary(bytes) => train(sample, self.level, bytes),
        };
        let CodecChoice { encoder, level, dictionary, why } =
            settled.map_err(|_| Error::Memory { bytes: sample.bytes() as u64 })?;
        let compression = encoder.as_ref().map(|encoder| {
            let mut compression = Compression::new(encoder.codec());
            compression.level = level;
            compression
        });
        let first = mem::take(sample);
        self.state = State::Chosen(encoder);
        (self.level, self.why) = (level, why);
        self.dictionary = dictionary.as_deref().and_then(crate::codec::dictionary_id);
        Ok(Some(Decision { compression, dictionary, first }))
    }

    /// The stored form of the next value.
    pub(super) fn encode<'a>(&mut self, value: &'a [u8], scratch: &'a mut Vec<u8>) -> Result<Payload<'a>> {
        let payload = if let Some(Ready { bytes, codec, crc }) = self.ready.pop_front() {
            Payload::of(value, bytes.map_or(Cow::Borrowed(value), Cow::Owned), codec, crc)
        } else {
            Payload::new(self.encoder(), value, scratch)?
        };
        self.raw += payload.raw;
        self.stored += payload.stored();
        Ok(payload)
    }

    /// The encoder of further values, if they are compressed and the compression is chosen.
    pub(super) fn encoder(&self) -> Option<&Encoder> {
        match &self.state {
            State::Chosen(encoder) => encoder.as_ref(),
            State::Choosing(..) => None,
        }
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
        let codec = match &self.state {
            State::Chosen(encoder) => Some(encoder.as_ref().map_or(Codec::None, Encoder::codec)),
            State::Choosing(..) => None,
        };
        Packed {
            field: field.to_owned(),
            codec,
            level: (codec == Some(Codec::Zstd)).then_some(self.level),
            dictionary: self.dictionary,
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
