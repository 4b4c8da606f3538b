//! The crop index that a later commit adds to the images of a file: no other byte changes, the work
//! can be continued, and copies keep it.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::common::{folder, never, open, options};
use crate::pictures::{jpeg, picture};
use crate::side_bytes::loaded;
use fastrecord_core::image::{CROP_INDEX, JpegOptions, crop_index, raw_header};
use fastrecord_core::{
    Access, Control, Copier, Damage, Depth, Error, FieldType, IndexCounts, IndexOptions, Mode, Reader, Salvage, Schema,
    Value, Verify, Writer, add_crop_index, verify,
};
use serde_json::Map;

/// A JPEG that gains by an index.
fn photo(number: u32) -> Vec<u8> {
    let data = jpeg(400 + number, 300, JpegOptions::default());
    assert!(crop_index(&data).is_some());
    data
}

/// Images with an index (6) and without (2), in this order: six photos, raw pixels, a small JPEG.
fn images() -> Vec<Vec<u8>> {
    let raw = [raw_header(200, 200).as_bytes(), &picture(200, 200, 3)].concat();
    (0..6).map(photo).chain([raw, jpeg(40, 30, JpegOptions::default())]).collect()
}

fn write(path: &Path, images: &[Vec<u8>]) {
    let mode = if path.exists() { Mode::Append } else { Mode::Create };
    let schema = Schema::new([("image", FieldType::Image), ("label", FieldType::from(fastrecord_core::DType::Int64))]);
    let schema = if mode == Mode::Create { Some(schema.unwrap()) } else { None };
    let mut writer = Writer::open(path, schema, None, &options(mode)).unwrap();
    for (image, label) in images.iter().zip(0..) {
        writer.append(&[Value::Bytes(image), Value::Int(label)]).unwrap();
    }
    writer.close().unwrap();
}

fn add(path: &Path) -> IndexCounts {
    add_crop_index(path, "image", &IndexOptions::default(), &never).unwrap()
}

fn rebuild(path: &Path) -> IndexCounts {
    add_crop_index(path, "image", &IndexOptions { rebuild: true, ..IndexOptions::default() }, &never).unwrap()
}

fn kinds(reader: &Reader) -> Vec<u8> {
    reader.side_kinds(reader.field("image").unwrap(), &reader.run(0..reader.len()).unwrap()).unwrap()
}

fn values(reader: &Reader) -> Vec<Vec<u8>> {
    let field = reader.field("image").unwrap();
    (0..reader.len()).map(|record| reader.payload(field, record, Verify::Always).unwrap()).collect()
}

fn assert_deeply_good(path: &Path) {
    let report = verify(&open(path), Depth::Values, &never).unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
}

const ALL: [u8; 8] = [2, 2, 2, 2, 2, 2, 0, 0];

#[test]
fn a_later_commit_adds_the_index_and_no_byte_before_it_changes() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    write(&path, &images());
    let (before, old) = (fs::read(&path).unwrap(), open(&path));
    let tally = add(&path);
    assert_eq!((tally.indexed, tally.present, tally.without), (6, 0, 2));
    assert_eq!(tally.bytes, (0..6).map(|n| crop_index(&photo(n)).unwrap().len() as u64).sum::<u64>());
    let after = fs::read(&path).unwrap();
    // Page 0 holds the slots.
    assert!(after[4096..before.len()] == before[4096..]);
    for access in [Access::Mmap, Access::Pread] {
        let reader = Reader::open(&path, access, None).unwrap();
        assert_eq!((kinds(&reader), values(&reader)), (ALL.to_vec(), images()));
        let all = reader.run(0..8).unwrap();
        let lengths: Vec<u64> = images().iter().map(|image| image.len() as u64).collect();
        assert_eq!(reader.lengths(reader.field("image").unwrap(), &all).unwrap(), lengths);
    }
    // The snapshot before is as it was.
    let id = old.snapshot();
    let old = Reader::open_snapshot(&path, Access::Mmap, None, id).unwrap();
    assert_eq!((kinds(&old), values(&old)), (vec![0; 8], images()));
    assert_deeply_good(&path);

    let again = add(&path);
    assert_eq!((again.indexed, again.present, again.without, again.bytes), (0, 6, 2, 0));
    assert_eq!(fs::read(&path).unwrap(), after, "nothing is left to do");
}

