//! `Compression`: how a field is compressed, and its encoding in the schema row.

use crate::codec::choose::DEFAULT_LEVEL;
use crate::codec::choose::MIN_DICTIONARY;

use serde_json::{Map, Value, json};

use crate::codec::{Codec, LEVELS};
use crate::format::dictionary::DictionaryRange;
use crate::limits::MAX_DICTIONARY_BYTES;

/// The default size of a dictionary, in bytes: zstd's own default.
pub const DEFAULT_DICTIONARY: u64 = 110 << 10;

/// How a field's payloads are compressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compression {
    /// The codec, lz4 or zstd.
    pub codec: Codec,
    /// The zstd level, 1 to 22; 0 for other codecs.
    pub level: i32,
    /// The dictionaries that frames may refer to. The writer uses the last one.
    pub(crate) dictionaries: Vec<DictionaryRange>,
    /// Other keys of the schema row, kept unchanged.
    other: Map<String, Value>,
}

/// What the first values of a field decide about its compression. A caller may ask for it; a file
/// never holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Whether and how payloads are compressed: by the codec that works best.
    Codec,
    /// A zstd dictionary of at most so many bytes.
    Dictionary(u64),
}

impl Choice {
    /// Takes a choice out of the compression that a caller asks for, and leaves a schema row.
    pub(crate) fn take(row: &mut Map<String, Value>) -> Result<Option<Self>, BadCompression> {
        let wrong = |detail: String| Err(BadCompression::Wrong(detail));
        let auto = row.get("codec").is_some_and(|codec| codec == "auto");
        let bytes = match row.remove("dictionary") {
            None | Some(Value::Null | Value::Bool(false)) => {
                return Ok(auto.then_some(Self::Codec));
            }
            Some(_) if row.get("codec").is_none_or(|codec| codec != "zstd") => {
                return wrong("only zstd has dictionaries".to_owned());
            }
            Some(Value::Bool(true)) => return Ok(Some(Self::Dictionary(DEFAULT_DICTIONARY))),
            Some(bytes) => bytes,
        };
        match bytes.as_u64() {
            Some(most) if (MIN_DICTIONARY..=MAX_DICTIONARY_BYTES).contains(&most) => Ok(Some(Self::Dictionary(most))),
            _ => wrong(format!("a dictionary has {MIN_DICTIONARY} to {MAX_DICTIONARY_BYTES} bytes, not {bytes}")),
        }
    }
}

/// Why a compression in a schema row is refused.
pub(crate) enum BadCompression {
    /// A later minor revision may support it.
    Unknown(String),
    Wrong(String),
}

impl Compression {
    /// A codec with its default settings.
    pub fn new(codec: Codec) -> Self {
        let level = if codec == Codec::Zstd { DEFAULT_LEVEL } else { 0 };
        Self { codec, level, dictionaries: Vec::new(), other: Map::new() }
    }

    /// The same settings with other dictionaries.
    pub(crate) fn with_dictionaries(&self, dictionaries: &[DictionaryRange]) -> Self {
        Self { dictionaries: dictionaries.to_vec(), ..self.clone() }
    }

    /// The ids of the dictionaries.
    pub fn dictionaries(&self) -> Vec<u32> {
        self.dictionaries.iter().map(|d| d.id).collect()
    }

    pub(crate) fn from_value(value: Value) -> Result<Self, BadCompression> {
        let wrong = |detail: String| Err(BadCompression::Wrong(detail));
        let Value::Object(mut row) = value else { return wrong("it is not an object".to_owned()) };
        let codec = match row.remove("codec") {
            Some(Value::String(name)) => match name.as_str() {
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
        if let Some(rows) = row.remove("dictionaries") {
            let Value::Array(rows) = rows else { return wrong("its dictionaries are not an array".to_owned()) };
            for row in &rows {
                let Some(range) = DictionaryRange::from_value(row) else {
                    return wrong(format!("{row} is not a dictionary"));
                };
                made.dictionaries.push(range);
            }
        }
        made.other = row;
        Ok(made)
    }

    /// The schema row.
    pub(crate) fn to_value(&self) -> Value {
        let mut row = self.other.clone();
        row.insert("codec".to_owned(), json!(self.codec.name()));
        if self.codec == Codec::Zstd {
            row.insert("level".to_owned(), json!(self.level));
        }
        if !self.dictionaries.is_empty() {
            let rows = self.dictionaries.iter().map(|d| d.to_value()).collect();
            row.insert("dictionaries".to_owned(), Value::Array(rows));
        }
        Value::Object(row)
    }

    /// Whether payloads compressed this way can go into a field with the compression `file`.
    pub(crate) fn fits(&self, file: &Self) -> bool {
        (self.codec, self.level) == (file.codec, file.level)
    }

    /// The description in messages: `zstd level 3`.
    pub fn describe(&self) -> String {
        match self.codec {
            Codec::Zstd => format!("zstd level {}", self.level),
            codec => codec.name().to_owned(),
        }
    }
}
