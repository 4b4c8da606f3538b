//! A file that uses every feature of the format, and everything that a reader finds in it.

use std::path::Path;

use fastrecord_core::image::{JpegOptions, crop_index, encode_jpeg};
use fastrecord_core::{
    DType, Datum, Error, FieldIndex, FieldType, Mode, NewField, Reader, Records, Result, Schema, Value, Verify, Writer,
    encode_list, encode_numbers,
};
use serde_json::{Map, json};

use super::{EXTENTS, Forge, Rng, VALUES, column_bytes, never, options, put, seal_superblock};

/// Fields of every type, compressed and uncompressed. Scalars are named after their types.
fn fields() -> String {
    let mut rows = vec![
        json!({"name": "image", "type": "image"}),
        json!({"name": "raw", "type": "image"}),
        json!({"name": "data", "type": "bytes"}),
        json!({"name": "key", "type": "string"}),
        json!({"name": "doc", "type": "json", "compression": {"codec": "zstd", "level": 3}}),
        json!({"name": "packed", "type": "bytes", "compression": {"codec": "lz4"}}),
        json!({"name": "small", "type": "array", "dtype": "int16", "shape": [3]}),
        json!({"name": "odd", "type": "array", "dtype": "uint8", "shape": [35]}),
        json!({"name": "big", "type": "array", "dtype": "float32", "shape": [5, 5]}),
        json!({"name": "rows", "type": "array", "dtype": "float32", "shape": [null, 5]}),
        json!({"name": "masks", "type": "array", "dtype": "uint8", "shape": [null, 2, null]}),
        json!({"name": "numbers", "type": "list", "item": {"type": "int16"}}),
        json!({"name": "texts", "type": "list", "item": {"type": "string"}}),
        json!({"name": "boxes", "type": "list", "item": {"type": "array", "dtype": "float32", "shape": [null, 4]}}),
    ];
    rows.extend(DType::ALL.iter().map(|dtype| json!({"name": dtype.to_string(), "type": dtype.to_string()})));
    for (id, row) in (1..).zip(&mut rows) {
        row["id"] = json!(id);
    }
    serde_json::to_string(&rows).unwrap()
}

/// A value to be written.
enum Item {
    Image(Vec<u8>, Vec<u8>, (u32, u32)),
    Bytes(Vec<u8>),
    Text(String),
    Number(Vec<u8>),
    Array(Vec<u8>, Vec<u64>),
    List(Vec<u8>),
}

impl Item {
    fn value(&self) -> Value<'_> {
        match self {
            Self::Image(data, side, pixels) => {
                let crc = crc32c::crc32c_append(crc32c::crc32c(data), side);
                Value::Image { data, side, size: *pixels, crc }
            }
            Self::Bytes(data) => Value::Bytes(data),
            Self::Text(text) => Value::Str(text),
            Self::Number(bytes) => Value::Number(bytes),
            Self::Array(data, shape) => Value::Array { data, shape },
            Self::List(bytes) => Value::List(bytes),
        }
    }
}

/// Pixels in the raw storage format.
fn raw(rng: &mut Rng, width: u32, height: u32) -> Vec<u8> {
    let mut data = format!("P6\n{width} {height}\n255\n").into_bytes();
    data.extend(rng.bytes(3 * (width * height) as usize));
    data
}

fn jpeg(width: u32, height: u32) -> Vec<u8> {
    let pixels: Vec<u8> = (0..3 * width * height).map(|i| (i / 7 % 251) as u8).collect();
    encode_jpeg(&pixels, width, height, &JpegOptions::default()).unwrap()
}

