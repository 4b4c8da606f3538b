//! A reader returns the written values for every split into commits, sessions, chunks and batches.

use crate::common;
use std::fs;
use std::path::Path;

use crate::common::tape::{Op, Tape};
use crate::common::{
    Cell, Nth, Rng, Row, all_types, append, append_all, assert_holds, folder, never, open, options, png, random_row,
    read_by_batch,
};
use fastrecord_core::{
    Access, ColumnBytes, DType, Datum, Depth, Error, FieldType, Mode, Reader, Schema, SnapshotId, Value, Verify,
    Writer, WriterOptions, verify,
};
use proptest::prelude::*;
use serde_json::json;

const KINDS: [FieldType; 5] = [
    FieldType::Image,
    FieldType::Bytes,
    FieldType::String,
    FieldType::Scalar(DType::Int64),
    FieldType::Scalar(DType::Float64),
];

fn schema_of(kinds: &[FieldType]) -> Schema {
    let names: Vec<String> = (0..kinds.len()).map(|i| format!("field {i} é")).collect();
    Schema::new(names.iter().map(String::as_str).zip(kinds.iter().cloned())).unwrap()
}

fn two_fields() -> Schema {
    Schema::new([("data", FieldType::Bytes), ("label", FieldType::Scalar(DType::Int64))]).unwrap()
}

fn create(path: &Path, schema: Schema) -> Writer {
    Writer::open(path, Some(schema), None, &options(Mode::Create)).unwrap()
}

fn reopen(path: &Path) -> Writer {
    Writer::open(path, None, None, &options(Mode::Append)).unwrap()
}