#[test]
fn the_loader_makes_the_same_batch_with_and_without_the_index() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    write(&path, &(0..6).map(photo).collect::<Vec<_>>());
    let plain = loaded(&open(&path)).unwrap();
    add(&path);
    assert!(loaded(&open(&path)).unwrap() == plain);
    assert!(loaded(&Reader::open(&path, Access::Pread, None).unwrap()).unwrap() == plain);
}

/// Stops the call at its n-th report.
struct StopAt(Cell<u32>);

impl Control for StopAt {
    fn is_stopped(&self) -> bool {
        self.0.get() == 0
    }

    fn report(&self, _: u64) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

#[test]
fn an_interrupted_call_keeps_what_it_did_and_the_next_one_continues() {
    let folder = folder();
    for reports in 1..9 {
        let path = folder.path().join(format!("{reports}.frec"));
        write(&path, &images());
        let options = IndexOptions { commit_records: 1, ..IndexOptions::default() };
        let stopped = add_crop_index(&path, "image", &options, &StopAt(Cell::new(reports)));
        assert!(matches!(stopped, Err(Error::Interrupted)), "{stopped:?}");
        let done = reports as usize - 1;
        assert_eq!(kinds(&open(&path)), [&ALL[..done], &vec![0; 8 - done]].concat());
        let tally = add(&path);
        assert_eq!((tally.indexed + tally.present, tally.without), (6, 2));
        assert_eq!(tally.present, done.min(6) as u64);
        assert_eq!((kinds(&open(&path)), values(&open(&path))), (ALL.to_vec(), images()));
        assert_deeply_good(&path);
    }
}

#[test]
fn a_damaged_image_ends_the_call_with_its_record_and_those_before_it_are_done() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    write(&path, &images());
    let mut bytes = fs::read(&path).unwrap();
    let photo = photo(3);
    let at = bytes.windows(64).position(|window| *window == photo[1000..1064]).unwrap();
    bytes[at] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let error = add_crop_index(&path, "image", &IndexOptions::default(), &never).unwrap_err();
    assert!(matches!(error, Error::Value { record: 3, damage: Damage::Checksum { .. }, .. }), "{error}");
    assert_eq!(kinds(&open(&path)), [2, 2, 2, 0, 0, 0, 0, 0]);
}

#[test]
fn records_that_are_appended_later_get_their_index_by_the_next_call() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    write(&path, &images());
    add(&path);
    write(&path, &images());
    assert_eq!(kinds(&open(&path)), [&ALL[..], &[0; 8]].concat());
    let tally = add(&path);
    assert_eq!((tally.indexed, tally.present, tally.without), (6, 6, 4));
    assert_eq!(kinds(&open(&path)), [ALL, ALL].concat());
    assert_eq!(values(&open(&path)), [images(), images()].concat());
    assert_deeply_good(&path);
}

#[test]
fn an_index_after_a_value_is_left_alone_and_side_bytes_of_another_kind_give_way() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let schema = Schema::new([("image", FieldType::Image)]).unwrap();
    let mut writer = Writer::open(&path, Some(schema), None, &options(Mode::Create)).unwrap();
    let (other, indexed, index) = (photo(1), photo(2), crop_index(&photo(2)).unwrap());
    for (data, side, size) in [(&other, &vec![1, 0, 7], (401, 300)), (&indexed, &index, (402, 300))] {
        let crc = crc32c::crc32c_append(crc32c::crc32c(data), side);
        writer.append(&[Value::Image { data, side, size, crc }]).unwrap();
    }
    writer.close().unwrap();
    assert_eq!(kinds(&open(&path)), [1, CROP_INDEX]);
    assert_deeply_good(&path);
    for make in [add, rebuild] {
        let tally = make(&path);
        assert_eq!((tally.indexed, tally.present, tally.without), (1, 1, 0));
        assert_eq!(kinds(&open(&path)), [CROP_INDEX; 2]);
        assert_deeply_good(&path);
    }
}

