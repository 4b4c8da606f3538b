//! Records copied between files: values stay the same wherever they are stored, copied by the
//! kernel or through memory. A failed copy leaves nothing.

use std::cell::Cell;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{
    ALL_TYPES, EXTENTS, Forge, Nth, Rng, Row, VALUES, all_types, append, append_with_side, assert_holds, folder, never,
    open, options, random_row, u64_at, value,
};
use fastrecord_core::{
    Access, ArrayType, Cause, Copier, DType, Damage, Datum, Depth, Error, FieldType, Mode, Reader, Recovery, Renumber,
    Result, Schema, Storage, Value, Verify, Writer, WriterOptions, stored_bytes, verify,
};
use proptest::prelude::*;
use serde_json::Map;

fn write(path: &Path, count: usize, most: u64, commit_bytes: u64, seed: u64) -> Vec<Row> {
    let (schema, mut rng) = (all_types(), Rng(seed));
    let options = WriterOptions { commit_bytes, ..options(Mode::Create) };
    let mut writer = Writer::open(path, Some(schema.clone()), None, &options).unwrap();
    let rows: Vec<Row> = (0..count).map(|_| random_row(&mut rng, &schema, most)).collect();
    for row in &rows {
        append(&mut writer, row).unwrap();
    }
    writer.close().unwrap();
    rows
}

fn copy_all(source: &Reader, to: &Path, verify: bool) -> Result<()> {
    let mut copier = Copier::create(to, source, Mode::Create, source.len(), verify)?;
    copier.copy_run(source, 0..source.len(), &[], &never)?;
    copier.finish(Map::new(), true)
}

/// The chunks that the newest footer's directory lists.
fn chunks_in(path: &Path) -> u64 {
    let bytes = fs::read(path).unwrap();
    u64_at(&bytes, bytes.len() as u64 - 4096 + 64) / 64
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_choice_of_records_is_copied_in_any_order(
        count in 1_usize..80,
        most in prop::sample::select(vec![20_u64, 5_000, 200_000]),
        commit_bytes in prop::sample::select(vec![1_u64, 100_000, 1 << 30]),
        checked: bool,
        seed: u64,
    ) {
        let folder = folder();
        let (from, to) = (folder.path().join("a.frec"), folder.path().join("b.frec"));
        let rows = write(&from, count, most, commit_bytes, seed);
        let source = open(&from);
        let mut rng = Rng(seed ^ 1);
        let mut chosen: Vec<u64> = (0..count as u64).filter(|_| rng.chance(60)).collect();
        if rng.chance(50) {
            rng.shuffle(&mut chosen);
        }
        let run = rng.below(count as u64);
        let expected: Vec<Row> =
            chosen.iter().copied().chain(run..count as u64).map(|i| rows[i as usize].clone()).collect();
        let mut copier = Copier::create(&to, &source, Mode::Create, expected.len() as u64, checked).unwrap();
        copier.copy_rows(&source, &chosen, &[], &never).unwrap();
        copier.copy_run(&source, run..count as u64, &[], &never).unwrap();
        copier.finish(Map::new(), true).unwrap();
        assert_holds(&to, &expected);
        prop_assert!(verify(&open(&to), Depth::Checksums, &never).unwrap().errors.is_empty());
        prop_assert_eq!(open(&to).snapshot().commit, 1);
        prop_assert!(chunks_in(&to) <= 7, "one a column");
    }
}

#[test]
fn a_wrong_number_of_records_costs_a_chunk_and_no_record() {
    let folder = folder();
    let from = folder.path().join("a.frec");
    let rows = write(&from, 50, 2_000, 1 << 30, 1);
    let source = open(&from);
    for expected in [0, 20, 50, 1_000] {
        let to = folder.path().join(format!("{expected}.frec"));
        let mut copier = Copier::create(&to, &source, Mode::Create, expected, false).unwrap();
        for first in (0..50).step_by(10) {
            copier.copy_run(&source, first..first + 10, &[], &never).unwrap();
        }
        copier.finish(Map::new(), true).unwrap();
        assert_holds(&to, &rows);
    }
}

