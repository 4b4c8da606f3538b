//! Files of every released version stay readable. `golden/` holds one file per version, which must
//! never be rewritten.
//!
//! A new version needs a new file. Pass its path to the test that writes the same records with
//! today's writer:
//! `FASTRECORD_WRITE_GOLDEN=rust/core/tests/golden/v2.frec cargo test -p fastrecord-core --test all golden`

use crate::common;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::places::{footers, places};
use crate::common::{Cell, Row, append_all, assert_holds, column_bytes, folder, open, options, png, read_by_batch};
use crate::side_bytes::loaded;
use fastrecord_core::image::pack_jpeg;
use fastrecord_core::{
    ColumnBytes, CommitParts, DType, Depth, FORMAT_VERSION, FieldType, Mode, Reader, Schema, SnapshotId, Value, Verify,
    Writer, WriterOptions, hex, verify,
};
use serde_json::{Map, json};

/// Length of the golden files of version 1.
const LENGTH: usize = 36_864;
/// Their names, CRCs and file ids. The first one is without the flag *content*.
const FILES: [(&str, u32, &str); 2] = [
    ("v1.frec", 0xB5C6_B91E, "1ea4e0b2b0d1ba377d2a82b06eadff61"),
    ("v1-content.frec", 0x32CF_0C76, "2e7d19cef2f52d4e8118a2eaa72ea791"),
];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Records of every type, with values that are easy to get wrong.
fn rows() -> Vec<Row> {
    let row = |image: &[u8], size: (u32, u32), data: &[u8], key: &str, label, weight: f64| {
        vec![
            Cell::Image(png(size.0, size.1, image), size),
            Cell::Bytes(data.to_vec()),
            Cell::Text(key.to_owned()),
            Cell::Int(label),
            Cell::Float(weight.to_bits()),
        ]
    };
    vec![
        row(b"", (1, 1), b"", "", 0, 0.0),
        row(b"second", (640, 480), b"data", "cats/2.png", -1, -0.0),
        row(&[0xFF; 100], (70_000, 3), &[0; 9], "猫/é.png", i64::MAX, f64::INFINITY),
        row(b"FRECEND\n", (2, 2), b"FRECEND\n\x01\0\0\0", "a\0b", i64::MIN, f64::MIN_POSITIVE),
        row(b"five", (5, 5), &[0x89, b'F', b'R', b'E', b'C'], "five\r\n", 5, f64::from_bits(0x7FF8_0000_0000_0001)),
        row(b"", (6, 1), &(0..=255).collect::<Vec<u8>>(), "six", 6, 0.1),
        row(b"seven", (7, 7), b"", "\u{1F408}", 7, -1e-300),
    ]
}

fn metadata() -> Map<String, serde_json::Value> {
    let value = json!({"classes": ["cat", "dog"], "unicode": "é猫", "nested": {"none": null, "list": [1, 2.5, true]}});
    value.as_object().unwrap().clone()
}

fn covers_content(path: &Path) -> bool {
    let bytes = fs::read(path).unwrap();
    let (head, at) = bytes.split_at(bytes.len() - 4096);
    CommitParts::of(path, head, at, head.len() as u64).unwrap().covers_content
}

/// Four commits in two sessions: two explicit commits, one by close (which merges), and one of a
/// later session.
fn write(path: &Path) {
    let rows = rows();
    let unfinished = WriterOptions { complete: Some(false), ..options(Mode::Create) };
    let mut writer = Writer::open(path, Some(common::all_types()), Some(metadata()), &unfinished).unwrap();
    for part in [0..3, 3..4] {
        append_all(&mut writer, &rows[part]);
        writer.commit().unwrap();
    }
    append_all(&mut writer, &rows[4..5]);
    writer.set_complete(true);
    writer.close().unwrap();
    let mut writer = Writer::open(path, None, None, &options(Mode::Append)).unwrap();
    append_all(&mut writer, &rows[5..]);
    writer.close().unwrap();
}

fn assert_is_golden(path: &Path) {
    assert_holds(path, &rows());
    let reader = open(path);
    assert_eq!(reader.version(), 1);
    assert_eq!((reader.snapshot().commit, reader.tail_bytes(), reader.complete()), (4, 0, true));
    assert_eq!(reader.metadata(), &metadata());
    let fields: Vec<(u32, &str, FieldType)> =
        reader.schema().fields().iter().map(|f| (f.id, f.name.as_str(), f.kind.clone())).collect();
    let expected = [
        (1, "image", FieldType::Image),
        (2, "data", FieldType::Bytes),
        (3, "key", FieldType::String),
        (4, "label", FieldType::Scalar(DType::Int64)),
        (5, "weight", FieldType::Scalar(DType::Float64)),
    ];
    assert_eq!(fields, expected);
    for name in ["label", "weight", "image.width", "image.height"] {
        assert!(matches!(reader.column(name).unwrap().1, ColumnBytes::Mapped(..)), "{name} is one chunk");
    }
    let labels: Vec<u8> = [0, -1, i64::MAX, i64::MIN, 5, 6, 7].into_iter().flat_map(i64::to_le_bytes).collect();
    assert_eq!(column_bytes(&reader, "label").unwrap().1, labels);
    let report = verify(&reader, Depth::Checksums, &|| false).unwrap();
    assert_eq!((report.records, &report.errors[..]), (7, &[][..]));
    // Every earlier commit can still be opened by its name.
    let bytes = fs::read(path).unwrap();
    let mut footer = bytes.len() as u64 - 4096;
    for (commit, records) in [(4, 7), (3, 5), (2, 4), (1, 3)] {
        assert_eq!(common::u64_at(&bytes, footer + 40), commit);
        let wanted =
            SnapshotId { commit, footer, crc: Some(common::u32_at(&bytes, footer + 4092)), ..reader.snapshot() };
        let earlier = Reader::open_snapshot(path, reader.access(), None, wanted).unwrap();
        assert_eq!(read_by_batch(&earlier).unwrap(), rows()[..records]);
        assert_eq!(earlier.complete(), commit > 2);
        footer = common::u64_at(&bytes, footer + 96);
    }
    assert_eq!(footer, 0);
}

