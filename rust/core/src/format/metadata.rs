//! `Metadata`: the metadata of a commit, which holds the schema and the user's keys and values.

use std::io;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::format::field_type::BadType;
use crate::format::schema::{Field, Schema};
use crate::limits::MAX_FIELDS;

/// The metadata of docs/format.md, section 5.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Metadata {
    pub schema: Schema,
    pub complete: bool,
    pub user: Map<String, Value>,
    /// Keys of a later minor revision, kept unchanged.
    other: Map<String, Value>,
}

impl Metadata {
    pub(crate) fn new(schema: Schema, user: Map<String, Value>, complete: bool) -> Self {
        Self { schema, complete, user, other: Map::new() }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        self.to_value(self.user.clone()).to_string().into_bytes()
    }

    /// The number of bytes that [`Metadata::encode`] returns, without encoding.
    pub(crate) fn encoded_len(&self) -> u64 {
        /// Counts the bytes written.
        struct Count(u64);
        impl io::Write for Count {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 += bytes.len() as u64;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut count = Count(0);
        // Counting cannot fail, and neither can maps with text keys.
        let around = serde_json::to_writer(&mut count, &self.to_value(Map::new()));
        let user = around.and_then(|()| serde_json::to_writer(&mut count, &self.user));
        if user.is_err() { u64::MAX } else { count.0 - 2 }
    }

    fn to_value(&self, user: Map<String, Value>) -> Value {
        let mut out = self.other.clone();
        out.insert("schema".to_owned(), self.schema.to_value());
        out.insert("next_field_id".to_owned(), json!(self.next_id()));
        out.insert("complete".to_owned(), json!(self.complete));
        out.insert("metadata".to_owned(), Value::Object(user));
        Value::Object(out)
    }

    fn next_id(&self) -> u64 {
        let above = self.schema.fields().iter().map(|f| u64::from(f.id)).max().unwrap_or(0) + 1;
        self.other.get("next_field_id").and_then(Value::as_u64).unwrap_or(0).max(above)
    }

    /// An id that no field of the file has ever had.
    ///
    /// # Errors
    /// No id is left; the error is text.
    pub(crate) fn free_id(&self) -> std::result::Result<u32, String> {
        u32::try_from(self.next_id()).map_err(|_| "the file's field ids are used up".to_owned())
    }

    /// Reserves an id, so that no other field gets it.
    pub(crate) fn use_id(&mut self, id: u32) {
        let next = self.next_id().max(u64::from(id) + 1);
        self.other.insert("next_field_id".to_owned(), json!(next));
    }

    pub(crate) fn decode(path: &Path, bytes: &[u8]) -> Result<Self> {
        let bad = |detail: String| Error::corrupt(path, "metadata", detail);
        let value: Value = serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
        let Value::Object(mut other) = value else { return Err(bad("not a JSON object".to_owned())) };
        let Some(Value::Array(rows)) = other.remove("schema") else { return Err(bad("no schema".to_owned())) };
        if rows.len() > MAX_FIELDS {
            return Err(bad(format!("{} fields, at most {MAX_FIELDS} are allowed", rows.len())));
        }
        let mut fields = Vec::with_capacity(rows.len());
        for row in rows {
            let name = row["name"].as_str().ok_or_else(|| bad("a field has no name".to_owned()))?.to_owned();
            let id = row["id"].as_u64().and_then(|id| u32::try_from(id).ok());
            let id = id.ok_or_else(|| bad(format!("field {name:?} has no id")))?;
            let Value::Object(row) = row else { return Err(bad(format!("field {name:?} is not an object"))) };
            fields.push(Field::from_row(id, &name, row).map_err(|wrong| match wrong {
                BadType::Unknown(kind) => {
                    let what = format!("field {name:?} has the type {kind:?}");
                    Error::Unsupported { path: path.to_owned(), what }
                }
                BadType::Wrong(detail) => bad(format!("field {name:?} {detail}")),
            })?);
        }
        let schema = Schema::of(fields).map_err(bad)?;
        let Some(Value::Bool(complete)) = other.remove("complete") else {
            return Err(bad("`complete` is not a boolean".to_owned()));
        };
        let Some(Value::Object(user)) = other.remove("metadata") else {
            return Err(bad("`metadata` is not an object".to_owned()));
        };
        Ok(Self { schema, complete, user, other })
    }
}
