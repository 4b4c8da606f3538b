//! Damaged, truncated and hostile files: an error that names the place, or the right data; never a panic, a hang, wrong data, or
//! more memory than the file is long.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use common::{
    Cell, EXTENTS, Forge, Rng, Row, VALUES, all_types, append_all, append_with_side, entry, extent, extent_with_side,
    folder, never, open, options, png, put, random_row, read_by_batch, read_one_by_one, seal_superblock, slot, u32_at,
    u64_at, without_sizes,
};
use fastrecord_core::{Access, DType, Error, FORMAT_VERSION, FieldType, Mode, Reader, Result, Schema, Value, Writer};
use proptest::prelude::*;
use tempfile::TempDir;

/// The largest block of memory that was asked for at once.
struct Largest;

static LARGEST: AtomicU64 = AtomicU64::new(0);

#[allow(unsafe_code)]
// SAFETY: every call goes on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Largest {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller keeps the same rules as for this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: likewise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Largest = Largest;

/// A small file of several commits in two sessions, the first of which left its chunks for others to merge; images with and
/// without side bytes.
struct Sample {
    folder: TempDir,
    bytes: Vec<u8>,
    rows: Vec<Row>,
}

impl Sample {
    fn new() -> Self {
        let folder = folder();
        let path = folder.path().join("x.frec");
        let (schema, mut rng) = (all_types(), Rng(77));
        let rows: Vec<Row> = (0..9).map(|_| random_row(&mut rng, &schema, 40)).collect();
        let mut writer = Writer::open(&path, Some(schema), None, &options(Mode::Create)).unwrap();
        for part in [0..2, 2..6] {
            append_all(&mut writer, &rows[part]);
            writer.commit().unwrap();
        }
        writer.close().unwrap();
        let mut writer = Writer::open(&path, None, None, &options(Mode::Append)).unwrap();
        append_all(&mut writer, &rows[6..7]);
        append_with_side(&mut writer, &rows[7], b"\x01 bytes beside it").unwrap();
        append_with_side(&mut writer, &rows[8], &[0; 9]).unwrap();
        writer.close().unwrap();
        let bytes = fs::read(&path).unwrap();
        Self { folder, bytes, rows }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("x.frec")
    }
}

/// What is read of a file by readers of its newest commit, with a name for each range, by docs/format.md alone.
fn live_ranges(bytes: &[u8]) -> Vec<(Range<u64>, String)> {
    let footer = bytes.len() as u64 - 4096;
    let mut live = vec![(0..32, "superblock".to_owned()), (footer..footer + 4096, "footer".to_owned())];
    let (directory, directory_length) = (u64_at(bytes, footer + 56), u64_at(bytes, footer + 64));
    let (metadata, metadata_length) = (u64_at(bytes, footer + 72), u64_at(bytes, footer + 80));
    live.push((directory..directory + directory_length, "directory".to_owned()));
    live.push((metadata..metadata + metadata_length, "metadata".to_owned()));
    for at in (directory..directory + directory_length).step_by(64) {
        let (field, part, encoding) = (u32_at(bytes, at), bytes[at as usize + 4], bytes[at as usize + 5]);
        let (first, count) = (u64_at(bytes, at + 8), u64_at(bytes, at + 16));
        let (offset, length) = (u64_at(bytes, at + 24), u64_at(bytes, at + 32));
        let table = (offset + length).next_multiple_of(8);
        let blocks = length.div_ceil(4096);
        live.push((offset..offset + length, format!("chunk {field}/{part}")));
        live.push((table..table + 4 * blocks, format!("chunk {field}/{part}")));
        if encoding == EXTENTS {
            for i in 0..count {
                let extent = offset + 32 * i;
                let (start, stored) = (u64_at(bytes, extent), u64_at(bytes, extent + 8));
                live.push((start..start + stored, format!("payload {field}/{}", first + i)));
            }
        }
    }
    live
}

/// Everything in a file in every way, or the first error.
fn read_all(path: &Path, access: Access) -> Result<(Vec<Row>, Vec<Row>)> {
    let reader = Reader::open(path, access, Some(1))?;
    Ok((read_by_batch(&reader)?, read_one_by_one(&reader)?))
}

const FIELDS: [&str; 6] = ["", "image", "data", "key", "label", "weight"];

/// Whether an error is the one for damage in the named range.
fn names(error: &Error, place: &str) -> bool {
    let (what, which) = place.split_once([' ', '/']).unwrap_or((place, ""));
    match (what, error) {
        ("superblock", Error::NotFrec { .. } | Error::Version { .. }) => true,
        ("superblock" | "footer" | "directory" | "metadata", Error::Corrupt { part, .. }) => part.starts_with(what),
        ("chunk", Error::Corrupt { part, .. }) => {
            let (field, suffix) = which.split_once('/').unwrap();
            let column = format!(
                "{}{}",
                FIELDS[field.parse::<usize>().unwrap()],
                ["", ".width", ".height"][suffix.parse::<usize>().unwrap()]
            );
            part.contains(&format!(" of field {column}, records 0 to 8"))
        }
        ("payload", Error::Checksum { record, field, .. }) => {
            let (number, of) = which.split_once('/').unwrap();
            (record.to_string() == of) && *field == FIELDS[number.parse::<usize>().unwrap()]
        }
        _ => false,
    }
}