#[test]
fn arrays_keep_their_alignment() {
    let folder = folder();
    let (from, to) = (folder.path().join("a.frec"), folder.path().join("b.frec"));
    let array = |shape: &[Option<u64>]| FieldType::Array(ArrayType::new(DType::UInt8, shape).unwrap());
    let kinds = [array(&[Some(33), Some(3)]), array(&[None]), array(&[None, None, Some(2)]), array(&[Some(5)])];
    let names = ["fixed", "one", "two", "small"];
    let schema = Schema::new(names.into_iter().zip(kinds)).unwrap();
    let mut writer = Writer::open(&from, Some(schema), None, &options(Mode::Create)).unwrap();
    let mut rng = Rng(5);
    for _ in 0..300 {
        let (n, m, k) = (rng.below(70), rng.below(9), rng.below(30));
        let (fixed, one, two) = (rng.bytes(99), rng.bytes(n as usize), rng.bytes((2 * m * k) as usize));
        let small = rng.bytes(5);
        let values = [
            Value::Array { shape: &[33, 3], data: &fixed },
            Value::Array { shape: &[n], data: &one },
            Value::Array { shape: &[m, k, 2], data: &two },
            Value::Array { shape: &[5], data: &small },
        ];
        writer.append(&values).unwrap();
    }
    writer.close().unwrap();
    let source = open(&from);
    let mut rows: Vec<u64> = (0..300).collect();
    Rng(6).shuffle(&mut rows);
    let mut copier = Copier::create(&to, &source, Mode::Create, 600, false).unwrap();
    copier.copy_run(&source, 0..300, &[], &never).unwrap();
    copier.copy_rows(&source, &rows, &[], &never).unwrap();
    copier.finish(Map::new(), true).unwrap();
    let copy = open(&to);
    assert!(verify(&copy, Depth::Checksums, &never).unwrap().errors.is_empty());
    for (i, record) in (0..300).chain(rows).enumerate() {
        for (field, definition) in source.schema().iter() {
            if !definition.kind.has_payloads() {
                assert_eq!(
                    source.datum(field, record, Verify::Always).unwrap(),
                    copy.datum(field, i as u64, Verify::Always).unwrap()
                );
                continue;
            }
            let read = |reader: &Reader, record| reader.payload(field, record, Verify::Always).unwrap();
            assert_eq!(read(&source, record), read(&copy, i as u64));
        }
    }
}

#[test]
fn side_bytes_are_copied_and_stay_under_the_checksum() {
    let folder = folder();
    let (from, to) = (folder.path().join("a.frec"), folder.path().join("b.frec"));
    let (schema, mut rng) = (all_types(), Rng(3));
    let mut writer = Writer::open(&from, Some(schema.clone()), None, &options(Mode::Create)).unwrap();
    let rows: Vec<Row> = (0..20).map(|_| random_row(&mut rng, &schema, 9_000)).collect();
    for (i, row) in rows.iter().enumerate() {
        append_with_side(&mut writer, row, &vec![9; i]).unwrap();
    }
    writer.close().unwrap();
    copy_all(&open(&from), &to, false).unwrap();
    assert_holds(&to, &rows);
    let stored = |path: &Path| stored_bytes(&open(path), 0..20).unwrap();
    assert_eq!(stored(&from), stored(&to), "the side bytes are there");
    let report = verify(&open(&to), Depth::Checksums, &never).unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
}

#[test]
fn values_of_a_field_that_came_later_are_copied_into_chunks_of_their_own() {
    let folder = folder();
    let (from, to) = (folder.path().join("a.frec"), folder.path().join("b.frec"));
    let mut rows = write(&from, 80, 9_000, 20_000, 4);
    let more = Schema::new(
        ALL_TYPES
            .map(|(name, kind)| (["late ", name].concat(), kind))
            .each_ref()
            .map(|(name, kind)| (name.as_str(), kind.clone())),
    );
    let mut writer = Writer::open(&from, None, None, &options(Mode::Append)).unwrap();
    for field in more.unwrap().fields() {
        let alone = Schema::new([(field.name.as_str(), field.kind.clone())]).unwrap();
        let cells: Vec<_> =
            (0..80).map(|_| random_row(&mut Rng(field.name.len() as u64), &alone, 9_000).remove(0)).collect();
        let new = writer.start_field(field).unwrap();
        writer.fill(new, &cells.iter().map(value).collect::<Vec<_>>()).unwrap();
        writer.commit_field(new).unwrap();
        rows.iter_mut().zip(cells).for_each(|(row, cell)| row.push(cell));
    }
    writer.close().unwrap();
    assert_holds(&from, &rows);
    copy_all(&open(&from), &to, true).unwrap();
    assert_holds(&to, &rows);
    assert_eq!(chunks_in(&to), 14, "two of the fields are images, of three columns each");
    assert!(fs::metadata(&to).unwrap().len() < fs::metadata(&from).unwrap().len());
}