#[test]
fn copies_keep_the_index_whatever_the_order_and_gaps_in_it_are_filled() {
    let folder = folder();
    let [with, without, merged, shuffled] =
        ["a.frec", "b.frec", "c.frec", "d.frec"].map(|name| folder.path().join(name));
    write(&with, &images());
    write(&without, &images());
    add(&with);
    let sources = [open(&without), open(&with), open(&without)];
    let mut copier = Copier::create(&merged, &sources[0], Mode::Create, 24, true).unwrap();
    for source in &sources {
        copier.copy_run(source, 0..8, &[], &never).unwrap();
    }
    copier.finish(Map::new(), true).unwrap();
    assert_eq!(kinds(&open(&merged)), [[0; 8], ALL, [0; 8]].concat());
    assert_deeply_good(&merged);
    let tally = add(&merged);
    assert_eq!((tally.indexed, tally.present, tally.without), (12, 6, 6));
    assert_eq!(kinds(&open(&merged)), [ALL; 3].concat());
    assert_deeply_good(&merged);

    let source = open(&merged);
    let rows: Vec<u64> = (0..24).map(|i| i * 7 % 24).collect();
    let mut copier = Copier::create(&shuffled, &source, Mode::Create, 24, false).unwrap();
    copier.copy_rows(&source, &rows, &[], &never).unwrap();
    copier.finish(Map::new(), true).unwrap();
    let copy = open(&shuffled);
    let moved = |row: &u64| (if *row % 8 < 6 { CROP_INDEX } else { 0 }, images()[*row as usize % 8].clone());
    let (expected, contents): (Vec<u8>, Vec<Vec<u8>>) = rows.iter().map(moved).unzip();
    assert_eq!((kinds(&copy), values(&copy)), (expected, contents));
    assert_deeply_good(&shuffled);
}

#[test]
fn a_copy_in_another_order_keeps_the_index_of_the_records_that_have_one_and_the_rest_can_get_it() {
    let folder = folder();
    let [from, to] = ["a.frec", "b.frec"].map(|name| folder.path().join(name));
    write(&from, &images());
    add(&from);
    write(&from, &images());
    let source = open(&from);
    let rows: Vec<u64> = (0..16).map(|i| i * 7 % 16).collect();
    let mut copier = Copier::create(&to, &source, Mode::Create, 16, false).unwrap();
    copier.copy_rows(&source, &rows, &[], &never).unwrap();
    copier.finish(Map::new(), true).unwrap();
    let kind = |row: &u64, below: u64| if *row < below && *row % 8 < 6 { CROP_INDEX } else { 0 };
    let expected = |below| rows.iter().map(|row| kind(row, below)).collect::<Vec<_>>();
    assert_eq!(kinds(&open(&to)), expected(8));
    assert_deeply_good(&to);
    // Row 11 lies after row 3, which has the same image and an index.
    let (mut bytes, photo) = (fs::read(&to).unwrap(), photo(3));
    let at = bytes.windows(64).rposition(|window| *window == photo[1000..1064]).unwrap();
    bytes[at] ^= 1;
    fs::write(&to, &bytes).unwrap();
    let error = add_crop_index(&to, "image", &IndexOptions::default(), &never).unwrap_err();
    assert!(matches!(error, Error::Value { record: 13, .. }), "{error}");
    assert!(fs::read(&to).unwrap() == bytes, "the chunk is replaced as a whole, or stays");
    bytes[at] ^= 1;
    fs::write(&to, &bytes).unwrap();
    let tally = add(&to);
    assert_eq!((tally.indexed, tally.present, tally.without), (6, 6, 4));
    assert_eq!(kinds(&open(&to)), expected(16));
    assert_deeply_good(&to);
    let tally = add(&to);
    assert_eq!((tally.indexed, tally.present, tally.without), (0, 12, 4));
}

/// Flips a bit of the index of a record.
fn damage(path: &Path, record: u32) {
    let mut bytes = fs::read(path).unwrap();
    let index = crop_index(&photo(record)).unwrap();
    let at = bytes.windows(index.len()).position(|window| *window == index).unwrap();
    bytes[at + index.len() - 1] ^= 1;
    fs::write(path, &bytes).unwrap();
}

#[test]
fn a_flipped_bit_in_an_index_is_found_costs_no_record_and_is_gone_after_a_rebuild() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let images: Vec<_> = (0..6).map(photo).collect();
    write(&path, &images);
    add(&path);
    damage(&path, 4);
    let named = |error: &Error| matches!(error, Error::Value { record: 4, damage: Damage::Side(_), .. });
    let error = loaded(&open(&path)).unwrap_err();
    assert!(named(&error), "{error}");
    for depth in [Depth::Checksums, Depth::Values] {
        let report = verify(&open(&path), depth, &never).unwrap();
        assert!(report.errors.len() == 1 && report.damaged[0].record == 4, "{:?}", report.errors);
        assert!(
            report.errors[0].contains("side bytes") && report.errors[0].ends_with("[FR311]"),
            "{:?}",
            report.errors
        );
    }
    assert_eq!(values(&open(&path)), images);
    let mut salvage = Salvage::open(&path, None, &never).unwrap();
    salvage.check(&never).unwrap();
    assert!(!salvage.is_damaged(), "{:?}", salvage.losses());
    assert_eq!(kinds(salvage.reader()), [0; 6]);

    let tally = rebuild(&path);
    assert_eq!((tally.indexed, tally.present, tally.without), (6, 0, 0));
    assert_deeply_good(&path);
    loaded(&open(&path)).unwrap();
}

