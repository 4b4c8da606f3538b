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
    /// The codec. [`Codec::None`] means "auto": the codec that works best on the first payloads.
    pub codec: Codec,
    /// The zstd level, 1 to 22; 0 for other codecs.
    pub level: i32,
    /// The maximum size, in bytes, of a dictionary to train on the first payloads; 0 for none.
    pub train: u64,
    /// The dictionaries that frames may refer to. The writer uses the last one.
    pub(crate) dictionaries: Vec<DictionaryRange>,
    /// Other keys of the schema row, kept unchanged.
    other: Map<String, Value>,
}

/// Why a compression in a schema row is refused.
pub(crate) enum BadCompression {
    /// A later minor revision may support it.
    Unknown(String),
    Wrong(String),
}

impl Compression {
    /// A codec with its default settings; [`Codec::None`] for "auto".
    pub fn new(codec: Codec) -> Self {
        let level = if codec == Codec::Zstd { DEFAULT_LEVEL } else { 0 };
        Self { codec, level, train: 0, dictionaries: Vec::new(), other: Map::new() }
    }

    /// The same settings with other dictionaries.
    pub(crate) fn with_dictionaries(&self, dictionaries: &[DictionaryRange]) -> Self {
        Self { dictionaries: dictionaries.to_vec(), ..self.clone() }
    }

    /// Whether the codec is still to be chosen.
    pub fn is_auto(&self) -> bool {
        self.codec == Codec::None
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

    /// The schema row, including settings that are not decided yet.
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

    /// Whether payloads compressed this way can go into a field with the compression `file`.
    pub(crate) fn fits(&self, file: &Self) -> bool {
        self.is_auto() || (self.codec, self.level) == (file.codec, file.level)
    }

    /// The description in messages: `zstd level 3`.
    pub fn describe(&self) -> String {
        match self.codec {
            Codec::None => "auto".to_owned(),
            Codec::Lz4 => "lz4".to_owned(),
            Codec::Zstd => format!("zstd level {}", self.level),
        }
    }
}
