//! `Salvage`: the readable records of a damaged file, from its newest commit with a readable
//! structure.
//!
//! The file is only read. A [`Salvage`] has a reader for those records, which a
//! [`Copier`](crate::Copier) can copy like any other records.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::codec::Codec;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::file::find_commit::{Commit, Opening};
use crate::file::storage::Storage;
use crate::format::chunk::Part;
use crate::format::extent::Extent;
use crate::format::field_type::FieldType;
use crate::format::layout::{CHUNK_LEN, Footer, u32_at};
use crate::format::metadata::Metadata;
use crate::format::schema::{Field, FieldIndex};
use crate::read::reader::Reader;
use crate::read::snapshot::Access;
use crate::repair::find_whole::{Notes, State, find};
use crate::repair::verify::{Depth, Verifier};
use crate::sys::files::open_regular;

/// Records whose extents are looked up at once.
const WINDOW: u64 = 16 << 10;
/// The most bytes of a zstd frame header.
const FRAME_HEADER: u64 = 18;

/// Records that are lost for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostRecords {
    /// The record numbers.
    pub records: Range<u64>,
    /// The field with the damaged value or index; `None` if nothing is left of the records.
    pub field: Option<String>,
    /// The cause.
    pub why: String,
}

/// The readable and the lost records of a damaged file.
#[derive(Debug)]
pub struct Salvage {
    reader: Reader,
    losses: Vec<LostRecords>,
    notes: Vec<String>,
    records: u64,
    unknown: bool,
    /// Lost records of the commit, as sorted ranges that do not touch.
    lost: Vec<Range<u64>>,
    /// For each field the ids of its intact dictionaries, or `None` if its values cannot need
    /// others.
    dictionaries: Vec<Option<Vec<u32>>>,
}

impl Salvage {
    /// Finds the newest commit with a readable footer, directory and metadata.
    ///
    /// Does not read payloads: [`Salvage::check`] does.
    ///
    /// # Errors
    /// [`Error::NothingLeft`]: the file has no such commit. Also: the file cannot be opened or read, is
    /// not a .frec file, or has a newer version.
    pub fn open(path: &Path, threads: Option<usize>, control: &dyn Control) -> Result<Self> {
        let file = open_regular(path)?;
        let mut notes = Notes::default();
        let (mut opened, mut never) = (None, None);
        match Reader::open(path, Access::Pread, threads) {
            Ok(reader) => opened = Some(reader.snapshot().commit),
            Err(error @ Error::Io { .. }) => return Err(error),
            Err(error @ Error::NoCommit { .. }) => never = Some(error),
            Err(error) => notes.add(&error),
        }
        let Some((id, state, more)) = find(path, &file, control)? else {
            let detail = "no commit has a readable footer, directory and metadata".to_owned();
            return Err(never.unwrap_or(Error::NothingLeft { path: path.to_owned(), detail }));
        };
        for note in more.0 {
            notes.say(note);
        }
        let opening = Opening::with_id(path, file.as_ref(), id)?;
        let State { footer, directory, mut metadata, borrowed, records, newest } = state;
        if let Some(error) = never {
            notes.add(&error);
        }
        if opened.is_some_and(|commit| commit != footer.commit) {
            notes.say(format!("readers find another commit; the newest whole commit is {}", footer.commit));
        }
        if opening.has_damaged_slot() {
            let path = path.display();
            notes.say(format!("{path}: a slot of page 0 is damaged, so a later commit may be lost"));
        }
        let unknown = opening.sealed().is_some_and(|sealed| sealed > newest);
        let mut losses = Vec::new();
        if records > footer.records {
            let why = format!("the index of the commits after commit {} is lost", footer.commit);
            losses.push(LostRecords { records: footer.records..records, field: None, why });
        }
        let dictionaries = good_dictionaries(path, &file, &footer, &mut metadata, &mut notes)?;
        let dictionaries = dictionaries.into_iter().map(|(good, all)| (!all || borrowed).then_some(good)).collect();
        let file_length = opening.length;
        let directory = without_sides(&directory, &metadata);
        let commit = Commit { id, footer, directory, metadata, file_length };
        let reader = Reader::of_commit(path, path, Access::Pread, threads, Arc::clone(&file), commit)?;
        let of_blocks = lost_entries(&reader)?;
        let lost = runs(of_blocks.iter().map(|loss| loss.records.clone()).collect());
        losses.extend(of_blocks);
        let records = records.max(footer.records);
        Ok(Self { reader, losses, notes: notes.0, records, unknown, lost, dictionaries })
    }

    /// Reads the payloads of all remaining records and finds the damaged ones.
    ///
    /// Reports the bytes read so far.
    ///
    /// # Errors
    /// Failed reads and interrupts.
    pub fn check(&mut self, control: &dyn Control) -> Result<()> {
        let done = Arc::new(AtomicU64::new(0));
        let reader = self.reader.clone();
        let verifier = Verifier { reader: reader.clone(), depth: Depth::Checksums };
        let mut damaged = Vec::new();
        for (field, definition) in reader.schema().iter() {
            if !definition.kind.has_payloads() {
                continue;
            }
            for window in reader.main_column(field).windows(WINDOW) {
                let mut note = |error: &Error| damaged.extend(loss_of(error));
                let mut wanted = Vec::new();
                for run in self.kept_in(window) {
                    wanted.extend(verifier.readable_extents(field, run, &mut note)?);
                }
                self.check_dictionaries(field, &wanted, &mut damaged)?;
                let found = verifier.check_payloads(field, wanted, &done, control)?;
                damaged.extend(found.errors.iter().filter_map(loss_of));
            }
        }
        control.report_and_check(done.load(Ordering::Relaxed))?;
        let all = self.lost.drain(..).chain(damaged.iter().map(|loss| loss.records.clone()));
        self.lost = runs(all.collect());
        self.losses.extend(damaged);
        self.losses.sort_by(|a, b| (a.records.start, &a.field).cmp(&(b.records.start, &b.field)));
        Ok(())
    }

