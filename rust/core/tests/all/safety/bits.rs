//! Flips bits and swaps pages: each change causes an error that names the place, or affects only
//! bytes that no reader uses.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::common::damage::{self, KINDS, Sources};
use crate::common::places::{Place, footers, hit, is_exchanged, places};
use crate::common::rich::{self, Contents, contents};
use crate::common::{Nth, Rng, folder, never, options, torture};
use fastrecord_core::{
    Access, DType, Datum, Depth, Error, Field, FieldIndex, FieldType, Mode, Reader, Result, Schema, Value, Verify,
    Writer, verify,
};

/// A copy of the file for one thread, which flips its bits.
struct Bench<'a> {
    path: PathBuf,
    file: File,
    sound: &'a [u8],
    expected: &'a Contents,
    views: &'a [Vec<Datum>],
    /// The part of the format that each byte belongs to.
    places: &'a [Option<&'a Place>],
}

fn read_all(path: &Path, access: Access) -> Result<(Reader, Contents)> {
    let reader = Reader::open(path, access, Some(1))?;
    let contents = contents(&reader)?;
    Ok((reader, contents))
}

/// The content of a view of one value, read without checksums, as by `reader[i]`.
fn view(reader: &Reader, field: FieldIndex, record: u64) -> Result<Datum> {
    let mapped = reader.mapping().unwrap().bytes();
    Ok(match reader.datum(field, record, Verify::default())? {
        Datum::Payload(at, length) => Datum::Decompressed(mapped[at as usize..(at + length) as usize].to_vec()),
        Datum::Float(number) => Datum::Values(number.to_le_bytes().to_vec()), // NaN does not equal itself
        other => other,
    })
}

/// The same for all records of a field, in one batch if the type has batch views.
fn batch(reader: &Reader, field: FieldIndex, definition: &Field) -> Result<Vec<Datum>> {
    let (records, kind) = (reader.run(0..reader.len())?, &definition.kind);
    let viewed = kind.has_payloads() && !kind.holds_text() && !matches!(kind, FieldType::List(_));
    let ranges = if viewed { reader.view_batch(field, &records, Verify::default(), &never)? } else { None };
    let Some(ranges) = ranges else { return records.iter().map(|&record| view(reader, field, record)).collect() };
    let mapped = reader.random_mapping().unwrap().bytes();
    let bytes = |(at, length): (u64, u64)| mapped[at as usize..(at + length) as usize].to_vec();
    Ok(ranges
        .into_iter()
        .map(|range| range.map_or(Datum::Missing, |range| Datum::Decompressed(bytes(range))))
        .collect())
}

/// Views of one record.
fn record_views(path: &Path, record: u64) -> Result<Vec<Datum>> {
    let reader = Reader::open(path, Access::Mmap, Some(1))?;
    reader.schema().iter().map(|(field, _)| view(&reader, field, record)).collect()
}

/// Views of all records, field by field.
fn batch_views(path: &Path) -> Result<Vec<Vec<Datum>>> {
    let reader = Reader::open(path, Access::Mmap, Some(1))?;
    reader.schema().iter().map(|(field, definition)| batch(&reader, field, definition)).collect()
}

