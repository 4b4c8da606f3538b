//! Random values of every type, and the full content of a file for comparison.

use fastrecord_core::{DType, Field, FieldType, Reader, Result, Schema, Value, Verify, encode_list, encode_numbers};

use super::{Rng, column_bytes, never, png};

/// One value to be written.
#[derive(Debug, Clone)]
pub enum Item {
    Number(Vec<u8>),
    Text(String),
    Bytes(Vec<u8>),
    /// An image, its side bytes, and its size.
    Image(Vec<u8>, Vec<u8>, (u32, u32)),
    Array(Vec<u8>, Vec<u64>),
    List(Vec<u8>),
}

/// A value as read: its bytes, and the shape of an array, or the width and height of an image.
pub type Found = (Vec<u8>, Vec<u64>);

impl Item {
    pub fn value(&self) -> Value<'_> {
        match self {
            Self::Number(bytes) => Value::Number(bytes),
            Self::Text(text) => Value::Str(text),
            Self::Bytes(bytes) => Value::Bytes(bytes),
            Self::Image(data, beside, size) => {
                let crc = crc32c::crc32c_append(crc32c::crc32c(data), beside);
                Value::Image { data, side: beside, size: *size, crc }
            }
            Self::Array(data, shape) => Value::Array { data, shape },
            Self::List(bytes) => Value::List(bytes),
        }
    }

    /// The value as a reader returns it.
    pub fn found(&self) -> Found {
        match self {
            Self::Number(bytes) | Self::Bytes(bytes) | Self::List(bytes) => (bytes.clone(), vec![]),
            Self::Text(text) => (text.clone().into_bytes(), vec![]),
            Self::Image(data, _, (width, height)) => (data.clone(), vec![(*width).into(), (*height).into()]),
            Self::Array(data, shape) => (data.clone(), shape.clone()),
        }
    }
}

/// Types in schema notation: scalars of any kind, arrays in columns and payloads, of fixed and
/// variable shape, and lists.
const TYPES: [&str; 20] = [
    r#""type": "image""#,
    r#""type": "image""#,
    r#""type": "bytes""#,
    r#""type": "bytes""#,
    r#""type": "string""#,
    r#""type": "string""#,
    r#""type": "json""#,
    r#""type": "int64""#,
    r#""type": "int64""#,
    r#""type": "float64""#,
    r#""type": "bool""#,
    r#""type": "uint16""#,
    r#""type": "array", "dtype": "float32", "shape": [3]"#,
    r#""type": "array", "dtype": "uint8", "shape": [9, 8, 3]"#,
    r#""type": "array", "dtype": "float32", "shape": [null, 5]"#,
    r#""type": "array", "dtype": "uint8", "shape": [null, 2, null]"#,
    r#""type": "array", "dtype": "int64", "shape": [0, 3]"#,
    r#""type": "list", "item": {"type": "int16"}"#,
    r#""type": "list", "item": {"type": "string"}"#,
    r#""type": "list", "item": {"type": "array", "dtype": "float32", "shape": [null, 2]}"#,
];

/// "auto" is left out: it measures and may decide differently when a failure is reproduced.
const COMPRESSIONS: [&str; 4] = [
    r#"{"codec": "lz4"}"#,
    r#"{"codec": "zstd"}"#,
    r#"{"codec": "zstd", "level": 7}"#,
    r#"{"codec": "zstd", "dictionary": 512}"#,
];