/// Flips bits and checks what comes of it; `bits` says which of a byte, given its place and whether it is live.
fn flip(access: Access, bits: impl Fn(u64, Option<&str>) -> Vec<u8>) -> BTreeMap<String, u64> {
    let sample = Sample::new();
    let (path, bytes) = (sample.path(), &sample.bytes);
    let plain = without_sizes(&sample.rows);
    let mut places: Vec<Option<String>> = vec![None; bytes.len()];
    for (range, name) in live_ranges(bytes) {
        range.for_each(|at| places[at as usize] = Some(name.clone()));
    }
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let mut flips = BTreeMap::new();
    for (at, place) in (0..).zip(&places) {
        for bit in bits(at, place.as_deref()) {
            file.write_all_at(&[bytes[at as usize] ^ 1 << bit], at).unwrap();
            let context = || format!("bit {bit} of byte {at}, in {place:?}, {access:?}");
            match (read_all(&path, access), place) {
                (Ok((batch, single)), None) => {
                    assert!(batch == sample.rows && single == plain, "wrong data: {}", context());
                }
                (Ok(_), Some(_)) => panic!("not noticed: {}", context()),
                (Err(error), None) => panic!("{error}: {}", context()),
                (Err(error), Some(place)) => {
                    assert!(names(&error, place), "{error}: {}", context());
                    assert!(error.to_string().contains("x.frec"), "{error}");
                    if bit == 0 && (place.starts_with("chunk") || place.starts_with("payload")) {
                        let report = open(&path).verify(|_| false).unwrap();
                        assert_eq!(report.errors, [error.coded()], "{}", context());
                    }
                }
            }
            let kind = place.as_deref().map_or("dead", |place| place.split(' ').next().unwrap());
            *flips.entry(kind.to_owned()).or_default() += 1;
        }
        file.write_all_at(&bytes[at as usize..=at as usize], at).unwrap();
    }
    assert_eq!(fs::read(&path).unwrap(), *bytes);
    assert!(read_all(&path, access).is_ok());
    flips
}

#[test]
fn every_flipped_bit_that_is_read_is_an_error_that_names_the_place() {
    // Every bit of what the newest commit reads, and of the slots; the zeros that fill a footer are 4000 bytes alike.
    let bits = |at: u64, place: Option<&str>| match place {
        Some("footer") if at % 4096 >= 104 && at % 4096 < 4092 => vec![(at % 8) as u8],
        Some(_) => (0..8).collect(),
        None if (512..544).contains(&at) || (1024..1056).contains(&at) => (0..8).collect(),
        None => vec![],
    };
    let flips = flip(Access::Mmap, bits);
    assert_eq!(flips["superblock"], 256);
    assert_eq!(flips["dead"], 512, "both slots, which are hints");
    for kind in ["footer", "directory", "metadata", "chunk", "payload"] {
        assert!(flips[kind] > 1000, "{flips:?}");
    }
}

#[test]
fn a_flipped_bit_in_what_no_reader_reads_changes_nothing() {
    // Older footers, directories and chunks that were merged; and some of the zeros between.
    let zero: Vec<bool> = Sample::new().bytes.iter().map(|&byte| byte == 0).collect();
    let flips = flip(Access::Mmap, |at, place| {
        let flipped = place.is_none() && (!zero[at as usize] || at % 13 == 0);
        if flipped { vec![(at % 8) as u8] } else { vec![] }
    });
    assert!(flips["dead"] > 2000, "{flips:?}");
}

#[test]
fn flipped_bits_are_noticed_by_readers_that_map_nothing() {
    let flips = flip(Access::Pread, |at, place| match place {
        Some("footer") if at % 4096 >= 104 => vec![],
        Some(_) => vec![(at % 8) as u8],
        None if at % 31 == 0 => vec![(at % 8) as u8],
        None => vec![],
    });
    assert!(flips["payload"] > 300 && flips["dead"] > 300, "{flips:?}");
}

#[test]
fn a_file_cut_off_anywhere_is_refused() {
    let sample = Sample::new();
    let (path, whole) = (sample.path(), sample.bytes.len() as u64);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let footers: Vec<u64> =
        (4096..whole).step_by(4096).filter(|&at| sample.bytes[at as usize..].starts_with(b"FRECEND\n")).collect();
    assert_eq!(footers.len(), 3);
    for length in (0..whole).rev() {
        file.set_len(length).unwrap();
        // Also at the end of an earlier commit, where the last page is a valid footer: a slot tells that there was more.
        match Reader::open(&path, Access::Mmap, None).unwrap_err() {
            Error::Truncated { found, expected, commit, .. } => {
                // The slot of commit 3 lies behind the one of commit 2.
                let told = if length >= 1056 { (whole, 3) } else { (footers[1] + 4096, 2) };
                assert_eq!((found, expected, commit), (length, told.0, told.1));
            }
            Error::NotFrec { reason, .. } => {
                assert!(length < 32 && reason.contains("ends after") || length == 0, "{length}");
            }
            // Neither slot is left to tell that there was more.
            Error::NoCommit { .. } => assert!((32..544).contains(&length), "{length}"),
            error => panic!("{length} bytes: {error}"),
        }
    }
}