/// A file of three fields in which most records have missing values.
fn with_gaps(path: &Path) {
    let fields = r#"[{"id": 1, "name": "data", "type": "bytes"}, {"id": 2, "name": "label", "type": "int64"},
        {"id": 3, "name": "late", "type": "bytes"}]"#;
    let mut forge = Forge::new(fields, 1_000);
    let mut missing = [0; 32];
    missing[29] = 1;
    let entries: Vec<[u8; 32]> =
        (0..1_000_u32).map(|i| if i % 3 == 0 { missing } else { forge.payload(&i.to_le_bytes()) }).collect();
    let late: Vec<[u8; 32]> = (0..100_u32).map(|i| forge.payload(&[i as u8; 9])).collect();
    forge.chunk(1, 0, EXTENTS, 32, 0, &entries.concat());
    for first in [100_u64, 400, 450] {
        let values: Vec<u8> = (first..first + 50).flat_map(u64::to_le_bytes).collect();
        forge.chunk(2, 0, VALUES, 8, first, &values);
    }
    forge.chunk(3, 0, EXTENTS, 32, 700, &late.concat());
    fs::write(path, forge.build(|_| {})).unwrap();
}

#[test]
fn missing_values_are_missing_in_the_copy() {
    let folder = folder();
    let from = folder.path().join("a.frec");
    with_gaps(&from);
    let source = open(&from);
    let value = |reader: &Reader, field, record| match reader.datum(field, record, Verify::Always).unwrap() {
        Datum::Payload(..) => format!("{:?}", reader.payload(field, record, Verify::Always).unwrap()),
        other => format!("{other:?}"),
    };
    let mut shuffled: Vec<u64> = (0..1_000).collect();
    Rng(4).shuffle(&mut shuffled);
    let some: Vec<u64> = (0..1_000).filter(|i| i % 7 != 0).collect();
    for (name, rows) in [("all", (0..1_000).collect()), ("shuffled", shuffled), ("some", some)] {
        let to = folder.path().join(name);
        let mut copier = Copier::create(&to, &source, Mode::Create, rows.len() as u64, true).unwrap();
        if name == "all" {
            copier.copy_run(&source, 0..1_000, &[], &never).unwrap();
        } else {
            copier.copy_rows(&source, &rows, &[], &never).unwrap();
        }
        copier.finish(Map::new(), true).unwrap();
        let copy = open(&to);
        assert!(verify(&copy, Depth::Checksums, &never).unwrap().errors.is_empty());
        for (i, &record) in rows.iter().enumerate() {
            for field in [0, 1, 2].map(|field| copy.nth(field)) {
                assert_eq!(value(&copy, field, i as u64), value(&source, field, record), "{name}, {record}, {field:?}");
            }
        }
    }
    // In order, missing values need no entries: three runs of labels, and one of the late field.
    assert!(chunks_in(&folder.path().join("all")) <= 4);
}

