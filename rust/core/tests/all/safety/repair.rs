//! Repair saves every intact record of a damaged file exactly, and lists the others.
#![allow(clippy::single_range_in_vec_init)] // a list of ranges may hold only one

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::common::damage::{self, Sources};
use crate::common::places::{Place, footers, hit, is_exchanged, places};
use crate::common::rich::{self, contents, contents_of};
use crate::common::{Rng, folder, options, torture, u64_at};
use fastrecord_core::{
    Access, Copier, DType, Depth, Error, FieldType, FileId, Mode, Reader, Salvage, Schema, SnapshotId, Value, Writer,
    verify,
};
use tempfile::TempDir;

type Places = Vec<(Range<u64>, Place)>;

/// An intact file, and the meaning of each byte to the readers of each commit.
struct Sound {
    folder: TempDir,
    id: FileId,
    bytes: Vec<u8>,
    other: Vec<u8>,
    earlier: Vec<u8>,
    /// Commit number, records, places; newest first.
    commits: Vec<(u64, u64, Places)>,
}

impl Sound {
    fn new(commits: &[u64], most: u64) -> Self {
        let folder = folder();
        let path = folder.path().join("sound.frec");
        let read = |path: &Path| fs::read(path).unwrap();
        let earlier = rich::make(&path, 11, commits, most);
        let bytes = read(&path);
        let id = Reader::open(&path, Access::Mmap, Some(1)).unwrap().snapshot().file_id;
        let other = folder.path().join("other.frec");
        rich::make(&other, 12, commits, most);
        let other = read(&other);
        let commit = |at: u64| (u64_at(&bytes, at + 40), u64_at(&bytes, at + 48), places(&bytes, at));
        let commits = footers(&bytes).into_iter().map(commit).collect();
        Self { folder, id, bytes, other, earlier, commits }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Copies the intact records.
fn save(salvage: &Salvage, out: &Path) {
    let runs = salvage.saved();
    let records = runs.iter().map(|run| run.end - run.start).sum();
    let mut copier = Copier::create(out, salvage.reader(), Mode::Overwrite, records, true).unwrap();
    let rows: Vec<u64> = runs.into_iter().flatten().collect();
    copier.copy_rows(salvage.reader(), &rows, &[], &|| false).unwrap();
    copier.finish(salvage.reader().metadata().clone(), salvage.reader().complete()).unwrap();
}

fn salvage(path: &Path) -> fastrecord_core::Result<Salvage> {
    let mut salvage = Salvage::open(path, Some(1), &|| false)?;
    salvage.check(&|| false)?;
    Ok(salvage)
}

/// Checks the repair of one damaged file; returns a description of the error, or the outcome.
fn judge(sound: &Sound, bad: &Path, out: &Path, changed: &[Range<u64>]) -> Result<(&'static str, u64, u64), String> {
    // The damaged parts of each commit.
    let hits: Vec<BTreeSet<&Place>> =
        sound.commits.iter().map(|(_, _, places)| hit(places, changed).into_iter().collect()).collect();
    let whole = |hit: &BTreeSet<&Place>| !hit.iter().any(|place| place.is_structure() && **place != Place::Superblock);
    let newest = hits.iter().position(whole);
    let salvage = match (salvage(bad), newest) {
        (Err(_), None) => return Ok(("nothing left", 0, 0)),
        (Err(error), Some(i)) => return Err(format!("commit {} is whole, but {error}", sound.commits[i].0)),
        (Ok(salvage), _) => salvage,
    };
    let reader = salvage.reader();
    let base = reader.snapshot().commit;
    if reader.snapshot().file_id != sound.id && newest.is_none() && !salvage.notes().is_empty() {
        return Ok(("only commits of another file left", 0, 0));
    }
    if newest.is_some_and(|i| sound.commits[i].0 > base) {
        return Err(format!("commit {} is whole, but {base} was taken", sound.commits[newest.unwrap()].0));
    }
    let at = sound.commits.iter().position(|(commit, ..)| *commit == base).ok_or("no such commit")?;
    let (_, records, places) = &sound.commits[at];
    let file = File::open(bad).unwrap();
    if hits[at].iter().any(|place| is_exchanged(&file, places, place)) {
        let outcome = ("with a page of the index exchanged for a good one", 0, 0);
        return if salvage.is_damaged() { Ok(outcome) } else { Err("an exchanged page is not noticed".to_owned()) };
    }
    if reader.len() != *records || salvage.records() > sound.commits[0].1 {
        return Err(format!("{} records of commit {base}, {} in all", reader.len(), salvage.records()));
    }
    let saved: Vec<u64> = salvage.saved().into_iter().flatten().collect();
    let lost: BTreeSet<u64> = salvage.losses().iter().flat_map(|loss| loss.records.clone()).collect();
    // The saved and the lost records together are all records, and none is both.
    if saved.iter().any(|record| lost.contains(record)) || (saved.len() + lost.len()) as u64 != salvage.records() {
        return Err(format!("saved {saved:?}, lost {lost:?} of {}", salvage.records()));
    }
    // Undamaged records are saved.
    let mut touched = BTreeSet::new();
    for place in &hits[at] {
        match place {
            Place::Block(_, _, first, end) => touched.extend(*first..=*end),
            Place::Payload(_, record) => drop(touched.insert(*record)),
            // If the metadata is damaged, an older commit supplies it, which may lack a
            // dictionary.
            Place::Dictionary(_) | Place::Metadata => touched.extend(0..*records),
            _ => {}
        }
    }
    if let Some(record) = lost.iter().find(|&record| record < records && !touched.contains(record)) {
        let why: Vec<_> = salvage.losses().iter().filter(|loss| loss.records.contains(record)).collect();
        return Err(format!("record {record} was not hit, and is lost: {why:?}"));
    }
    // The slots show that a later commit existed, if they are intact.
    let slots = changed.iter().any(|range| range.start < 1056 && range.end > 512);
    if !salvage.is_damaged() && !hits[if slots { at } else { 0 }].is_empty() {
        return Err(format!("nothing is said of damage in {:?}", hits[0]));
    }
    if saved.is_empty() {
        return Ok(("nothing saved", 0, lost.len() as u64));
    }
    save(&salvage, out);
    // Each record is unchanged.
    let footer = footers(&sound.bytes)[at];
    let id = SnapshotId { file_id: reader.snapshot().file_id, commit: base, footer, crc: None };
    let original = Reader::open_snapshot(&sound.path("sound.frec"), Access::Mmap, Some(1), id);
    let original = original.map_err(|error| error.to_string())?;
    let copy = Reader::open(out, Access::Mmap, Some(1)).map_err(|error| error.to_string())?;
    let report = verify(&copy, Depth::Values, &|| false).map_err(|error| error.to_string())?;
    if !report.errors.is_empty() {
        return Err(format!("the copy is damaged: {:?}", report.errors));
    }
    let wanted =
        original.records(&saved).and_then(|saved| contents_of(&original, &saved)).map_err(|error| error.to_string())?;
    let found = contents(&copy).map_err(|error| error.to_string())?;
    if wanted.fields != found.fields {
        let field = wanted.fields.iter().zip(&found.fields).find(|(wanted, found)| wanted != found);
        return Err(format!("saved other values: {:?}", field.map(|(wanted, _)| &wanted.0)));
    }
    let used = if base == sound.commits[0].0 { "from the newest commit" } else { "from an older commit" };
    Ok((if salvage.is_damaged() { used } else { "not damaged" }, saved.len() as u64, lost.len() as u64))
}

#[test]
fn each_record_that_was_not_hit_is_saved_as_it_was_and_the_others_are_listed() {
    let (count, seed) = (torture::count(150), torture::seed());
    let sound = Sound::new(&[30, 4, 5, 3, 6, 2], 300);
    let (bad, out) = (sound.path("x.frec"), sound.path("out.frec"));
    fs::write(&bad, &sound.bytes).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&bad).unwrap();
    let whole = sound.bytes.len() as u64;
    let sources = Sources { sound: &sound.bytes, other: &sound.other, earlier: &sound.earlier };
    let (mut failures, mut outcomes) = (Vec::new(), BTreeMap::<&str, u64>::new());
    let (mut saved, mut lost) = (0, 0);
    for case in 0..count {
        let mut rng = Rng(seed.wrapping_mul(1_000_003).wrapping_add(case));
        let damages = 1 + rng.below(5);
        let patches: Vec<_> = (0..damages)
            .flat_map(|_| {
                let kind = rng.below(8);
                damage::make(&mut rng, kind, &sources)
            })
            .collect();
        let mut changed = damage::apply(&file, &patches, &sound.bytes);
        if rng.chance(25) {
            let length = rng.below(whole);
            file.set_len(length).unwrap();
            changed.retain(|range| range.start < length);
            changed.push(length..whole);
        }
        match judge(&sound, &bad, &out, &changed) {
            Ok((outcome, kept, gone)) => {
                *outcomes.entry(outcome).or_default() += 1;
                (saved, lost) = (saved + kept, lost + gone);
            }
            Err(what) => failures.push(format!("case {case}: {what}")),
        }
        file.set_len(whole).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &sound.bytes, 0).unwrap();
        if failures.len() >= 20 {
            break;
        }
    }
    assert!(failures.is_empty(), "seed {seed}:\n{}", failures.join("\n"));
    for outcome in ["from the newest commit", "from an older commit"] {
        assert!(outcomes.get(outcome).is_some_and(|&times| times * 20 > count), "{outcomes:?}");
    }
    let parts: Vec<String> = outcomes.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
    torture::report(count, &format!("seed {seed}; {}; {saved} records saved, {lost} lost", parts.join(", ")));
}