#[test]
fn without_slots_a_cut_off_file_opens_at_the_commit_that_is_left() {
    let sample = Sample::new();
    let path = sample.folder.path().join("cut.frec");
    let mut bytes = sample.bytes.clone();
    bytes[512..4096].fill(0);
    for cut in (1..bytes.len() - 4096).step_by(509) {
        fs::write(&path, &bytes[..bytes.len() - cut]).unwrap();
        let Ok(reader) = Reader::open(&path, Access::Mmap, None) else {
            assert!(bytes.len() - cut < 3 * 4096, "{cut} bytes cut off");
            continue;
        };
        let rows = [2, 6, 9][reader.snapshot().commit as usize - 1];
        assert_eq!(read_by_batch(&reader).unwrap(), sample.rows[..rows]);
    }
}

#[test]
fn a_truncated_file_under_an_open_reader_is_an_error_in_batches() {
    let sample = Sample::new();
    for access in [Access::Mmap, Access::Pread] {
        fs::write(sample.path(), &sample.bytes).unwrap();
        let reader = Reader::open(&sample.path(), access, None).unwrap();
        let mut out = [0; 1000];
        reader.read_batch_into(0, &[0], &mut out, true, never).unwrap();
        File::options().write(true).open(sample.path()).unwrap().set_len(sample.bytes.len() as u64 - 1).unwrap();
        let truncated = |result: Error| matches!(result, Error::Truncated { .. });
        assert!(truncated(reader.read_batch_into(0, &[0], &mut out, true, never).unwrap_err()));
        assert!(truncated(reader.read_batch_copy(0, &[0], true, never).unwrap_err()));
        assert!(truncated(reader.view_batch(0, &[0], || false).unwrap_err()));
        assert!(truncated(reader.verify(|_| false).unwrap_err()));
        assert!(truncated(reader.refresh().unwrap_err()));
    }
}

fn written(bytes: &[u8]) -> (TempDir, PathBuf) {
    let folder = folder();
    let path = folder.path().join("x.frec");
    fs::write(&path, bytes).unwrap();
    (folder, path)
}

/// Opens a file by every way there is and takes from it all that it gives; the errors, as text.
fn take_all(path: &Path) -> Vec<String> {
    let length = fs::metadata(path).unwrap().len();
    LARGEST.store(0, Ordering::Relaxed);
    let mut errors = Vec::new();
    for access in [Access::Mmap, Access::Pread] {
        let reader = match Reader::open(path, access, None) {
            Ok(reader) => reader,
            Err(error) => {
                errors.push(error.to_string());
                continue;
            }
        };
        let last = reader.len().saturating_sub(1);
        let records: Vec<u64> =
            (0..reader.len().min(200)).chain([last / 2, last]).filter(|&r| r < reader.len()).collect();
        let mut note = |error: Option<Error>| errors.extend(error.map(|e| e.to_string()));
        for (field, definition) in reader.schema().fields().iter().enumerate() {
            for part in ["", ".width", ".height"] {
                note(
                    reader
                        .column(&format!("{}{part}", definition.name))
                        .err()
                        .filter(|e| !matches!(e, Error::FieldType { .. })),
                );
            }
            if definition.kind.has_payloads() {
                note(reader.lengths(field, &records).err());
                note(reader.prefetch(field, &records, || false).err());
                note(reader.view_batch(field, &records, || false).err());
                note(reader.verify_mapped(field, &records, never).err());
                note(reader.read_batch_copy(field, &records, true, never).err());
            } else {
                note(reader.values(field, &records).err());
            }
            for &record in &records {
                note(reader.datum(field, record, true).err());
                if definition.kind.has_payloads() {
                    note(reader.payload(field, record, true).err());
                }
            }
        }
        match reader.verify(|_| false) {
            Ok(report) => errors.extend(report.errors),
            Err(error) => errors.push(error.to_string()),
        }
    }
    // Batches of 200 records may repeat a payload as often; what is not asked for by the caller is bounded by the file.
    let most = LARGEST.load(Ordering::Relaxed);
    assert!(most <= 210 * length.max(4 << 20), "{most} bytes were asked for at once, of a file of {length}");
    errors.extend(Writer::open(path, None, None, &options(Mode::Append)).err().map(|e| e.to_string()));
    errors
}

const DATA_AND_LABEL: &str =
    r#"[{"id": 1, "name": "data", "type": "bytes"}, {"id": 2, "name": "label", "type": "int64"}]"#;

/// A good file made by hand: 3 records.
fn forged() -> Forge {
    let mut forge = Forge::new(DATA_AND_LABEL, 3);
    let extents: Vec<u8> = [&b"one"[..], b"", b"three"].iter().flat_map(|p| forge.payload(p)).collect();
    forge.chunk(1, 0, EXTENTS, 32, 0, &extents);
    forge.chunk(2, 0, VALUES, 8, 0, &[1_i64, -2, 3].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>());
    forge
}

fn refused(bytes: &[u8], expected: &str) {
    let (_folder, path) = written(bytes);
    let errors = take_all(&path);
    assert!(!errors.is_empty(), "accepted, but wanted: {expected}");
    assert!(
        errors.iter().all(|e| e.contains(expected) && e.contains("x.frec")),
        "wanted {expected:?}, got {errors:#?}"
    );
}