#[test]
fn records_that_no_column_covers_are_counted_and_cost_nothing() {
    let folder = folder();
    let (from, to) = (folder.path().join("a.frec"), folder.path().join("b.frec"));
    let fields = r#"[{"id": 1, "name": "label", "type": "int64"}, {"id": 2, "name": "flag", "type": "bool"}]"#;
    let mut forge = Forge::new(fields, 200_000);
    forge.chunk(1, 0, VALUES, 8, 100_000, &7_i64.to_le_bytes().repeat(100_000));
    forge.chunk(2, 0, VALUES, 1, 100_000, &vec![1; 100_000]);
    fs::write(&from, forge.build(|_| {})).unwrap();
    copy_all(&open(&from), &to, false).unwrap();
    let copy = open(&to);
    assert_eq!(copy.len(), 200_000);
    assert_eq!(copy.datum(copy.nth(0), 100_000, Verify::Always).unwrap(), Datum::Int(7));
    assert_eq!(copy.datum(copy.nth(0), 99_999, Verify::Always).unwrap(), Datum::Missing);
    assert!(fs::metadata(&to).unwrap().len() < 950_000);
}

#[test]
fn labels_get_new_numbers_and_negative_ones_stay() {
    let folder = folder();
    let (from, to) = (folder.path().join("a.frec"), folder.path().join("b.frec"));
    let schema = Schema::new([("label", FieldType::Scalar(DType::Int64))]).unwrap();
    let mut writer = Writer::open(&from, Some(schema), None, &options(Mode::Create)).unwrap();
    for label in [0, 2, -1, 1, i64::MIN] {
        writer.append(&[Value::Int(label)]).unwrap();
    }
    writer.close().unwrap();
    let source = open(&from);
    let renumber = |numbers: &[i64]| [Renumber { field: "label".to_owned(), numbers: numbers.to_vec() }];
    let mut copier = Copier::create(&to, &source, Mode::Create, 5, false).unwrap();
    copier.copy_run(&source, 0..5, &renumber(&[10, 11, 7]), &never).unwrap();
    copier.finish(Map::new(), true).unwrap();
    let copy = open(&to);
    let labels: Vec<Datum> = (0..5).map(|record| copy.datum(copy.nth(0), record, Verify::Always).unwrap()).collect();
    assert_eq!(labels, [10, 7, -1, 11, i64::MIN].map(Datum::Int));
    let mut copier = Copier::create(&folder.path().join("c"), &source, Mode::Create, 5, false).unwrap();
    let error = copier.copy_run(&source, 0..5, &renumber(&[10, 11]), &never).unwrap_err();
    assert!(error.to_string().contains("record 1, field label: the label 2 has no class"), "{error}");
}

/// The response of the kernel to a copy request.
#[derive(Debug, Clone, Copy)]
enum Kernel {
    Refuses(i32),
    RefusesAfter(u64),
    CopiesAtMost(u64),
    CopiesNothing,
}

/// A storage whose kernel refuses or shortens copies.
#[derive(Debug)]
struct Difficult {
    file: File,
    kernel: Kernel,
    copied: Arc<AtomicU64>,
}

impl Storage for Difficult {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }

    fn len(&self) -> io::Result<u64> {
        Storage::len(&self.file)
    }

    fn copy_from(&self, source: &File, from: u64, to: u64, length: u64) -> io::Result<u64> {
        let done = self.copied.load(Ordering::Relaxed);
        let length = match self.kernel {
            Kernel::Refuses(errno) => return Err(io::Error::from_raw_os_error(errno)),
            Kernel::RefusesAfter(bytes) if done >= bytes => return Err(io::ErrorKind::Unsupported.into()),
            Kernel::RefusesAfter(_) => length.min(5_000),
            Kernel::CopiesAtMost(bytes) => length.min(bytes),
            Kernel::CopiesNothing => return Ok(0),
        };
        let mut bytes = vec![0; length as usize];
        source.read_exact_at(&mut bytes, from)?;
        self.file.write_all_at(&bytes, to)?;
        self.copied.fetch_add(length, Ordering::Relaxed);
        Ok(length)
    }
}