/// The chunks that the newest footer's directory lists.
fn chunks_in(path: &Path) -> u64 {
    let bytes = fs::read(path).unwrap();
    common::u64_at(&bytes, bytes.len() as u64 - 4096 + 64) / 64
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_records_come_back_whatever_the_commits_and_sessions(
        kinds in prop::collection::vec(prop::sample::select(&KINDS[..]), 1..6),
        sessions in prop::collection::vec(prop::collection::vec(0_usize..40, 0..5), 1..5),
        most in prop::sample::select(vec![0_u64, 20, 5_000]),
        commit_bytes in prop::sample::select(vec![1_u64, 10_000, 1 << 30]),
        seed: u64,
    ) {
        let folder = folder();
        let path = folder.path().join("x.frec");
        let (schema, mut rng, mut rows) = (schema_of(&kinds), Rng(seed), Vec::<Row>::new());
        for (number, commits) in sessions.iter().enumerate() {
            let mode = if number == 0 { Mode::Create } else { Mode::Append };
            let options = WriterOptions { mode, commit_bytes, complete: None };
            let given = (number == 0 || rng.chance(50)).then(|| schema.clone());
            let mut writer = Writer::open(&path, given, None, &options).unwrap();
            for &count in commits {
                for _ in 0..count {
                    let row = random_row(&mut rng, &schema, most);
                    prop_assert_eq!(append(&mut writer, &row).unwrap(), rows.len() as u64);
                    rows.push(row);
                }
                writer.commit().unwrap();
                prop_assert_eq!(writer.committed(), rows.len() as u64);
            }
            writer.close().unwrap();
            assert_holds(&path, &rows);
        }
        let report = verify(&open(&path), Depth::Checksums, &|| false).unwrap();
        prop_assert_eq!((report.records, &report.errors[..]), (rows.len() as u64, &[][..]));
        let variable = rows.iter().flatten().map(|cell| match cell {
            Cell::Image(bytes, _) | Cell::Bytes(bytes) => bytes.len() as u64,
            Cell::Text(text) => text.len() as u64,
            _ => 0,
        });
        prop_assert_eq!(report.bytes, variable.sum::<u64>());
    }

    #[test]
    fn a_batch_in_any_order_equals_single_reads(picks in prop::collection::vec(-60_i64..60, 0..200), seed: u64) {
        let folder = folder();
        let path = folder.path().join("x.frec");
        let (schema, mut rng) = (all_types(), Rng(seed));
        let rows: Vec<Row> = (0..60).map(|_| random_row(&mut rng, &schema, 20_000)).collect();
        let mut writer = create(&path, schema);
        append_all(&mut writer, &rows);
        writer.close().unwrap();
        for (access, threads) in [(Access::Mmap, Some(1)), (Access::Mmap, None), (Access::Pread, None)] {
            let reader = Reader::open(&path, access, threads).unwrap();
            let records = reader.resolve(&picks).unwrap();
            for field in [reader.nth(0), reader.nth(1)] {
                let single: Vec<Vec<u8>> = records.iter().map(|&r| reader.payload(field, r, Verify::Always).unwrap()).collect();
                let joined = single.concat();
                let mut out = vec![0xAA; joined.len() + 5];
                let offsets = reader.read_batch_into(field, &records, &mut out, Verify::Always, &never).unwrap();
                let mut expected = vec![0_u64];
                for bytes in &single {
                    expected.push(expected.last().unwrap() + bytes.len() as u64);
                }
                prop_assert_eq!(&offsets, &expected);
                prop_assert_eq!(&out[..joined.len()], &joined[..]);
                prop_assert_eq!(&out[joined.len()..], &[0xAA; 5][..], "bytes after the batch are unchanged");
                let (copy, _) = reader.read_batch_copy(field, &records, Verify::Never, &never).unwrap();
                prop_assert_eq!(&copy, &joined);
                let lengths: Vec<u64> = single.iter().map(|bytes| bytes.len() as u64).collect();
                prop_assert_eq!(reader.lengths(field, &records).unwrap(), lengths);
                prop_assert_eq!(reader.prefetch(field, &records, &|| false).unwrap(), joined.len() as u64);
                if let Some(map) = reader.mapping() {
                    let views = reader.view_batch(field, &records, Verify::Never, &|| false).unwrap().unwrap();
                    let bytes = views.iter().map(|view| {
                        let (offset, length) = view.unwrap();
                        &map.bytes()[offset as usize..(offset + length) as usize]
                    });
                    prop_assert_eq!(bytes.collect::<Vec<_>>().concat(), joined);
                    reader.view_batch(field, &records, Verify::Always, &never).unwrap();
                }
            }
            let texts = reader.strings(reader.nth(2), &records).unwrap();
            let words = reader.values(reader.nth(3), &records).unwrap();
            let words: Vec<[u8; 8]> = words.chunks_exact(8).map(|word| word.try_into().unwrap()).collect();
            for (i, &record) in records.iter().enumerate() {
                let row = &rows[record as usize];
                prop_assert_eq!(Cell::Text(texts[i].clone().unwrap()), row[2].clone());
                prop_assert_eq!(Cell::Int(i64::from_le_bytes(words[i])), row[3].clone());
            }
        }
    }

    #[test]
    fn any_user_metadata_comes_back_after_it_was_rewritten(
        floats in prop::collection::vec(prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO, 20),
        words in prop::collection::vec(any::<i64>(), 5),
        text: String,
        key: String,
    ) {
        let folder = folder();
        let path = folder.path().join("x.frec");
        let user = json!({"floats": floats, "words": words, "text": text, "nested": {key: [null, true, {}]}});
        let user = user.as_object().unwrap().clone();
        let unfinished = WriterOptions { complete: Some(false), ..options(Mode::Create) };
        let mut writer = Writer::open(&path, Some(two_fields()), Some(user.clone()), &unfinished).unwrap();
        writer.close().unwrap();
        prop_assert!(!open(&path).complete());
        prop_assert_eq!(open(&path).metadata().clone(), user.clone());
        let newer = json!({"words": [], "more": 1}).as_object().unwrap().clone();
        Writer::open(&path, None, Some(newer.clone()), &options(Mode::Append)).unwrap().close().unwrap();
        prop_assert!(!open(&path).complete()); // it is unchanged
        let user: serde_json::Map<_, _> = user.into_iter().chain(newer).collect();
        let mut writer = reopen(&path);
        writer.set_complete(true);
        writer.close().unwrap(); // so its metadata is written again
        prop_assert!(open(&path).complete());
        prop_assert_eq!(open(&path).metadata().clone(), user.clone());
    }
}

