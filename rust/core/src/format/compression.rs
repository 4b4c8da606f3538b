//! How a field is compressed: what was asked for, what its schema row says, and how "auto" decides.

use crate::codec::choose::DEFAULT_LEVEL;
use crate::codec::choose::MIN_DICTIONARY;

use serde_json::{Map, Value, json};

use crate::codec::{Codec, LEVELS};
use crate::format::dictionary::DictionaryRange;
use crate::limits::MAX_DICTIONARY_BYTES;

/// The size of a dictionary where none is given: zstd's own.
pub const DEFAULT_DICTIONARY: u64 = 110 << 10;

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