#[test]
fn what_the_kernel_does_not_copy_goes_through_memory() {
    let folder = folder();
    let from = folder.path().join("a.frec");
    let rows = write(&from, 40, 300_000, 1 << 30, 9);
    let source = open(&from);
    let kernels = [
        (Kernel::Refuses(libc::EXDEV), false),
        (Kernel::Refuses(libc::EINVAL), false),
        (Kernel::Refuses(libc::ENOSYS), false),
        (Kernel::CopiesNothing, false),
        (Kernel::RefusesAfter(1_000_000), true),
        (Kernel::CopiesAtMost(65_537), true),
    ];
    for (number, (kernel, copies)) in kernels.into_iter().enumerate() {
        let to = folder.path().join(number.to_string());
        let file = File::options().read(true).write(true).create_new(true).open(&to).unwrap();
        let copied = Arc::new(AtomicU64::new(0));
        let storage = Box::new(Difficult { file, kernel, copied: Arc::clone(&copied) });
        let mut copy = Copier::create_in(&to, storage, &source, 40, false).unwrap();
        copy.copy_run(&source, 0..40, &[], &never).unwrap();
        copy.finish(Map::new(), true).unwrap();
        assert_holds(&to, &rows);
        assert_eq!(copied.load(Ordering::Relaxed) > 500_000, copies, "{kernel:?}");
    }
}

#[test]
fn the_kernel_of_this_machine_copies_long_payloads() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("a.frec"), folder.path().join("b.frec"));
    // Larger than one copy step, and misaligned by more than one page.
    let rows = write(&from, 400, 300_000, 1 << 30, 10);
    let source = open(&from);
    let calls = Cell::new(0);
    let mut copier = Copier::create(&to, &source, Mode::Create, 400, false).unwrap();
    let count = || {
        calls.set(calls.get() + 1);
        false
    };
    copier.copy_run(&source, 0..400, &[], &count).unwrap();
    copier.finish(Map::new(), true).unwrap();
    assert_holds(&to, &rows);
    assert!(calls.get() >= 4, "{calls:?} reports");
    let sizes = [&from, &to].map(|path| fs::metadata(path).unwrap().len());
    assert!(sizes[1] < sizes[0] + 16_384, "{sizes:?}");
}

#[test]
fn empty_values_of_two_fields_that_share_a_place_are_copied_to_places_where_both_may_lie() {
    let folder = folder();
    let (from, to) = (folder.path().join("a.frec"), folder.path().join("b.frec"));
    let rows = FieldType::Array(ArrayType::new(DType::Float32, &[None, Some(5)]).unwrap());
    let schema = Schema::new([("data", FieldType::Bytes), ("rows", rows)]).unwrap();
    let mut writer = Writer::open(&from, Some(schema), None, &options(Mode::Create)).unwrap();
    for _ in 0..3 {
        writer.append(&[Value::Bytes(b""), Value::Array { data: &[], shape: &[0, 5] }]).unwrap();
        writer.append(&[Value::Bytes(b"1234567"), Value::Array { data: &[7; 20], shape: &[1, 5] }]).unwrap();
    }
    writer.close().unwrap();
    copy_all(&open(&from), &to, false).unwrap();
    let copied = open(&to);
    assert_eq!(verify(&copied, Depth::Checksums, &|| false).unwrap().errors, [""; 0]);
    assert_eq!(
        copied.shapes(copied.nth(1), &copied.records(&[0, 1, 4, 5]).unwrap()).unwrap(),
        [0, 5, 1, 5, 0, 5, 1, 5]
    );
}

#[test]
fn no_room_is_an_error_that_names_the_copy() {
    let folder = folder();
    let (from, to) = (folder.path().join("a.frec"), folder.path().join("b.frec"));
    write(&from, 40, 300_000, 1 << 30, 9);
    let source = open(&from);
    let file = File::options().read(true).write(true).create_new(true).open(&to).unwrap();
    let storage = Box::new(Difficult { file, kernel: Kernel::Refuses(libc::ENOSPC), copied: Arc::default() });
    let mut copier = Copier::create_in(&to, storage, &source, 40, false).unwrap();
    let error = copier.copy_run(&source, 0..40, &[], &never).unwrap_err();
    let told = |path: &Path, source: &io::Error, recovery: Recovery| {
        (path == to, source.raw_os_error(), recovery.commit, recovery.cause)
    };
    let Error::WriteFailed { path, source, recovery } = &error else { panic!("{error}") };
    assert_eq!(told(path, source, *recovery), (true, Some(libc::ENOSPC), 0, Cause::NoSpace));
    assert!(matches!(copier.finish(Map::new(), true), Err(Error::WriterFailed { .. })), "it goes no further");
}

