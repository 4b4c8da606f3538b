//! Scalars, arrays, JSON and lists: values round-trip, damaged or hostile ones are errors, and a
//! file of all types stays readable.

use crate::common;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{EXTENTS, Forge, Rng, VALUES, extent, folder, never, open, options};
use fastrecord_core::{
    Access, ArrayType, Column, DType, Damage, Depth, Error, FieldType, Mode, Reader, Result, Schema, Value, Verify,
    Writer, encode_list, encode_numbers, hex, verify,
};
use proptest::prelude::*;

fn array(dtype: DType, shape: &[Option<u64>]) -> FieldType {
    FieldType::Array(ArrayType::new(dtype, shape).unwrap())
}

fn list(item: FieldType) -> FieldType {
    FieldType::List(Box::new(item))
}

/// A value as read: its bytes and, for an array, its shape.
type Found = (Vec<u8>, Vec<u64>);

/// One value to be written.
#[derive(Debug, Clone)]
enum Item {
    Number(Vec<u8>),
    Text(String),
    Array(Vec<u8>, Vec<u64>),
    List(Vec<u8>),
}

impl Item {
    fn value(&self) -> Value<'_> {
        match self {
            Self::Number(bytes) => Value::Number(bytes),
            Self::Text(text) => Value::Str(text),
            Self::Array(data, shape) => Value::Array { data, shape },
            Self::List(bytes) => Value::List(bytes),
        }
    }

    /// The value as a reader returns it.
    fn read(&self) -> Found {
        match self {
            Self::Number(bytes) | Self::List(bytes) => (bytes.clone(), vec![]),
            Self::Text(text) => (text.clone().into_bytes(), vec![]),
            Self::Array(data, shape) => (data.clone(), shape.clone()),
        }
    }
}

/// A field of every scalar type, and of every other type that was added later than the first ones.
fn every_type() -> Vec<(String, FieldType)> {
    let mut fields: Vec<(String, FieldType)> =
        DType::ALL.iter().map(|&dtype| (dtype.to_string(), dtype.into())).collect();
    let rows = array(DType::Float32, &[None, Some(5)]);
    fields.extend([
        ("vector".to_owned(), array(DType::Float32, &[Some(3)])),
        ("largest value".to_owned(), array(DType::UInt8, &[Some(64)])),
        ("odd".to_owned(), array(DType::UInt8, &[Some(7), Some(5)])),
        ("image".to_owned(), array(DType::UInt8, &[Some(9), Some(8), Some(3)])),
        ("point".to_owned(), array(DType::Complex128, &[])),
        ("nothing".to_owned(), array(DType::Int64, &[Some(0), Some(3)])),
        ("rows".to_owned(), rows.clone()),
        ("masks".to_owned(), array(DType::UInt8, &[None, Some(2), None])),
        ("meta".to_owned(), FieldType::Json),
        ("numbers".to_owned(), list(DType::Int16.into())),
        ("texts".to_owned(), list(FieldType::String)),
        ("boxes".to_owned(), list(rows)),
    ]);
    fields
}

fn schema() -> Schema {
    let fields = every_type();
    Schema::new(fields.iter().map(|(name, kind)| (name.as_str(), kind.clone()))).unwrap()
}

fn random_array(rng: &mut Rng, array: &ArrayType) -> Item {
    let shape: Vec<u64> = array.shape().iter().map(|dim| dim.unwrap_or_else(|| rng.below(5))).collect();
    let bytes = array.nbytes_of(&shape).unwrap() as usize;
    Item::Array(rng.bytes(bytes), shape)
}