    /// Finds the values that need a lost dictionary.
    fn check_dictionaries(
        &self,
        field: FieldIndex,
        wanted: &[(u64, Extent)],
        damaged: &mut Vec<LostRecords>,
    ) -> Result<()> {
        let Some(Some(good)) = self.dictionaries.get(field.position()) else { return Ok(()) };
        let mut head = Vec::new();
        for (record, extent) in wanted.iter().filter(|(_, extent)| extent.codec == Codec::Zstd) {
            head.resize(extent.stored.min(FRAME_HEADER) as usize, 0);
            let read = self.reader.file().read_at(&mut head, extent.offset);
            read.map_err(|e| Error::io(self.reader.path(), e))?;
            if let Some(id) = zstd_safe::get_dict_id_from_frame(&head).filter(|id| !good.contains(&id.get())) {
                let why = format!("its dictionary {id} is damaged or lost");
                let field = Some(self.reader.name_of(field));
                damaged.push(LostRecords { records: *record..record + 1, field, why });
            }
        }
        Ok(())
    }

    /// The reader for the remaining records. Results for lost records are meaningless.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// The losses, in record order. A record may occur several times, once per field.
    pub fn losses(&self) -> &[LostRecords] {
        &self.losses
    }

    /// Damage to the file's structure.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether anything is damaged.
    pub fn is_damaged(&self) -> bool {
        !self.notes.is_empty() || !self.losses.is_empty() || self.unknown
    }

    /// The number of records that the file had, as far as can be found out.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Whether there was a later commit that added an unknown number of records.
    pub fn lost_unknown(&self) -> bool {
        self.unknown
    }

    /// Ranges of records that can be saved, in order.
    pub fn saved(&self) -> Vec<Range<u64>> {
        self.kept_in(0..self.reader.len())
    }

    /// The parts of a run that are not lost.
    fn kept_in(&self, run: Range<u64>) -> Vec<Range<u64>> {
        let (mut kept, mut next) = (Vec::new(), run.start);
        let first = self.lost.partition_point(|lost| lost.end <= run.start);
        for lost in self.lost.iter().skip(first).take_while(|lost| lost.start < run.end) {
            if lost.start > next {
                kept.push(next..lost.start);
            }
            next = lost.end;
        }
        if next < run.end {
            kept.push(next..run.end);
        }
        kept
    }
}

/// The records whose entries lie in a damaged block of the index.
fn lost_entries(reader: &Reader) -> Result<Vec<LostRecords>> {
    let mut losses = Vec::new();
    for (field, definition) in reader.schema().iter() {
        for (part, ..) in definition.kind.columns() {
            let Some(column) = reader.index().column(field, part) else { continue };
            for data in &column.chunks {
                for (records, error) in data.damaged_blocks(reader.path(), column.name())? {
                    losses.push(LostRecords { records, field: Some(definition.name.clone()), why: error.coded() });
                }
            }
        }
    }
    Ok(losses)
}

/// Leaves the columns of side bytes out of a directory. They can be made again from the images, so
/// damage to them must not cost a record.
fn without_sides(directory: &[u8], metadata: &Metadata) -> Vec<u8> {
    let images: Vec<u32> =
        metadata.schema.fields().iter().filter(|f| f.kind == FieldType::Image).map(|f| f.id).collect();
    let entries = directory.as_chunks::<CHUNK_LEN>().0.iter();
    entries
        .filter(|entry| !(images.contains(&u32_at(entry, 0)) && entry[4] == Part::SIDE.0))
        .flatten()
        .copied()
        .collect()
}

fn loss_of(error: &Error) -> Option<LostRecords> {
    let (record, field) = error.place()?;
    Some(LostRecords { records: record..record + 1, field: Some(field.to_owned()), why: error.coded() })
}

/// Sorts ranges and joins those that touch.
fn runs(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// Removes damaged dictionaries from the schema, so that they are not copied. Returns for each
/// field the ids of the others, and whether none was damaged.
fn good_dictionaries(
    path: &Path,
    file: &Arc<File>,
    footer: &Footer,
    metadata: &mut Metadata,
    notes: &mut Notes,
) -> Result<Vec<(Vec<u32>, bool)>> {
    let mut all = Vec::new();
    for Field { name, compression, .. } in metadata.schema.fields_mut() {
        let (mut good, mut whole) = (Vec::new(), true);
        if let Some(compression) = compression {
            for range in &compression.dictionaries {
                let read = |bytes: &mut [u8], at| file.read_at(bytes, at).map_err(|e| Error::io(path, e));
                match range.read(path, name, footer.offset, read) {
                    Ok(_) => good.push(*range),
                    Err(error @ Error::Corrupt { .. }) => {
                        notes.add(&error);
                        whole = false;
                    }
                    Err(error) => return Err(error),
                }
            }
            compression.dictionaries.clone_from(&good);
        }
        all.push((good.iter().map(|range| range.id).collect(), whole));
    }
    Ok(all)
}