/// Number of records in the first commit of such a file.
const FIRST: u64 = 180;

/// A file of two commits that add records, and a last one that merges the chunks of numbers.
fn merged(path: &Path) -> Vec<u8> {
    let schema = Schema::new([("data", FieldType::Bytes), ("label", FieldType::Scalar(DType::Int64))]).unwrap();
    let mut writer = Writer::open(path, Some(schema), None, &options(Mode::Create)).unwrap();
    for i in 0..200_u8 {
        writer.append(&[Value::Bytes(&[i; 200]), Value::Int(7 * i64::from(i))]).unwrap();
        if [FIRST - 1, 199].contains(&u64::from(i)) {
            writer.commit().unwrap(); // the second commit adds too little to merge its chunks
        }
    }
    writer.close().unwrap();
    fs::read(path).unwrap()
}

#[test]
fn a_damaged_superblock_costs_nothing_and_a_cut_off_file_what_was_cut_off() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let bytes = merged(&path);
    let id = Reader::open(&path, Access::Mmap, None).unwrap().snapshot().file_id;
    for page in [vec![0; 4096], vec![0xFF; 4096], bytes[4096..8192].to_vec()] {
        let mut damaged = bytes.clone();
        damaged[..4096].copy_from_slice(&page);
        fs::write(&path, &damaged).unwrap();
        assert!(Reader::open(&path, Access::Mmap, None).is_err());
        let salvage = salvage(&path).unwrap();
        assert_eq!(salvage.reader().snapshot().file_id, id);
        assert_eq!((salvage.saved(), salvage.losses().len()), (vec![0..200], 0));
        assert!(salvage.is_damaged() && !salvage.lost_unknown());
    }
    let first = footers(&bytes)[footers(&bytes).len() - 1];
    for length in [first + 4096, first + 9000, footers(&bytes)[0]] {
        fs::write(&path, &bytes[..length as usize]).unwrap();
        let salvage = salvage(&path).unwrap();
        let records = if length < footers(&bytes)[0] { FIRST } else { 200 };
        assert_eq!(salvage.saved(), [0..records]);
        assert!(salvage.lost_unknown() && salvage.notes()[0].contains("truncated"), "{:?}", salvage.notes());
    }
    for length in [0, 20, 4096, first, first + 4095] {
        fs::write(&path, &bytes[..length as usize]).unwrap();
        let error = Salvage::open(&path, None, &|| false).unwrap_err();
        assert!(matches!(error, Error::NothingLeft { .. } | Error::NotFrec { .. } | Error::NoCommit { .. }), "{error}");
    }
}