/// A row of a schema: a field of any type, compressed in half of the cases if the type allows it.
fn random_row(rng: &mut Rng, name: &str) -> String {
    let kind = TYPES[rng.below(TYPES.len() as u64) as usize];
    let plain = format!(r#"{{"name": "{name}", {kind}}}"#);
    let schema = Schema::from_json(&format!("[{plain}]")).unwrap();
    let type_of = &schema.fields()[0].kind;
    if !type_of.has_payloads() || *type_of == FieldType::Image || rng.chance(50) {
        return plain;
    }
    let how = COMPRESSIONS[rng.below(COMPRESSIONS.len() as u64) as usize];
    format!(r#"{{"name": "{name}", {kind}, "compression": {how}}}"#)
}

pub fn random_field(rng: &mut Rng, name: &str) -> Field {
    Schema::from_json(&format!("[{}]", random_row(rng, name))).unwrap().fields()[0].clone()
}

/// A kind of side bytes that no reader knows.
const UNKNOWN_KIND: u8 = 255;

/// Up to five fields.
pub fn random_schema(rng: &mut Rng) -> Schema {
    let rows: Vec<String> = (0..=rng.below(5)).map(|i| random_row(rng, &format!("field {i}"))).collect();
    Schema::from_json(&format!("[{}]", rows.join(", "))).unwrap()
}

/// At most `most` bytes: noise, or words that compress and that a dictionary contains.
fn some_bytes(rng: &mut Rng, most: u64) -> Vec<u8> {
    const WORDS: [&str; 6] = ["train/n0144/", "val/n0217/", ".jpg, label ", "of a cat, ", "{\"seen\": ", " times, "];
    let length = if rng.chance(15) { 0 } else { rng.below(most + 1) as usize };
    if rng.chance(50) {
        return rng.bytes(length);
    }
    let mut out = Vec::with_capacity(length + 16);
    while out.len() < length {
        out.extend(WORDS[rng.below(6) as usize].bytes());
        out.push(b'0' + rng.below(10) as u8);
    }
    out.truncate(length);
    out
}

/// A value of a type; variable-length values have at most about `most` bytes.
pub fn random_item(rng: &mut Rng, kind: &FieldType, most: u64) -> Item {
    match kind {
        FieldType::Image => {
            let size = (1 + rng.below(70_000) as u32, 1 + rng.below(70_000) as u32);
            let data = png(size.0, size.1, &some_bytes(rng, most));
            let beside = if rng.chance(30) { [vec![UNKNOWN_KIND], rng.bytes(40)].concat() } else { Vec::new() };
            Item::Image(data, beside, size)
        }
        FieldType::Bytes => Item::Bytes(some_bytes(rng, most)),
        FieldType::String => Item::Text(some_bytes(rng, most / 4).iter().map(|byte| char::from(*byte)).collect()),
        FieldType::Json => Item::Text(format!(r#"{{"größe": [{}, null]}}"#, rng.below(1000))),
        FieldType::Scalar(DType::Bool) => Item::Number(vec![rng.below(2) as u8]),
        FieldType::Scalar(dtype) => Item::Number(rng.bytes(dtype.size())),
        FieldType::Array(array) => {
            let shape: Vec<u64> = array.shape().iter().map(|dim| dim.unwrap_or_else(|| rng.below(6))).collect();
            let bytes = array.nbytes_of(&shape).unwrap() as usize;
            Item::Array(rng.bytes(bytes), shape)
        }
        FieldType::List(item) => {
            let count = rng.below(4);
            if let FieldType::Scalar(dtype) = **item {
                return Item::List(encode_numbers(dtype, &rng.bytes(dtype.size() * count as usize)));
            }
            let items: Vec<Item> = (0..count).map(|_| random_item(rng, item, 50)).collect();
            Item::List(encode_list(item, &items.iter().map(Item::value).collect::<Vec<_>>()).unwrap())
        }
        other => panic!("make values of {other}"),
    }
}

fn words(reader: &Reader, name: &str) -> Result<Vec<u64>> {
    let (_, bytes) = column_bytes(reader, name)?;
    Ok(bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()).into()).collect())
}

/// Every value of a file by record and field, with checksums verified.
pub fn read_all(reader: &Reader) -> Result<Vec<Vec<Found>>> {
    let records = reader.run(0..reader.len()).unwrap();
    let mut rows = vec![Vec::with_capacity(reader.schema().fields().len()); records.len()];
    for (field, definition) in reader.schema().iter() {
        let kind = &definition.kind;
        let (bytes, starts) = if kind.holds_text() {
            let texts = reader.strings(field, &records)?;
            for (row, text) in rows.iter_mut().zip(texts) {
                row.push((text.expect("every record has a value").into_bytes(), vec![]));
            }
            continue;
        } else if kind.has_payloads() {
            reader.read_batch_copy(field, &records, Verify::Always, &never)?
        } else {
            let bytes = reader.values(field, &records)?;
            let width = bytes.len().checked_div(records.len()).unwrap_or_default() as u64;
            (bytes, (0..=records.len() as u64).map(|i| i * width).collect())
        };
        let (shapes, dims) = match kind {
            FieldType::Array(array) => (reader.shapes(field, &records)?, array.shape().len()),
            FieldType::Image => {
                let widths = words(reader, &format!("{}.width", definition.name))?;
                let heights = words(reader, &format!("{}.height", definition.name))?;
                (widths.into_iter().zip(heights).flat_map(|(width, height)| [width, height]).collect(), 2)
            }
            _ => (vec![], 0),
        };
        for (i, row) in rows.iter_mut().enumerate() {
            let value = &bytes[starts[i] as usize..starts[i + 1] as usize];
            row.push((value.to_vec(), shapes[i * dims..(i + 1) * dims].to_vec()));
        }
    }
    Ok(rows)
}