#[test]
fn a_file_made_by_hand_from_the_format_page_is_read() {
    let (_folder, path) = written(&forged().build(|_| ()));
    assert_eq!(take_all(&path), [""; 0]);
    let cells = |data: &[u8], label| vec![Cell::Bytes(data.to_vec()), Cell::Int(label)];
    common::assert_holds(&path, &[cells(b"one", 1), cells(b"", -2), cells(b"three", 3)]);
    let mut writer = Writer::open(&path, None, None, &options(Mode::Append)).unwrap();
    writer.append(&[Value::Bytes(b"four"), Value::Int(4)]).unwrap();
    writer.close().unwrap();
    assert_eq!(open(&path).len(), 4);
    assert_eq!(open(&path).payload(0, 3, true).unwrap(), b"four");
}

#[test]
fn what_is_no_frec_file_is_refused_as_such() {
    let mut text_mode = forged().build(|_| ());
    text_mode.remove(5); // CR LF became LF
    for bytes in [&b""[..], b"\x89", b"\x89PNG\r\n\x1a\n", b"FREC", &[0; 10_000], &text_mode] {
        refused(bytes, "not a .frec file");
    }
    let folder = folder();
    for access in [Access::Mmap, Access::Pread] {
        assert!(matches!(Reader::open(folder.path(), access, None), Err(Error::Io { .. } | Error::NotFrec { .. })));
    }
}

#[test]
fn a_newer_version_is_refused_with_both_versions_named() {
    let expected = format!("format version 2, this fastrecord reads up to {FORMAT_VERSION}");
    let mut superblock = forged().build(|_| ());
    superblock[9] = 2;
    refused(&superblock, &expected); // whatever the rest of its superblock looks like
    seal_superblock(&mut superblock);
    refused(&superblock, &expected);
    refused(&forged().build(|footer| put(footer, 8, &2_u32.to_le_bytes())), &expected);
}

#[test]
fn every_part_that_a_reader_must_refuse_is_refused() {
    let with = |change: fn(&mut Forge)| {
        let mut forge = forged();
        change(&mut forge);
        forge.build(|_| ())
    };
    let mut reserved = forged().build(|_| ());
    reserved[10] = 1;
    seal_superblock(&mut reserved);
    refused(&reserved, "superblock");
    let mut zero = forged().build(|_| ());
    zero[9] = 0;
    seal_superblock(&mut zero);
    refused(&zero, "superblock");

    let footer = |at: usize, word: u64| forged().build(|footer| put(footer, at, &word.to_le_bytes()));
    refused(&forged().build(|footer| put(footer, 12, &1_u32.to_le_bytes())), "footer flags 0x1");
    refused(&footer(40, 0), "footer");
    refused(&footer(40, u64::MAX), "footer");
    for records in [1 << 63, u64::MAX] {
        refused(&footer(48, records), "footer");
    }
    for at in [56, 72] {
        for offset in [0, 8, u64::MAX, u64::MAX - 7, 1 << 63, 1 << 40] {
            refused(&footer(at, offset), "footer");
        }
    }
    for length in [u64::MAX, u64::MAX - 63, 1 << 40, 65] {
        refused(&footer(64, length), "footer");
    }
    refused(&footer(80, u64::MAX), "footer");
    refused(&footer(96, 4096 * 100), "footer");

    for (at, byte) in [(0, 9), (4, 1), (4, 3), (5, 0), (5, 3), (5, 2), (6, 0), (6, 7), (6, 65), (7, 1)] {
        let mut forge = forged();
        forge.directory[1][at] = byte;
        refused(&forge.build(|_| ()), "directory entry 1");
    }
    for at in 40..64 {
        let mut forge = forged();
        forge.directory[0][at] = 1;
        refused(&forge.build(|_| ()), "directory entry 0");
    }
    for words in [
        [0, 0, 4096, 0],
        [0, 4, 4096, 32],
        [1, 3, 4096, 24],
        [u64::MAX, 1, 4096, 8],
        [0, u64::MAX, 4096, u64::MAX],
        [0, 1 << 61, 4096, 0],
        [0, 3, 4096, 25],
        [0, 3, 0, 24],
        [0, 3, 4095, 24],
        [0, 3, 4104, 24],
        [0, 3, u64::MAX - 63, 24],
        [0, 3, 1 << 40, 24],
    ] {
        let mut forge = forged();
        forge.directory[1] = entry(2, 0, VALUES, 8, words);
        refused(&forge.build(|_| ()), "directory entry 1");
    }
    refused(&with(|forge| forge.directory.swap(0, 1)), "directory entry 1");
    refused(&with(|forge| forge.directory.insert(1, forge.directory[0])), "directory entry 1");
    refused(&with(|forge| forge.chunk(2, 0, VALUES, 8, 2, &[0; 8])), "directory entry 2");
    let table = |at: u64| {
        let mut forge = forged();
        forge.records = 512;
        let length = forge.bytes.len();
        let end = forge.build(|_| ()).len() as u64 - 4096;
        assert!(length < 8000 && end == 8192);
        forge.directory[1] = entry(2, 0, VALUES, 8, [0, 512, at, 4096]);
        forge.build(|_| ())
    };
    refused(&table(4096), "directory entry 1"); // the entries end at the footer, the check table behind its start
}

