//! Each limit of `fastrecord_core::limits` at its bound and one beyond, and the permissions of a
//! file that replaces another.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use crate::common::png;
use fastrecord_core::image::{DecodeError, DecodeOptions, Decoder};
use fastrecord_core::limits::{
    MAX_FIELDS, MAX_IMAGE_BYTES, MAX_METADATA_BYTES, MAX_NAME_BYTES, MAX_PIXELS, MAX_SIDE_BYTES, limits,
};
use fastrecord_core::{
    Access, ArrayType, DType, Error, FieldType, ImageCounts, Ingest, MAX_DIMS, Mode, OnError, Reader, Schema, Source,
    Value, Writer, WriterOptions,
};
use serde_json::{Map, json};
use tempfile::tempdir;

fn of_type(kind: FieldType) -> Schema {
    Schema::new([("data", kind)]).unwrap()
}

fn create(path: &Path, schema: Schema) -> Writer {
    Writer::open(path, Some(schema), None, &WriterOptions::default()).unwrap()
}

fn text(length: u64) -> Map<String, serde_json::Value> {
    Map::from_iter([("a".to_owned(), json!("x".repeat(length as usize)))])
}

#[test]
fn a_schema_has_as_many_fields_and_as_long_names_as_allowed_and_a_reader_takes_them() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("a.frec");
    let names: Vec<String> =
        (0..=MAX_FIELDS).map(|i| format!("{i:0>width$}", width = if i == 0 { MAX_NAME_BYTES } else { 4 })).collect();
    let schema =
        |count: usize| Schema::new(names[..count].iter().map(|n| (n.as_str(), FieldType::Scalar(DType::Bool))));
    create(&path, schema(MAX_FIELDS).unwrap()).close().unwrap();
    assert_eq!(Reader::open(&path, Access::Mmap, None).unwrap().schema().fields().len(), MAX_FIELDS);
    assert!(schema(MAX_FIELDS + 1).unwrap_err().to_string().contains("4097 fields: a schema has 1 to 4096"));

    // The limit counts bytes, not characters.
    let long = "é".repeat(MAX_NAME_BYTES / 2);
    Schema::new([(long.as_str(), FieldType::Image)]).unwrap();
    let error = Schema::new([(format!("{long}x").as_str(), FieldType::Image)]).unwrap_err().to_string();
    assert!(error.contains("of 1025 bytes: the limit is 1024") && error.len() < 200, "{error}");
}

#[test]
fn an_array_has_as_many_dimensions_as_allowed() {
    ArrayType::new(DType::Int8, &[Some(1); MAX_DIMS]).unwrap();
    assert!(ArrayType::new(DType::Int8, &[Some(1); MAX_DIMS + 1]).unwrap_err().contains("at most 32"));
}

#[test]
fn metadata_are_taken_up_to_the_limit_and_a_refusal_costs_nothing() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("a.frec");
    let mut writer = create(&path, of_type(FieldType::Bytes));
    writer.append(&[Value::Bytes(b"one")]).unwrap();
    // The bytes around the text: the schema, the other keys, `{"a":""}`.
    writer.set_metadata(text(0)).unwrap();
    writer.commit().unwrap();
    let reader = Reader::open(&path, Access::Pread, None).unwrap();
    let around = b"{\"schema\":[{\"id\":1,\"name\":\"data\",\"type\":\"bytes\"}],\"next_field_id\":2,\"complete\":true,\"metadata\":{\"a\":\"\"}}";
    let stored = fs::read(&path).unwrap();
    assert!(stored.windows(around.len()).any(|bytes| bytes == around));
    drop(reader);

    let most = MAX_METADATA_BYTES - around.len() as u64;
    let Err(Error::Limit { what, limit, .. }) = writer.set_metadata(text(most + 1)) else { panic!() };
    assert_eq!((what.as_str(), limit), ("metadata of 268435457 bytes, the schema included", MAX_METADATA_BYTES));
    assert_eq!(*writer.metadata(), text(0));
    writer.set_metadata(text(most)).unwrap();
    // This much is not written here; the writer continues with the next value.
    writer.set_metadata(text(1)).unwrap();
    writer.append(&[Value::Bytes(b"two")]).unwrap();
    writer.close().unwrap();
    let reader = Reader::open(&path, Access::Mmap, None).unwrap();
    assert_eq!((reader.len(), reader.metadata()), (2, &text(1)));
}

