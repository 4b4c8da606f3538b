//! Batches of arrays stacked by threads: the result does not depend on their number, and damage
//! affects only its own record, once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::{folder, options};
use fastrecord_core::image::DecodeOptions;
use fastrecord_core::{
    Access, ArrayType, BatchBuffer, BufferPool, DType, Damage, Error, FieldType, Load, LoadCounters, LoadPlan,
    LoadSource, Loader, Mode, Output, Reader, Schema, Value, Verify, Workload, Writer,
};

const SMALL: usize = 6;
const LARGE: usize = 300;

fn array(bytes: usize) -> FieldType {
    FieldType::Array(ArrayType::new(DType::UInt8, &[Some(bytes as u64)]).unwrap())
}

fn value(number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|i| ((number + 1) * 31 + i * 7) as u8).collect()
}

/// A file of records with an array in the column, a text, and an array stored as a payload.
fn write(path: &Path, numbers: std::ops::Range<u64>) -> PathBuf {
    let schema = Schema::new([("small", array(SMALL)), ("key", FieldType::String), ("large", array(LARGE))]).unwrap();
    let mut writer = Writer::open(path, Some(schema), None, &options(Mode::Create)).unwrap();
    for number in numbers {
        let (small, large) = (value(number, SMALL), value(number, LARGE));
        let (small, large) = (
            Value::Array { data: &small, shape: &[SMALL as u64] },
            Value::Array { data: &large, shape: &[LARGE as u64] },
        );
        writer.append(&[small, Value::Str("key"), large]).unwrap();
    }
    writer.close().unwrap();
    path.to_owned()
}

fn plan(paths: &[PathBuf], access: Access) -> Arc<LoadPlan> {
    let source = |path: &PathBuf| {
        LoadSource::new(Reader::open(path, access, None).unwrap(), &["large", "small"]).unwrap().into()
    };
    Arc::new(
        LoadPlan::new(
            paths.iter().map(source).collect(),
            &[Output::Stack, Output::Stack],
            DecodeOptions::default(),
            Verify::Always,
        )
        .unwrap(),
    )
}

fn submit(loader: &Loader, spares: &Arc<BufferPool>, rows: &[u64]) -> Load {
    let buffers = loader.row_bytes().iter().map(|row| spares.take(row * rows.len()).unwrap()).collect();
    let load = Workload { seed: 0, epoch: 0, rows: rows.to_vec(), positions: vec![], ahead: vec![], buffers };
    loader.submit(load).unwrap()
}

/// Reads through the process's own memory file: this test crate has no `unsafe`.
pub(crate) fn bytes(buffer: &BatchBuffer) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    let mut bytes = vec![0; buffer.len()];
    memory.read_exact_at(&mut bytes, buffer.as_ptr() as u64).unwrap();
    bytes
}

/// Asserts that a batch has the values of these rows, and zeros for the reported failures.
fn check(load: &Load, rows: &[u64]) -> Vec<usize> {
    let (buffers, failures) = load.wait(&|| false).unwrap();
    let failed: Vec<usize> = failures.iter().map(|failure| failure.slot).collect();
    for (buffer, bytes_of_one) in buffers.iter().zip([LARGE, SMALL]) {
        for (place, found) in bytes(buffer).chunks(bytes_of_one).enumerate() {
            let wanted = if failed.contains(&place) { vec![0; bytes_of_one] } else { value(rows[place], bytes_of_one) };
            assert_eq!(found, wanted, "place {place}");
        }
    }
    failed
}

#[test]
fn batches_of_several_files_are_the_same_for_any_number_of_threads() {
    let folder = folder();
    let paths = [write(&folder.path().join("a.frec"), 0..700), write(&folder.path().join("b.frec"), 700..2000)];
    let rows: Vec<u64> = (0..2000).map(|i| i * 777 % 2000).collect();
    for access in [Access::Mmap, Access::Pread] {
        let (plan, spares) = (plan(&paths, access), BufferPool::new(4));
        for threads in 1..=5 {
            let counters = Arc::new(LoadCounters::default());
            let loader = plan.start(Arc::clone(&counters), threads).unwrap();
            assert_eq!((loader.rows(), loader.row_bytes()), (2000, &[LARGE, SMALL][..]));
            let batches: Vec<&[u64]> = rows.chunks(600).collect();
            let loads: Vec<Load> = batches.iter().map(|rows| submit(&loader, &spares, rows)).collect();
            for (load, rows) in loads.iter().zip(batches) {
                assert_eq!(check(load, rows), [0; 0]);
            }
            assert_eq!(counters.records.load(Ordering::Relaxed), 2000);
            assert_eq!(counters.bytes.load(Ordering::Relaxed), 2000 * (LARGE + SMALL) as u64);
        }
    }
}

/// Flips a bit in the only place of a file that holds these bytes.
fn damage(path: &Path, needle: &[u8]) {
    let mut data = std::fs::read(path).unwrap();
    let at = data.windows(needle.len()).position(|window| window == needle).unwrap();
    data[at + 1] ^= 1;
    std::fs::write(path, data).unwrap();
}

#[test]
fn a_damaged_payload_fails_its_row_alone_wherever_that_comes() {
    let folder = folder();
    let path = write(&folder.path().join("a.frec"), 0..200);
    damage(&path, &value(77, LARGE));
    let (plan, spares) = (plan(&[path], Access::Mmap), BufferPool::new(0));
    let loader = plan.start(Arc::default(), 3).unwrap();
    let rows = [5, 77, 6, 77, 199];
    assert_eq!(check(&submit(&loader, &spares, &rows), &rows), [1, 3]);
    let (_, failures) = submit(&loader, &spares, &[77]).wait(&|| false).unwrap();
    assert!(
        matches!(&failures[0].error, Error::Value { record: 77, field, damage: Damage::Checksum { .. }, .. } if field == "large")
    );
}

#[test]
fn a_damaged_block_of_a_column_fails_the_rows_in_it_and_each_of_them_once() {
    let folder = folder();
    let path = write(&folder.path().join("a.frec"), 0..2000);
    // The column's bytes, which hold the values of many consecutive records.
    damage(&path, &[value(200, SMALL), value(201, SMALL)].concat());
    damage(&path, &value(200, LARGE));
    let (plan, spares) = (plan(&[path], Access::Mmap), BufferPool::new(0));
    let loader = plan.start(Arc::default(), 2).unwrap();
    let rows: Vec<u64> = (0..2000).collect();
    let failed = check(&submit(&loader, &spares, &rows), &rows);
    assert!(failed.contains(&200) && (4096 / SMALL - 2..4096 / SMALL + 2).contains(&failed.len()), "{}", failed.len());
    assert!(failed.windows(2).all(|pair| pair[0] + 1 == pair[1]));
}

#[test]
fn what_has_no_size_of_its_own_or_another_one_is_refused() {
    let folder = folder();
    let path = write(&folder.path().join("a.frec"), 0..3);
    let open =
        |fields: &[&str]| LoadSource::new(Reader::open(&path, Access::Mmap, None).unwrap(), fields).unwrap().into();
    let plan = |sources, outputs| {
        LoadPlan::new(sources, &[Output::Stack, Output::Stack][..outputs], DecodeOptions::default(), Verify::Always)
    };
    let text = plan(vec![open(&["small", "key"])], 2);
    assert!(matches!(text, Err(Error::FieldType { field, .. }) if field == "key"));
    let other = vec![open(&["small"]), open(&["large"])];
    assert!(matches!(plan(other, 1), Err(Error::FieldType { field, .. }) if field == "large"));
    assert!(matches!(plan(vec![], 0), Err(Error::Plan(_))));
}
