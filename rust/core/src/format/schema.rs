//! `Schema` and `Field`: the fields of a file, and their rows as JSON.

use std::ops::Index;

use serde_json::{Map, Value, json};

use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::format::compression::{BadCompression, Choice, Compression};
use crate::format::field_type::{BadType, FieldType};
use crate::limits::{MAX_FIELDS, MAX_NAME_BYTES};

/// The place of a field in a schema, which [`Schema::find`] and [`Schema::iter`] hand out.
///
/// Indexing the schema of another file with it may panic or return another field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FieldIndex(usize);

impl FieldIndex {
    /// The position in [`Schema::fields`].
    pub fn position(self) -> usize {
        self.0
    }
}

/// A named, typed part of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Never reused within a file. The directory identifies columns by it.
    pub id: u32,
    /// Unique within the file.
    pub name: String,
    /// The type of its values.
    pub kind: FieldType,
    /// How its payloads are compressed, if they are.
    pub compression: Option<Compression>,
    /// What the first values decide. A file has only fields without a choice.
    pub choice: Option<Choice>,
    /// Keys of a later minor revision, kept unchanged.
    other: Map<String, Value>,
}

impl Field {
    fn new(id: u32, name: &str, kind: FieldType) -> Self {
        Self { id, name: name.to_owned(), kind, compression: None, choice: None, other: Map::new() }
    }

    /// Decodes a row. The id and name come from the caller.
    pub(crate) fn from_row(id: u32, name: &str, mut row: Map<String, Value>) -> std::result::Result<Self, BadType> {
        let kind = FieldType::from_row(&mut row)?;
        let compression = row.remove("compression").filter(|value| !value.is_null());
        let compression = compression.map(|value| compression_from(value, &kind)).transpose()?;
        row.remove("id");
        row.remove("name");
        Ok(Self { compression, other: row, ..Self::new(id, name, kind) })
    }

    /// As [`Field::from_row`], for a row that a caller passes: it may leave a choice to the first
    /// values.
    fn from_request(id: u32, name: &str, mut row: Map<String, Value>) -> std::result::Result<Self, BadType> {
        let Some(Value::Object(compression)) = row.get_mut("compression") else { return Self::from_row(id, name, row) };
        let choice = Choice::take(compression);
        if matches!(choice, Ok(Some(Choice::Codec))) {
            compression.insert("codec".to_owned(), json!(Codec::Lz4.name())); // stands for any codec
        }
        let mut field = Self::from_row(id, name, row)?;
        field.choice = choice.map_err(|bad| bad_compression(bad, &field.kind))?;
        if field.choice == Some(Choice::Codec) {
            field.compression = None;
        }
        Ok(field)
    }

