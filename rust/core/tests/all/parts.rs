//! Copies of files of which only some parts are there: where parts lie, and which are intact.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::common::{folder, options};
use fastrecord_core::{
    Access, CommitParts, DType, FieldType, Mode, Reader, Schema, Shard, Value, Verify, Writer, allocate, punch_hole,
};

const RECORDS: u64 = 6;
const BYTES: usize = 3 << 14;
const PAGE: usize = 4096;

fn data(record: u64) -> Vec<u8> {
    vec![record as u8 + 1; BYTES]
}

#[test]
fn a_copy_with_some_parts_reads_them_and_names_the_damage_of_the_others() {
    let folder = folder();
    let path = folder.path().join("whole.frec");
    let fields = [("data", FieldType::Bytes), ("label", FieldType::Scalar(DType::Int64))];
    let mut writer = Writer::open(&path, Some(Schema::new(fields).unwrap()), None, &options(Mode::Create)).unwrap();
    for record in 0..RECORDS {
        writer.append(&[Value::Bytes(&data(record)), Value::Int(record.cast_signed())]).unwrap();
    }
    writer.close().unwrap();
    let bytes = fs::read(&path).unwrap();
    let whole = Reader::open(&path, Access::Mmap, None).unwrap();

    // What opening reads.
    let footer = bytes.len() - PAGE;
    let parts = CommitParts::of(&path, &bytes[..PAGE], &bytes[footer..], footer as u64).unwrap();
    assert_eq!((parts.file_id, parts.commit, parts.records), (whole.snapshot().file_id, 1, RECORDS));
    for (first, last) in [(&bytes[footer..], &bytes[footer..]), (&bytes[..PAGE], &bytes[..PAGE])] {
        CommitParts::of(&path, first, last, footer as u64).unwrap_err();
    }
    let place = folder.path().join("copy");
    let copy = File::options().create(true).truncate(true).read(true).write(true).open(&place).unwrap();
    copy.set_len(bytes.len() as u64).unwrap();
    let bring = |(offset, length): (u64, u64)| {
        copy.write_all_at(&bytes[offset as usize..(offset + length) as usize], offset).unwrap();
    };
    for part in [(0, PAGE as u64), parts.directory, parts.metadata, (footer as u64, PAGE as u64)] {
        bring(part);
    }
    let shard = Shard {
        path: PathBuf::from("s3://bucket/whole.frec"),
        snapshot: whole.snapshot(),
        records: RECORDS,
        contents: None,
        place: OnceLock::from(place),
    };
    let reader = shard.open(Access::Mmap, None).unwrap();
    assert_eq!(reader.path().to_str(), Some("s3://bucket/whole.frec"));

    // Columns.
    let [payloads, labels] = ["data", "label"].map(|name| reader.field(name).unwrap());
    for field in [payloads, labels] {
        reader.check_field(field).unwrap_err();
        reader.field_parts(field).into_iter().for_each(bring);
        reader.check_field(field).unwrap();
    }

    // Payloads.
    let all: Vec<u64> = (0..RECORDS).collect();
    let records = || reader.records(all.as_slice()).unwrap();
    let places = reader.payload_parts(payloads, &records()).unwrap();
    assert!(places.iter().all(|part| part.value.1 == BYTES as u64 && part.side == (0, 0)));
    assert_eq!(reader.damaged_payloads(payloads, &records()).unwrap(), all);
    for record in [1, 4] {
        let (offset, length) = places[record].value;
        allocate(copy.as_raw_fd(), offset, length).unwrap();
        bring((offset, length));
    }
    assert_eq!(reader.damaged_payloads(payloads, &records()).unwrap(), [0, 2, 3, 5]);
    assert_eq!(reader.payload(payloads, 4, Verify::Always).unwrap(), data(4));
    let error = reader.payload(payloads, 3, Verify::Always).unwrap_err().to_string();
    assert!(error.contains("s3://bucket/whole.frec") && error.contains("record 3"), "{error}");

    // What is given back is not there.
    let blocks = copy.metadata().unwrap().blocks();
    let (offset, length) = places[4].value;
    punch_hole(copy.as_raw_fd(), offset, length).unwrap();
    assert!(copy.metadata().unwrap().blocks() < blocks);
    assert_eq!(reader.damaged_payloads(payloads, &records()).unwrap(), [0, 2, 3, 4, 5]);
}