#[test]
fn hundreds_of_tiny_commits_leave_few_chunks_and_one_view_of_each_column() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let (schema, mut rng) = (all_types(), Rng(1));
    let mut writer = create(&path, schema.clone());
    let mut rows = Vec::new();
    for commit in 1..=600 {
        rows.push(random_row(&mut rng, &schema, 10));
        append(&mut writer, rows.last().unwrap()).unwrap();
        assert_eq!(writer.commit().unwrap(), commit);
        if commit % 50 == 0 {
            let chunks = chunks_in(&path);
            assert!(chunks <= 7 * 11, "{chunks} chunks in 7 columns after {commit} commits");
        }
    }
    writer.close().unwrap();
    assert_holds(&path, &rows);
    let reader = open(&path);
    for name in ["label", "weight", "image.width", "image.height"] {
        assert!(matches!(reader.column(name).unwrap().1, ColumnBytes::Mapped(..)), "{name} is not one chunk");
    }
}

#[test]
fn hundreds_of_sessions_of_one_record_leave_few_chunks() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let (schema, mut rng) = (all_types(), Rng(2));
    create(&path, schema.clone()).close().unwrap();
    let mut rows = Vec::new();
    for _ in 0..300 {
        rows.push(random_row(&mut rng, &schema, 10));
        let mut writer = reopen(&path);
        append(&mut writer, rows.last().unwrap()).unwrap();
        writer.close().unwrap();
    }
    assert_holds(&path, &rows);
    assert!(chunks_in(&path) <= 7 * 11, "{} chunks in 7 columns", chunks_in(&path));
}

#[test]
fn chunks_above_a_block_are_merged_with_their_check_tables() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut writer = create(&path, two_fields());
    let mut labels = Vec::new();
    for commit in 0..9_i64 {
        for i in 0..(300 + commit * 777) {
            writer.append(&[Value::Bytes(&[]), Value::Int(i * 31 - commit)]).unwrap();
            labels.extend((i * 31 - commit).to_le_bytes());
        }
        writer.commit().unwrap();
    }
    writer.close().unwrap();
    for access in [Access::Mmap, Access::Pread] {
        let reader = Reader::open(&path, access, None).unwrap();
        assert_eq!(common::column_bytes(&reader, "label").unwrap().1, labels);
        assert!(verify(&reader, Depth::Checksums, &|| false).unwrap().errors.is_empty());
    }
    assert!(matches!(open(&path).column("label").unwrap().1, ColumnBytes::Mapped(..)));
}

#[test]
fn a_small_append_to_a_large_column_does_not_copy_it() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut writer = create(&path, Schema::new([("label", FieldType::Scalar(DType::Int64))]).unwrap());
    (0..100_000).for_each(|i| _ = writer.append(&[Value::Int(i)]).unwrap());
    writer.close().unwrap();
    let before = fs::metadata(&path).unwrap().len();
    let mut writer = reopen(&path);
    writer.append(&[Value::Int(100_000)]).unwrap();
    writer.close().unwrap();
    let grown = fs::metadata(&path).unwrap().len() - before;
    assert!(grown <= 2 * 4096, "{grown} bytes for one record of 8 bytes");
    let (_, bytes) = common::column_bytes(&open(&path), "label").unwrap();
    assert_eq!(bytes, (0..=100_000_i64).flat_map(i64::to_le_bytes).collect::<Vec<u8>>());
}

