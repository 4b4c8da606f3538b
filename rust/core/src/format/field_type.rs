//! `FieldType`: the types of fields, their columns, and their encoding in schema rows.

use std::fmt;

use serde_json::{Map, Value, json};

use crate::format::chunk::{Encoding, Part};
use crate::format::dtype::{ArrayType, DType};
use crate::limits::MAX_DIMS;

/// Arrays of up to this many bytes are stored in their column; larger ones are payloads.
const MAX_VALUE: u64 = 64;

/// The type of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FieldType {
    /// An encoded image, kept byte for byte. Its width and height are index columns.
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
    /// Any number of values of one type, which is not a list.
    List(Box<FieldType>),
}

impl From<DType> for FieldType {
    fn from(dtype: DType) -> Self {
        Self::Scalar(dtype)
    }
}

/// Why a type in a schema row is refused.
pub(crate) enum BadType {
    /// A later minor revision may support it.
    Unknown(String),
    Wrong(String),
}

impl FieldType {
    /// The name in the file and in the API, without dtype, shape or item.
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

    /// Removes a type and its further keys from a schema row.
    pub(crate) fn from_row(row: &mut Map<String, Value>) -> std::result::Result<Self, BadType> {
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
                _ => return Err(BadType::Wrong(format!("has a dimension that is not a whole number: {dim}"))),
            }
        }
        ArrayType::new(dtype, &shape).map(Self::Array).map_err(|detail| BadType::Wrong(format!("is of {detail}")))
    }

    /// Puts the type into a schema row.
    pub(crate) fn put_into(&self, row: &mut Map<String, Value>) {
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

    /// Whether its values are payloads, which extents point to.
    pub fn has_payloads(&self) -> bool {
        self.values().is_none()
    }

    /// Whether its values are bytes: images or other data.
    pub fn holds_bytes(&self) -> bool {
        matches!(self, Self::Image | Self::Bytes)
    }

    /// Whether its values are text of any kind.
    pub fn holds_text(&self) -> bool {
        matches!(self, Self::String | Self::Json)
    }

    /// The type of the values if they are stored in the field's column: single numbers and small
    /// arrays.
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

    /// The alignment of its payloads, in bytes.
    pub(crate) fn alignment(&self) -> u64 {
        match self {
            Self::Image | Self::Bytes => 8,
            Self::Array(_) | Self::List(_) => 64,
            Self::String | Self::Json | Self::Scalar(_) => 1,
        }
    }

    /// The number of columns of the field.
    pub(crate) fn parts(&self) -> u8 {
        match self {
            Self::Image => 4,
            // The number of bytes determines a single variable dimension.
            Self::Array(array) if array.variable() > 1 => 1 + array.variable() as u8,
            _ => 1,
        }
    }

    /// The suffix of a column's name after the field's name, in messages and for
    /// [`Reader::column`](crate::Reader::column).
    pub(crate) fn part_suffix(&self, part: Part) -> String {
        match (self, part) {
            (_, Part::MAIN) => String::new(),
            (Self::Image, Part::WIDTH) => ".width".to_owned(),
            (Self::Image, Part::HEIGHT) => ".height".to_owned(),
            (Self::Image, Part::SIDE) => ".side".to_owned(),
            (_, Part(number)) => format!(".dim{number}"),
        }
    }

    /// The type of the entries of a column, if a user may read them as values.
    pub(crate) fn column_type(&self, part: Part) -> Option<ArrayType> {
        match (self, part) {
            (_, Part::MAIN) => self.values(),
            (Self::Image, Part::WIDTH | Part::HEIGHT) => Some(ArrayType::scalar(DType::UInt32)),
            _ => None,
        }
    }

    /// The columns of the field, with their encodings and entry widths.
    pub(crate) fn columns(&self) -> impl Iterator<Item = (Part, Encoding, u16)> {
        (0..self.parts())
            .map(Part)
            .filter_map(|part| self.column(part).map(|(encoding, width)| (part, encoding, width)))
    }

    /// The encoding and entry width of one of the field's columns; `None` if the type has no such
    /// part.
    pub(crate) fn column(&self, part: Part) -> Option<(Encoding, u16)> {
        if part.0 >= self.parts() {
            return None;
        }
        Some(match (self, part) {
            (_, Part::MAIN) => match self.values().and_then(|values| values.nbytes()) {
                Some(bytes) => (Encoding::Values, bytes as u16),
                None => (Encoding::Extents, 32),
            },
            (Self::Image, Part::SIDE) => (Encoding::Extents, 32),
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
