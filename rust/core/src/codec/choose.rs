//! The choice of a codec for `auto`: compresses a sample of values with each codec, and measures.
//! It does not write.

use crate::codec;
use crate::codec::Encoder;
use std::time::Instant;

/// The default zstd level: zstd's own default.
pub const DEFAULT_LEVEL: i32 = 3;

/// The first values of a field, which decide how to compress all of them.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

/// The measurements of one codec on a sample.
pub(crate) struct Measured {
    stored: u64,
    /// Nanoseconds to decompress the whole sample.
    nanos: f64,
}

/// The decision for a field's values from now on, and its reason.
#[derive(Debug)]
pub(crate) struct CodecChoice {
    /// `None`: stored uncompressed.
    pub(crate) encoder: Option<Encoder>,
    pub(crate) level: i32,
    /// The dictionary to write into the file and into the field's schema row.
    pub(crate) dictionary: Option<Vec<u8>>,
    pub(crate) why: String,
}

/// Chooses "auto" from none, lz4 and zstd: the codec with the least time to read at 200 MB/s per
/// thread and to decompress.
pub(crate) fn choose(sample: &Sample) -> Result<CodecChoice, String> {
    let raw = sample.bytes() as u64;
    let plain = Measured { stored: raw, nanos: 0.0 };
    let (mut best, mut level, mut cost) = (None, 0, plain.cost());
    let mut tried = Vec::new();
    for (name, encoder, its_level) in [("lz4", Encoder::Lz4, 0), ("zstd", Encoder::zstd(DEFAULT_LEVEL), DEFAULT_LEVEL)]
    {
        let measured = Measured::of(&encoder, sample)?;
        tried.push(measured.describe(name, raw));
        if measured.cost() < cost {
            (best, level, cost) = (Some(encoder), its_level, measured.cost());
        }
    }
    let count = sample.len();
    let why = format!(
        "of {count} values ({raw} bytes) compressed {}; the least time to read at 200 MB/s and decompress",
        tried.join(", ")
    );
    Ok(CodecChoice { encoder: best, level, dictionary: None, why })
}

/// Trains a zstd dictionary of at most `bytes`, if it makes the sample smaller.
pub(crate) fn train(sample: &Sample, level: i32, bytes: u64) -> Result<CodecChoice, String> {
    let settled = |dictionary: Option<Vec<u8>>, why: String| {
        let encoder = match &dictionary {
            Some(bytes) => Encoder::with_dictionary(level, bytes)?,
            None => Encoder::zstd(level),
        };
        Ok(CodecChoice { encoder: Some(encoder), level, dictionary, why })
    };
    let count = sample.len();
    // A dictionary that is large relative to its sample memorizes the sample, and helps no other
    // values.
    let most = bytes.min((sample.bytes() as u64 / 8).max(MIN_DICTIONARY));
    let Some(dictionary) = codec::train(sample.values(), most as usize) else {
        return settled(None, format!("no dictionary: the first {count} values are too few to train one"));
    };
    let total = |encoder: &Encoder| -> Result<u64, String> {
        let mut scratch = Vec::new();
        sample.values().try_fold(0, |all, value| {
            Ok(all + encoder.encode(value, &mut scratch)?.map_or(value.len(), <[u8]>::len) as u64)
        })
    };
    let with = total(&Encoder::with_dictionary(level, &dictionary)?)?;
    let without = total(&Encoder::zstd(level))?;
    let why = format!(
        "of {count} values ({} bytes), {with} bytes with a dictionary of {} and {without} without",
        sample.bytes(),
        dictionary.len()
    );
    if with < without { settled(Some(dictionary), why) } else { settled(None, format!("no dictionary: {why}")) }
}

pub(crate) const MIN_DICTIONARY: u64 = 256;

/// Number of passes over the sample; the fastest counts.
pub(crate) const PASSES: usize = 3;

/// Assumed throughput per thread of a disk or a network file system, in bytes per nanosecond: 200
/// MB/s.
pub(crate) const SUPPLY: f64 = 0.2;

impl Sample {
    pub(crate) fn push(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.ends.push(self.bytes.len());
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end])
    }
}

impl Measured {
    #[allow(clippy::cast_precision_loss)] // the sample has a few MiB
    fn of(encoder: &Encoder, sample: &Sample) -> Result<Self, String> {
        let (mut scratch, mut kept, mut stored) = (Vec::new(), Vec::new(), 0);
        for value in sample.values() {
            match encoder.encode(value, &mut scratch)? {
                Some(made) => {
                    stored += made.len() as u64;
                    kept.push((made.to_vec(), value.len()));
                }
                None => stored += value.len() as u64,
            }
        }
        let mut out = vec![0; kept.iter().map(|(_, raw)| *raw).max().unwrap_or_default()];
        let mut nanos = f64::INFINITY;
        for _ in 0..PASSES {
            let start = Instant::now();
            for (made, raw) in &kept {
                codec::decode(encoder.codec(), made, &mut out[..*raw], |_| Err("no dictionary is used".to_owned()))?;
            }
            nanos = nanos.min(start.elapsed().as_nanos() as f64);
        }
        Ok(Self { stored, nanos })
    }

    /// Returns the nanoseconds until a thread that reads from a disk has the values.
    #[allow(clippy::cast_precision_loss)]
    fn cost(&self) -> f64 {
        self.stored as f64 / SUPPLY + self.nanos
    }

    #[allow(clippy::cast_precision_loss)]
    fn describe(&self, name: &str, raw: u64) -> String {
        let ratio = raw as f64 / self.stored.max(1) as f64;
        if self.nanos > 0.0 {
            format!("{name} {ratio:.2} at {:.1} GB/s", raw as f64 / self.nanos)
        } else {
            format!("{name} {ratio:.2}")
        }
    }
}
