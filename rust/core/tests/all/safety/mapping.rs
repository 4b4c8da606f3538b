//! A file that changes while its reader is in a call, which a test can only cause from inside the
//! call.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use fastrecord_core::{Access, Error, FieldType, Reader, Schema, Value, Verify, Writer, WriterOptions};

const COUNT: u64 = 16;
/// Large enough that a call that copies some records checks for an interrupt in between.
const SIZE: usize = 300_000;

fn value(record: u64) -> Vec<u8> {
    vec![record as u8 + 1; SIZE]
}

fn write(path: &Path) {
    let schema = Schema::new([("data", FieldType::Bytes)]).unwrap();
    let mut writer = Writer::open(path, Some(schema), None, &WriterOptions::default()).unwrap();
    for record in 0..COUNT {
        writer.append(&[Value::Bytes(&value(record))]).unwrap();
    }
    writer.close().unwrap();
}

/// Returns the result of copying all records if the file changes during the first copies, and of a
/// later read.
fn changed(access: Access, verify: Verify, change: impl Fn(&File)) -> (Error, Error) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.frec");
    write(&path);
    let reader = Reader::open(&path, access, Some(1)).unwrap();
    let records = reader.run(0..COUNT).unwrap();
    let mut out = vec![0; SIZE * COUNT as usize];
    let asked = Cell::new(0);
    let outcome = reader.read_batch_into(reader.field("data").unwrap(), &records, &mut out, verify, &|| {
        asked.set(asked.get() + 1);
        if asked.get() == 3 {
            change(&OpenOptions::new().write(true).open(&path).unwrap());
        }
        false
    });
    assert!(asked.get() >= 3);
    (outcome.unwrap_err(), reader.lengths(reader.field("data").unwrap(), &reader.records(&[0]).unwrap()).unwrap_err())
}

#[test]
fn a_file_cut_short_amid_a_call_is_an_error_of_this_call_and_of_later_ones() {
    for access in [Access::Mmap, Access::Pread] {
        for verify in [Verify::Always, Verify::Never] {
            // Truncate at the end of a page, within a page, and within the footer's own page.
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a.frec");
            write(&path);
            let end = path.metadata().unwrap().len();
            let lengths = [4096 * 200, 4096 * 200 + 1000, end - 4096 - 100, end - 4096];
            // Without a mapping, only reads of the missing part fail.
            let some = if access == Access::Mmap { &lengths[..] } else { &lengths[..2] };
            for &length in some {
                let (error, later) = changed(access, verify, |file| file.set_len(length).unwrap());
                assert!(matches!(&error, Error::Truncated { found, .. } if *found == length), "{length}: {error}");
                assert!(error.to_string().contains("a.frec"));
                assert!(matches!(later, Error::Truncated { .. }), "{later}");
            }
        }
    }
}

#[test]
fn a_file_cut_short_and_made_as_long_again_amid_a_call_gives_no_zeros() {
    // Without a mapping, only the checksum detects the change, if it is requested.
    let ways = [(Access::Mmap, Verify::Always), (Access::Mmap, Verify::Never), (Access::Pread, Verify::Never)];
    // Far from the end, within the footer's filler, and in its CRC alone.
    for cut in [4096 * 500, 2000, 4] {
        for (access, verify) in ways {
            let (error, later) = changed(access, verify, |file| {
                let length = file.metadata().unwrap().len();
                file.set_len(length - cut).unwrap();
                file.set_len(length).unwrap();
            });
            for error in [error, later] {
                assert!(matches!(error, Error::Replaced { .. }), "{cut}, {access:?}: {error}");
            }
        }
    }
}

#[test]
fn another_file_written_over_one_amid_a_call_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.frec");
    write(&other);
    let bytes = std::fs::read(&other).unwrap();
    for verify in [Verify::Always, Verify::Never] {
        let (error, later) = changed(Access::Mmap, verify, |file| file.write_all_at(&bytes, 0).unwrap());
        for error in [error, later] {
            assert!(matches!(error, Error::Replaced { .. }), "{error}");
        }
    }
}

#[test]
fn a_writer_that_appends_amid_a_call_disturbs_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.frec");
    write(&path);
    let reader = Reader::open(&path, Access::Mmap, Some(1)).unwrap();
    let mut out = vec![0; SIZE * COUNT as usize];
    let appended = Cell::new(false);
    let records = reader.run(0..COUNT).unwrap();
    reader
        .read_batch_into(reader.field("data").unwrap(), &records, &mut out, Verify::Always, &|| {
            if !appended.replace(true) {
                let options = WriterOptions { mode: fastrecord_core::Mode::Append, ..WriterOptions::default() };
                let mut writer = Writer::open(&path, None, None, &options).unwrap();
                writer.append(&[Value::Bytes(b"more")]).unwrap();
                writer.close().unwrap();
            }
            false
        })
        .unwrap();
    assert!(appended.get());
    for (record, bytes) in out.chunks_exact(SIZE).enumerate() {
        assert_eq!(bytes, value(record as u64));
    }
    assert_eq!(reader.refresh().unwrap().unwrap().len(), COUNT + 1);
}
