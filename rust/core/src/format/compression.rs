//! How a field is compressed: what was asked for, what its schema row says, and how "auto" decides.

use std::time::Instant;

use serde_json::{Map, Value, json};

use crate::codec::{self, Codec, Encoder, LEVELS};
use crate::format::dictionary::DictionaryRange;
use crate::limits::MAX_DICTIONARY_BYTES;

/// The level of zstd where none is given: zstd's own.
pub const DEFAULT_LEVEL: i32 = 3;
/// The size of a dictionary where none is given: zstd's own.
pub const DEFAULT_DICTIONARY: u64 = 110 << 10;
const MIN_DICTIONARY: u64 = 256;
/// What a thread gets of a disk or a network file system, in bytes per nanosecond: 200 MB/s.
const SUPPLY: f64 = 0.2;
/// Passes over the sample; the quickest counts.
const PASSES: usize = 3;

/// How a field's payloads are compressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compression {
    /// What compresses them; [`Codec::None`]: whatever turns out best on the first of them ("auto").
    pub codec: Codec,
    /// How hard zstd tries, 1 to 22; 0 for others.
    pub level: i32,
    /// The most bytes of a dictionary that is to be trained from the first payloads; 0: none.
    pub train: u64,
    /// The dictionaries that frames may name; the last is the writer's.
    pub(crate) dictionaries: Vec<DictionaryRange>,
    /// What else the schema row says: kept as it is.
    other: Map<String, Value>,
}

/// What is wrong with a compression in a schema row.
pub(crate) enum BadCompression {
    /// A later minor revision may know it.
    Unknown(String),
    Wrong(String),
}

impl Compression {
    /// By a codec, or [`Codec::None`] for "auto", with its usual settings.
    pub fn new(codec: Codec) -> Self {
        let level = if codec == Codec::Zstd { DEFAULT_LEVEL } else { 0 };
        Self { codec, level, train: 0, dictionaries: Vec::new(), other: Map::new() }
    }

    /// The same with other dictionaries.
    pub(crate) fn with_dictionaries(&self, dictionaries: &[DictionaryRange]) -> Self {
        Self { dictionaries: dictionaries.to_vec(), ..self.clone() }
    }

    /// Whether it is still to be decided.
    pub fn is_auto(&self) -> bool {
        self.codec == Codec::None
    }

    /// The ids of the dictionaries that there are.
    pub fn dictionaries(&self) -> Vec<u32> {
        self.dictionaries.iter().map(|d| d.id).collect()
    }

    pub(crate) fn from_value(value: Value) -> Result<Self, BadCompression> {
        let wrong = |detail: String| Err(BadCompression::Wrong(detail));
        let Value::Object(mut row) = value else { return wrong("it is no object".to_owned()) };
        let codec = match row.remove("codec") {
            Some(Value::String(name)) => match name.as_str() {
                "auto" => Codec::None,
                "lz4" => Codec::Lz4,
                "zstd" => Codec::Zstd,
                _ => return Err(BadCompression::Unknown(name)),
            },
            _ => return wrong("it has no codec".to_owned()),
        };
        let mut made = Self::new(codec);
        if let Some(level) = row.remove("level").filter(|level| !level.is_null()) {
            let whole = level.as_i64().and_then(|level| i32::try_from(level).ok());
            match (codec, whole) {
                (Codec::Zstd, Some(level)) if LEVELS.contains(&level) => made.level = level,
                (Codec::Zstd, _) => return wrong(format!("zstd has the levels 1 to {}, not {level}", LEVELS.end())),
                _ => return wrong("only zstd has levels".to_owned()),
            }
        }
        match row.remove("dictionary") {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(_) if codec != Codec::Zstd => return wrong("only zstd has dictionaries".to_owned()),
            Some(Value::Bool(true)) => made.train = DEFAULT_DICTIONARY,
            Some(bytes) => match bytes.as_u64() {
                Some(bytes) if (MIN_DICTIONARY..=MAX_DICTIONARY_BYTES).contains(&bytes) => made.train = bytes,
                _ => {
                    return wrong(format!(
                        "a dictionary has {MIN_DICTIONARY} to {MAX_DICTIONARY_BYTES} bytes, not {bytes}"
                    ));
                }
            },
        }
        if let Some(rows) = row.remove("dictionaries") {
            let Value::Array(rows) = rows else { return wrong("its dictionaries are no array".to_owned()) };
            for row in &rows {
                let Some(range) = DictionaryRange::from_value(row) else {
                    return wrong(format!("{row} is no dictionary"));
                };
                made.dictionaries.push(range);
            }
        }
        made.other = row;
        Ok(made)
    }

    /// As a row has it, with what is asked for and not yet decided.
    pub(crate) fn to_value(&self) -> Value {
        let mut row = self.other.clone();
        row.insert("codec".to_owned(), json!(if self.is_auto() { "auto" } else { self.codec.name() }));
        if self.codec == Codec::Zstd {
            row.insert("level".to_owned(), json!(self.level));
        }
        if self.train > 0 {
            row.insert("dictionary".to_owned(), json!(self.train));
        }
        if !self.dictionaries.is_empty() {
            let rows = self.dictionaries.iter().map(|d| d.to_value()).collect();
            row.insert("dictionaries".to_owned(), Value::Array(rows));
        }
        Value::Object(row)
    }

    /// Whether payloads compressed like this can go into a field that is compressed like `file`'s.
    pub(crate) fn fits(&self, file: &Self) -> bool {
        self.is_auto() || (self.codec, self.level) == (file.codec, file.level)
    }

    /// For messages: `zstd level 3`.
    pub fn describe(&self) -> String {
        match self.codec {
            Codec::None => "auto".to_owned(),
            Codec::Lz4 => "lz4".to_owned(),
            Codec::Zstd => format!("zstd level {}", self.level),
        }
    }
}

/// The first values of a field, from which is decided how to compress all of them.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

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

/// What compressing a sample came to.
struct Measured {
    stored: u64,
    /// Nanoseconds to decompress all of it.
    nanos: f64,
}

impl Measured {
    #[allow(clippy::cast_precision_loss)] // of some MiB
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

    /// Nanoseconds until a thread that reads from a disk has the values.
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

/// What is to be done with a field's values from now on, and why.
#[derive(Debug)]
pub(crate) struct Settled {
    /// `None`: stored as they are.
    pub(crate) encoder: Option<Encoder>,
    pub(crate) level: i32,
    /// To be written into the file, and the schema row.
    pub(crate) dictionary: Option<Vec<u8>>,
    pub(crate) why: String,
}

/// "auto": what takes the least time to read at 200 MB/s a thread and to decompress, of none, lz4 and zstd.
pub(crate) fn choose(sample: &Sample) -> Result<Settled, String> {
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
    Ok(Settled { encoder: best, level, dictionary: None, why })
}

/// A dictionary of at most `bytes` for zstd, if it makes the sample smaller.
pub(crate) fn train(sample: &Sample, level: i32, bytes: u64) -> Result<Settled, String> {
    let settled = |dictionary: Option<Vec<u8>>, why: String| {
        let encoder = match &dictionary {
            Some(bytes) => Encoder::with_dictionary(level, bytes)?,
            None => Encoder::zstd(level),
        };
        Ok(Settled { encoder: Some(encoder), level, dictionary, why })
    };
    let count = sample.len();
    // Larger than a good part of what it is made from it knows that by heart, and nothing else.
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
