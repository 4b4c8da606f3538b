//! Fields and their types, and the metadata document that carries them.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::layout::{Encoding, Part};

/// The type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FieldType {
    /// An encoded image, kept byte for byte, with its width and height as index columns.
    Image,
    /// Any bytes.
    Bytes,
    /// UTF-8 text.
    String,
    /// A signed 64-bit integer.
    Int64,
    /// A 64-bit IEEE float.
    Float64,
}

impl FieldType {
    const ALL: [Self; 5] = [Self::Image, Self::Bytes, Self::String, Self::Int64, Self::Float64];

    /// The name that the file and the user know it by.
    pub fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Bytes => "bytes",
            Self::String => "string",
            Self::Int64 => "int64",
            Self::Float64 => "float64",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether values vary in size and are told by extents.
    pub fn is_variable(self) -> bool {
        matches!(self, Self::Image | Self::Bytes | Self::String)
    }

    /// Whether its values are bytes, of images or of anything else.
    pub fn holds_bytes(self) -> bool {
        matches!(self, Self::Image | Self::Bytes)
    }

    /// What the entries of one of the field's columns are, if they are values.
    pub(crate) fn column_type(self, part: Part) -> Option<ColumnType> {
        match (self, part) {
            (Self::Int64, Part::Main) => Some(ColumnType::Int64),
            (Self::Float64, Part::Main) => Some(ColumnType::Float64),
            (Self::Image, Part::Width | Part::Height) => Some(ColumnType::Uint32),
            _ => None,
        }
    }

    /// The encoding and the entry width of one of the field's columns; `None` if the type has no such part.
    pub(crate) fn column(self, part: Part) -> Option<(Encoding, u16)> {
        match (self, part) {
            (Self::Image | Self::Bytes | Self::String, Part::Main) => Some((Encoding::Extents, 32)),
            (Self::Int64 | Self::Float64, Part::Main) => Some((Encoding::Values, 8)),
            (Self::Image, Part::Width | Part::Height) => Some((Encoding::Values, 4)),
            _ => None,
        }
    }
}

/// The type of a fixed-width column's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ColumnType {
    /// Signed, 8 bytes.
    Int64,
    /// IEEE, 8 bytes.
    Float64,
    /// Unsigned, 4 bytes: widths and heights.
    Uint32,
}

/// A named, typed part of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Never reused within a file; the directory names columns by it.
    pub id: u32,
    /// Unique within the file.
    pub name: String,
    /// What its values are.
    pub kind: FieldType,
    /// Keys that a later minor revision put there: kept as they are.
    other: Map<String, Value>,
}

/// The ordered list of a file's fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema {
    fields: Vec<Field>,
}

/// Enough for any table of features, small enough that a hostile file cannot make opening slow.
const MAX_FIELDS: usize = 4096;

