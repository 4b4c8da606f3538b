//! Twins: files with one id and one history, whose last commits differ only in values.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::places::{footers, places};
use crate::common::{folder, never, options, u32_at, u64_at};
use fastrecord_core::{Access, Depth, Error, Mode, Reader, Schema, Value, Writer, verify};

const LABEL: &str = r#"[{"name": "label", "type": "int64"}]"#;

/// Copies a file and appends one record to each of the two.
fn twins(at: &Path, schema: &str, values: [&[Value<'_>]; 3]) -> [PathBuf; 2] {
    let paths = ["a.frec", "b.frec"].map(|name| at.join(name));
    let [first, own @ ..] = values;
    let mut writer =
        Writer::open(&paths[0], Some(Schema::from_json(schema).unwrap()), None, &options(Mode::Create)).unwrap();
    writer.append(first).unwrap();
    writer.close().unwrap();
    fs::copy(&paths[0], &paths[1]).unwrap();
    for (path, values) in paths.iter().zip(own) {
        let mut writer = Writer::open(path, None, None, &options(Mode::Append)).unwrap();
        writer.append(values).unwrap();
        writer.close().unwrap();
    }
    paths
}

fn footer(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    bytes[bytes.len() - 4096..].to_vec()
}

#[test]
fn twins_have_different_footers_whatever_differs() {
    let array = r#"[{"name": "a", "type": "array", "dtype": "uint8", "shape": [null, null]}]"#;
    let text = r#"[{"name": "t", "type": "string"}]"#;
    let bytes = r#"[{"name": "b", "type": "bytes"}]"#;
    let shaped = |shape| Value::Array { data: &[7; 6], shape };
    for (schema, one, other) in [
        (LABEL, Value::Int(3), Value::Int(4)),
        (array, shaped(&[2, 3]), shaped(&[3, 2])),
        (text, Value::Str("cat"), Value::Str("dog")),
        (bytes, Value::Bytes(b"\0\0\0"), Value::Bytes(b"\0\0\x01")),
    ] {
        let folder = folder();
        let [a, b] = twins(folder.path(), schema, [&[one], &[one], &[other]]);
        assert_eq!(fs::metadata(&a).unwrap().len(), fs::metadata(&b).unwrap().len());
        let ids = [&a, &b].map(|path| Reader::open(path, Access::Mmap, None).unwrap().snapshot());
        assert_eq!((ids[0].file_id, ids[0].commit, ids[0].footer), (ids[1].file_id, ids[1].commit, ids[1].footer));
        assert!(footer(&a)[..4092] != footer(&b)[..4092] && ids[0].crc != ids[1].crc, "{schema}");
    }
}

#[test]
fn a_snapshot_is_not_opened_in_a_twin() {
    let folder = folder();
    let [a, b] = twins(folder.path(), LABEL, [&[Value::Int(1)], &[Value::Int(2)], &[Value::Int(3)]]);
    for access in [Access::Mmap, Access::Pread] {
        let reader = Reader::open(&a, access, None).unwrap();
        let wanted = reader.snapshot();
        assert_eq!(Reader::open_snapshot(&a, access, None, wanted).unwrap().snapshot(), wanted);
        let error = Reader::open_snapshot(&b, access, None, wanted).unwrap_err();
        assert!(matches!(error, Error::Replaced { .. }), "{error}");
        assert!(error.to_string().contains("twin"), "{error}");
    }
}

#[test]
fn a_column_of_a_twin_with_its_check_table_is_damage() {
    let folder = folder();
    let [a, b] = twins(folder.path(), LABEL, [&[Value::Int(1)], &[Value::Int(2)], &[Value::Int(3)]]);
    let (mut mixed, other) = (fs::read(&a).unwrap(), fs::read(&b).unwrap());
    let end = footers(&mixed)[0] as usize;
    let directory = u64_at(&mixed, end as u64 + 56) as usize;
    assert!(mixed[4096..directory] != other[4096..directory]);
    mixed[4096..directory].copy_from_slice(&other[4096..directory]);
    fs::write(&b, &mixed).unwrap();
    for access in [Access::Mmap, Access::Pread] {
        let reader = Reader::open(&b, access, None).unwrap();
        let field = reader.field("label").unwrap();
        let report = verify(&reader, Depth::Checksums, &never).unwrap();
        assert_eq!(report.errors.len(), 1, "{:?}", report.errors);
        let records = reader.run(0..2).unwrap();
        let read = [
            reader.values(field, &records).map(drop).unwrap_err(),
            reader.column("label").map(drop).unwrap_err(),
            reader.check_field(field).unwrap_err(),
        ];
        for error in read {
            let text = error.to_string();
            assert!(text.contains("b.frec: the values of field label, records 0 to 1 is damaged"), "{text}");
        }
    }
    // A writer keeps the chunk as it is, and readers still refuse it.
    let mut writer = Writer::open(&b, None, None, &options(Mode::Append)).unwrap();
    writer.append(&[Value::Int(5)]).unwrap();
    writer.close().unwrap();
    let report = verify(&Reader::open(&b, Access::Mmap, None).unwrap(), Depth::Checksums, &never).unwrap();
    assert!(matches!(&report.errors[..], [error] if error.contains("records 0 to 1 is damaged")), "{report:?}");
}

#[test]
fn a_damaged_entry_of_a_check_table_is_damage_of_its_block_alone() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut writer =
        Writer::open(&path, Some(Schema::from_json(LABEL).unwrap()), None, &options(Mode::Create)).unwrap();
    for value in 0..2000 {
        writer.append(&[Value::Int(value)]).unwrap();
    }
    writer.close().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let found = places(&bytes, footers(&bytes)[0]);
    let table = found.iter().map(|(range, _)| range.clone()).find(|range| range.end - range.start == 4).unwrap();
    assert_ne!(u32_at(&bytes, table.start), u32_at(&bytes, table.start + 4));
    bytes[table.start as usize + 4] ^= 1;
    fs::write(&path, &bytes).unwrap();
    for access in [Access::Mmap, Access::Pread] {
        let reader = Reader::open(&path, access, None).unwrap();
        let field = reader.field("label").unwrap();
        for run in [0..512, 1024..2000] {
            reader.values(field, &reader.run(run).unwrap()).unwrap();
        }
        let error = reader.values(field, &reader.records(&[512]).unwrap()).unwrap_err().to_string();
        assert!(error.contains("records 512 to 1023 is damaged"), "{error}");
    }
}