impl Bench<'_> {
    /// Flips a bit and checks the result; returns a description of any fault.
    fn flip(&self, bit: u64, access: Access) -> std::result::Result<(), String> {
        let at = bit / 8;
        let byte = self.sound[at as usize];
        self.file.write_all_at(&[byte ^ 1 << (bit % 8)], at).unwrap();
        let place = self.places[at as usize];
        let outcome = match access {
            Access::Mmap => self.look(place, access).and_then(|()| self.look_at_views(place, bit)),
            Access::Pread => self.look(place, access),
        };
        self.file.write_all_at(&[byte], at).unwrap();
        outcome.map_err(|what| format!("bit {} of byte {at}, {access:?}: {what}", bit % 8))
    }

    /// Checks the damaged record, if any, and all records: views show the right values or fail.
    fn look_at_views(&self, place: Option<&Place>, bit: u64) -> std::result::Result<(), String> {
        let record = match place {
            Some(Place::Payload(_, record)) => *record,
            _ => bit % self.views[0].len() as u64,
        };
        let right =
            |found: &[Datum]| found.iter().zip(self.views).all(|(found, views)| *found == views[record as usize]);
        if record_views(&self.path, record).is_ok_and(|found| !right(&found)) {
            return Err("a view of the record shows it".to_owned());
        }
        match batch_views(&self.path) {
            Ok(found) if found != self.views => Err("a batch of views shows it".to_owned()),
            _ => Ok(()),
        }
    }

    fn look(&self, place: Option<&Place>, access: Access) -> std::result::Result<(), String> {
        let Some(place) = place else {
            let (reader, found) = read_all(&self.path, access).map_err(|error| format!("padding, but {error}"))?;
            let report =
                verify(&reader, Depth::Checksums, &|| false).map_err(|error| format!("padding, but {error}"))?;
            let same = found == *self.expected && report.errors.is_empty();
            return if same { Ok(()) } else { Err(format!("padding, but wrong data: {:?}", report.errors)) };
        };
        match read_all(&self.path, access) {
            Ok(_) => return Err(format!("not noticed, in {place:?}")),
            Err(error) if !place.is_named_by(&error) || !error.to_string().contains("x.frec") => {
                return Err(format!("in {place:?}, but {error}"));
            }
            Err(_) => {}
        }
        match Reader::open(&self.path, access, Some(1)) {
            Err(error) if place.is_structure() && place.is_named_by(&error) => Ok(()),
            Err(error) => Err(format!("in {place:?}, but opening says {error}")),
            Ok(reader) => {
                let errors = verify(&reader, Depth::Checksums, &|| false).map_err(|error| error.to_string())?.errors;
                match &errors[..] {
                    [error] if place.is_in(error) => Ok(()),
                    other => Err(format!("in {place:?}, but verify says {other:?}")),
                }
            }
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_is_named_or_padding() {
    let count = torture::count(3000);
    let folder = folder();
    let path = folder.path().join("x.frec");
    rich::make(&path, 5, &[50, 3, 4, 6, 2, 3], 60);
    let sound = fs::read(&path).unwrap();
    assert!(sound.len() >= 64 << 10, "{} bytes", sound.len());
    let reader = Reader::open(&path, Access::Mmap, Some(1)).unwrap();
    let compressed = reader.schema().fields().iter().filter_map(|field| field.compression.as_ref());
    assert!(compressed.map(|how| how.dictionaries().len()).sum::<usize>() > 0, "no dictionary was made");
    let report = verify(&reader, Depth::Values, &|| false).unwrap();
    assert!(report.errors.is_empty() && report.decoded > 100, "{report:?}");
    let (_, expected) = read_all(&path, Access::Pread).unwrap();
    assert!(expected.fields.iter().any(|(_, values, _)| values.contains(&None)), "nothing is missing");
    let views = batch_views(&path).unwrap();
    let live = places(&sound, footers(&sound)[0]);
    let mut of_byte: Vec<Option<&Place>> = vec![None; sound.len()];
    for (range, place) in &live {
        of_byte[range.start as usize..range.end as usize].fill(Some(place));
    }
    // Flips every bit if the environment asks for that many, else every n-th from a seeded start.
    let bits = 8 * sound.len() as u64;
    let step = (bits / count).max(1);
    let first = torture::seed() % step;
    let next = AtomicU64::new(first);
    let (failures, done) = (Mutex::new(Vec::new()), Mutex::new(BTreeMap::<&str, u64>::new()));
    let broken = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..thread::available_parallelism().map_or(1, usize::from).min(4) {
            let path = folder.path().join(format!("{number}")).join("x.frec");
            let (next, failures, done, broken) = (&next, &failures, &done, &broken);
            let (sound, expected, of_byte, views) = (&sound, &expected, &of_byte, &views);
            scope.spawn(move || {
                fs::create_dir(path.parent().unwrap()).unwrap();
                fs::write(&path, sound).unwrap();
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                let bench = Bench { path, file, sound, expected, views, places: of_byte };
                loop {
                    let bit = next.fetch_add(step, Ordering::Relaxed);
                    if bit >= bits || broken.load(Ordering::Relaxed) {
                        break;
                    }
                    // One bit in sixteen uses the other access mode.
                    let pread = (bit / step).is_multiple_of(16);
                    let modes = [Some(Access::Mmap), pread.then_some(Access::Pread)];
                    for access in modes.into_iter().flatten() {
                        if let Err(what) = bench.flip(bit, access) {
                            let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
                            failures.push(what);
                            broken.store(failures.len() >= 20, Ordering::Relaxed);
                        }
                    }
                    let kind = of_byte[(bit / 8) as usize].map_or("padding", kind_of);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    *done.entry(kind).or_default() += 1;
                    if pread {
                        *done.entry("by pread, too").or_default() += 1;
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "seed {}:\n{}", torture::seed(), failures.join("\n"));
    let done = done.into_inner().unwrap();
    for kind in ["padding", "structure", "index", "payload", "dictionary"] {
        assert!(done.contains_key(kind), "{done:?}");
    }
    let flips = (bits - first).div_ceil(step);
    let parts: Vec<String> = done.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    let which = if step == 1 { "each bit".to_owned() } else { format!("each {step}th bit") };
    torture::report(flips, &format!("{which} of a file of {} bytes: {}", sound.len(), parts.join(", ")));
}

fn kind_of(place: &Place) -> &'static str {
    match place {
        Place::Superblock | Place::Footer | Place::Directory | Place::Metadata => "structure",
        Place::Dictionary(_) => "dictionary",
        Place::Block(..) => "index",
        Place::Payload(..) => "payload",
    }
}

/// A file of about the given size: larger payloads, a text, a number and an array with two variable
/// dimensions.
fn make_large(path: &Path, seed: u64, bytes: u64, earlier: bool) {
    let mut rng = Rng(seed);
    let dims = r#"{"name": "masks", "type": "array", "dtype": "uint8", "shape": [null, null]}"#;
    let rows = format!(
        r#"[{{"name": "image", "type": "bytes"}}, {{"name": "key", "type": "string"}}, {{"name": "label", "type": "int64"}}, {dims}]"#
    );
    let mode = if earlier { Mode::Create } else { Mode::Append };
    let schema = earlier.then(|| Schema::from_json(&rows).unwrap());
    assert!(schema.as_ref().is_none_or(|schema| schema.fields()[2].kind == FieldType::Scalar(DType::Int64)));
    let mut writer = Writer::open(path, schema, None, &options(mode)).unwrap();
    let most = (bytes / 40).min(100_000);
    while writer.bytes_written() < bytes {
        for _ in 0..50 {
            let (length, dims) = (rng.below(most) as usize, [rng.below(30), rng.below(30)]);
            let (image, mask) = (rng.bytes(length), rng.bytes((dims[0] * dims[1]) as usize));
            let key = format!("class {}/{}.jpg", rng.below(1000), writer.len());
            let mask = Value::Array { data: &mask, shape: &dims };
            let label = rng.next().cast_signed();
            writer.append(&[Value::Bytes(&image), Value::Str(&key), Value::Int(label), mask]).unwrap();
        }
        writer.commit().unwrap();
    }
    writer.close().unwrap();
}

/// Whether an error names a column.
fn text_names(errors: &[String], column: &str) -> bool {
    errors.iter().any(|error| error.contains(&format!(" of field {column}, records ")))
}

/// Checks a damaged file; `changed` lists the parts that differ from the original.
fn judge(
    path: &Path,
    live: &[(Range<u64>, Place)],
    changed: &[Range<u64>],
    sums: &[u32],
    rng: &mut Rng,
) -> std::result::Result<&'static str, String> {
    let hit = hit(live, changed);
    let opened = Reader::open(path, Access::Mmap, None);
    if hit.iter().any(|place| place.is_structure()) {
        return match opened {
            Ok(_) => Err(format!("opens, with damage in {hit:?}")),
            Err(error @ Error::Io { .. }) => Err(error.to_string()),
            Err(error) if !error.to_string().contains("x.frec") => Err(format!("not named: {error}")),
            Err(_) => Ok("not opened"),
        };
    }
    let reader = opened.map_err(|error| format!("only {hit:?} is damaged, but {error}"))?;
    let errors = verify(&reader, Depth::Checksums, &|| false).map_err(|error| error.to_string())?.errors;
    // A reader cannot find the values that a damaged index points to.
    let blocks: Vec<(&str, u64, u64)> = hit
        .iter()
        .filter_map(|place| match place {
            Place::Block(field, _, first, last) => Some((&field[..], *first, *last)),
            _ => None,
        })
        .collect();
    let hidden = |place: &Place| match place {
        Place::Payload(field, record) => {
            blocks.iter().any(|(name, first, last)| name == field && (*first..=*last).contains(record))
        }
        _ => false,
    };
    let wanted: Vec<&&Place> = hit.iter().filter(|place| !hidden(place)).collect();
    let file = File::open(path).unwrap();
    if let Some(place) = wanted.iter().find(|place| is_exchanged(&file, live, place)) {
        // An error of the whole chunk. If another of its blocks is damaged, only that one is named.
        let column = |place: &Place| matches!(place, Place::Block(_, column, ..) if text_names(&errors, column));
        let named = errors.iter().any(|error| place.is_covered_by(error)) || column(place);
        return if named {
            Ok("exchanged for a good page of the index")
        } else {
            Err(format!("{place:?} is exchanged"))
        };
    }
    if let Some(place) = wanted.iter().find(|place| !errors.iter().any(|error| place.is_in(error))) {
        return Err(format!("{place:?} is damaged, and verify says {errors:?}"));
    }
    if let Some(error) = errors.iter().find(|error| !wanted.iter().any(|place| place.is_in(error))) {
        return Err(format!("{error}: it is not; hit were {hit:?}"));
    }
    for place in wanted.iter().take(20) {
        if let Place::Payload(field, record) = place {
            match reader.payload(reader.field(field).unwrap(), *record, Verify::Always) {
                Err(error) if place.is_named_by(&error) => {}
                other => return Err(format!("{place:?} was read as {other:?}")),
            }
        }
    }
    for _ in 0..10 {
        let record = rng.below(reader.len());
        let place = Place::Payload("image".to_owned(), record);
        if hit.contains(&&place) || hidden(&place) {
            continue;
        }
        let bytes = reader
            .payload(reader.nth(0), record, Verify::Always)
            .map_err(|error| format!("{place:?} is sound, but {error}"))?;
        if crc32c::crc32c(&bytes) != sums[record as usize] {
            return Err(format!("{place:?} is sound, but other bytes were read"));
        }
    }
    Ok(if hit.is_empty() { "padding" } else { "named" })
}

#[test]
fn damaged_pages_of_a_large_file_are_named_and_nothing_else_is() {
    let (count, seed) = (torture::count(120), torture::seed());
    let bytes: u64 = if torture::is_long() { 256 << 20 } else { 3 << 20 };
    let folder = folder();
    let path = folder.path().join("x.frec");
    make_large(&path, 1, bytes / 3, true);
    let earlier = fs::read(&path).unwrap();
    make_large(&path, 2, 2 * bytes / 3, false);
    let sound = fs::read(&path).unwrap();
    let other = folder.path().join("other.frec");
    make_large(&other, 3, bytes / 8, true);
    let other = fs::read(&other).unwrap();
    let live = places(&sound, footers(&sound)[0]);
    let reader = Reader::open(&path, Access::Mmap, None).unwrap();
    let sums: Vec<u32> = (0..reader.len())
        .map(|record| crc32c::crc32c(&reader.payload(reader.nth(0), record, Verify::Always).unwrap()))
        .collect();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let sources = Sources { sound: &sound, other: &other, earlier: &earlier };
    let (mut failures, mut outcomes) = (Vec::new(), BTreeMap::<&str, u64>::new());
    for case in 0..count {
        let mut rng = Rng(seed.wrapping_mul(1_000_003).wrapping_add(case));
        let kind = case % KINDS.len() as u64;
        let patches = damage::make(&mut rng, kind, &sources);
        let changed = damage::apply(&file, &patches, &sound);
        match judge(&path, &live, &changed, &sums, &mut rng) {
            Ok(outcome) => *outcomes.entry(outcome).or_default() += 1,
            Err(what) => failures.push(format!("case {case}, {}: {what}", KINDS[kind as usize])),
        }
        damage::undo(&file, &patches, &sound);
        if failures.len() >= 20 {
            break;
        }
    }
    assert!(failures.is_empty(), "seed {seed}:\n{}", failures.join("\n"));
    assert_eq!(fs::read(&path).unwrap(), sound);
    assert!(outcomes["named"] * 2 > count && outcomes.len() > 1, "{outcomes:?}");
    let parts: Vec<String> = outcomes.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
    let size = sound.len() >> 20;
    torture::report(count, &format!("seed {seed}; a file of {size} MiB: {}; {}", parts.join(", "), KINDS.join(", ")));
}