impl Schema {
    /// Makes a schema of new fields, numbered from 1 in the order given.
    ///
    /// # Errors
    /// [`Error::Schema`]: no field, too many, or a name that is empty, used twice or has a dot in it.
    pub fn new<'a>(fields: impl IntoIterator<Item = (&'a str, FieldType)>) -> Result<Self> {
        let fields =
            (1..).zip(fields).map(|(id, (name, kind))| Field { id, name: name.to_owned(), kind, other: Map::new() });
        let schema = Self { fields: fields.collect() };
        schema.check().map_err(Error::Schema)?;
        Ok(schema)
    }

    /// Makes a schema of new fields from rows `[{"name": .., "type": ..}, ..]`.
    ///
    /// # Errors
    /// [`Error::Schema`], as [`Schema::new`], and for a type that is not known.
    pub fn from_json(text: &str) -> Result<Self> {
        let rows: Vec<Value> = serde_json::from_str(text).map_err(|e| Error::Schema(e.to_string()))?;
        let mut fields = Vec::with_capacity(rows.len().min(MAX_FIELDS));
        for row in &rows {
            let name = row["name"].as_str().ok_or_else(|| Error::Schema("a field has no name".to_owned()))?;
            let type_name = row["type"].as_str().unwrap_or_default();
            let kind = FieldType::from_name(type_name)
                .ok_or_else(|| Error::Schema(format!("field {name:?}: unknown type {type_name:?}")))?;
            fields.push((name, kind));
        }
        Self::new(fields)
    }

    /// The fields as JSON rows with id, name and type.
    pub fn to_json(&self) -> String {
        self.to_value().to_string()
    }

    fn to_value(&self) -> Value {
        let row = |f: &Field| {
            let mut row = f.other.clone();
            row.insert("id".to_owned(), json!(f.id));
            row.insert("name".to_owned(), json!(f.name));
            row.insert("type".to_owned(), json!(f.kind.name()));
            Value::Object(row)
        };
        Value::Array(self.fields.iter().map(row).collect())
    }

    fn check(&self) -> std::result::Result<(), String> {
        if self.fields.is_empty() || self.fields.len() > MAX_FIELDS {
            return Err(format!("{} fields: a schema has 1 to {MAX_FIELDS}", self.fields.len()));
        }
        for (i, field) in self.fields.iter().enumerate() {
            // The dot is how derived columns are named: `image.width`.
            if field.name.is_empty() || field.name.contains('.') || field.name.contains('\0') {
                return Err(format!("field name {:?}: a name is not empty and has no dot and no NUL", field.name));
            }
            if field.id == 0 || self.fields[..i].iter().any(|f| f.name == field.name || f.id == field.id) {
                return Err(format!("field {:?} (id {}) is there twice", field.name, field.id));
            }
        }
        Ok(())
    }

    /// All fields, in order.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The position of a field.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|f| f.name == name)
    }

    /// Whether both have the same names and types in the same order; ids do not count.
    pub fn same_fields(&self, other: &Self) -> bool {
        let key = |s: &Self| s.fields.iter().map(|f| (f.name.clone(), f.kind)).collect::<Vec<_>>();
        key(self) == key(other)
    }

    /// The fields as text for messages: `{image: image, label: int64}`.
    pub fn describe(&self) -> String {
        let parts: Vec<_> = self.fields.iter().map(|f| format!("{}: {}", f.name, f.kind.name())).collect();
        format!("{{{}}}", parts.join(", "))
    }
}

/// What docs/format.md, section 5 calls metadata.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Document {
    pub schema: Schema,
    pub complete: bool,
    pub user: Map<String, Value>,
    /// Keys that a later minor revision put there: kept as they are.
    other: Map<String, Value>,
}

impl Document {
    pub(crate) fn new(schema: Schema, user: Map<String, Value>, complete: bool) -> Self {
        Self { schema, complete, user, other: Map::new() }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = self.other.clone();
        let next = self.schema.fields.iter().map(|f| u64::from(f.id)).max().unwrap_or(0) + 1;
        let next = out.get("next_field_id").and_then(Value::as_u64).unwrap_or(0).max(next);
        out.insert("schema".to_owned(), self.schema.to_value());
        out.insert("next_field_id".to_owned(), json!(next));
        out.insert("complete".to_owned(), json!(self.complete));
        out.insert("metadata".to_owned(), Value::Object(self.user.clone()));
        Value::Object(out).to_string().into_bytes()
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
            let type_name = row["type"].as_str().ok_or_else(|| bad(format!("field {name:?} has no type")))?;
            let kind = FieldType::from_name(type_name).ok_or_else(|| Error::Unsupported {
                path: path.to_owned(),
                what: format!("field {name:?} has the type {type_name:?}"),
            })?;
            let Value::Object(mut other) = row else { return Err(bad(format!("field {name:?} is no object"))) };
            for known in ["id", "name", "type"] {
                other.remove(known);
            }
            fields.push(Field { id, name, kind, other });
        }
        let schema = Schema { fields };
        schema.check().map_err(bad)?;
        let Some(Value::Bool(complete)) = other.remove("complete") else {
            return Err(bad("`complete` is not a boolean".to_owned()));
        };
        let Some(Value::Object(user)) = other.remove("metadata") else {
            return Err(bad("`metadata` is not an object".to_owned()));
        };
        Ok(Self { schema, complete, user, other })
    }
}