#[test]
fn large_and_small_payloads_are_written_together_in_whole_pages() {
    let tape = Tape::default();
    let (path, storage) = (Path::new("tape.frec"), Box::new(tape.clone()));
    let mut writer = Writer::create_in(path, storage, two_fields(), &WriterOptions::default()).unwrap();
    let mut rng = Rng(7);
    for size in [1, 200_000, 110_003, 0, 40_000, 32_768, 3 << 20, 5, 65_537] {
        let payload = rng.bytes(size);
        writer.append(&[Value::Bytes(&payload), Value::Int(0)]).unwrap();
    }
    let ops = tape.ops().into_iter().filter_map(|op| match op {
        Op::Write(at, bytes) => Some(at..at + bytes.len()),
        _ => None,
    });
    // The first one is the superblock.
    let blocks: Vec<_> = ops.skip(1).collect();
    assert!(blocks.windows(2).all(|pair| pair[0].end == pair[1].start));
    assert!(blocks.iter().all(|range| range.end.is_multiple_of(4096)), "{blocks:?}");
    let bytes = blocks.last().unwrap().end - blocks[0].start;
    assert!(bytes > 3 << 20 && blocks.len() <= bytes / (32 << 10) + 1, "{} writes for {bytes} bytes", blocks.len());
    writer.close().unwrap();
}

#[test]
fn closing_again_without_a_change_writes_nothing() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut writer = create(&path, two_fields());
    writer.append(&[Value::Bytes(b"x"), Value::Int(1)]).unwrap();
    writer.close().unwrap();
    writer.close().unwrap();
    let before = fs::read(&path).unwrap();
    for _ in 0..3 {
        let mut writer = reopen(&path);
        assert_eq!(writer.commit().unwrap(), 1);
        writer.close().unwrap();
        drop(reopen(&path));
    }
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_writer_commits_by_itself_after_so_many_bytes() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let options = WriterOptions { commit_bytes: 100_000, ..WriterOptions::default() };
    let mut writer = Writer::open(&path, Some(two_fields()), None, &options).unwrap();
    for i in 0..100 {
        writer.append(&[Value::Bytes(&[7; 10_000]), Value::Int(i)]).unwrap();
        assert!(writer.len() - writer.committed() < 10, "{} of {} committed", writer.committed(), writer.len());
    }
    assert_eq!(open(&path).len(), 100);
    let options = WriterOptions { commit_bytes: 1000, mode: Mode::Append, ..options };
    drop(writer);
    let mut writer = Writer::open(&path, None, None, &options).unwrap();
    writer.append(&[Value::Bytes(&[]), Value::Int(0)]).unwrap();
    assert_eq!(writer.committed(), 100);
}

#[test]
fn strings_count_for_the_commit_by_itself() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let options = WriterOptions { commit_bytes: 1000, ..WriterOptions::default() };
    let schema = Schema::new([("key", FieldType::String)]).unwrap();
    let mut writer = Writer::open(&path, Some(schema), None, &options).unwrap();
    (0..10).for_each(|_| _ = writer.append(&[Value::Str(&"k".repeat(99))]).unwrap());
    assert_eq!(writer.committed(), 0);
    writer.append(&[Value::Str(&"k".repeat(99))]).unwrap();
    assert_eq!(writer.committed(), 11);
}

#[test]
fn an_empty_file_reads_as_such_and_can_be_appended_to() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    create(&path, all_types()).close().unwrap();
    assert_holds(&path, &[]);
    let reader = open(&path);
    assert!(reader.is_empty() && reader.tail_bytes() == 0);
    assert_eq!(
        reader.read_batch_copy(reader.nth(0), &reader.records(&[]).unwrap(), Verify::Always, &never).unwrap(),
        (vec![], vec![0])
    );
    assert!(matches!(reader.resolve(&[0]), Err(Error::OutOfRange { record: 0, len: 0, .. })));
    assert!(matches!(reader.resolve(&[-1]), Err(Error::OutOfRange { record: -1, len: 0, .. })));
    let row = random_row(&mut Rng(3), &all_types(), 10);
    let mut writer = reopen(&path);
    append(&mut writer, &row).unwrap();
    writer.close().unwrap();
    assert_holds(&path, &[row]);
    assert!(reader.is_empty(), "a snapshot does not change");
}