#[test]
fn a_copy_that_is_given_up_leaves_nothing() {
    let folder = folder();
    let (from, to) = (folder.path().join("a.frec"), folder.path().join("b.frec"));
    write(&from, 40, 300_000, 1 << 30, 9);
    let source = open(&from);
    let create = || Copier::create(&to, &source, Mode::Create, 40, false).unwrap();
    let mut copier = create();
    assert!(matches!(copier.copy_run(&source, 0..40, &[], &|| true), Err(Error::Interrupted)));
    assert!(matches!(Reader::open(&to, Access::Mmap, None), Err(Error::NoCommit { .. } | Error::NotFrec { .. })));
    drop(copier);
    assert!(!to.exists());
    let mut copier = create();
    copier.copy_run(&source, 0..40, &[], &never).unwrap();
    copier.settle().unwrap();
    assert!(matches!(Reader::open(&to, Access::Mmap, None), Err(Error::NoCommit { .. })));
    copier.abort();
    assert!(!to.exists());
}

#[test]
fn damage_ends_a_copy_that_verifies_and_stays_damage_in_one_that_does_not() {
    let folder = folder();
    let (from, to) = (folder.path().join("a.frec"), folder.path().join("b.frec"));
    write(&from, 40, 3_000, 1 << 30, 9);
    let source = open(&from);
    let Datum::Payload(offset, _) = source.datum(source.nth(1), 17, Verify::Never).unwrap() else {
        panic!("a payload")
    };
    let offset = if source.lengths(source.nth(1), &source.records(&[17]).unwrap()).unwrap() == [0] {
        panic!("an empty payload")
    } else {
        offset
    };
    let mut bytes = fs::read(&from).unwrap();
    bytes[offset as usize] ^= 1;
    fs::write(&from, bytes).unwrap();
    let source = open(&from);
    let error = copy_all(&source, &to, true).unwrap_err();
    assert!(
        matches!(error, Error::Value { record: 17, ref field, damage: Damage::Checksum { .. }, .. } if field == "data"),
        "{error}"
    );
    assert!(!to.exists());
    copy_all(&source, &to, false).unwrap();
    let report = verify(&open(&to), Depth::Checksums, &never).unwrap();
    assert_eq!(report.errors.len(), 1);
    assert!(report.errors[0].contains("record 17, field data"), "{:?}", report.errors);
}

#[test]
fn a_source_of_other_fields_is_refused() {
    let folder = folder();
    let (from, other) = (folder.path().join("a.frec"), folder.path().join("b.frec"));
    write(&from, 3, 30, 1 << 30, 9);
    let more = ALL_TYPES.into_iter().chain([("more", FieldType::Bytes)]);
    Writer::open(&other, Some(Schema::new(more).unwrap()), None, &options(Mode::Create)).unwrap().close().unwrap();
    let (source, other) = (open(&from), open(&other));
    for (like, given) in [(&source, &other), (&other, &source)] {
        let to = folder.path().join("c.frec");
        let mut copier = Copier::create(&to, like, Mode::Create, 3, false).unwrap();
        let error = copier.copy_run(given, 0..0, &[], &never).unwrap_err();
        assert!(error.to_string().contains("more: bytes"), "{error}");
    }
}

#[test]
fn fields_may_come_in_another_order() {
    let folder = folder();
    let (from, other, to) = (folder.path().join("a.frec"), folder.path().join("b.frec"), folder.path().join("c.frec"));
    let rows = write(&from, 30, 3_000, 1 << 30, 9);
    let turned = Schema::new(ALL_TYPES.into_iter().rev()).unwrap();
    Writer::open(&other, Some(turned), None, &options(Mode::Create)).unwrap().close().unwrap();
    let source = open(&from);
    let mut copier = Copier::create(&to, &open(&other), Mode::Create, 30, false).unwrap();
    copier.copy_run(&source, 0..30, &[], &never).unwrap();
    copier.finish(Map::new(), true).unwrap();
    let turned: Vec<Row> = rows.into_iter().map(|row| row.into_iter().rev().collect()).collect();
    assert_holds(&to, &turned);
}
