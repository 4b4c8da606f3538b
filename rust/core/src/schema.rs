//! Fields and their types, and the metadata document that carries them.

use std::fmt;
use std::io;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::compression::{BadCompression, Compression};
use crate::dtype::{ArrayType, DType};
use crate::error::{Error, Result};
use crate::layout::{Encoding, Part};
use crate::limits::{MAX_DIMS, MAX_FIELDS, MAX_NAME_BYTES};

/// Arrays of up to so many bytes are stored in their column; larger ones as payloads.
const MAX_VALUE: u64 = 64;

/// The type of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FieldType {
    /// An encoded image, kept byte for byte, with its width and height as index columns.
    Image,
    /// Any bytes.
    Bytes,
    /// UTF-8 text.
    String,
    /// A JSON document, as UTF-8 text.
    Json,
    /// One number.
    Scalar(DType),
    /// An array of numbers.
    Array(ArrayType),
    /// Any number of values of one type, which is no list.
    List(Box<FieldType>),
}

impl From<DType> for FieldType {
    fn from(dtype: DType) -> Self {
        Self::Scalar(dtype)
    }
}

/// What is wrong with a type in a schema row.
enum BadType {
    /// A later minor revision may know it.
    Unknown(String),
    Wrong(String),
}

impl FieldType {
    /// The name that the file and the user know it by, without dtype, shape or item.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Bytes => "bytes",
            Self::String => "string",
            Self::Json => "json",
            Self::Scalar(dtype) => dtype.name(),
            Self::Array(_) => "array",
            Self::List(_) => "list",
        }
    }

    /// Takes a type out of a schema row, with the keys that say more about it.
    fn from_row(row: &mut Map<String, Value>) -> std::result::Result<Self, BadType> {
        let Some(Value::String(name)) = row.remove("type") else {
            return Err(BadType::Wrong("has no type".to_owned()));
        };
        match name.as_str() {
            "image" => Ok(Self::Image),
            "bytes" => Ok(Self::Bytes),
            "string" => Ok(Self::String),
            "json" => Ok(Self::Json),
            "array" => Self::array_from(row.remove("dtype"), row.remove("shape")),
            "list" => match row.remove("item") {
                Some(Value::Object(mut item)) => match Self::from_row(&mut item)? {
                    Self::List(_) => Err(BadType::Wrong("is a list of lists".to_owned())),
                    item => Ok(Self::List(Box::new(item))),
                },
                _ => Err(BadType::Wrong("is a list without an item's type".to_owned())),
            },
            _ => DType::from_name(&name).map(Self::Scalar).ok_or(BadType::Unknown(name)),
        }
    }

    fn array_from(dtype: Option<Value>, shape: Option<Value>) -> std::result::Result<Self, BadType> {
        let Some(Value::String(name)) = dtype else {
            return Err(BadType::Wrong("is an array without a dtype".to_owned()));
        };
        let Some(Value::Array(dims)) = shape else {
            return Err(BadType::Wrong("is an array without a shape".to_owned()));
        };
        let dtype = DType::from_name(&name).ok_or_else(|| BadType::Unknown(format!("array of {name}")))?;
        let mut shape = Vec::with_capacity(dims.len().min(MAX_DIMS));
        for dim in &dims {
            match (dim, dim.as_u64()) {
                (Value::Null, _) => shape.push(None),
                (_, Some(dim)) => shape.push(Some(dim)),
                _ => return Err(BadType::Wrong(format!("has a dimension that is no whole number: {dim}"))),
            }
        }
        ArrayType::new(dtype, &shape).map(Self::Array).map_err(|detail| BadType::Wrong(format!("is of {detail}")))
    }

    /// Puts the type into a schema row.
    fn put_into(&self, row: &mut Map<String, Value>) {
        row.insert("type".to_owned(), json!(self.name()));
        match self {
            Self::Array(array) => {
                row.insert("dtype".to_owned(), json!(array.dtype().name()));
                row.insert("shape".to_owned(), json!(array.shape()));
            }
            Self::List(item) => {
                let mut inner = Map::new();
                item.put_into(&mut inner);
                row.insert("item".to_owned(), Value::Object(inner));
            }
            _ => {}
        }
    }

    /// Whether its values are told by extents.
    pub fn has_payloads(&self) -> bool {
        self.values().is_none()
    }

    /// Whether its values are bytes, of images or of anything else.
    pub fn holds_bytes(&self) -> bool {
        matches!(self, Self::Image | Self::Bytes)
    }

    /// Whether its values are text, of any kind.
    pub fn holds_text(&self) -> bool {
        matches!(self, Self::String | Self::Json)
    }

    /// What the values are if they lie in the field's column: single numbers and small arrays.
    pub fn values(&self) -> Option<ArrayType> {
        match self {
            Self::Scalar(dtype) => Some(ArrayType::scalar(*dtype)),
            Self::Array(array) if array.nbytes().is_some_and(|n| (1..=MAX_VALUE).contains(&n)) => Some(array.clone()),
            _ => None,
        }
    }

    /// The element type and shape of arrays that are payloads.
    pub(crate) fn payload_array(&self) -> Option<&ArrayType> {
        match self {
            Self::Array(array) if self.has_payloads() => Some(array),
            _ => None,
        }
    }

    /// Its payloads start at multiples of this.
    pub(crate) fn alignment(&self) -> u64 {
        match self {
            Self::Image | Self::Bytes => 8,
            Self::Array(_) | Self::List(_) => 64,
            Self::String | Self::Json | Self::Scalar(_) => 1,
        }
    }

    /// How many columns a field has.
    pub(crate) fn parts(&self) -> u8 {
        match self {
            Self::Image => 3,
            // One variable dimension follows from the number of bytes.
            Self::Array(array) if array.variable() > 1 => 1 + array.variable() as u8,
            _ => 1,
        }
    }

    /// What a column is called behind the field's name, in messages and by [`Reader::column`](crate::Reader::column).
    pub(crate) fn part_suffix(&self, part: Part) -> String {
        match (self, part) {
            (_, Part::MAIN) => String::new(),
            (Self::Image, Part::WIDTH) => ".width".to_owned(),
            (Self::Image, Part::HEIGHT) => ".height".to_owned(),
            (_, Part(number)) => format!(".dim{number}"),
        }
    }

    /// What the entries of one of the field's columns are, if they are values that a user may ask for.
    pub(crate) fn column_type(&self, part: Part) -> Option<ArrayType> {
        match (self, part) {
            (_, Part::MAIN) => self.values(),
            (Self::Image, Part::WIDTH | Part::HEIGHT) => Some(ArrayType::scalar(DType::UInt32)),
            _ => None,
        }
    }

    /// The encoding and the entry width of one of the field's columns; `None` if the type has no such part.
    pub(crate) fn column(&self, part: Part) -> Option<(Encoding, u16)> {
        if part.0 >= self.parts() {
            return None;
        }
        Some(match (self, part) {
            (_, Part::MAIN) => match self.values().and_then(|values| values.nbytes()) {
                Some(bytes) => (Encoding::Values, bytes as u16),
                None => (Encoding::Extents, 32),
            },
            (Self::Image, _) => (Encoding::Values, 4),
            _ => (Encoding::Values, 8),
        })
    }
}