#[test]
fn values_larger_than_every_buffer_come_back() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut rng = Rng(4);
    let mut rows = Vec::new();
    for length in [4 << 20, 1, (4 << 20) - 1, (4 << 20) + 1, 9 << 20, 0] {
        let text: String = rng.bytes(length / 3).iter().map(|b| char::from(b'a' + b % 26)).collect();
        let image = png(640, 480, &rng.bytes(length / 2));
        rows.push(vec![
            Cell::Image(image, (640, 480)),
            Cell::Bytes(rng.bytes(length)),
            Cell::Text(text.repeat(3)),
            Cell::Int(7),
            Cell::Float(0),
        ]);
    }
    let mut writer = create(&path, all_types());
    append_all(&mut writer, &rows);
    writer.close().unwrap();
    assert_holds(&path, &rows);
    assert!(verify(&open(&path), Depth::Checksums, &|| false).unwrap().errors.is_empty());
}

#[test]
fn a_reader_sees_newer_commits_only_after_it_refreshed() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut writer = create(&path, two_fields());
    let mut add = |n: i64| {
        (0..n).for_each(|i| _ = writer.append(&[Value::Bytes(&i.to_le_bytes()), Value::Int(i)]).unwrap());
        writer.commit().unwrap()
    };
    add(3);
    let old = open(&path);
    assert!(old.refresh().unwrap().is_none());
    add(4);
    assert_eq!(old.len(), 3);
    let new = old.refresh().unwrap().unwrap();
    assert_eq!((old.len(), new.len()), (3, 7));
    assert!(matches!(old.resolve(&[3]), Err(Error::OutOfRange { record: 3, len: 3, .. })));
    assert!(matches!(old.run(2..4), Err(Error::OutOfRange { record: 3, len: 3, .. })));
    let checked_by_new = new.records(&[0, 3]).unwrap();
    assert!(matches!(old.lengths(old.nth(0), &checked_by_new), Err(Error::OutOfRange { record: 3, len: 3, .. })));
    assert!(matches!(old.payload(old.nth(0), 3, Verify::Once), Err(Error::OutOfRange { record: 3, len: 3, .. })));
    assert_eq!(new.datum(new.nth(1), 6, Verify::Always).unwrap(), Datum::Int(3));
    assert_eq!(read_by_batch(&old).unwrap(), read_by_batch(&new).unwrap()[..3]);
    assert_eq!(common::column_bytes(&old, "label").unwrap().1.len(), 24);
}

#[test]
fn every_snapshot_can_be_opened_again_by_its_name() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let (schema, mut rng) = (all_types(), Rng(5));
    let (mut rows, mut seen) = (Vec::new(), Vec::new());
    let mut writer = create(&path, schema.clone());
    for _ in 0..20 {
        rows.push(random_row(&mut rng, &schema, 100));
        append(&mut writer, rows.last().unwrap()).unwrap();
        writer.commit().unwrap();
        seen.push(open(&path).snapshot());
    }
    writer.close().unwrap();
    for (i, snapshot) in seen.iter().enumerate() {
        for access in [Access::Mmap, Access::Pread] {
            let reader = Reader::open_snapshot(&path, access, None, *snapshot).unwrap();
            assert_eq!(reader.snapshot(), *snapshot);
            assert_eq!(read_by_batch(&reader).unwrap(), rows[..=i]);
            assert_eq!(reader.refresh().unwrap().unwrap().len(), 20);
        }
    }
    let refused = |wanted| Reader::open_snapshot(&path, Access::Mmap, None, wanted).unwrap_err();
    assert!(matches!(refused(SnapshotId { file_id: [1; 16], ..seen[0] }), Error::Replaced { .. }));
    assert!(matches!(refused(SnapshotId { commit: 7, ..seen[0] }), Error::Replaced { .. }));
    assert!(matches!(refused(SnapshotId { footer: u64::MAX - 4095, ..seen[0] }), Error::Replaced { .. }));
    assert!(matches!(refused(SnapshotId { footer: 4097, ..seen[0] }), Error::Replaced { .. }));
}

