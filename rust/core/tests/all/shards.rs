//! Shards that a manifest names: opened as they are named, when a batch needs them, few at a time.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::common::{folder, options};
use fastrecord_core::image::DecodeOptions;
use fastrecord_core::{
    Access, BufferPool, DType, Error, FieldType, LoadFile, LoadPlan, LoadSource, Mode, Output, Reader, Schema, Shard,
    SnapshotId, Value, Verify, Workload, Writer, crc32c_append,
};

const RECORDS: u64 = 5;

fn write(path: &Path, first: i64, mode: Mode) -> PathBuf {
    let schema = Schema::new([("value", FieldType::Scalar(DType::Int64))]).unwrap();
    let schema = (mode != Mode::Append).then_some(schema);
    let mut writer = Writer::open(path, schema, None, &options(mode)).unwrap();
    for value in first..first + RECORDS.cast_signed() {
        writer.append(&[Value::Int(value)]).unwrap();
    }
    writer.close().unwrap();
    path.to_owned()
}

/// What a manifest says of a file.
fn named(path: &Path) -> Shard {
    let reader = Reader::open(path, Access::Mmap, None).unwrap();
    let bytes = fs::read(path).unwrap();
    let footer_crc = crc32c_append(0, &bytes[bytes.len() - Shard::FOOTER as usize..bytes.len() - 4]);
    let (snapshot, records) = (reader.snapshot(), reader.len());
    assert_eq!(snapshot.crc, Some(footer_crc));
    let shard = Shard { path: path.to_owned(), snapshot, records, contents: None, place: OnceLock::new() };
    assert_eq!(shard.bytes(), bytes.len() as u64);
    shard
}

#[test]
fn a_shard_opens_at_its_commit_whatever_was_appended() {
    let folder = folder();
    let path = write(&folder.path().join("a.frec"), 0, Mode::Create);
    let shard = named(&path);
    write(&path, 100, Mode::Append);
    for access in [Access::Mmap, Access::Pread] {
        let reader = shard.open(access, None).unwrap();
        assert_eq!((reader.len(), reader.snapshot()), (RECORDS, shard.snapshot));
    }
    assert_eq!(named(&path).open(Access::Mmap, None).unwrap().len(), 2 * RECORDS);
}

#[test]
fn another_file_or_commit_than_the_one_named_is_refused_with_the_way_out() {
    let folder = folder();
    let path = write(&folder.path().join("a.frec"), 0, Mode::Create);
    let shard = named(&path);
    let way_out = format!("`fastrecord manifest {}`", folder.path().display());
    let others = [
        Shard { snapshot: SnapshotId { file_id: [7; 16], ..shard.snapshot }, ..shard.clone() },
        Shard { snapshot: SnapshotId { commit: 2, ..shard.snapshot }, ..shard.clone() },
        Shard { records: RECORDS + 1, ..shard.clone() },
        Shard { snapshot: SnapshotId { crc: Some(1), ..shard.snapshot }, ..shard.clone() },
    ];
    for other in others {
        let error = other.open(Access::Mmap, None).unwrap_err();
        assert!(matches!(&error, Error::Replaced { .. }), "{error}");
        assert!(error.to_string().contains(&way_out), "{error}");
    }
    fs::remove_file(&path).unwrap();
    let error = shard.open(Access::Mmap, None).unwrap_err();
    assert!(matches!(&error, Error::Unreadable { source, .. } if source.kind() == ErrorKind::NotFound), "{error}");
    assert!(error.to_string().contains(&way_out), "{error}");
}

#[test]
fn batches_of_very_many_shards_have_the_rows_that_were_asked_for() {
    const SHARDS: u64 = 60;
    let folder = folder();
    let shards: Vec<Shard> = (0..SHARDS)
        .map(|at| named(&write(&folder.path().join(format!("{at}.frec")), (at * RECORDS).cast_signed(), Mode::Create)))
        .collect();
    fs::remove_file(&shards[7].path).unwrap();
    write(&shards[9].path, -1, Mode::Overwrite);
    for access in [Access::Mmap, Access::Pread] {
        let first = LoadSource::new(shards[0].open(access, None).unwrap(), &["value"]).unwrap();
        let rest = shards[1..].iter().map(|shard| LoadFile::Shard(Arc::new(shard.clone())));
        let files = std::iter::once(first.into()).chain(rest).collect();
        let plan = LoadPlan::new(files, &[Output::Stack], DecodeOptions::default(), Verify::Always).unwrap();
        let (plan, spares) = (Arc::new(plan), BufferPool::new(2));
        for threads in [1, 3] {
            let loader = plan.start(Arc::default(), threads).unwrap();
            assert_eq!(loader.rows(), SHARDS * RECORDS);
            let rows: Vec<u64> = (0..SHARDS * RECORDS).map(|at| at * 7 % (SHARDS * RECORDS)).collect();
            let buffers = vec![spares.take(rows.len() * 8).unwrap()];
            let work = Workload { seed: 0, epoch: 0, rows: rows.clone(), positions: vec![], ahead: vec![], buffers };
            let (buffers, failures) = loader.submit(work).unwrap().wait(&|| false).unwrap();
            let lost = |row: u64| [7, 9].contains(&(row / RECORDS));
            let mut failed: Vec<usize> = failures.iter().map(|failure| failure.slot).collect();
            failed.sort_unstable();
            assert_eq!(failed, (0..rows.len()).filter(|&slot| lost(rows[slot])).collect::<Vec<_>>());
            let expected = rows.iter().flat_map(|&row| if lost(row) { 0u64 } else { row }.to_le_bytes());
            assert_eq!(crate::stacking::bytes(&buffers[0]), expected.collect::<Vec<u8>>());
        }
    }
}
