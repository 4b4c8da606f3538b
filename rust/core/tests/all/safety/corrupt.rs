//! Damaged and truncated files cause an error that names the place, or yield the right data. They
//! never cause a panic, a hang or wrong data.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::common::{
    EXTENTS, Nth, Rng, Row, all_types, append_all, append_with_side, folder, never, open, options, random_row,
    read_by_batch, read_one_by_one, u32_at, u64_at, without_sizes,
};
use fastrecord_core::{Access, Damage, Depth, Error, Mode, Reader, Result, Verify, Writer, verify};
use tempfile::TempDir;

/// A small file of several commits in two sessions. The first session leaves its chunks for a later
/// merge. Some images have side bytes.
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

/// The ranges that readers of the newest commit use, each with a name, by docs/format.md alone.
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

/// Reads everything in a file in every way; returns the first error.
fn read_all(path: &Path, access: Access) -> Result<(Vec<Row>, Vec<Row>)> {
    let reader = Reader::open(path, access, Some(1))?;
    Ok((read_by_batch(&reader)?, read_one_by_one(&reader)?))
}

const FIELDS: [&str; 6] = ["", "image", "data", "key", "label", "weight"];

/// Returns whether an error is the expected one for damage in the named range.
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
        ("payload", Error::Value { record, field, damage: Damage::Checksum { .. }, .. }) => {
            let (number, of) = which.split_once('/').unwrap();
            (record.to_string() == of) && *field == FIELDS[number.parse::<usize>().unwrap()]
        }
        _ => false,
    }
}

/// Flips bits and checks the results; `bits` selects the bits of a byte by its offset and whether
/// it is live.
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
                        let report = verify(&open(&path), Depth::Checksums, &|| false).unwrap();
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
    // Test every bit of the slots and of the newest commit, but not all of the 4000 equal filler
    // zeros of a footer.
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
    // Then older footers, directories and merged chunks, and some of the zeros between.
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
        // Also cut at an earlier commit, where the last page is a valid footer: a slot shows that a
        // later commit existed.
        match Reader::open(&path, Access::Mmap, None).unwrap_err() {
            Error::Truncated { found, expected, commit, .. } => {
                // The slot of commit 3 lies after the slot of commit 2.
                let told = if length >= 1056 { (whole, 3) } else { (footers[1] + 4096, 2) };
                assert_eq!((found, expected, commit), (length, told.0, told.1));
            }
            Error::NotFrec { reason, .. } => {
                assert!(length < 32 && reason.contains("ends after") || length == 0, "{length}");
            }
            // Neither slot remains to show that a later commit existed.
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
        reader
            .read_batch_into(reader.nth(0), &reader.records(&[0]).unwrap(), &mut out, Verify::Always, &never)
            .unwrap();
        File::options().write(true).open(sample.path()).unwrap().set_len(sample.bytes.len() as u64 - 1).unwrap();
        let truncated = |result: Error| matches!(result, Error::Truncated { .. });
        assert!(truncated(
            reader
                .read_batch_into(reader.nth(0), &reader.records(&[0]).unwrap(), &mut out, Verify::Always, &never)
                .unwrap_err()
        ));
        assert!(truncated(
            reader.read_batch_copy(reader.nth(0), &reader.records(&[0]).unwrap(), Verify::Always, &never).unwrap_err()
        ));
        assert!(truncated(
            reader.view_batch(reader.nth(0), &reader.records(&[0]).unwrap(), Verify::Never, &|| false).unwrap_err()
        ));
        assert!(truncated(verify(&reader, Depth::Checksums, &|| false).unwrap_err()));
        assert!(truncated(reader.refresh().unwrap_err()));
    }
}