#[test]
fn overwriting_takes_the_place_of_the_file_at_close_and_not_before() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut writer = create(&path, two_fields());
    writer.append(&[Value::Bytes(b"old"), Value::Int(1)]).unwrap();
    writer.close().unwrap();
    let old = open(&path);
    let schema = Schema::new([("other", FieldType::Scalar(DType::Int64))]).unwrap();
    let mut writer = Writer::open(&path, Some(schema.clone()), None, &options(Mode::Overwrite)).unwrap();
    writer.append(&[Value::Int(5)]).unwrap();
    writer.commit().unwrap();
    assert_eq!(open(&path).snapshot(), old.snapshot());
    drop(writer); // not closed: the file does not change
    assert_eq!(open(&path).snapshot(), old.snapshot());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the temporary file is gone");
    let mut writer = Writer::open(&path, Some(schema), None, &options(Mode::Overwrite)).unwrap();
    writer.append(&[Value::Int(5)]).unwrap();
    writer.close().unwrap();
    assert_holds(&path, &[vec![Cell::Int(5)]]);
    assert_eq!(old.payload(old.nth(0), 0, Verify::Always).unwrap(), b"old", "a reader keeps the file that it opened");
    assert!(matches!(old.refresh(), Err(Error::Replaced { .. })));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn an_existing_file_is_never_created_over() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    fs::write(&path, b"precious").unwrap();
    let refused = Writer::open(&path, Some(two_fields()), None, &options(Mode::Create)).unwrap_err();
    assert!(refused.to_string().contains("x.frec"), "{refused}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    let refused = Writer::open(&path, None, None, &options(Mode::Append)).unwrap_err();
    assert!(matches!(refused, Error::NotFrec { .. }), "{refused}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    let absent = Writer::open(&folder.path().join("no"), None, None, &options(Mode::Append)).unwrap_err();
    assert!(matches!(absent, Error::Io { ref source, .. } if source.kind() == std::io::ErrorKind::NotFound));
}

#[test]
fn a_writer_dropped_before_its_first_commit_leaves_no_file() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut writer = create(&path, two_fields());
    writer.append(&[Value::Bytes(&vec![1; 5_000_000]), Value::Int(1)]).unwrap();
    drop(writer);
    assert!(!path.exists());
}

#[test]
fn a_dropped_writer_leaves_the_last_commit_and_no_tail() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut writer = create(&path, two_fields());
    writer.append(&[Value::Bytes(b"a"), Value::Int(1)]).unwrap();
    writer.commit().unwrap();
    let length = fs::metadata(&path).unwrap().len();
    writer.append(&[Value::Bytes(&vec![1; 5_000_000]), Value::Int(2)]).unwrap();
    assert!(fs::metadata(&path).unwrap().len() > length);
    assert!(open(&path).tail_bytes() > 4_000_000);
    drop(writer);
    assert_eq!(fs::metadata(&path).unwrap().len(), length);
    assert_holds(&path, &[vec![Cell::Bytes(b"a".to_vec()), Cell::Int(1)]]);
}

#[test]
fn a_value_that_does_not_fit_appends_nothing_and_the_writer_goes_on() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut writer = create(&path, all_types());
    let good = random_row(&mut Rng(6), &all_types(), 50);
    let image = png(3, 4, b"");
    let bad: [&[Value<'_>]; 4] = [
        &[],
        &[Value::Bytes(&image), Value::Bytes(b"x"), Value::Str("k"), Value::Int(1), Value::Int(1)],
        &[Value::Bytes(b"no image"), Value::Bytes(b"x"), Value::Str("k"), Value::Int(1), Value::Float(1.0)],
        &[Value::Bytes(&image), Value::Bytes(b"x"), Value::Bytes(b"k"), Value::Int(1), Value::Float(1.0)],
    ];
    for values in bad {
        append(&mut writer, &good).unwrap();
        let error = writer.append(values).unwrap_err();
        assert!(matches!(error, Error::Schema(_) | Error::BadValue { .. }), "{error}");
    }
    writer.close().unwrap();
    assert_holds(&path, &vec![good; 4]);
}

