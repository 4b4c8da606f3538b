//! `Dictionary`: the dictionaries of a file's compressed fields. See docs/format.md, section 2.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

use serde_json::{Value, json};
use zstd_safe::DDict;

use crate::codec;
use crate::error::{Error, Result};
use crate::format::layout::PAGE;
use crate::limits::MAX_DICTIONARY_BYTES;

/// The location of a dictionary, from its field's schema row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DictionaryRange {
    pub id: u32,
    pub offset: u64,
    pub length: u64,
    pub crc: u32,
}

/// One dictionary, shared by all threads. It is read and prepared when a payload first needs it.
pub(crate) struct Dictionary {
    range: DictionaryRange,
    prepared: OnceLock<DDict<'static>>,
}

impl fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Dictionary").field(&self.range).finish()
    }
}

impl Dictionary {
    pub(crate) fn new(range: DictionaryRange) -> Self {
        Self { range, prepared: OnceLock::new() }
    }

    pub(crate) fn id(&self) -> u32 {
        self.range.id
    }

    /// The dictionary in the form that the decoder needs.
    ///
    /// # Errors
    /// It lies outside the file's commit, does not match its CRC, or is not a dictionary.
    pub(crate) fn prepared(&self, path: &Path, field: &str, file: &File, limit: u64) -> Result<&DDict<'static>> {
        if let Some(prepared) = self.prepared.get() {
            return Ok(prepared);
        }
        let read = |bytes: &mut [u8], at| file.read_exact_at(bytes, at).map_err(|e| Error::io(path, e));
        let bytes = self.range.read(path, field, limit, read)?;
        let bad = |detail: String| self.range.corrupt(path, field, detail);
        let prepared = DDict::try_create(&bytes).ok_or_else(|| bad("zstd refuses it".to_owned()))?;
        let found = prepared.get_dict_id().map(std::num::NonZero::get);
        if found != Some(self.range.id) {
            return Err(bad(format!("its own id is {}", found.unwrap_or_default())));
        }
        // Two threads may both have prepared it; the first result stays.
        let _ = self.prepared.set(prepared);
        self.prepared.get().ok_or_else(|| bad("it is gone".to_owned()))
    }
}

impl DictionaryRange {
    pub(crate) fn from_value(row: &Value) -> Option<Self> {
        let number = |key: &str| row[key].as_u64();
        let small = |key: &str| number(key).and_then(|n| u32::try_from(n).ok());
        let id = small("id").filter(|&id| id > 0)?;
        Some(Self { id, offset: number("offset")?, length: number("length")?, crc: small("crc")? })
    }

    pub(crate) fn to_value(self) -> Value {
        json!({"id": self.id, "offset": self.offset, "length": self.length, "crc": self.crc})
    }

    pub(crate) fn corrupt(&self, path: &Path, field: &str, detail: impl Into<String>) -> Error {
        Error::corrupt(path, format!("dictionary {} of field {field}", self.id), detail)
    }

    /// Reads and checks the bytes. `limit` is the footer's offset.
    ///
    /// # Errors
    /// It lies outside the file's commit, does not match its CRC, or cannot be read.
    pub(crate) fn read(
        &self,
        path: &Path,
        field: &str,
        limit: u64,
        read: impl FnOnce(&mut [u8], u64) -> Result<()>,
    ) -> Result<Vec<u8>> {
        let Self { offset, length, crc: stored, .. } = *self;
        let inside = offset >= PAGE && offset.checked_add(length).is_some_and(|end| end <= limit);
        if !inside || !(1..=MAX_DICTIONARY_BYTES).contains(&length) {
            return Err(self.corrupt(path, field, format!("{length} bytes at {offset}, the data end at {limit}")));
        }
        let mut bytes = vec![0; length as usize];
        read(&mut bytes, offset)?;
        let computed = crate::format::crc::crc32c(&bytes);
        if stored != computed {
            let detail = format!("stored CRC {stored:#010x}, computed {computed:#010x}");
            return Err(self.corrupt(path, field, detail));
        }
        if codec::dictionary_id(&bytes) != Some(self.id) {
            return Err(self.corrupt(path, field, "its bytes are not a zstd dictionary with this id"));
        }
        Ok(bytes)
    }
}