fn item(rng: &mut Rng, name: &str, kind: &FieldType, record: u64, most: u64) -> Item {
    let length = |rng: &mut Rng| if rng.chance(15) { 0 } else { rng.below(most + 1) as usize };
    match kind {
        FieldType::Image if name == "image" && record % 20 == 7 => {
            let data = jpeg(112, 96);
            let index = crop_index(&data).unwrap();
            Item::Image(data, index, (112, 96))
        }
        FieldType::Image if name == "image" && record % 20 == 3 => Item::Image(jpeg(24, 16), vec![], (24, 16)),
        FieldType::Image => {
            let (width, height) = (1 + rng.below(5) as u32, 1 + rng.below(4) as u32);
            Item::Image(raw(rng, width, height), vec![], (width, height))
        }
        FieldType::Bytes if name == "packed" => {
            let length = 40 + length(rng);
            Item::Bytes(rng.bytes(length).iter().map(|byte| byte % 3).collect())
        }
        FieldType::Bytes => {
            let length = length(rng);
            Item::Bytes(rng.bytes(length))
        }
        FieldType::String => Item::Text(format!("größe/{record}{}", "猫".repeat(rng.below(4) as usize))),
        FieldType::Json => {
            let word = |rng: &mut Rng| ["alpha", "beta", "gamma", "delta"][rng.below(4) as usize];
            let words: Vec<&str> = (0..12).map(|_| word(rng)).collect();
            let text =
                json!({"caption": words.join(" of the "), "number": rng.below(1000), "boxes": [1, 2, rng.below(9)]});
            Item::Text(text.to_string())
        }
        FieldType::Scalar(DType::Bool) => Item::Number(vec![rng.below(2) as u8]),
        FieldType::Scalar(dtype) => Item::Number(rng.bytes(dtype.size())),
        FieldType::Array(array) => {
            let shape: Vec<u64> = array.shape().iter().map(|dim| dim.unwrap_or_else(|| rng.below(4))).collect();
            let bytes = array.nbytes_of(&shape).unwrap() as usize;
            Item::Array(rng.bytes(bytes), shape)
        }
        FieldType::List(kind) => {
            let count = rng.below(4);
            if let FieldType::Scalar(dtype) = **kind {
                return Item::List(encode_numbers(dtype, &rng.bytes(dtype.size() * count as usize)));
            }
            let items: Vec<Item> = (0..count).map(|_| item(rng, name, kind, record, most)).collect();
            Item::List(encode_list(kind, &items.iter().map(Item::value).collect::<Vec<_>>()).unwrap())
        }
        other => panic!("make values of {other}"),
    }
}

/// Two records with most fields missing, assembled by hand: writers do not produce such records.
fn first(rng: &mut Rng) -> Vec<u8> {
    let mut forge = Forge::new(&fields(), 2);
    forge.id.copy_from_slice(&rng.bytes(16));
    let id = forge.id;
    put(&mut forge.bytes, 16, &id);
    seal_superblock(&mut forge.bytes);
    forge.metadata = json!({
        "schema": serde_json::from_str::<serde_json::Value>(&fields()).unwrap(), "next_field_id": 40, "complete": true,
        "metadata": {"classes": ["cat", "dög"], "made": {"by": [1.5, null]}},
    })
    .to_string()
    .into_bytes();
    for field in [1, 2] {
        let images = [raw(rng, 2, 3), raw(rng, 2, 3)];
        let extents: Vec<u8> = images.iter().flat_map(|image| forge.payload(image)).collect();
        forge.chunk(field, 0, EXTENTS, 32, 0, &extents);
        forge.chunk(field, 1, VALUES, 4, 0, &[2, 0, 0, 0, 2, 0, 0, 0]);
        forge.chunk(field, 2, VALUES, 4, 0, &[3, 0, 0, 0, 3, 0, 0, 0]);
    }
    let mut missing = [0; 32];
    missing[29] = 1;
    let there = forge.payload(&rng.bytes(30));
    forge.chunk(3, 0, EXTENTS, 32, 0, &[there, missing].concat());
    let keys: Vec<u8> = [&b"first"[..], b"second"].iter().flat_map(|key| forge.payload(key)).collect();
    forge.chunk(4, 0, EXTENTS, 32, 0, &keys);
    forge.build(|_| ())
}

/// Writes the file. `commits` lists the number of records that each commit adds; variable-length
/// values have about `most` bytes. Returns the file as it was before its last session.
pub fn make(path: &Path, seed: u64, commits: &[u64], most: u64) -> Vec<u8> {
    let (mut rng, mut earlier) = (Rng(seed), Vec::new());
    std::fs::write(path, first(&mut rng)).unwrap();
    let halves = commits.split_at(commits.len() / 2);
    for (session, commits) in [halves.0, halves.1].into_iter().enumerate() {
        earlier = std::fs::read(path).unwrap();
        let mut writer = Writer::open(path, None, None, &options(Mode::Append)).unwrap();
        for &count in commits {
            for _ in 0..count {
                let record = writer.len();
                let fields = writer.schema().fields().to_vec();
                let items: Vec<Item> =
                    fields.iter().map(|field| item(&mut rng, &field.name, &field.kind, record, most)).collect();
                writer.append(&items.iter().map(Item::value).collect::<Vec<_>>()).unwrap();
            }
            writer.commit().unwrap();
        }
        if session == 0 {
            add_fields(&mut writer, &mut rng, most);
        } else {
            let mut user: Map<_, _> = writer.metadata().clone();
            user.insert("session".to_owned(), json!(session));
            writer.set_metadata(user).unwrap();
        }
        writer.close().unwrap();
    }
    earlier
}

