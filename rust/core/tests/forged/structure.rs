//! The parts of a file: pages, slots, footers, directories, metadata.

use std::fs;

use fastrecord_core::{
    Access, DType, Depth, Error, FORMAT_VERSION, FieldType, Mode, Reader, Schema, Value, Verify, Writer, verify,
};

use crate::common;
use crate::common::{Cell, Forge, Nth, VALUES, entry, folder, open, options, put, seal_superblock, slot, u64_at};
use crate::{forged, refused, take_all, written};

#[test]
fn a_file_made_by_hand_from_the_format_page_is_read() {
    let (_folder, path) = written(&forged().build(|_| ()));
    assert_eq!(take_all(&path), [""; 0]);
    let cells = |data: &[u8], label| vec![Cell::Bytes(data.to_vec()), Cell::Int(label)];
    common::assert_holds(&path, &[cells(b"one", 1), cells(b"", -2), cells(b"three", 3)]);
    let mut writer = Writer::open(&path, None, None, &options(Mode::Append)).unwrap();
    writer.append(&[Value::Bytes(b"four"), Value::Int(4)]).unwrap();
    writer.close().unwrap();
    assert_eq!(open(&path).len(), 4);
    let reader = open(&path);
    assert_eq!(reader.payload(reader.nth(0), 3, Verify::Always).unwrap(), b"four");
}

#[test]
fn what_is_no_frec_file_is_refused_as_such() {
    let mut text_mode = forged().build(|_| ());
    text_mode.remove(5); // CR LF became LF
    for bytes in [&b""[..], b"\x89", b"\x89PNG\r\n\x1a\n", b"FREC", &[0; 10_000], &text_mode] {
        refused(bytes, "not a .frec file");
    }
    let folder = folder();
    for access in [Access::Mmap, Access::Pread] {
        assert!(matches!(Reader::open(folder.path(), access, None), Err(Error::Io { .. } | Error::NotFrec { .. })));
    }
}

#[test]
fn a_newer_version_is_refused_with_both_versions_named() {
    let expected = format!("format version 2, this fastrecord reads up to {FORMAT_VERSION}");
    let mut superblock = forged().build(|_| ());
    superblock[9] = 2;
    refused(&superblock, &expected); // whatever the rest of its superblock holds
    seal_superblock(&mut superblock);
    refused(&superblock, &expected);
    refused(&forged().build(|footer| put(footer, 8, &2_u32.to_le_bytes())), &expected);
}