#[test]
fn another_schema_is_refused_on_append_and_names_both() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    create(&path, two_fields()).close().unwrap();
    let error = Writer::open(&path, Some(all_types()), None, &options(Mode::Append)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("{data: bytes, label: int64}") && text.contains("key: string"), "{text}");
    reopen(&path).close().unwrap(); // the refusal released the lock
}

#[test]
fn a_buffer_that_is_too_small_is_left_alone() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut writer = create(&path, two_fields());
    (0..3).for_each(|i| _ = writer.append(&[Value::Bytes(&[i; 10]), Value::Int(0)]).unwrap());
    writer.close().unwrap();
    let mut out = [9; 29];
    let (reader, verify) = (open(&path), Verify::Always);
    let records = reader.run(0..3).unwrap();
    let error = reader.read_batch_into(reader.nth(0), &records, &mut out, verify, &never).unwrap_err();
    assert!(matches!(error, Error::BufferTooSmall { needed: 30, given: 29, .. }), "{error}");
    assert_eq!(out, [9; 29]);
}

#[test]
fn asking_for_the_wrong_thing_is_an_error_that_names_it() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut writer = create(&path, all_types());
    append(&mut writer, &random_row(&mut Rng(7), &all_types(), 9)).unwrap();
    writer.close().unwrap();
    for access in [Access::Mmap, Access::Pread] {
        let reader = Reader::open(&path, access, None).unwrap();
        assert!(matches!(reader.field("nope"), Err(Error::NoField { .. })));
        assert!(matches!(reader.column("nope.width"), Err(Error::NoField { .. })));
        for name in ["image", "data", "key", "label.width", "data.height"] {
            assert!(matches!(reader.column(name), Err(Error::FieldType { .. })), "{name}");
        }
        assert!(matches!(reader.strings(reader.nth(0), &reader.records(&[0]).unwrap()), Err(Error::FieldType { .. })));
        assert!(matches!(reader.values(reader.nth(2), &reader.records(&[0]).unwrap()), Err(Error::FieldType { .. })));
        assert!(matches!(reader.lengths(reader.nth(3), &reader.records(&[0]).unwrap()), Err(Error::FieldType { .. })));
    }
}

#[test]
fn a_packed_file_as_a_payload_is_not_taken_for_the_file_itself() {
    let folder = folder();
    let (inner, path) = (folder.path().join("inner.frec"), folder.path().join("outer.frec"));
    let mut writer = create(&inner, two_fields());
    writer.append(&[Value::Bytes(b"inner"), Value::Int(1)]).unwrap();
    writer.close().unwrap();
    let inner = fs::read(&inner).unwrap();
    let mut writer = create(&path, two_fields());
    // Page-aligned copies too: payloads are aligned to 8 bytes, so one of 512 in a row begins a
    // page.
    for shift in 0..512 {
        writer.append(&[Value::Bytes(&inner[..8 * shift]), Value::Int(0)]).unwrap();
    }
    writer.append(&[Value::Bytes(&inner), Value::Int(2)]).unwrap();
    writer.commit().unwrap();
    writer.append(&[Value::Bytes(&vec![b'F'; 5_000_000]), Value::Int(3)]).unwrap();
    // A copy of the live file without its slots: the reader searches every page for the footer.
    let copy = folder.path().join("copy.frec");
    let mut bytes = fs::read(&path).unwrap();
    bytes[512..2048].fill(0);
    fs::write(&copy, bytes).unwrap();
    let copy = open(&copy);
    assert_eq!(copy.snapshot(), open(&path).snapshot());
    assert_eq!(copy.len(), 513);
    assert_eq!(copy.payload(copy.nth(0), 512, Verify::Always).unwrap(), inner);
}