#[test]
fn images_are_taken_up_to_the_limit_and_refused_before_their_bytes_are_touched() {
    let folder = tempdir().unwrap();
    // All zeros except the header: the system does not allocate pages that are never touched.
    let mut image = vec![0; MAX_IMAGE_BYTES as usize + 1];
    let head = png(3, 2, &[]);
    image[..head.len()].copy_from_slice(&head);
    let mut writer = create(&folder.path().join("a.frec"), of_type(FieldType::Image));
    let error = writer.append(&[Value::Bytes(&image)]).unwrap_err();
    assert!(matches!(&error, Error::BadValue { record: 0, .. }), "{error}");
    assert!(error.to_string().contains("2147483648 bytes: the limit is 2147483647: store it in a field of type bytes"));
    assert_eq!(writer.len(), 0);

    let head = b"P6\n3 2\n255\n";
    image[..head.len()].copy_from_slice(head);
    let mut decoder = Decoder::new(DecodeOptions::default());
    assert!(matches!(decoder.decode(&image), Err(DecodeError::TooLong { .. })));
    assert!(matches!(decoder.size(&image), Err(DecodeError::TooLong { .. })));
    assert_eq!(decoder.size(&image[..MAX_IMAGE_BYTES as usize]), Ok((3, 2)));

    // A file of that many bytes, a single hole, is not read.
    let file = folder.path().join("large.png");
    fs::write(&file, png(3, 2, &[])).unwrap();
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(MAX_IMAGE_BYTES + 1).unwrap();
    let input = Ingest { field: 0, source: Source::Files(&[file]), on_error: OnError::Skip, recode: None };
    let skipped = input.append_to(&mut writer, &mut ImageCounts::default(), |_| Vec::new(), &|| false).unwrap();
    assert!(
        matches!(&skipped[..], [(0, reason)] if reason.to_string().contains("the limit is 2147483647")),
        "{skipped:?}"
    );
}

#[test]
fn pixels_are_taken_up_to_the_limit_that_the_caller_sets() {
    let sized = |width: u32, height: u32| format!("P6\n{width} {height}\n255\n").into_bytes();
    let decoder = Decoder::new(DecodeOptions::default());
    // 178,956,970 is 2 * 5 * 17,895,697.
    assert_eq!(decoder.size(&sized(10, (MAX_PIXELS / 10) as u32)), Ok((10, 17_895_697)));
    let error = decoder.size(&sized(11, 16_268_816)).unwrap_err();
    assert_eq!(error, DecodeError::TooLarge { width: 11, height: 16_268_816, limit: MAX_PIXELS });
    assert!(error.to_string().contains("`max_pixels`"), "{error}");
    let wider = Decoder::new(DecodeOptions { max_pixels: 11 * 16_268_816, ..DecodeOptions::default() });
    assert_eq!(wider.size(&sized(11, 16_268_816)), Ok((11, 16_268_816)));
}

#[test]
fn side_bytes_are_those_that_an_extent_can_name() {
    assert_eq!(MAX_SIDE_BYTES, u64::from(u32::MAX));
    assert!(limits().iter().all(|(_, value)| *value > 0));
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn what_replaces_a_file_has_its_permissions_and_never_more() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("a.frec");
    create(&path, of_type(FieldType::Bytes)).close().unwrap();
    let overwrite = WriterOptions { mode: Mode::Overwrite, ..WriterOptions::default() };
    for (before, after) in [(0o600, 0o600), (0o640, 0o640), (0o444, 0o444), (0o666, 0o666), (0o6755, 0o755)] {
        fs::set_permissions(&path, Permissions::from_mode(before)).unwrap();
        let mut writer = Writer::open(&path, Some(of_type(FieldType::Bytes)), None, &overwrite).unwrap();
        // The temporary file already has the final permissions during the write.
        let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let temporary: Vec<_> = names.filter(|name| *name != path).collect();
        assert_eq!(temporary.iter().map(|name| mode(name)).collect::<Vec<_>>(), [after]);
        writer.close().unwrap();
        assert_eq!(mode(&path), after, "{before:o}");
    }
}

#[test]
fn a_pipe_with_the_name_of_a_leftover_does_not_hold_an_overwrite_up() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("a.frec");
    let pipe = folder.path().join("a.frec.tmp-0123abcd");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let overwrite = WriterOptions { mode: Mode::Overwrite, ..WriterOptions::default() };
    Writer::open(&path, Some(of_type(FieldType::Bytes)), None, &overwrite).unwrap().close().unwrap();
    assert!(Reader::open(&path, Access::Mmap, None).unwrap().is_empty());
    assert!(fs::symlink_metadata(&pipe).is_ok(), "it is not ours");
}