#[test]
fn every_part_that_a_reader_must_refuse_is_refused() {
    let with = |change: fn(&mut Forge)| {
        let mut forge = forged();
        change(&mut forge);
        forge.build(|_| ())
    };
    let mut reserved = forged().build(|_| ());
    reserved[10] = 1;
    seal_superblock(&mut reserved);
    refused(&reserved, "superblock");
    let mut zero = forged().build(|_| ());
    zero[9] = 0;
    seal_superblock(&mut zero);
    refused(&zero, "superblock");

    let footer = |at: usize, word: u64| forged().build(|footer| put(footer, at, &word.to_le_bytes()));
    refused(&forged().build(|footer| put(footer, 12, &2_u32.to_le_bytes())), "footer flags 0x2");
    refused(&forged().build(|footer| put(footer, 12, &0_u32.to_le_bytes())), "directory entry 0");
    refused(&footer(40, 0), "footer");
    refused(&footer(40, u64::MAX), "footer");
    for records in [1 << 63, u64::MAX] {
        refused(&footer(48, records), "footer");
    }
    for at in [56, 72] {
        for offset in [0, 8, u64::MAX, u64::MAX - 7, 1 << 63, 1 << 40] {
            refused(&footer(at, offset), "footer");
        }
    }
    for length in [u64::MAX, u64::MAX - 63, 1 << 40, 65] {
        refused(&footer(64, length), "footer");
    }
    refused(&footer(80, u64::MAX), "footer");
    refused(&footer(96, 4096 * 100), "footer");

    for (at, byte) in [(0, 9), (4, 1), (4, 3), (5, 0), (5, 3), (5, 2), (6, 0), (6, 7), (6, 65), (7, 1)] {
        let mut forge = forged();
        forge.directory[1][at] = byte;
        refused(&forge.build(|_| ()), "directory entry 1");
    }
    for at in 44..64 {
        let mut forge = forged();
        forge.directory[0][at] = 1;
        refused(&forge.build(|_| ()), "directory entry 0");
    }
    for words in [
        [0, 0, 4096, 0],
        [0, 4, 4096, 32],
        [1, 3, 4096, 24],
        [u64::MAX, 1, 4096, 8],
        [0, u64::MAX, 4096, u64::MAX],
        [0, 1 << 61, 4096, 0],
        [0, 3, 4096, 25],
        [0, 3, 0, 24],
        [0, 3, 4095, 24],
        [0, 3, 4104, 24],
        [0, 3, u64::MAX - 63, 24],
        [0, 3, 1 << 40, 24],
    ] {
        let mut forge = forged();
        forge.directory[1] = entry(2, 0, VALUES, 8, words);
        refused(&forge.build(|_| ()), "directory entry 1");
    }
    refused(&with(|forge| forge.directory.swap(0, 1)), "directory entry 1");
    refused(&with(|forge| forge.directory.insert(1, forge.directory[0])), "directory entry 1");
    refused(&with(|forge| forge.chunk(2, 0, VALUES, 8, 2, &[0; 8])), "directory entry 2");
    let table = |at: u64| {
        let mut forge = forged();
        forge.records = 512;
        let length = forge.bytes.len();
        let end = forge.build(|_| ()).len() as u64 - 4096;
        assert!(length < 8000 && end == 8192);
        forge.directory[1] = entry(2, 0, VALUES, 8, [0, 512, at, 4096]);
        forge.build(|_| ())
    };
    refused(&table(4096), "directory entry 1"); // the entries end at the footer, and the check table lies after its start
}