fn random_item(rng: &mut Rng, kind: &FieldType) -> Item {
    match kind {
        FieldType::Scalar(DType::Bool) => Item::Number(vec![rng.below(2) as u8]),
        FieldType::Scalar(dtype) => Item::Number(rng.bytes(dtype.size())),
        FieldType::Json => Item::Text(format!(r#"{{"größe": [{}, null]}}"#, rng.below(1000))),
        FieldType::String => Item::Text("猫".repeat(rng.below(9) as usize)),
        FieldType::Array(array) => random_array(rng, array),
        FieldType::List(item) => {
            let count = rng.below(4);
            if let FieldType::Scalar(dtype) = **item {
                return Item::List(encode_numbers(dtype, &rng.bytes(dtype.size() * count as usize)));
            }
            let items: Vec<Item> = (0..count).map(|_| random_item(rng, item)).collect();
            Item::List(encode_list(item, &items.iter().map(Item::value).collect::<Vec<_>>()).unwrap())
        }
        other => panic!("make values of {other}"),
    }
}

fn random_rows(seed: u64, count: usize) -> Vec<Vec<Item>> {
    let (mut rng, fields) = (Rng(seed), every_type());
    (0..count).map(|_| fields.iter().map(|(_, kind)| random_item(&mut rng, kind)).collect()).collect()
}

fn append_all(writer: &mut Writer, rows: &[Vec<Item>]) {
    for row in rows {
        writer.append(&row.iter().map(Item::value).collect::<Vec<_>>()).unwrap();
    }
}

/// Reads everything in a file in every way; asserts that the ways agree.
fn read_all(reader: &Reader) -> Result<Vec<Vec<Found>>> {
    let records = reader.run(0..reader.len()).unwrap();
    let mut rows = vec![Vec::new(); records.len()];
    for (field, definition) in reader.schema().iter() {
        let kind = &definition.kind;
        let (bytes, starts) = if kind.has_payloads() {
            reader.view_batch(field, &records, Verify::Always, &never)?;
            reader.read_batch_copy(field, &records, Verify::Always, &never)?
        } else {
            let bytes = reader.values(field, &records)?;
            let (_, column) = common::column_bytes(reader, &definition.name)?;
            assert_eq!(bytes, column);
            let width = bytes.len().checked_div(records.len()).unwrap_or_default() as u64;
            (bytes, (0..=records.len() as u64).map(|i| i * width).collect())
        };
        let shapes = if let FieldType::Array(_) = kind { reader.shapes(field, &records)? } else { vec![] };
        let dims = if let FieldType::Array(array) = kind { array.shape().len() } else { 0 };
        for (i, row) in rows.iter_mut().enumerate() {
            let value = &bytes[starts[i] as usize..starts[i + 1] as usize];
            match kind {
                FieldType::List(_) => drop(reader.items(field, i as u64, value)?),
                FieldType::Json => drop(reader.strings(field, &reader.records(&[i as u64]).unwrap())?),
                _ => {}
            }
            reader.datum(field, i as u64, Verify::Always)?;
            row.push((value.to_vec(), shapes[i * dims..(i + 1) * dims].to_vec()));
        }
    }
    Ok(rows)
}

fn wanted(rows: &[Vec<Item>]) -> Vec<Vec<Found>> {
    rows.iter().map(|row| row.iter().map(Item::read).collect()).collect()
}

fn assert_holds(path: &Path, rows: &[Vec<Item>]) {
    for (access, threads) in [(Access::Mmap, None), (Access::Mmap, Some(1)), (Access::Pread, None)] {
        let reader = Reader::open(path, access, threads).unwrap();
        assert_eq!(read_all(&reader).unwrap(), wanted(rows));
        assert_eq!(verify(&reader, Depth::Checksums, &|| false).unwrap().errors, [""; 0]);
    }
}

#[test]
fn values_of_every_type_come_back_over_commits_sessions_and_merges() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    // More than a block of the check table, with odd widths, so that entries straddle blocks.
    let rows = random_rows(5, 700);
    let mut writer = Writer::open(&path, Some(schema()), None, &options(Mode::Create)).unwrap();
    append_all(&mut writer, &rows[..300]);
    writer.commit().unwrap();
    append_all(&mut writer, &rows[300..301]);
    writer.close().unwrap();
    assert_holds(&path, &rows[..301]);
    let mut writer = Writer::open(&path, Some(schema()), None, &options(Mode::Append)).unwrap();
    let columns: Vec<Column<'_>> = (0..schema().fields().len())
        .map(|field| Column::Values(rows[301..].iter().map(|row| row[field].value()).collect()))
        .collect();
    assert_eq!(writer.extend(&columns, 399, &never).unwrap(), 301);
    writer.close().unwrap();
    assert_holds(&path, &rows);
}

#[test]
fn an_extended_file_is_the_one_that_is_appended_to() {
    let folder = folder();
    let rows = random_rows(6, 50);
    let fixed = |kind: &FieldType| match kind {
        FieldType::Scalar(_) => true,
        FieldType::Array(array) => array.nbytes().is_some(),
        _ => false,
    };
    let path = folder.path().join("x.frec");
    let mut writer = Writer::open(&path, Some(schema()), None, &options(Mode::Create)).unwrap();
    let blocks: Vec<Found> = (0..rows[0].len())
        .map(|field| {
            let values: Vec<_> = rows.iter().map(|row| row[field].read()).collect();
            (values.iter().flat_map(|(bytes, _)| bytes.clone()).collect(), values[0].1.clone())
        })
        .collect();
    let column = |(field, (_, kind)): (usize, &(String, FieldType))| {
        if fixed(kind) {
            Column::Block { data: &blocks[field].0, shape: &blocks[field].1 }
        } else {
            Column::Values(rows.iter().map(|row| row[field].value()).collect())
        }
    };
    let fields = every_type();
    let columns: Vec<Column<'_>> = fields.iter().enumerate().map(column).collect();
    writer.extend(&columns, 50, &never).unwrap();
    writer.close().unwrap();
    assert_holds(&path, &rows);
}

#[test]
fn a_value_that_does_not_fit_is_refused_and_nothing_is_appended() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let fields = [("flag", DType::Bool.into()), ("rows", array(DType::Int16, &[None, Some(2)]))];
    let mut writer = Writer::open(&path, Some(Schema::new(fields).unwrap()), None, &options(Mode::Create)).unwrap();
    let good = Value::Array { data: &[1; 8], shape: &[2, 2] };
    for bad in [
        [Value::Number(&[2]), good],
        [Value::Number(&[1, 0]), good],
        [Value::Int(1), good],
        [Value::Number(&[1]), Value::Array { data: &[1; 7], shape: &[2, 2] }],
        [Value::Number(&[1]), Value::Array { data: &[1; 8], shape: &[4, 1] }],
        [Value::Number(&[1]), Value::Array { data: &[1; 8], shape: &[4] }],
        [Value::Number(&[1]), Value::Array { data: &[], shape: &[u64::MAX, 2] }],
        [Value::Number(&[1]), Value::Bytes(&[1; 8])],
    ] {
        assert!(matches!(writer.append(&bad).unwrap_err(), Error::BadValue { record: 0, .. }), "{bad:?}");
    }
    for (data, shape, count) in [(&[1; 8][..], &[2, 2][..], 2), (&[1; 8], &[2, 3], 1), (&[], &[u64::MAX, 2], 1)] {
        let columns = [Column::Block { data: &[1, 0][..count], shape: &[] }, Column::Block { data, shape }];
        assert!(matches!(writer.extend(&columns, count, &never).unwrap_err(), Error::BadValue { .. }));
    }
    assert_eq!(writer.append(&[Value::Number(&[1]), good]).unwrap(), 0);
    writer.close().unwrap();
    assert_eq!(open(&path).len(), 1);
}

