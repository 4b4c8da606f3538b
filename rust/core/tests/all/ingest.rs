//! Files that threads read in advance: they are appended in order, and an error affects only its
//! own file.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Nth, Rng, folder, never, open, options, png};
use fastrecord_core::{
    Control, DType, Depth, Error, FieldType, ImageCounts, Ingest, Mode, OnError, Result, Schema, Source, Value, Verify,
    Writer, verify,
};

/// More files than may wait in memory; most are small.
fn write_files(folder: &Path, count: u64) -> Vec<(PathBuf, Vec<u8>)> {
    let mut rng = Rng(5);
    (0..count)
        .map(|number| {
            let length = if number % 40 == 7 { 6 << 20 } else { rng.below(3000) as usize };
            let bytes = png(1 + number as u32, 2, &rng.bytes(length));
            let path = folder.join(format!("{number}.png"));
            fs::write(&path, &bytes).unwrap();
            (path, bytes)
        })
        .collect()
}

fn bytes_and_label() -> Schema {
    Schema::new([("data", FieldType::Bytes), ("label", FieldType::Scalar(DType::Int64))]).unwrap()
}

fn writer(path: &Path) -> Writer {
    let schema = Schema::new([("image", FieldType::Image), ("label", FieldType::Scalar(DType::Int64))]).unwrap();
    Writer::open(path, Some(schema), None, &options(Mode::Create)).unwrap()
}

fn number_of(file: usize) -> i64 {
    3 * i64::try_from(file).unwrap()
}

fn label(file: usize) -> Vec<Value<'static>> {
    vec![Value::Int(number_of(file))]
}

fn append_files(
    writer: &mut Writer,
    paths: &[PathBuf],
    on_error: OnError,
    values: impl Fn(usize) -> Vec<Value<'static>>,
    control: &dyn Control,
) -> Result<Vec<(usize, Error)>> {
    let (before, mut tally) = (writer.len(), ImageCounts::default());
    let skipped = Ingest { field: 0, source: Source::Files(paths), on_error, recode: None }
        .append_to(writer, &mut tally, values, control);
    assert_eq!((tally.images, tally.kept), (writer.len() - before, writer.len() - before));
    skipped
}

/// Asserts that a file holds these files, in this order.
fn assert_holds(path: &Path, files: &[(usize, &[u8])]) {
    let reader = open(path);
    assert_eq!(reader.len(), files.len() as u64);
    for (record, (number, bytes)) in (0..).zip(files) {
        assert_eq!(reader.payload(reader.nth(0), record, Verify::Always).unwrap(), *bytes);
        assert_eq!(
            reader.values(reader.nth(1), &reader.records(&[record]).unwrap()).unwrap(),
            number_of(*number).to_le_bytes()
        );
    }
    assert!(verify(&reader, Depth::Checksums, &|| false).unwrap().errors.is_empty());
}

#[test]
fn files_are_appended_in_order_and_what_cannot_be_read_is_left_out_and_named() {
    let folder = folder();
    let files = write_files(folder.path(), 300);
    let mut paths: Vec<PathBuf> = files.iter().map(|(path, _)| path.clone()).collect();
    paths[123] = folder.path().join("nowhere.png");
    fs::write(&paths[200], b"no image").unwrap();
    let out = folder.path().join("x.frec");
    let mut writer = writer(&out);
    let skipped = append_files(&mut writer, &paths, OnError::Skip, label, &never).unwrap();
    writer.close().unwrap();
    let numbers: Vec<usize> = skipped.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [123, 200]);
    assert!(
        skipped[0].1.to_string().contains("nowhere.png") && skipped[1].1.to_string().contains("200.png"),
        "{skipped:?}"
    );
    let whole = files.iter().map(|(_, bytes)| &bytes[..]).enumerate();
    assert_holds(&out, &whole.filter(|(number, _)| !numbers.contains(number)).collect::<Vec<_>>());
}

#[test]
fn the_first_bad_file_ends_it_and_all_before_it_is_there() {
    let folder = folder();
    let files = write_files(folder.path(), 120);
    let mut paths: Vec<PathBuf> = files.iter().map(|(path, _)| path.clone()).collect();
    (paths[60], paths[61]) = (folder.path().join("first.png"), folder.path().join("second.png"));
    let out = folder.path().join("x.frec");
    let mut writer = writer(&out);
    let error = append_files(&mut writer, &paths, OnError::Raise, label, &never).unwrap_err();
    assert!(matches!(&error, Error::Io { path, .. } if path.ends_with("first.png")), "{error}");
    writer.close().unwrap();
    assert_holds(&out, &files[..60].iter().map(|(_, bytes)| &bytes[..]).enumerate().collect::<Vec<_>>());
}

#[test]
fn an_interrupt_ends_it_between_two_records_and_the_writer_goes_on() {
    let folder = folder();
    let files = write_files(folder.path(), 300);
    let paths: Vec<PathBuf> = files.iter().map(|(path, _)| path.clone()).collect();
    let out = folder.path().join("x.frec");
    let mut writer = writer(&out);
    // The writer asks whenever it has to wait, and regularly in between.
    let outcome = append_files(&mut writer, &paths, OnError::Raise, label, &|| true);
    assert!(matches!(outcome, Ok(_) | Err(Error::Interrupted)), "{outcome:?}");
    let done = writer.len() as usize;
    let more = append_files(&mut writer, &paths[done..], OnError::Raise, |number| label(done + number), &never);
    assert!(more.unwrap().is_empty());
    writer.close().unwrap();
    assert_holds(&out, &files.iter().map(|(_, bytes)| &bytes[..]).enumerate().collect::<Vec<_>>());
}

#[test]
#[cfg(target_os = "linux")]
fn a_file_whose_size_the_system_does_not_know_is_read_to_its_end() {
    let folder = folder();
    let source = PathBuf::from("/proc/self/mountinfo");
    let bytes = fs::read(&source).unwrap();
    assert!(fs::metadata(&source).unwrap().len() == 0 && !bytes.is_empty());
    let out = folder.path().join("x.frec");
    let mut writer = Writer::open(&out, Some(bytes_and_label()), None, &options(Mode::Create)).unwrap();
    let input = Ingest { field: 0, source: Source::Files(&[source]), on_error: OnError::Raise, recode: None };
    input.append_to(&mut writer, &mut ImageCounts::default(), label, &never).unwrap();
    writer.close().unwrap();
    assert_holds(&out, &[(0, &bytes)]);
}

#[test]
fn later_calls_read_larger_and_smaller_files_into_the_same_buffers() {
    let folder = folder();
    let mut rng = Rng(3);
    let files: Vec<Vec<u8>> = [200_000, 10, 65_535, 65_536, 0, 1 << 20].map(|length| rng.bytes(length)).into();
    let paths: Vec<PathBuf> = (0..files.len()).map(|number| folder.path().join(number.to_string())).collect();
    paths.iter().zip(&files).for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    let out = folder.path().join("x.frec");
    let mut writer = Writer::open(&out, Some(bytes_and_label()), None, &options(Mode::Create)).unwrap();
    for number in 0..files.len() {
        let paths = &paths[number..=number];
        let input = Ingest { field: 0, source: Source::Files(paths), on_error: OnError::Raise, recode: None };
        input.append_to(&mut writer, &mut ImageCounts::default(), |_| label(number), &never).unwrap();
    }
    writer.close().unwrap();
    assert_holds(&out, &files.iter().map(|bytes| &bytes[..]).enumerate().collect::<Vec<_>>());
}
