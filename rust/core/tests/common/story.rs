//! Random sessions of writers on one file, recorded by a tape, and the content of each of their
//! commits.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::rc::Rc;

use fastrecord_core::{
    Access, Column, Copier, Depth, Error, FieldType, Reader, Result, Schema, Storage, Value, Writer, WriterOptions,
    verify,
};
use serde_json::{Map, Value as Json, json};

use super::faulty::{Faulty, Plan};
use super::tape::{Op, Tape, footer_of};
use super::values::{Found, Item, random_field, random_item, random_schema, read_all};
use super::{Rng, never};

/// Everything that a reader must find.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Content {
    /// Names, types and ids.
    pub fields: Vec<(u32, String, String)>,
    pub rows: Vec<Vec<Found>>,
    user: Map<String, Json>,
    complete: bool,
}

fn fields_of(schema: &Schema) -> Vec<(u32, String, String)> {
    schema.fields().iter().map(|field| (field.id, field.name.clone(), field.kind.to_string())).collect()
}

pub fn content_of(reader: &Reader) -> Content {
    Content {
        fields: fields_of(reader.schema()),
        rows: read_all(reader).unwrap(),
        user: reader.metadata().clone(),
        complete: reader.complete(),
    }
}

/// Reads the content of a file and verifies every checksum; `None` if the file has no commit.
pub fn recovered(path: &Path, access: Access) -> Option<(u64, Content)> {
    match Reader::open(path, access, Some(1)) {
        Ok(reader) => {
            assert_eq!(verify(&reader, Depth::Checksums, &|| false).unwrap().errors, [""; 0]);
            Some((reader.snapshot().commit, content_of(&reader)))
        }
        Err(Error::NoCommit { .. } | Error::NotFrec { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// The path that errors name.
pub const TAPE: &str = "tape.frec";

/// A failed call and its writer; the writer is absent if opening it failed.
pub struct Failure {
    pub writer: Option<Writer>,
    pub error: Error,
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f) // the writer's storage holds everything that was written
    }
}

/// Sessions of writers on one file, recorded by a tape.
pub struct Story {
    /// The initial content of the disk: the state after the crash that the story continues from.
    pub before: Vec<u8>,
    pub promised: u64,
    pub tape: Tape,
    /// The failure to inject, if any.
    pub plan: Option<Plan>,
    /// The content of each commit, including commits from before the story.
    pub commits: BTreeMap<u64, Rc<Content>>,
    /// The records that the writer has received, committed or not.
    now: Content,
    /// Number of operations already searched for footers.
    seen: usize,
    names: u64,
}

impl Story {
    pub fn new() -> Self {
        let (before, tape, now) = (Vec::new(), Tape::default(), Content::default());
        Self { before, promised: 0, tape, plan: None, commits: BTreeMap::new(), now, seen: 0, names: 0 }
    }

    /// A story on a disk that fails.
    pub fn on(plan: Plan) -> Self {
        Self { plan: Some(plan), ..Self::new() }
    }

    /// Continues from the state after a crash.
    pub fn after(disk: Vec<u8>, commit: u64, commits: &BTreeMap<u64, Rc<Content>>) -> Self {
        let commits: BTreeMap<_, _> = commits.range(..=commit).map(|(n, content)| (*n, Rc::clone(content))).collect();
        let now = commits.get(&commit).map_or_else(Content::default, |content| (**content).clone());
        Self {
            before: disk.clone(),
            promised: commit,
            tape: Tape::holding(disk),
            plan: None,
            commits,
            now,
            seen: 0,
            names: 1000 * (1 + commit),
        }
    }

    pub fn newest(&self) -> u64 {
        self.commits.last_key_value().map_or(0, |(commit, _)| *commit)
    }

    fn storage(&self) -> Box<dyn Storage> {
        let tape = self.tape.clone();
        match &self.plan {
            Some(plan) => Box::new(Faulty { tape, plan: plan.clone() }),
            None => Box::new(tape),
        }
    }

    /// Records the content of the commits that a call has made; they are durable because it
    /// returned.
    fn note(&mut self, writer: &Writer) {
        if let Some(commit) = self.note_made(writer) {
            self.tape.promise(commit);
        }
        self.seen = self.tape.ops().len();
    }

    fn note_made(&mut self, writer: &Writer) -> Option<u64> {
        self.now.fields = fields_of(writer.schema());
        let ops = self.tape.ops();
        let footers: Vec<_> = ops[self.seen..].iter().filter_map(footer_of).collect();
        for (_, commit, records) in &footers {
            let mut content = self.now.clone();
            content.rows.truncate(*records as usize);
            self.commits.insert(*commit, Rc::new(content));
        }
        footers.last().map(|(_, commit, _)| *commit)
    }

    fn rows(rng: &mut Rng, writer: &Writer, count: u64, most: u64) -> Vec<Vec<Item>> {
        let kinds: Vec<FieldType> = writer.schema().fields().iter().map(|field| field.kind.clone()).collect();
        (0..count).map(|_| kinds.iter().map(|kind| random_item(rng, kind, most)).collect()).collect()
    }

    /// A writer opens the file, makes some changes, and closes it or gives up.
    ///
    /// # Errors
    /// Returns the error of the failed call, and its writer.
    pub fn session(&mut self, rng: &mut Rng) -> std::result::Result<(), Box<Failure>> {
        let commit_bytes = [1 << 30, 1 << 30, 20_000, 3_000][rng.below(4) as usize];
        let complete = rng.chance(80).then(|| rng.chance(70));
        let options = WriterOptions { commit_bytes, complete, ..WriterOptions::default() };
        let (path, storage) = (Path::new(TAPE), self.storage());
        let before = self.newest() == 0 || self.now.complete;
        let opened = if self.newest() == 0 {
            Writer::create_in(path, storage, random_schema(rng), &options)
        } else {
            Writer::append_in(path, storage, &options)
        };
        let mut writer = opened.map_err(|error| Failure { writer: None, error })?;
        assert_eq!((writer.len(), writer.committed()), (self.now.rows.len() as u64, self.now.rows.len() as u64));
        assert_eq!(writer.metadata(), &self.now.user);
        self.now.complete = complete.unwrap_or(before);
        assert_eq!(writer.complete(), self.now.complete);
        let steps = rng.below(7);
        let mut done = (0..steps).try_for_each(|_| self.step(&mut writer, rng));
        if rng.chance(75) {
            done = done.and_then(|()| writer.close());
        } else if done.is_ok() {
            drop(writer);
            self.give_up(rng);
            return Ok(());
        }
        if let Err(error) = done {
            self.note_made(&writer);
            return Err(Box::new(Failure { writer: Some(writer), error }));
        }
        self.note(&writer);
        self.assert_all_is_durable();
        Ok(())
    }

    fn step(&mut self, writer: &mut Writer, rng: &mut Rng) -> Result<()> {
        match rng.below(12) {
            0..=2 => {
                let most = if rng.chance(3) { 90_000 } else { [20, 300, 2_000][rng.below(3) as usize] };
                let count = 1 + rng.below(4);
                for row in Self::rows(rng, writer, count, most) {
                    self.now.rows.push(row.iter().map(Item::found).collect());
                    writer.append(&row.iter().map(Item::value).collect::<Vec<_>>())?;
                    self.note(writer);
                }
            }
            3 | 4 => {
                let count = 1 + rng.below(80);
                let rows = Self::rows(rng, writer, count, 60);
                self.now.rows.extend(rows.iter().map(|row| row.iter().map(Item::found).collect::<Vec<_>>()));
                let columns: Vec<Column<'_>> = (0..writer.schema().fields().len())
                    .map(|field| Column::Values(rows.iter().map(|row| row[field].value()).collect()))
                    .collect();
                writer.extend(&columns, rows.len(), &never)?;
                self.note(writer);
            }
            5 | 6 => {
                writer.commit()?;
                self.note(writer);
            }
            7 | 8 => self.add_field(writer, rng)?,
            9 if writer.schema().fields().len() > 1 => {
                writer.commit()?;
                self.note(writer);
                let at = rng.below(writer.schema().fields().len() as u64) as usize;
                let name = writer.schema().fields()[at].name.clone();
                for row in &mut self.now.rows {
                    row.remove(at);
                }
                writer.drop_field(&name)?;
                self.note(writer);
            }
            10 => {
                let text = "x".repeat(rng.below(5_000) as usize);
                self.now.user = Map::from_iter([("note".to_owned(), json!([rng.below(1000), text]))]);
                writer.set_metadata(self.now.user.clone())?;
            }
            _ => {
                self.now.complete = rng.chance(50);
                writer.set_complete(self.now.complete);
            }
        }
        Ok(())
    }

    fn add_field(&mut self, writer: &mut Writer, rng: &mut Rng) -> Result<()> {
        self.names += 1;
        let field = random_field(rng, &format!("new {}", self.names));
        let new = writer.start_field(&field)?;
        self.note(writer);
        let items: Vec<Item> = self.now.rows.iter().map(|_| random_item(rng, &field.kind, 200)).collect();
        let given_up = rng.chance(25);
        let given = if given_up { rng.below(items.len() as u64 + 1) as usize } else { items.len() };
        for part in items[..given].chunks(1 + rng.below(40) as usize) {
            writer.fill(new, &part.iter().map(Item::value).collect::<Vec<Value<'_>>>())?;
        }
        if given_up {
            writer.drop_new_field(new)?;
        } else {
            self.now.rows.iter_mut().zip(&items).for_each(|(row, item)| row.push(item.found()));
            writer.commit_field(new)?;
        }
        self.note(writer);
        Ok(())
    }

    /// Returns to the last commit; a writer that gives up removes its tail if it can.
    fn give_up(&mut self, rng: &mut Rng) {
        let ops = self.tape.ops();
        let footer = ops.iter().filter_map(footer_of).max_by_key(|(_, commit, _)| *commit);
        if let Some((at, ..)) = footer.filter(|_| rng.chance(50)) {
            self.tape.set_len(at as u64 + 4096).unwrap();
        }
        self.back_to(self.newest());
    }

    pub fn back_to(&mut self, commit: u64) {
        self.commits.retain(|made, _| *made <= commit);
        self.now = self.commits.get(&commit).map_or_else(Content::default, |content| (**content).clone());
        self.seen = self.tape.ops().len();
        if commit == 0 {
            *self = Self { plan: self.plan.take(), ..Self::new() }; // a file without a commit is created again
        }
    }

    /// Mode "w" renames the file after `close`: a loss after that moment must not matter.
    fn assert_all_is_durable(&self) {
        let ops = self.tape.ops();
        let written = |op: &&Op| matches!(op, Op::Write(..) | Op::SetLen(_) | Op::Sync);
        let last = ops.iter().rev().find(written);
        assert!(matches!(last, None | Some(Op::Sync)), "unsynced after close: {last:?}");
    }

    /// The last session was killed before its end, possibly during a write.
    pub fn kill(&mut self, from: usize, rng: &mut Rng) {
        let mut ops = self.tape.ops();
        ops.truncate(from + rng.below((ops.len() - from) as u64 + 1) as usize);
        if let Some(Op::Write(_, bytes)) = ops.last_mut().filter(|_| rng.chance(30)) {
            let part = rng.below(bytes.len() as u64 + 1) as usize;
            bytes.truncate(part);
        }
        let known = self.commits.keys().copied().filter(|commit| *commit <= self.promised).max().unwrap_or(0);
        let commit = ops.iter().filter_map(footer_of).map(|(_, commit, _)| commit).max().unwrap_or(known);
        self.tape = Tape::killed(self.before.clone(), ops);
        self.back_to(commit);
    }

    /// Begins as a copy of another file, as merge and compact create it.
    ///
    /// # Errors
    /// Returns the error of the failed copier call.
    pub fn copy(&mut self, rng: &mut Rng, path: &Path) -> Result<()> {
        let mut source = Self::new();
        while source.newest() == 0 {
            source.session(rng).unwrap();
        }
        if rng.chance(50) {
            source.add_large(rng);
        }
        fs::write(path, source.tape.live()).unwrap();
        let reader = Reader::open(path, Access::Mmap, Some(1)).unwrap();
        let mut copier = Copier::create_in(Path::new(TAPE), self.storage(), &reader, reader.len(), rng.chance(30))?;
        let numbers: Vec<u64> = (0..reader.len()).rev().collect();
        (self.now, self.names) = (content_of(&reader), source.names);
        let (whole, user, complete) = (rng.chance(60), self.now.user.clone(), self.now.complete);
        if whole {
            copier.copy_run(&reader, 0..reader.len(), &[], &|| false)?;
        } else {
            copier.copy_rows(&reader, &numbers, &[], &|| false)?;
            self.now.rows.reverse();
        }
        let finished = copier.finish(user, complete);
        for (_, commit, _) in self.tape.ops().iter().filter_map(footer_of) {
            self.commits.insert(commit, Rc::new(self.now.clone()));
        }
        finished?;
        self.tape.promise(self.newest());
        self.seen = self.tape.ops().len();
        self.assert_all_is_durable();
        Ok(())
    }

    /// Payloads that the kernel copies.
    fn add_large(&mut self, rng: &mut Rng) {
        let (path, storage) = (Path::new(TAPE), self.storage());
        let mut writer = Writer::append_in(path, storage, &WriterOptions::default()).unwrap();
        for row in Self::rows(rng, &writer, 3, 90_000) {
            writer.append(&row.iter().map(Item::value).collect::<Vec<_>>()).unwrap();
        }
        writer.close().unwrap();
    }

    /// # Errors
    /// Returns the error of the failed call, and its writer, if it has one.
    pub fn tell(&mut self, rng: &mut Rng, path: &Path) -> std::result::Result<(), Box<Failure>> {
        if rng.chance(30) {
            self.copy(rng, path).map_err(|error| Failure { writer: None, error })?;
        }
        for _ in 0..=rng.below(3) {
            self.session(rng)?;
        }
        Ok(())
    }

    /// The same with kills during sessions, and without failing calls.
    pub fn tell_with_kills(rng: &mut Rng, path: &Path) -> Self {
        let mut story = Self::new();
        if rng.chance(12) {
            story.copy(rng, path).unwrap();
        }
        story.go_on(rng);
        story
    }

    pub fn go_on(&mut self, rng: &mut Rng) {
        for _ in 0..=rng.below(3) {
            let from = self.tape.ops().len();
            self.session(rng).unwrap();
            if rng.chance(30) {
                self.kill(from.min(self.tape.ops().len()), rng);
            }
        }
    }
}