// --- files that no writer produces ---

fn forge(fields: &str, records: u64) -> Forge {
    Forge::new(fields, records)
}

fn written(forge: &Forge) -> (tempfile::TempDir, PathBuf) {
    let folder = folder();
    let path = folder.path().join("x.frec");
    fs::write(&path, forge.build(|_| {})).unwrap();
    (folder, path)
}

/// Appends a payload at a multiple of 64 and returns its extent.
fn aligned(forge: &mut Forge, payload: &[u8]) -> [u8; 32] {
    forge.bytes.resize(forge.bytes.len().next_multiple_of(64), 0);
    forge.payload(payload)
}

#[test]
fn a_schema_row_that_makes_no_sense_is_refused() {
    let array = |rest: &str| format!(r#"[{{"id": 1, "name": "x", "type": "array", {rest}}}]"#);
    let list = |item: &str| format!(r#"[{{"id": 1, "name": "x", "type": "list", "item": {item}}}]"#);
    let many = format!(r#""dtype": "int8", "shape": [{}1]"#, "1, ".repeat(32));
    let wrong = [
        array(r#""dtype": "int8""#),
        array(r#""shape": [1]"#),
        array(r#""dtype": 8, "shape": [1]"#),
        array(r#""dtype": "int8", "shape": 3"#),
        array(r#""dtype": "int8", "shape": [-1]"#),
        array(r#""dtype": "int8", "shape": [1.5]"#),
        array(r#""dtype": "int8", "shape": ["3"]"#),
        array(r#""dtype": "int8", "shape": [18446744073709551616]"#),
        array(r#""dtype": "int8", "shape": [4294967296, 4294967296]"#),
        array(r#""dtype": "int8", "shape": [9223372036854775808]"#),
        array(r#""dtype": "float64", "shape": [null, 9223372036854775807]"#),
        array(r#""dtype": "int8", "shape": [null, 0]"#),
        array(&many),
        list("null"),
        list(r#""int8""#),
        list(r#"{"name": "int8"}"#),
        list(r#"{"type": "list", "item": {"type": "int8"}}"#),
        list(r#"{"type": "array", "dtype": "int8", "shape": [null, 0]}"#),
        r#"[{"id": 1, "name": "x", "type": ["int8"]}]"#.to_owned(),
        r#"[{"id": 1, "name": "x", "type": "bytes", "compression": "lz4"}]"#.to_owned(),
        r#"[{"id": 1, "name": "x", "type": "bytes", "compression": {}}]"#.to_owned(),
        r#"[{"id": 1, "name": "x", "type": "bytes", "compression": {"codec": "zstd", "level": "9"}}]"#.to_owned(),
        r#"[{"id": 1, "name": "x", "type": "int8", "compression": {"codec": "zstd"}}]"#.to_owned(),
    ];
    for row in &wrong {
        let (_folder, path) = written(&forge(row, 0));
        let error = Reader::open(&path, Access::Mmap, None).unwrap_err();
        assert!(matches!(&error, Error::Corrupt { part, .. } if part == "metadata"), "{row}: {error}");
    }
    let unknown = [
        array(r#""dtype": "float8", "shape": [1]"#),
        list(r#"{"type": "tensor"}"#),
        r#"[{"id": 1, "name": "x", "type": "bytes", "compression": {"codec": "brotli"}}]"#.to_owned(),
    ];
    for row in &unknown {
        let (_folder, path) = written(&forge(row, 0));
        let error = Reader::open(&path, Access::Mmap, None).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{row}: {error}");
    }
}

#[test]
fn a_column_of_another_width_encoding_or_part_is_refused() {
    let fields = r#"[{"id": 1, "name": "x", "type": "array", "dtype": "int16", "shape": [null, 2, null]},
        {"id": 2, "name": "y", "type": "array", "dtype": "int8", "shape": [7]}, {"id": 3, "name": "z", "type": "int16"},
        {"id": 4, "name": "l", "type": "list", "item": {"type": "int16"}}]"#;
    for (field, part, encoding, width) in [
        (1, 0, VALUES, 32),
        (1, 1, VALUES, 4),
        (1, 1, EXTENTS, 32),
        (1, 3, VALUES, 8),
        (1, 255, VALUES, 8),
        (2, 0, EXTENTS, 32),
        (2, 0, VALUES, 8),
        (2, 1, VALUES, 7),
        (3, 0, VALUES, 8),
        (4, 0, VALUES, 2),
        (4, 1, VALUES, 8),
    ] {
        let mut forge = forge(fields, 1);
        forge.chunk(field, part, encoding, width, 0, &vec![0; width.into()]);
        let (_folder, path) = written(&forge);
        let error = Reader::open(&path, Access::Mmap, None).unwrap_err();
        assert!(error.to_string().contains("not a column of field"), "{field}/{part}: {error}");
    }
}

#[test]
fn an_array_whose_bytes_are_not_those_of_its_shape_is_refused() {
    let row = |id, name, shape| {
        format!(r#"{{"id": {id}, "name": "{name}", "type": "array", "dtype": "int16", "shape": {shape}}}"#)
    };
    let fields = format!(
        "[{}, {}, {}]",
        row(1, "fixed", "[5, 7]"),
        row(2, "rows", "[null, 3]"),
        row(3, "any", "[null, 2, null]")
    );
    let check = |fixed: &[u8], rows: &[u8], any: &[u8], dims: Option<[u64; 2]>, shift: u64| {
        let mut forge = forge(&fields, 1);
        for (id, payload) in [(1, fixed), (2, rows), (3, any)] {
            let mut entry = aligned(&mut forge, payload);
            if shift > 0 {
                let at = u64::from_le_bytes(entry[..8].try_into().unwrap());
                forge.bytes.resize(forge.bytes.len() + 64, 0);
                entry = extent(at + shift, payload.len() as u64, 0);
            }
            forge.chunk(id, 0, EXTENTS, 32, 0, &entry);
            if let (3, Some(dims)) = (id, dims) {
                forge.chunk(3, 1, VALUES, 8, 0, &dims[0].to_le_bytes());
                forge.chunk(3, 2, VALUES, 8, 0, &dims[1].to_le_bytes());
            }
        }
        let (_folder, path) = written(&forge);
        let reader = open(&path);
        let mut bad = Vec::new();
        for (field, _) in reader.schema().iter() {
            let all = [
                reader.shapes(field, &reader.records(&[0]).unwrap()).err(),
                reader.lengths(field, &reader.records(&[0]).unwrap()).err(),
                reader.view_batch(field, &reader.records(&[0]).unwrap(), Verify::Never, &never).err(),
                reader.datum(field, 0, Verify::Never).err(),
                reader.read_batch_copy(field, &reader.records(&[0]).unwrap(), Verify::Never, &never).err(),
            ];
            let errors = all.iter().flatten().count();
            for error in all.into_iter().flatten() {
                assert!(matches!(error, Error::Value { record: 0, damage: Damage::Extent(_), .. }), "{error}");
            }
            if errors > 0 {
                bad.push(field.position());
            }
        }
        bad
    };
    assert_eq!(check(&[0; 70], &[0; 12], &[0; 24], Some([2, 3]), 0), [0_usize; 0]);
    assert_eq!(check(&[0; 68], &[0; 10], &[0; 24], Some([3, 3]), 0), [0, 1, 2]);
    assert_eq!(check(&[0; 70], &[], &[], Some([0, u64::MAX]), 0), [0_usize; 0]);
    assert_eq!(check(&[0; 70], &[], &[0; 24], Some([u64::MAX, u64::MAX]), 0), [2]);
    assert_eq!(check(&[0; 70], &[], &[0; 24], None, 0), [2]);
    assert_eq!(check(&[0; 70], &[0; 12], &[0; 24], Some([2, 3]), 8), [0, 1, 2]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_list_payload_is_a_list_or_an_error(
        words in prop::collection::vec(prop_oneof![0_u64..60, any::<u64>()], 0..10), cut in 0_usize..8,
    ) {
        let items = ["int16", "complex128", "string", "json", "bytes"].map(|name| format!(r#"{{"type": "{name}"}}"#));
        let arrays = ["[2]", "[null, 2]", "[null, null]", "[]"]
            .map(|shape| format!(r#"{{"type": "array", "dtype": "int16", "shape": {shape}}}"#));
        let rows: Vec<String> = items.iter().chain(&arrays).enumerate().map(|(i, item)| {
            format!(r#"{{"id": {}, "name": "f{i}", "type": "list", "item": {item}}}"#, i + 1)
        }).collect();
        let mut payload: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        payload.truncate(payload.len().saturating_sub(cut));
        let mut forge = forge(&format!("[{}]", rows.join(", ")), 1);
        let entry = aligned(&mut forge, &payload);
        for id in 1..=rows.len() as u32 {
            forge.chunk(id, 0, EXTENTS, 32, 0, &entry);
        }
        let (_folder, path) = written(&forge);
        let reader = open(&path);
        for (field, _) in reader.schema().iter() {
            match reader.items(field, 0, &payload) {
                Ok(items) => prop_assert!(items.iter().all(|item| item.range.end <= payload.len())),
                Err(error) => prop_assert!(matches!(error, Error::Value { record: 0, damage: Damage::List(_), .. }), "{}", error),
            }
        }
    }

    #[test]
    fn a_flipped_bit_is_an_error_or_changes_nothing(seed in any::<u64>()) {
        let folder = folder();
        let path = folder.path().join("x.frec");
        let rows = random_rows(9, 3);
        let mut writer = Writer::open(&path, Some(schema()), None, &options(Mode::Create)).unwrap();
        append_all(&mut writer, &rows);
        writer.close().unwrap();
        let (good, mut rng) = (fs::read(&path).unwrap(), Rng(seed));
        for _ in 0..20 {
            let mut bytes = good.clone();
            let at = rng.below(good.len() as u64) as usize;
            bytes[at] ^= 1 << rng.below(8);
            fs::write(&path, &bytes).unwrap();
            for access in [Access::Mmap, Access::Pread] {
                if let Ok(found) = Reader::open(&path, access, Some(1)).and_then(|reader| read_all(&reader)) {
                    prop_assert_eq!(found, wanted(&rows), "byte {}", at);
                }
            }
        }
    }
}

// --- the golden file ---

/// Length, CRC and file id of the golden file of the types that were added to version 1 later.
const LENGTH: usize = 36_864;
const CRC: u32 = 0xAB76_C959;
const FILE_ID: &str = "0bd5d5b7689733d42facde71ec697aed";

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1-types.frec")
}

fn write_golden(path: &Path) {
    let mut writer = Writer::open(path, Some(schema()), None, &options(Mode::Create)).unwrap();
    append_all(&mut writer, &random_rows(1, 4));
    writer.commit().unwrap();
    append_all(&mut writer, &random_rows(2, 3));
    writer.close().unwrap();
}

#[test]
fn the_golden_file_of_every_type_is_read_and_is_the_one_that_was_released() {
    let bytes = fs::read(golden()).unwrap();
    assert_eq!((bytes.len(), crc32c::crc32c(&bytes)), (LENGTH, CRC), "a golden file is never written again");
    assert_eq!(hex(&open(&golden()).snapshot().file_id), FILE_ID);
    assert_holds(&golden(), &[random_rows(1, 4), random_rows(2, 3)].concat());
    assert!(open(&golden()).schema().same_fields(&schema()));
}

#[test]
fn the_writer_of_today_writes_what_the_golden_file_of_every_type_holds() {
    let folder = folder();
    let path = folder.path().join("today.frec");
    write_golden(&path);
    assert_holds(&path, &[random_rows(1, 4), random_rows(2, 3)].concat());
    if std::env::var_os("FASTRECORD_WRITE_GOLDEN_TYPES").is_some() {
        assert!(!golden().exists(), "{} exists: a golden file is never written again", golden().display());
        fs::copy(&path, golden()).unwrap();
    }
}