#[test]
fn a_good_file_with_a_torn_tail_is_not_damaged() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut bytes = merged(&path);
    for tail in [0, 5000] {
        bytes.extend(vec![7; tail]);
        fs::write(&path, &bytes).unwrap();
        let salvage = salvage(&path).unwrap();
        assert!(!salvage.is_damaged() && !salvage.lost_unknown());
        assert_eq!((salvage.saved(), salvage.records()), (vec![0..200], 200));
    }
}

#[test]
fn metadata_that_is_damaged_is_that_of_an_earlier_commit() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut bytes = merged(&path);
    let before = footers(&bytes)[0];
    let mut writer = Writer::open(&path, None, None, &options(Mode::Append)).unwrap();
    writer.append(&[Value::Bytes(b"new"), Value::Int(9)]).unwrap();
    writer.set_metadata(serde_json::from_str(r#"{"classes": ["new"]}"#).unwrap()).unwrap();
    writer.close().unwrap();
    bytes = fs::read(&path).unwrap();
    let newest = footers(&bytes)[0];
    assert!(newest > before);
    let at = u64_at(&bytes, newest + 72) as usize;
    bytes[at + 5] ^= 4;
    fs::write(&path, &bytes).unwrap();
    let salvage = salvage(&path).unwrap();
    // The records of the newest commit, without its metadata.
    assert_eq!((salvage.saved(), salvage.reader().metadata().len()), (vec![0..201], 0));
    assert!(salvage.notes().iter().any(|note| note.contains("metadata of commit")), "{:?}", salvage.notes());
}