    /// The row as a caller asks for it, with the choice.
    fn to_request(&self) -> Value {
        let mut row = self.to_row();
        match self.choice {
            None => {}
            Some(Choice::Codec) => row["compression"] = json!({"codec": "auto"}),
            Some(Choice::Dictionary(bytes)) => row["compression"]["dictionary"] = json!(bytes),
        }
        row
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

fn compression_from(value: Value, kind: &FieldType) -> std::result::Result<Compression, BadType> {
    if *kind == FieldType::Image {
        return Err(BadType::Wrong("is an image: images are compressed already".to_owned()));
    }
    if !kind.has_payloads() {
        return Err(BadType::Wrong(format!("is {kind}: its values lie in an index column, which is not compressed")));
    }
    Compression::from_value(value).map_err(|bad| bad_compression(bad, kind))
}

fn bad_compression(bad: BadCompression, kind: &FieldType) -> BadType {
    match bad {
        BadCompression::Unknown(codec) => BadType::Unknown(format!("{kind}, compressed by {codec}")),
        BadCompression::Wrong(detail) => BadType::Wrong(format!("has a compression that is not allowed: {detail}")),
    }
}

/// The ordered list of a file's fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema {
    fields: Vec<Field>,
}

impl Schema {
    /// Makes a schema of new fields, numbered from 1 in the given order.
    ///
    /// # Errors
    /// [`Error::Schema`]: no field, too many fields, or a name that is empty, duplicate or contains
    /// a dot.
    pub fn new<'a>(fields: impl IntoIterator<Item = (&'a str, FieldType)>) -> Result<Self> {
        let fields = (1..).zip(fields).map(|(id, (name, kind))| Field::new(id, name, kind));
        Self::of(fields.collect()).map_err(Error::Schema)
    }

    /// Makes a schema of fields that already have ids.
    ///
    /// # Errors
    /// As [`Schema::new`], as text.
    pub(crate) fn of(fields: Vec<Field>) -> std::result::Result<Self, String> {
        let schema = Self { fields };
        schema.check()?;
        Ok(schema)
    }

    /// Makes a schema of new fields from rows `[{"name": .., "type": ..}, ..]` and assigns new ids.
    ///
    /// # Errors
    /// [`Error::Schema`], as [`Schema::new`], and for an unknown type.
    pub fn from_json(text: &str) -> Result<Self> {
        let rows: Vec<Value> = serde_json::from_str(text).map_err(|e| Error::Schema(e.to_string()))?;
        let mut fields = Vec::with_capacity(rows.len().min(MAX_FIELDS));
        for (id, row) in (1..).zip(rows) {
            let name = row["name"].as_str().ok_or_else(|| Error::Schema("a field has no name".to_owned()))?.to_owned();
            let Value::Object(row) = row else { return Err(Error::Schema(format!("field {name:?} is not an object"))) };
            fields.push(Field::from_request(id, &name, row).map_err(|bad| match bad {
                BadType::Unknown(kind) => Error::Schema(format!("field {name:?}: unknown type {kind:?}")),
                BadType::Wrong(detail) => Error::Schema(format!("field {name:?} {detail}")),
            })?);
        }
        Self::of(fields).map_err(Error::Schema)
    }

    /// The fields as JSON rows with id, name and type, as [`Schema::from_json`] takes them.
    pub fn to_json(&self) -> String {
        Value::Array(self.fields.iter().map(Field::to_request).collect()).to_string()
    }

    /// The rows that a file holds.
    pub(crate) fn to_value(&self) -> Value {
        Value::Array(self.fields.iter().map(Field::to_row).collect())
    }

    fn check(&self) -> std::result::Result<(), String> {
        if self.fields.is_empty() || self.fields.len() > MAX_FIELDS {
            return Err(format!("{} fields: a schema has 1 to {MAX_FIELDS}", self.fields.len()));
        }
        for (i, field) in self.fields.iter().enumerate() {
            // The dot separates the names of derived columns: `image.width`.
            if field.name.is_empty() || field.name.contains('.') || field.name.contains('\0') {
                return Err(format!(
                    "field name {:?}: a name has at least one character, no dot and no NUL",
                    field.name
                ));
            }
            if field.name.len() > MAX_NAME_BYTES {
                let (bytes, start) = (field.name.len(), field.name.chars().take(32).collect::<String>());
                return Err(format!("field name {start:?}... of {bytes} bytes: the limit is {MAX_NAME_BYTES}"));
            }
            if field.id == 0 || self.fields[..i].iter().any(|f| f.name == field.name || f.id == field.id) {
                return Err(format!("field {:?} (id {}) occurs twice", field.name, field.id));
            }
        }
        Ok(())
    }

    /// All fields, in order.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The same fields plus one more.
    ///
    /// # Errors
    /// As [`Schema::new`], as text.
    pub(crate) fn with(&self, field: &Field) -> std::result::Result<Self, String> {
        Self::of(self.fields.iter().chain([field]).cloned().collect())
    }

    pub(crate) fn remove(&mut self, position: usize) -> Field {
        self.fields.remove(position)
    }

    /// The fields with their indices, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (FieldIndex, &Field)> {
        self.fields.iter().enumerate().map(|(position, field)| (FieldIndex(position), field))
    }

    /// The index of a field.
    pub fn find(&self, name: &str) -> Option<FieldIndex> {
        self.position(name).map(FieldIndex)
    }

    /// The position of a field.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|f| f.name == name)
    }

    /// Whether both have the same names and types in the same order. Ids are ignored.
    pub fn same_fields(&self, other: &Self) -> bool {
        let key = |f: &Field| (f.name.clone(), f.kind.clone());
        self.fields.iter().map(key).eq(other.fields.iter().map(key))
    }

    /// The first field that cannot be compressed as `given` asks, with both compressions as text.
    pub(crate) fn other_compression(&self, given: &Self) -> Option<(String, String)> {
        let text = |c: Option<&Compression>| c.map_or_else(|| "none".to_owned(), Compression::describe);
        self.fields.iter().zip(&given.fields).find_map(|(field, given)| {
            let (found, wanted) = (field.compression.as_ref(), given.compression.as_ref()?);
            let fits = found.is_some_and(|found| wanted.fits(found));
            let named = |c| format!("{{{}: {}, compression {}}}", field.name, field.kind, text(c));
            (!fits).then(|| (named(found), named(Some(wanted))))
        })
    }

    /// Takes over the compressions of `given`, which has the same fields.
    pub(crate) fn take_compression(&mut self, given: &Self) {
        for (field, given) in self.fields.iter_mut().zip(&given.fields) {
            if given.compression.is_some() || given.choice.is_some() {
                field.compression.clone_from(&given.compression);
                field.choice = given.choice;
            }
        }
    }

    /// The total bytes of all dictionaries that the fields refer to.
    pub(crate) fn dictionary_bytes(&self) -> u64 {
        let all = self.fields.iter().filter_map(|f| f.compression.as_ref()).flat_map(|c| &c.dictionaries);
        all.fold(0, |bytes, dictionary| bytes.saturating_add(dictionary.length))
    }

    /// Drops the locations of dictionaries: they do not apply to another file.
    pub(crate) fn forget_dictionaries(&mut self) {
        self.fields.iter_mut().filter_map(|f| f.compression.as_mut()).for_each(|c| c.dictionaries.clear());
    }

    /// The fields, to change how further payloads of them are compressed.
    pub(crate) fn fields_mut(&mut self) -> &mut [Field] {
        &mut self.fields
    }

    /// The fields as text for messages: `{image: image, label: int64}`.
    pub fn describe(&self) -> String {
        let parts: Vec<_> = self.fields.iter().map(|f| format!("{}: {}", f.name, f.kind)).collect();
        format!("{{{}}}", parts.join(", "))
    }
}

impl Index<FieldIndex> for Schema {
    type Output = Field;

    fn index(&self, field: FieldIndex) -> &Field {
        &self.fields[field.0]
    }
}