#[test]
fn an_extent_that_a_reader_must_refuse_names_record_and_field() {
    let build = |extent: [u8; 32]| {
        let mut forge = Forge::new(DATA_AND_LABEL, 1);
        forge.payload(&[7; 100]);
        forge.chunk(1, 0, EXTENTS, 32, 0, &extent);
        forge.chunk(2, 0, VALUES, 8, 0, &[0; 8]);
        forge.build(|_| ())
    };
    for (offset, length) in
        [(4096, 4097), (0, 100), (4095, 1), (u64::MAX, 1), (1, u64::MAX), (1 << 63, 1 << 63), (8193, 0)]
    {
        refused(&build(extent(offset, length, 0)), "record 0, field data: bad extent");
    }
    for (at, byte) in [(28, 1), (28, 255), (29, 2), (29, 1), (30, 1), (31, 128), (16, 99), (23, 1)] {
        let mut bad = extent(4096, 100, crc32c::crc32c(&[7; 100]));
        bad[at] = byte;
        refused(&build(bad), "record 0, field data: bad extent");
    }
}

#[test]
fn an_extent_with_side_bytes_that_a_reader_must_refuse_names_record_and_field() {
    let fields = r#"[{"id": 1, "name": "image", "type": "image"}]"#;
    let image = png(2, 3, b"and side bytes");
    let build = |extent: [u8; 32]| {
        let mut forge = Forge::new(fields, 1);
        forge.payload(&image);
        forge.chunk(1, 0, EXTENTS, 32, 0, &extent);
        forge.chunk(1, 1, VALUES, 4, 0, &2_u32.to_le_bytes());
        forge.chunk(1, 2, VALUES, 4, 0, &3_u32.to_le_bytes());
        forge.build(|_| ())
    };
    let (stored, crc) = (image.len() as u64, crc32c::crc32c(&image));
    let good = extent_with_side(4096, stored, 14, crc);
    let (_folder, path) = written(&build(good));
    assert_eq!(take_all(&path), [""; 0]);
    common::assert_holds(&path, &[vec![Cell::Image(png(2, 3, b""), (2, 3))]]);

    let with = |at: usize, byte: u8| {
        let mut bad = good;
        bad[at] = byte;
        bad
    };
    let raw = |raw: u64| {
        let mut bad = good;
        put(&mut bad, 16, &raw.to_le_bytes());
        bad
    };
    for bad in [with(28, 1), with(29, 0), with(29, 1), with(29, 3), with(29, 6), with(30, 1), with(31, 128)] {
        refused(&build(bad), "record 0, field image: bad extent");
    }
    for bad in [raw(stored), raw(stored + 1), raw(u64::MAX), raw(1 << 63), with(9, 255), with(14, 1), with(15, 128)] {
        refused(&build(bad), "record 0, field image: bad extent");
    }
}

#[test]
fn side_bytes_of_what_is_no_image_are_refused() {
    let mut forge = Forge::new(DATA_AND_LABEL, 1);
    forge.payload(&[7; 100]);
    forge.chunk(1, 0, EXTENTS, 32, 0, &extent_with_side(4096, 100, 10, crc32c::crc32c(&[7; 100])));
    forge.chunk(2, 0, VALUES, 8, 0, &[0; 8]);
    refused(&forge.build(|_| ()), "record 0, field data: bad extent: 10 side bytes, which only images have");
}

#[test]
fn a_missing_value_is_not_an_error_until_it_is_copied() {
    let mut forge = Forge::new(DATA_AND_LABEL, 4);
    let mut missing = [0; 32];
    missing[29] = 1;
    let there = forge.payload(b"there");
    forge.chunk(1, 0, EXTENTS, 32, 1, &[there, missing].concat());
    forge.chunk(2, 0, VALUES, 8, 0, &[5; 8]);
    forge.chunk(2, 0, VALUES, 8, 3, &[6; 8]);
    let (_folder, path) = written(&forge.build(|_| ()));
    for access in [Access::Mmap, Access::Pread] {
        let reader = Reader::open(&path, access, None).unwrap();
        let rows = read_one_by_one(&reader).unwrap();
        let (five, six) = (Cell::Int(i64::from_le_bytes([5; 8])), Cell::Int(i64::from_le_bytes([6; 8])));
        assert_eq!(rows[0], [Cell::Missing, five]);
        assert_eq!(rows[1], [Cell::Bytes(b"there".to_vec()), Cell::Missing]);
        assert_eq!(rows[2], [Cell::Missing, Cell::Missing]);
        assert_eq!(rows[3], [Cell::Missing, six]);
        assert_eq!(reader.lengths(0, &[0, 1, 2, 3]).unwrap(), [0, 5, 0, 0]);
        assert!(matches!(reader.read_batch_copy(0, &[1, 2], true, never), Err(Error::Missing { record: 2, .. })));
        assert!(matches!(reader.values(1, &[0, 1]), Err(Error::Missing { record: 1, .. })));
        assert!(matches!(reader.column("label"), Err(Error::Missing { record: 1, .. })));
        assert!(reader.verify(|_| false).unwrap().errors.is_empty());
    }
}

#[test]
fn appending_behind_records_without_a_value_leaves_them_without_one() {
    let mut forge = Forge::new(DATA_AND_LABEL, 4);
    let extents = [forge.payload(b"first"), forge.payload(b"second")].concat();
    forge.chunk(1, 0, EXTENTS, 32, 0, &extents);
    forge.chunk(2, 0, VALUES, 8, 1, &[5; 16]);
    let (_folder, path) = written(&forge.build(|_| ()));
    let before = read_one_by_one(&open(&path)).unwrap();
    for _ in 0..3 {
        let mut writer = Writer::open(&path, None, None, &options(Mode::Append)).unwrap();
        writer.append(&[Value::Bytes(b"new"), Value::Int(9)]).unwrap();
        writer.close().unwrap();
    }
    let mut expected = before;
    expected.extend(vec![vec![Cell::Bytes(b"new".to_vec()), Cell::Int(9)]; 3]);
    assert_eq!(read_one_by_one(&open(&path)).unwrap(), expected);
}