impl fmt::Display for FieldType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Array(array) => array.fmt(f),
            Self::List(item) => write!(f, "list({item})"),
            other => f.write_str(other.name()),
        }
    }
}

fn compression_from(value: Value, kind: &FieldType) -> std::result::Result<Compression, BadType> {
    if *kind == FieldType::Image {
        return Err(BadType::Wrong("is an image: images are compressed already".to_owned()));
    }
    if !kind.has_payloads() {
        return Err(BadType::Wrong(format!("is {kind}: its values lie in an index column, which is not compressed")));
    }
    Compression::from_value(value).map_err(|bad| match bad {
        BadCompression::Unknown(codec) => BadType::Unknown(format!("{kind}, compressed by {codec}")),
        BadCompression::Wrong(detail) => BadType::Wrong(format!("has a compression that is not allowed: {detail}")),
    })
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
    /// How its payloads are compressed, if they are.
    pub compression: Option<Compression>,
    /// Keys that a later minor revision put there: kept as they are.
    other: Map<String, Value>,
}

impl Field {
    fn new(id: u32, name: &str, kind: FieldType) -> Self {
        Self { id, name: name.to_owned(), kind, compression: None, other: Map::new() }
    }

    /// Reads a row without its id and name.
    fn from_row(id: u32, name: &str, mut row: Map<String, Value>) -> std::result::Result<Self, BadType> {
        let kind = FieldType::from_row(&mut row)?;
        let compression = row.remove("compression").filter(|value| !value.is_null());
        let compression = compression.map(|value| compression_from(value, &kind)).transpose()?;
        row.remove("id");
        row.remove("name");
        Ok(Self { compression, other: row, ..Self::new(id, name, kind) })
    }