/// Fields whose chunks cover the records of earlier commits; the first one has a dictionary.
fn add_fields(writer: &mut Writer, rng: &mut Rng, most: u64) {
    let trained = r#"{"name": "trained", "type": "json", "compression": {"codec": "zstd", "dictionary": 1024}}"#;
    let others = [r#"{"name": "later", "type": "bytes"}"#, r#"{"name": "score", "type": "float32"}"#];
    for row in [trained].into_iter().chain(others) {
        let field = Schema::from_json(&format!("[{row}]")).unwrap().fields()[0].clone();
        let (name, kind) = (&field.name, &field.kind);
        let filling: NewField = writer.start_field(&field).unwrap();
        for record in 0..writer.len() {
            let item = item(rng, name, kind, record, most);
            writer.fill(filling, &[item.value()]).unwrap();
        }
        writer.commit().unwrap();
    }
}

/// The values of one field (`None` if missing) and their widths and heights, or shapes.
pub type FieldContents = (String, Vec<Option<Vec<u8>>>, Vec<Vec<u64>>);

/// Reads everything in a file and verifies every checksum.
#[derive(Debug, Clone, PartialEq)]
pub struct Contents {
    pub fields: Vec<FieldContents>,
    pub user: Map<String, serde_json::Value>,
    pub complete: bool,
}

pub fn contents(reader: &Reader) -> Result<Contents> {
    contents_of(reader, &reader.run(0..reader.len())?)
}

/// The same as [`contents`], for some records.
pub fn contents_of(reader: &Reader, records: &Records<'_>) -> Result<Contents> {
    let mut fields = Vec::new();
    for (field, definition) in reader.schema().iter() {
        let (name, kind) = (definition.name.clone(), &definition.kind);
        let values = if kind.holds_text() {
            let texts = reader.strings(field, records)?;
            texts.into_iter().map(|text| text.map(String::into_bytes)).collect()
        } else if kind.has_payloads() {
            let (bytes, ranges) = reader.read_batch_owned(field, records, Verify::Always, &never)?;
            let value = |(start, length): (u64, u64)| bytes[start as usize..(start + length) as usize].to_vec();
            ranges.into_iter().map(|range| range.map(value)).collect()
        } else {
            values_of(reader, field, records)?
        };
        let mut more = Vec::new();
        if *kind == FieldType::Image {
            for part in ["width", "height"] {
                let (_, bytes) = column_bytes(reader, &format!("{name}.{part}"))?;
                let all: Vec<u64> =
                    bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap()).into()).collect();
                more.push(records.iter().map(|&record| all[record as usize]).collect());
            }
        }
        if let FieldType::Array(_) = kind {
            more.push(reader.shapes(field, records)?);
        }
        fields.push((name, values, more));
    }
    Ok(Contents { fields, user: reader.metadata().clone(), complete: reader.complete() })
}

/// Values in a column that may be missing for some records.
fn values_of(reader: &Reader, field: FieldIndex, records: &Records<'_>) -> Result<Vec<Option<Vec<u8>>>> {
    match reader.values(field, records) {
        Err(Error::Missing { .. }) => {}
        bytes => {
            let bytes = bytes?;
            let width = bytes.len() / records.len().max(1);
            return Ok(bytes.chunks_exact(width.max(1)).map(|value| Some(value.to_vec())).collect());
        }
    }
    let one = |&record: &u64| {
        Ok(match reader.datum(field, record, Verify::Always)? {
            Datum::Missing => None,
            Datum::Values(bytes) => Some(bytes),
            Datum::Int(value) => Some(value.to_le_bytes().to_vec()),
            Datum::Float(value) => Some(value.to_bits().to_le_bytes().to_vec()),
            other => panic!("{other:?} of a column"),
        })
    };
    // Most records have a value; only records without one are read one by one.
    let there = records.partition_point(|&record| record < 2);
    let mut values: Vec<_> = records[..there].iter().map(one).collect::<Result<_>>()?;
    match reader.values(field, &reader.records(&records[there..]).unwrap()) {
        Err(Error::Missing { .. }) => values.extend(records[there..].iter().map(one).collect::<Result<Vec<_>>>()?),
        bytes => {
            let bytes = bytes?;
            let width = (bytes.len() / (records.len() - there).max(1)).max(1);
            values.extend(bytes.chunks_exact(width).map(|value| Some(value.to_vec())));
        }
    }
    Ok(values)
}