#[test]
fn the_golden_files_of_version_1_are_read() {
    for (name, ..) in FILES {
        assert_is_golden(&golden(name));
    }
}

#[test]
fn the_golden_files_of_version_1_are_the_ones_that_were_released() {
    for (name, crc, id) in FILES {
        let bytes = fs::read(golden(name)).unwrap();
        assert_eq!(bytes[..12], *b"\x89FREC\r\n\x1a\n\x01\0\0");
        assert_eq!((bytes.len(), crc32c::crc32c(&bytes)), (LENGTH, crc), "a golden file is never written again");
        assert_eq!(hex(&open(&golden(name)).snapshot().file_id), id);
    }
}

/// The side bytes of this file have kind 1, the rows of a crop-ready JPEG: an earlier version of the
/// package wrote it.
#[test]
fn a_golden_file_of_crop_ready_jpegs_is_read_as_one_of_plain_jpegs() {
    let path = golden("v1-crop-ready.frec");
    assert_eq!(crc32c::crc32c(&fs::read(&path).unwrap()), 0xABB7_0A0B, "a golden file is never written again");
    let (reader, folder) = (open(&path), folder());
    assert!(verify(&reader, Depth::Values, &|| false).unwrap().errors.is_empty());
    let field = reader.field("image").unwrap();
    assert_eq!(reader.side_kinds(field, &reader.run(0..6).unwrap()).unwrap(), [1, 1, 0, 1, 1, 1]);
    let plain = folder.path().join("plain.frec");
    let schema = Schema::new([("image", FieldType::Image)]).unwrap();
    let mut writer = Writer::open(&plain, Some(schema), None, &options(Mode::Create)).unwrap();
    for record in 0..6 {
        let data = reader.payload(field, record, Verify::Always).unwrap();
        writer.append(&[Value::Bytes(&data)]).unwrap();
    }
    writer.close().unwrap();
    assert!(loaded(&reader).unwrap() == loaded(&open(&plain)).unwrap());
}

/// The images of this file are packed JPEGs; its other field has the originals.
#[test]
fn a_golden_file_of_packed_jpegs_gives_them_back_and_would_be_written_again() {
    let path = golden("v1-packed.frec");
    let bytes = fs::read(&path).unwrap();
    assert_eq!(crc32c::crc32c(&bytes), 0x9EB3_FCD8, "a golden file is never written again");
    let reader = open(&path);
    assert!(verify(&reader, Depth::Values, &|| false).unwrap().errors.is_empty());
    let [image, original] = ["image", "original"].map(|name| reader.field(name).unwrap());
    let mut packed_images = 0;
    for record in 0..8 {
        let [value, jpeg] = [image, original].map(|field| reader.payload(field, record, Verify::Always).unwrap());
        assert!(value == jpeg, "record {record}");
        if let Some(packed) = pack_jpeg(&jpeg) {
            assert!(bytes.windows(packed.len()).any(|part| part == packed), "record {record}");
            packed_images += 1;
        }
    }
    assert_eq!(packed_images, 7);
}

#[test]
fn a_copy_of_a_golden_file_can_be_appended_to_and_its_footer_then_covers_the_content() {
    let folder = folder();
    let path = folder.path().join("copy.frec");
    for (name, _, id) in FILES {
        fs::copy(golden(name), &path).unwrap();
        assert_eq!(covers_content(&path), name != "v1.frec");
        let mut writer = Writer::open(&path, Some(common::all_types()), None, &options(Mode::Append)).unwrap();
        append_all(&mut writer, &rows());
        writer.close().unwrap();
        assert_holds(&path, &[rows(), rows()].concat());
        assert!(covers_content(&path));
        let bytes = fs::read(&path).unwrap();
        places(&bytes, footers(&bytes)[0]); // compares the checksums of the check tables
        assert_eq!(hex(&open(&path).snapshot().file_id), id);
    }
}

#[test]
fn the_writer_of_today_writes_what_the_golden_file_holds() {
    let folder = folder();
    let path = folder.path().join("today.frec");
    write(&path);
    assert_is_golden(&path);
    if let Some(wanted) = std::env::var_os("FASTRECORD_WRITE_GOLDEN") {
        let wanted = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(wanted);
        assert!(!wanted.exists(), "{} exists: a golden file is never written again", wanted.display());
        fs::copy(&path, wanted).unwrap();
    }
    assert!(golden(&format!("v{FORMAT_VERSION}.frec")).exists(), "a version without a golden file");
}