    fn to_row(&self) -> Value {
        let mut row = self.other.clone();
        row.insert("id".to_owned(), json!(self.id));
        row.insert("name".to_owned(), json!(self.name));
        self.kind.put_into(&mut row);
        if let Some(compression) = &self.compression {
            row.insert("compression".to_owned(), compression.to_value());
        }
        Value::Object(row)
    }
}

/// The ordered list of a file's fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema {
    fields: Vec<Field>,
}

impl Schema {
    /// Makes a schema of new fields, numbered from 1 in the order given.
    ///
    /// # Errors
    /// [`Error::Schema`]: no field, too many, or a name that is empty, used twice or has a dot in it.
    pub fn new<'a>(fields: impl IntoIterator<Item = (&'a str, FieldType)>) -> Result<Self> {
        let fields = (1..).zip(fields).map(|(id, (name, kind))| Field::new(id, name, kind));
        let schema = Self { fields: fields.collect() };
        schema.check().map_err(Error::Schema)?;
        Ok(schema)
    }

    /// Makes a schema of new fields from rows `[{"name": .., "type": ..}, ..]`; ids are given anew.
    ///
    /// # Errors
    /// [`Error::Schema`], as [`Schema::new`], and for a type that is not known.
    pub fn from_json(text: &str) -> Result<Self> {
        let rows: Vec<Value> = serde_json::from_str(text).map_err(|e| Error::Schema(e.to_string()))?;
        let mut fields = Vec::with_capacity(rows.len().min(MAX_FIELDS));
        for (id, row) in (1..).zip(rows) {
            let name = row["name"].as_str().ok_or_else(|| Error::Schema("a field has no name".to_owned()))?.to_owned();
            let Value::Object(row) = row else { return Err(Error::Schema(format!("field {name:?} is no object"))) };
            fields.push(Field::from_row(id, &name, row).map_err(|bad| match bad {
                BadType::Unknown(kind) => Error::Schema(format!("field {name:?}: unknown type {kind:?}")),
                BadType::Wrong(detail) => Error::Schema(format!("field {name:?} {detail}")),
            })?);
        }
        let schema = Self { fields };
        schema.check().map_err(Error::Schema)?;
        Ok(schema)
    }

    /// The fields as JSON rows with id, name and type.
    pub fn to_json(&self) -> String {
        self.to_value().to_string()
    }

    fn to_value(&self) -> Value {
        Value::Array(self.fields.iter().map(Field::to_row).collect())
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
            if field.name.len() > MAX_NAME_BYTES {
                let (bytes, start) = (field.name.len(), field.name.chars().take(32).collect::<String>());
                return Err(format!("field name {start:?}... of {bytes} bytes: the limit is {MAX_NAME_BYTES}"));
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

    /// The same fields and one more.
    ///
    /// # Errors
    /// As [`Schema::new`], as text.
    pub(crate) fn with(&self, field: &Field) -> std::result::Result<Self, String> {
        let schema = Self { fields: self.fields.iter().chain([field]).cloned().collect() };
        schema.check()?;
        Ok(schema)
    }

    pub(crate) fn remove(&mut self, position: usize) -> Field {
        self.fields.remove(position)
    }

    /// The position of a field.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|f| f.name == name)
    }

    /// Whether both have the same names and types in the same order; ids do not count.
    pub fn same_fields(&self, other: &Self) -> bool {
        let key = |f: &Field| (f.name.clone(), f.kind.clone());
        self.fields.iter().map(key).eq(other.fields.iter().map(key))
    }

    /// The first field whose payloads could not be compressed as `given` asks, with both compressions as text.
    pub(crate) fn other_compression(&self, given: &Self) -> Option<(String, String)> {
        let text = |c: Option<&Compression>| c.map_or_else(|| "none".to_owned(), Compression::describe);
        self.fields.iter().zip(&given.fields).find_map(|(field, given)| {
            let (found, wanted) = (field.compression.as_ref(), given.compression.as_ref()?);
            let fits = found.map_or(wanted.is_auto(), |found| wanted.fits(found));
            let named = |c| format!("{{{}: {}, compression {}}}", field.name, field.kind, text(c));
            (!fits).then(|| (named(found), named(Some(wanted))))
        })
    }

    /// Takes over what `given`, of the same fields, asks for.
    pub(crate) fn take_compression(&mut self, given: &Self) {
        for (field, given) in self.fields.iter_mut().zip(&given.fields) {
            if given.compression.is_some() {
                field.compression.clone_from(&given.compression);
            }
        }
    }

    /// What all dictionaries that the fields name have together.
    pub(crate) fn dictionary_bytes(&self) -> u64 {
        let all = self.fields.iter().filter_map(|f| f.compression.as_ref()).flat_map(|c| &c.dictionaries);
        all.fold(0, |bytes, dictionary| bytes.saturating_add(dictionary.length))
    }

    /// Leaves out where dictionaries lie: in another file they do not.
    pub(crate) fn forget_dictionaries(&mut self) {
        self.fields.iter_mut().filter_map(|f| f.compression.as_mut()).for_each(|c| c.dictionaries.clear());
    }

    /// Says how the payloads of a field are compressed from now on.
    pub(crate) fn set_compression(&mut self, id: u32, compression: Option<Compression>) {
        if let Some(field) = self.fields.iter_mut().find(|field| field.id == id) {
            field.compression = compression;
        }
    }

    /// The fields as text for messages: `{image: image, label: int64}`.
    pub fn describe(&self) -> String {
        let parts: Vec<_> = self.fields.iter().map(|f| format!("{}: {}", f.name, f.kind)).collect();
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
        self.to_value(self.user.clone()).to_string().into_bytes()
    }

    /// How many bytes [`Document::encode`] would make, without making them.
    pub(crate) fn encoded_len(&self) -> u64 {
        /// Counts what is written.
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
        // Neither counting nor maps with keys of text can fail.
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
        let above = self.schema.fields.iter().map(|f| u64::from(f.id)).max().unwrap_or(0) + 1;
        self.other.get("next_field_id").and_then(Value::as_u64).unwrap_or(0).max(above)
    }

    /// An id that no field of the file has ever had.
    ///
    /// # Errors
    /// There is none left, as text.
    pub(crate) fn free_id(&self) -> std::result::Result<u32, String> {
        u32::try_from(self.next_id()).map_err(|_| "the file's field ids are used up".to_owned())
    }

    /// Keeps an id from being given to another field.
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
            let Value::Object(row) = row else { return Err(bad(format!("field {name:?} is no object"))) };
            fields.push(Field::from_row(id, &name, row).map_err(|wrong| match wrong {
                BadType::Unknown(kind) => {
                    let what = format!("field {name:?} has the type {kind:?}");
                    Error::Unsupported { path: path.to_owned(), what }
                }
                BadType::Wrong(detail) => bad(format!("field {name:?} {detail}")),
            })?);
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