#[test]
fn odd_metadata_is_refused_and_odd_but_allowed_metadata_is_not() {
    let with = |metadata: &str| {
        let mut forge = Forge::new("[]", 0);
        forge.metadata = metadata.into();
        forge.build(|_| ())
    };
    let field = |field: &str| with(&format!(r#"{{"schema": [{field}], "complete": true, "metadata": {{}}}}"#));
    let deep =
        format!(r#"{{"schema": {}1{}, "complete": true, "metadata": {{}}}}"#, "[".repeat(5000), "]".repeat(5000));
    let many: Vec<String> = (1..5000).map(|i| format!(r#"{{"id": {i}, "name": "f{i}", "type": "int64"}}"#)).collect();
    for bytes in [
        with(""),
        with("null"),
        with("[]"),
        with("{}"),
        with("{\"schema\": []"),
        with(&deep),
        with(r#"{"schema": [], "complete": true, "metadata": {}}"#),
        with(r#"{"schema": {}, "complete": true, "metadata": {}}"#),
        with(r#"{"schema": [{"id": 1, "name": "a", "type": "int64"}], "metadata": {}}"#),
        with(r#"{"schema": [{"id": 1, "name": "a", "type": "int64"}], "complete": 1, "metadata": {}}"#),
        with(r#"{"schema": [{"id": 1, "name": "a", "type": "int64"}], "complete": true}"#),
        with(r#"{"schema": [{"id": 1, "name": "a", "type": "int64"}], "complete": true, "metadata": []}"#),
        field(""),
        field("null"),
        field("7"),
        field(r#""image""#),
        field(r#"{"id": 1, "type": "int64"}"#),
        field(r#"{"id": 1, "name": 7, "type": "int64"}"#),
        field(r#"{"id": 1, "name": "", "type": "int64"}"#),
        field(r#"{"id": 0, "name": "a", "type": "int64"}"#),
        field(r#"{"id": -1, "name": "a", "type": "int64"}"#),
        field(r#"{"id": 1.5, "name": "a", "type": "int64"}"#),
        field(r#"{"id": 4294967296, "name": "a", "type": "int64"}"#),
        field(r#"{"name": "a", "type": "int64"}"#),
        field(r#"{"id": 1, "name": "a"}"#),
        field(r#"{"id": 1, "name": "a", "type": "int64"}, {"id": 1, "name": "b", "type": "int64"}"#),
        field(r#"{"id": 1, "name": "a", "type": "int64"}, {"id": 2, "name": "a", "type": "int64"}"#),
        field(&many.join(",")),
    ] {
        refused(&bytes, "metadata");
    }
    refused(&field(r#"{"id": 1, "name": "a", "type": "int7"}"#), "\"int7\"");
    refused(&field(r#"{"id": 1, "name": "a", "type": "tensor"}"#), "upgrade fastrecord");

    let odd = r#" {"new key": {"x": [1.5]}, "schema": [{"id": 4294967295, "name": "a", "type": "int64", "more": 1}],
        "next_field_id": 18446744073709551615, "complete": false, "metadata": {"": null, "\ud83d\ude00": 1e300}} "#;
    let (_folder, path) = written(&with(odd));
    assert_eq!(take_all(&path), [""; 0]);
    let mut writer = Writer::open(&path, None, None, &options(Mode::Append)).unwrap();
    writer.append(&[Value::Int(5)]).unwrap();
    writer.set_complete(true); // else the metadata is not written again
    writer.close().unwrap();
    let (reader, bytes) = (open(&path), fs::read(&path).unwrap());
    assert!(reader.complete() && reader.schema().fields()[0].id == u32::MAX);
    assert_eq!(reader.metadata()["😀"], 1e300);
    let text = String::from_utf8_lossy(&bytes[8192..]);
    assert!(text.contains(r#""new key":{"x":[1.5]}"#), "unknown keys are kept");
}

#[test]
fn the_largest_field_id_has_no_successor_and_is_no_panic() {
    let metadata =
        r#"{"schema": [{"id": 4294967295, "name": "a", "type": "int64"}], "complete": false, "metadata": {}}"#;
    let mut forge = Forge::new("[]", 0);
    forge.metadata = metadata.into();
    let (_folder, path) = written(&forge.build(|_| ()));
    let mut writer = Writer::open(&path, None, None, &options(Mode::Append)).unwrap();
    writer.append(&[Value::Int(5)]).unwrap();
    writer.set_complete(true); // else the metadata is not written again
    writer.close().unwrap();
    assert_eq!(open(&path).len(), 1);
    assert!(String::from_utf8_lossy(&fs::read(&path).unwrap()).contains(r#""next_field_id":4294967296"#));
}

#[test]
fn chunks_that_share_their_bytes_cannot_blow_up_memory() {
    let mut forge = Forge::new(r#"[{"id": 1, "name": "label", "type": "int64"}]"#, 0);
    let count = 1 << 14;
    forge.chunk(1, 0, VALUES, 8, 0, &vec![0; count as usize * 8]);
    let (_, words) = (0, [u64_at(&forge.directory[0], 24), u64_at(&forge.directory[0], 32)]);
    forge.directory = (0..4000).map(|i| entry(1, 0, VALUES, 8, [i * count, count, words[0], words[1]])).collect();
    forge.records = 4000 * count;
    refused(&forge.build(|_| ()), "directory");
}

#[test]
fn more_records_than_all_columns_have_entries_are_refused() {
    let mut forge = forged();
    let entries: u64 = forge.directory.iter().map(|entry| u64_at(entry, 16)).sum();
    forge.records = entries;
    let (_folder, path) = written(&forge.build(|_| ()));
    let errors = take_all(&path);
    assert!(errors.iter().all(|e| e.contains("the record has no value")), "{errors:#?}");
    assert_eq!(verify(&open(&path), Depth::Checksums, &|| false).unwrap().bytes, 8);
    for records in [entries + 1, 1 << 40, i64::MAX as u64] {
        forge.records = records;
        refused(&forge.build(|_| ()), &format!("its columns have {entries} entries for {records} records"));
    }
}

#[test]
fn dictionaries_that_are_together_longer_than_the_file_are_refused() {
    let with = |count: usize| {
        let row = vec![r#"{"id": 1, "offset": 4096, "length": 64, "crc": 0}"#; count].join(", ");
        let compression = format!(r#"{{"codec": "zstd", "dictionaries": [{row}]}}"#);
        let mut forge =
            Forge::new(&format!(r#"[{{"id": 1, "name": "data", "type": "bytes", "compression": {compression}}}]"#), 0);
        forge.bytes.resize(8192, 0);
        forge.build(|_| ())
    };
    let (_folder, path) = written(&with(64));
    assert!(open(&path).is_empty());
    refused(&with(2000), "the dictionaries that it names have 128000 bytes");
}

#[test]
fn slots_that_lie_are_believed_only_as_far_as_the_format_says() {
    let forge = forged();
    let good = forge.build(|_| ());
    let footer = good.len() as u64 - 4096;
    let mut tail = good.clone();
    tail.extend([7; 5000]);
    let with_slots = |slots: [[u8; 32]; 2]| {
        let mut bytes = tail.clone();
        put(&mut bytes, 512, &slots[0]);
        put(&mut bytes, 1024, &slots[1]);
        bytes
    };
    let opens = |slots| {
        let (_folder, path) = written(&with_slots(slots));
        assert_eq!(take_all(&path), [""; 0]);
        assert_eq!(open(&path).len(), 3);
    };
    let id = &forge.id;
    opens([[0; 32]; 2]);
    opens([[9; 32]; 2]);
    opens([[0; 32], slot(id, footer, 1, 1)]);
    opens([slot(id, 1 << 40, 2, 1), slot(id, footer, 1, 2)]);
    opens([slot(id, u64::MAX, 2, 1), slot(id, u64::MAX - 4095, 3, 1)]);
    opens([slot(&[0; 16], 1 << 40, 2, 2), slot(id, footer, 1, 2)]);
    opens([slot(id, 1 << 40, 2, 3), slot(id, footer, 1, 2)]);
    for (place, expected) in
        [(1 << 40, "truncated"), (u64::MAX, "truncated"), (4096, "footer of commit 2"), (footer, "footer of commit 2")]
    {
        refused(&with_slots([slot(id, place, 2, 2), slot(id, footer, 1, 2)]), expected);
    }
}

#[test]
fn a_truncated_file_is_told_by_its_newest_commit() {
    let forge = forged();
    let mut bytes = forge.build(|_| ());
    bytes.truncate(5000);
    put(&mut bytes, 512, &slot(&forge.id, 40_960, 2, 2));
    put(&mut bytes, 1024, &slot(&forge.id, 81_920, 3, 2));
    refused(&bytes, "it has 5000 bytes, and its commit 3 ends at 86016");
    put(&mut bytes, 512, &slot(&forge.id, 122_880, 4, 2));
    refused(&bytes, "it has 5000 bytes, and its commit 4 ends at 126976");
}

#[test]
fn a_damaged_chunk_is_not_merged_and_appending_goes_on_behind_it() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let schema = Schema::new([("label", FieldType::Scalar(DType::Int64))]).unwrap();
    let mut writer = Writer::open(&path, Some(schema), None, &options(Mode::Create)).unwrap();
    writer.append(&[Value::Int(1)]).unwrap();
    writer.close().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[4096] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let mut writer = Writer::open(&path, None, None, &options(Mode::Append)).unwrap();
    writer.append(&[Value::Int(2)]).unwrap();
    writer.close().unwrap();
    assert_eq!(fs::read(&path).unwrap()[4096..bytes.len()], bytes[4096..]);
    let reader = Reader::open(&path, Access::Mmap, None).unwrap();
    assert_eq!(reader.values(reader.nth(0), &reader.records(&[1]).unwrap()).unwrap(), 2_i64.to_le_bytes());
    let error = reader.values(reader.nth(0), &reader.records(&[0]).unwrap()).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}

#[test]
fn a_writer_refuses_a_directory_that_a_reader_refuses() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut forge = forged();
    forge.directory.swap(0, 1);
    let bytes = forge.build(|_| ());
    fs::write(&path, &bytes).unwrap();
    let error = Writer::open(&path, None, None, &options(Mode::Append)).unwrap_err();
    assert!(error.to_string().contains("directory entry 1"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), bytes);
}