#[test]
fn a_flipped_bit_in_what_the_index_adds_is_found_or_changes_nothing() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let images: Vec<_> = (0..2).map(photo).collect();
    write(&path, &images);
    let before = fs::metadata(&path).unwrap().len();
    add(&path);
    let good = fs::read(&path).unwrap();
    let used = good[before as usize..].iter().filter(|&&byte| byte != 0).count();
    let mut found = 0;
    for at in (before as usize..good.len()).step_by(11) {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&path, &bytes).unwrap();
        let Ok(reader) = Reader::open(&path, Access::Pread, None) else {
            found += 1;
            continue;
        };
        assert_eq!(values(&reader), images);
        let report = verify(&reader, Depth::Checksums, &never).unwrap();
        if report.errors.is_empty() {
            assert!(good[at] == 0 && kinds(&reader) == [2, 2], "byte {at} is not padding");
        } else {
            found += 1;
        }
    }
    assert!(found >= used / 11 - 10, "{found} of {used}");
}

#[test]
fn an_index_of_another_image_is_found_by_a_deep_check_and_replaced_by_a_rebuild() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let schema = Schema::new([("image", FieldType::Image)]).unwrap();
    let mut writer = Writer::open(&path, Some(schema), None, &options(Mode::Create)).unwrap();
    let (data, side) = (photo(0), crop_index(&photo(1)).unwrap());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&data), &side);
    writer.append(&[Value::Image { data: &data, side: &side, size: (400, 300), crc }]).unwrap();
    writer.close().unwrap();
    let errors = |depth| verify(&open(&path), depth, &never).unwrap().errors;
    assert!(errors(Depth::Checksums).is_empty());
    let found = errors(Depth::Values);
    let expected = "record 0, field image: the side bytes are damaged (`fastrecord index --rebuild` makes them again): its crop index does not belong to it [FR311]";
    assert!(found.len() == 1 && found[0].ends_with(expected), "{found:?}");
    assert_eq!(add(&path).present, 1);
    assert_eq!(rebuild(&path).indexed, 1);
    assert!(errors(Depth::Values).is_empty());
}

#[test]
fn a_damaged_block_of_the_index_column_is_reported_and_replaced_by_a_rebuild() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    write(&path, &images());
    let before = fs::metadata(&path).unwrap().len();
    add(&path);
    let mut bytes = fs::read(&path).unwrap();
    // The entry of the first image: a length, a length, a CRC and four zeros after an offset.
    let index = crop_index(&photo(0)).unwrap();
    let length = (index.len() as u64).to_le_bytes();
    let entry = [&length[..], &length, &crc32c::crc32c(&index).to_le_bytes(), &[0; 4]].concat();
    let at = (before as usize..).step_by(8).find(|&at| bytes[at..at + 24] == entry).unwrap();
    bytes[at + 20] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let report = verify(&open(&path), Depth::Values, &never).unwrap();
    assert!(report.errors.len() == 1 && report.errors[0].contains("image.side"), "{:?}", report.errors);
    assert!(add_crop_index(&path, "image", &IndexOptions::default(), &never).is_err());
    assert_eq!(rebuild(&path).indexed, 6);
    assert_deeply_good(&path);
    assert_eq!(kinds(&open(&path)), ALL);
}

#[test]
fn only_fields_of_images_are_indexed() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    write(&path, &images());
    let before = fs::read(&path).unwrap();
    for (field, message) in [("label", "only images have a crop index"), ("other", "no field \"other\"")] {
        let error = add_crop_index(&path, field, &IndexOptions::default(), &never).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }
    let reader = Arc::new(open(&path));
    assert!(reader.column("image.side").is_err());
    assert_eq!(fs::read(&path).unwrap(), before);
}