#[test]
fn strings_that_are_no_utf8_are_an_error_that_names_the_record() {
    let mut forge = Forge::new(r#"[{"id": 1, "name": "key", "type": "string"}]"#, 2);
    let extents = [forge.payload(b"good"), forge.payload(b"\xff\xfe")].concat();
    forge.chunk(1, 0, EXTENTS, 32, 0, &extents);
    let (_folder, path) = written(&forge.build(|_| ()));
    for access in [Access::Mmap, Access::Pread] {
        let reader = Reader::open(&path, access, None).unwrap();
        assert_eq!(reader.strings(0, &[0]).unwrap(), [Some("good".to_owned())]);
        let error = reader.strings(0, &[0, 1]).unwrap_err();
        assert!(error.to_string().contains("record 1, field key: not valid UTF-8"), "{error}");
    }
}

#[test]
fn odd_metadata_is_refused_and_odd_but_allowed_metadata_is_not() {
    let with = |metadata: &str| {
        let mut forge = Forge::new("[]", 0);
        forge.metadata = metadata.into();
        forge.build(|_| ())
    };
    let field = |field: &str| with(&format!(r#"{{"schema": [{field}], "complete": true, "metadata": {{}}}}"#));
    let deep =
        format!(r#"{{"schema": {}1{}, "complete": true, "metadata": {{}}}}"#, "[".repeat(5000), "]".repeat(5000));
    let many: Vec<String> = (1..5000).map(|i| format!(r#"{{"id": {i}, "name": "f{i}", "type": "int64"}}"#)).collect();
    for bytes in [
        with(""),
        with("null"),
        with("[]"),
        with("{}"),
        with("{\"schema\": []"),
        with(&deep),
        with(r#"{"schema": [], "complete": true, "metadata": {}}"#),
        with(r#"{"schema": {}, "complete": true, "metadata": {}}"#),
        with(r#"{"schema": [{"id": 1, "name": "a", "type": "int64"}], "metadata": {}}"#),
        with(r#"{"schema": [{"id": 1, "name": "a", "type": "int64"}], "complete": 1, "metadata": {}}"#),
        with(r#"{"schema": [{"id": 1, "name": "a", "type": "int64"}], "complete": true}"#),
        with(r#"{"schema": [{"id": 1, "name": "a", "type": "int64"}], "complete": true, "metadata": []}"#),
        field(""),
        field("null"),
        field("7"),
        field(r#""image""#),
        field(r#"{"id": 1, "type": "int64"}"#),
        field(r#"{"id": 1, "name": 7, "type": "int64"}"#),
        field(r#"{"id": 1, "name": "", "type": "int64"}"#),
        field(r#"{"id": 0, "name": "a", "type": "int64"}"#),
        field(r#"{"id": -1, "name": "a", "type": "int64"}"#),
        field(r#"{"id": 1.5, "name": "a", "type": "int64"}"#),
        field(r#"{"id": 4294967296, "name": "a", "type": "int64"}"#),
        field(r#"{"name": "a", "type": "int64"}"#),
        field(r#"{"id": 1, "name": "a"}"#),
        field(r#"{"id": 1, "name": "a", "type": "int64"}, {"id": 1, "name": "b", "type": "int64"}"#),
        field(r#"{"id": 1, "name": "a", "type": "int64"}, {"id": 2, "name": "a", "type": "int64"}"#),
        field(&many.join(",")),
    ] {
        refused(&bytes, "metadata");
    }
    refused(&field(r#"{"id": 1, "name": "a", "type": "int7"}"#), "\"int7\"");
    refused(&field(r#"{"id": 1, "name": "a", "type": "tensor"}"#), "upgrade fastrecord");

    let odd = r#" {"new key": {"x": [1.5]}, "schema": [{"id": 4294967295, "name": "a", "type": "int64", "more": 1}],
        "next_field_id": 18446744073709551615, "complete": false, "metadata": {"": null, "\ud83d\ude00": 1e300}} "#;
    let (_folder, path) = written(&with(odd));
    assert_eq!(take_all(&path), [""; 0]);
    let mut writer = Writer::open(&path, None, None, &options(Mode::Append)).unwrap();
    writer.append(&[Value::Int(5)]).unwrap();
    writer.close().unwrap();
    let (reader, bytes) = (open(&path), fs::read(&path).unwrap());
    assert!(reader.complete() && reader.schema().fields()[0].id == u32::MAX);
    assert_eq!(reader.metadata()["😀"], 1e300);
    let text = String::from_utf8_lossy(&bytes[8192..]);
    assert!(text.contains(r#""new key":{"x":[1.5]}"#), "unknown keys are kept");
}

#[test]
fn the_largest_field_id_has_no_successor_and_is_no_panic() {
    let metadata =
        r#"{"schema": [{"id": 4294967295, "name": "a", "type": "int64"}], "complete": false, "metadata": {}}"#;
    let mut forge = Forge::new("[]", 0);
    forge.metadata = metadata.into();
    let (_folder, path) = written(&forge.build(|_| ()));
    let mut writer = Writer::open(&path, None, None, &options(Mode::Append)).unwrap();
    writer.append(&[Value::Int(5)]).unwrap();
    writer.close().unwrap();
    assert_eq!(open(&path).len(), 1);
    assert!(String::from_utf8_lossy(&fs::read(&path).unwrap()).contains(r#""next_field_id":4294967296"#));
}

#[test]
fn chunks_that_share_their_bytes_cannot_blow_up_memory() {
    let mut forge = Forge::new(r#"[{"id": 1, "name": "label", "type": "int64"}]"#, 0);
    let count = 1 << 14;
    forge.chunk(1, 0, VALUES, 8, 0, &vec![0; count as usize * 8]);
    let (_, words) = (0, [u64_at(&forge.directory[0], 24), u64_at(&forge.directory[0], 32)]);
    forge.directory = (0..4000).map(|i| entry(1, 0, VALUES, 8, [i * count, count, words[0], words[1]])).collect();
    forge.records = 4000 * count;
    refused(&forge.build(|_| ()), "directory");
}

#[test]
fn more_records_than_all_columns_have_entries_are_refused() {
    let mut forge = forged();
    let entries: u64 = forge.directory.iter().map(|entry| u64_at(entry, 16)).sum();
    forge.records = entries;
    let (_folder, path) = written(&forge.build(|_| ()));
    let errors = take_all(&path);
    assert!(errors.iter().all(|e| e.contains("has no value for field")), "{errors:#?}");
    assert_eq!(open(&path).verify(|_| false).unwrap().bytes, 8);
    for records in [entries + 1, 1 << 40, i64::MAX as u64] {
        forge.records = records;
        refused(&forge.build(|_| ()), &format!("its columns have {entries} entries for {records} records"));
    }
}

#[test]
fn dictionaries_that_are_together_longer_than_the_file_are_refused() {
    let with = |count: usize| {
        let row = vec![r#"{"id": 1, "offset": 4096, "length": 64, "crc": 0}"#; count].join(", ");
        let compression = format!(r#"{{"codec": "zstd", "dictionaries": [{row}]}}"#);
        let mut forge =
            Forge::new(&format!(r#"[{{"id": 1, "name": "data", "type": "bytes", "compression": {compression}}}]"#), 0);
        forge.bytes.resize(8192, 0);
        forge.build(|_| ())
    };
    let (_folder, path) = written(&with(64));
    assert!(open(&path).is_empty());
    refused(&with(2000), "the dictionaries that it names have 128000 bytes");
}

#[test]
fn slots_that_lie_are_believed_only_as_far_as_the_format_says() {
    let forge = forged();
    let good = forge.build(|_| ());
    let footer = good.len() as u64 - 4096;
    let mut tail = good.clone();
    tail.extend([7; 5000]);
    let with_slots = |slots: [[u8; 32]; 2]| {
        let mut bytes = tail.clone();
        put(&mut bytes, 512, &slots[0]);
        put(&mut bytes, 1024, &slots[1]);
        bytes
    };
    let opens = |slots| {
        let (_folder, path) = written(&with_slots(slots));
        assert_eq!(take_all(&path), [""; 0]);
        assert_eq!(open(&path).len(), 3);
    };
    let id = &forge.id;
    opens([[0; 32]; 2]);
    opens([[9; 32]; 2]);
    opens([[0; 32], slot(id, footer, 1, 1)]);
    opens([slot(id, 1 << 40, 2, 1), slot(id, footer, 1, 2)]);
    opens([slot(id, u64::MAX, 2, 1), slot(id, u64::MAX - 4095, 3, 1)]);
    opens([slot(&[0; 16], 1 << 40, 2, 2), slot(id, footer, 1, 2)]);
    opens([slot(id, 1 << 40, 2, 3), slot(id, footer, 1, 2)]);
    for (place, expected) in
        [(1 << 40, "truncated"), (u64::MAX, "truncated"), (4096, "footer of commit 2"), (footer, "footer of commit 2")]
    {
        refused(&with_slots([slot(id, place, 2, 2), slot(id, footer, 1, 2)]), expected);
    }
}

#[test]
fn a_truncated_file_is_told_by_its_newest_commit() {
    let forge = forged();
    let mut bytes = forge.build(|_| ());
    bytes.truncate(5000);
    put(&mut bytes, 512, &slot(&forge.id, 40_960, 2, 2));
    put(&mut bytes, 1024, &slot(&forge.id, 81_920, 3, 2));
    refused(&bytes, "it has 5000 bytes, and its commit 3 ends at 86016");
    put(&mut bytes, 512, &slot(&forge.id, 122_880, 4, 2));
    refused(&bytes, "it has 5000 bytes, and its commit 4 ends at 126976");
}

#[test]
fn a_damaged_chunk_is_not_merged_and_appending_goes_on_behind_it() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let schema = Schema::new([("label", FieldType::Scalar(DType::Int64))]).unwrap();
    let mut writer = Writer::open(&path, Some(schema), None, &options(Mode::Create)).unwrap();
    writer.append(&[Value::Int(1)]).unwrap();
    writer.close().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[4096] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let mut writer = Writer::open(&path, None, None, &options(Mode::Append)).unwrap();
    writer.append(&[Value::Int(2)]).unwrap();
    writer.close().unwrap();
    assert_eq!(fs::read(&path).unwrap()[4096..bytes.len()], bytes[4096..]);
    let reader = Reader::open(&path, Access::Mmap, None).unwrap();
    assert_eq!(reader.values(0, &[1]).unwrap(), 2_i64.to_le_bytes());
    let error = reader.values(0, &[0]).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}

#[test]
fn a_writer_refuses_a_directory_that_a_reader_refuses() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut forge = forged();
    forge.directory.swap(0, 1);
    let bytes = forge.build(|_| ());
    fs::write(&path, &bytes).unwrap();
    let error = Writer::open(&path, None, None, &options(Mode::Append)).unwrap_err();
    assert!(error.to_string().contains("directory entry 1"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_directory_entries_and_extents_are_no_panic_and_bounded_memory(seed: u64) {
        let mut rng = Rng(seed);
        let odd = |rng: &mut Rng, near: u64| match rng.below(5) {
            0 => rng.next(),
            1 => u64::MAX - rng.below(9000),
            2 => rng.below(20),
            3 => near.wrapping_add(rng.below(129)).wrapping_sub(64),
            _ => near,
        };
        let mut forge = forged();
        let image = forge.payload(&png(2, 3, b""));
        forge.chunk(3, 0, EXTENTS, 32, 0, &image.repeat(3));
        forge.chunk(3, 1, VALUES, 4, 0, &[1; 12]);
        let schema = DATA_AND_LABEL.replace(']', r#", {"id": 3, "name": "image", "type": "image"}]"#);
        forge.metadata = format!(r#"{{"schema": {schema}, "complete": true, "metadata": {{}}}}"#).into();
        if rng.chance(50) {
            for _ in 0..=rng.below(2) {
                let (number, word) = (rng.below(4) as usize, rng.below(8) as usize);
                let changed = odd(&mut rng, u64_at(&forge.directory[number], 8 * word as u64));
                put(&mut forge.directory[number], 8 * word, &changed.to_le_bytes());
            }
        } else {
            let (at, length) = (odd(&mut rng, 4096), odd(&mut rng, 5));
            let side = odd(&mut rng, 2).min(length);
            let mut bad = if rng.chance(50) { extent(at, length, 0) } else { extent_with_side(at, length, side, 0) };
            if rng.chance(30) {
                bad[16 + rng.below(16) as usize] = rng.next() as u8;
            }
            let (field, number) = if rng.chance(50) { (1, 0) } else { (3, 2) };
            forge.directory.remove(number);
            forge.chunk(field, 0, EXTENTS, 32, 0, &bad.repeat(3));
            let entry = forge.directory.pop().unwrap();
            forge.directory.insert(number, entry);
        }
        if rng.chance(30) {
            forge.records = odd(&mut rng, 3);
        }
        let (_folder, path) = written(&forge.build(|_| ()));
        take_all(&path);
    }

    #[test]
    fn any_bytes_are_no_panic(seed: u64, length in 0_usize..20_000) {
        let mut rng = Rng(seed);
        let mut bytes = rng.bytes(length);
        let good = forged().build(|_| ());
        for _ in 0..rng.below(4) {
            let at = rng.below(good.len() as u64) as usize;
            let end = (at + rng.below(8192) as usize).min(good.len());
            if end <= bytes.len() {
                bytes[at..end].copy_from_slice(&good[at..end]);
            }
        }
        if rng.chance(80) && bytes.len() >= 4096 {
            bytes[..4096].copy_from_slice(&good[..4096]);
        }
        let (_folder, path) = written(&bytes);
        take_all(&path);
    }

    #[test]
    fn any_bytes_with_the_head_of_an_image_are_no_panic(seed: u64) {
        let mut rng = Rng(seed);
        let heads: [&[u8]; 20] = [
            b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR", b"\xff\xd8\xff\xe0\0\x10JFIF\0", b"\xff\xd8\xff\xe1", b"GIF89a", b"BM",
            b"RIFF\0\0\0\0WEBPVP8 ", b"RIFF\0\0\0\0WEBPVP8L", b"RIFF\0\0\0\0WEBPVP8X", b"II*\0\x08\0\0\0", b"MM\0*\0\0\0\x08",
            b"\0\0\0\x20ftypheic", b"\0\0\0\x20ftypavif", b"\0\0\0\x0cJXL \r\n\x87\n", b"\xff\x0a", b"8BPS\0\x01",
            b"\0\0\x01\0\x01\0", b"qoif", b"#?RADIANCE\n", b"P6 ", b"\x76\x2f\x31\x01",
        ];
        let mut data = heads[rng.below(20) as usize].to_vec();
        let length = rng.below(300) as usize;
        data.extend(if rng.chance(50) { rng.bytes(length) } else { vec![0; length] });
        for _ in 0..rng.below(6) {
            let at = rng.below(data.len() as u64) as usize;
            data[at] = *[0, 1, 0xff, 0x7f, 0x80, b'\n', b' ', b'9'].get(rng.below(8) as usize).unwrap();
        }
        LARGEST.store(0, Ordering::Relaxed);
        if let Ok((width, height)) = fastrecord_core::image_size(&data) {
            prop_assert!(width > 0 && height > 0);
        }
        prop_assert!(LARGEST.load(Ordering::Relaxed) < 16 << 20);
    }
}
