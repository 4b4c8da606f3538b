//! After a power cut, a kill or a disk failure, the file is at a whole commit, and the next writer
//! continues from it.
//!
//! A tape replaces the disk. It records every write, so a test can replay each moment of a session
//! in any state that a crash may leave. Any part of the data not yet synced may be lost, torn or
//! reordered.

use crate::common;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::tape::{Faults, Op, Tape, crash, newest, recovered};
use crate::common::{Rng, Row, all_types, append, assert_holds, folder, open, options, random_row};
use fastrecord_core::{Cause, Error, Mode, Result, Writer, WriterOptions};

/// A session of the story, recorded by a tape.
struct Story {
    tape: Tape,
    rows: Vec<Row>,
    /// The number of rows at each commit, from commit 1.
    commits: Vec<usize>,
}

impl Story {
    fn new() -> Self {
        Self { tape: Tape::default(), rows: Vec::new(), commits: Vec::new() }
    }

    fn open(&self, commit_bytes: u64) -> Writer {
        let options = WriterOptions { commit_bytes, ..WriterOptions::default() };
        let (path, storage) = (Path::new("tape.frec"), Box::new(self.tape.clone()));
        if self.tape.live().is_empty() {
            Writer::create_in(path, storage, all_types(), &options).unwrap()
        } else {
            Writer::append_in(path, storage, &options).unwrap()
        }
    }

    /// Appends and commits. Records each commit before the attempt, because a failed commit may
    /// still reach the disk.
    fn commit(&mut self, writer: &mut Writer, rows: Vec<Row>) -> Result<()> {
        self.rows.truncate(writer.len() as usize);
        for row in rows {
            append(writer, &row)?;
            self.rows.push(row);
        }
        self.finish(writer, |writer| writer.commit().map(|_| ()))
    }

    fn close(&mut self, writer: &mut Writer) -> Result<()> {
        self.finish(writer, Writer::close)
    }

    fn finish(&mut self, writer: &mut Writer, finish: impl Fn(&mut Writer) -> Result<()>) -> Result<()> {
        self.commits.push(self.rows.len());
        finish(writer)?;
        let found = newest(&self.tape.live()).expect("a commit was made");
        // A commit without changes creates nothing.
        self.commits.truncate(found as usize);
        self.tape.promise(found);
        Ok(())
    }
}

/// Crashes at every moment of a story, in `times` different ways each, and checks the resulting
/// file.
fn survives(name: &str, story: &Story, times: u64, goes_on: bool) {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let ops = story.tape.ops();
    for length in 0..=ops.len() {
        for time in 0..times {
            let seed = (length as u64) << 32 | time;
            let context = || format!("{name}: crash({length} of {} operations, seed {seed})", ops.len());
            let mut rng = Rng(seed);
            let (disk, promised) = crash(&ops[..length], &mut rng);
            let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                fs::write(&path, &disk).unwrap();
                let found = recovered(&path);
                let (commit, rows) = found.unwrap_or((0, Vec::new()));
                assert!(commit >= promised, "commit {promised} was promised, {commit} is there");
                let expected = if commit == 0 { 0 } else { story.commits[commit as usize - 1] };
                assert!(rows == story.rows[..expected], "commit {commit} has other records than were written");
                if goes_on && commit > 0 {
                    append_after(&path, disk.clone(), rows, &mut rng);
                }
            }));
            assert!(checked.is_ok(), "{}", context());
        }
    }
}

/// The next writer continues from the state after a crash.
fn append_after(path: &Path, disk: Vec<u8>, mut rows: Vec<Row>, rng: &mut Rng) {
    let tape = Tape::holding(disk);
    let mut writer = Writer::append_in(path, Box::new(tape.clone()), &WriterOptions::default()).unwrap();
    assert_eq!(writer.len(), rows.len() as u64);
    for _ in 0..rng.below(4) {
        rows.push(random_row(rng, &all_types(), 1000));
        append(&mut writer, rows.last().unwrap()).unwrap();
    }
    writer.close().unwrap();
    fs::write(path, tape.live()).unwrap();
    assert_eq!(recovered(path).unwrap().1, rows);
    assert_eq!(open(path).tail_bytes(), 0);
}

fn some_rows(rng: &mut Rng, most: u64) -> Vec<Row> {
    let count = rng.below(most);
    (0..count).map(|_| random_row(rng, &all_types(), 2000)).collect()
}

#[test]
fn a_crash_at_any_moment_of_writing_leaves_a_whole_commit_and_the_next_writer_goes_on() {
    for seed in 0..3 {
        let (mut rng, mut story) = (Rng(seed), Story::new());
        for _ in 0..3 {
            let mut writer = story.open(1 << 30);
            for _ in 0..4 {
                let rows = some_rows(&mut rng, 6);
                story.commit(&mut writer, rows).unwrap();
            }
            story.close(&mut writer).unwrap();
        }
        survives(&format!("story {seed}"), &story, 12, true);
    }
}

#[test]
fn a_crash_within_a_commit_of_many_writes_leaves_the_one_before() {
    let (mut rng, mut story) = (Rng(9), Story::new());
    let mut writer = story.open(1 << 30);
    for size in [300_000, 500_000] {
        let rows = (0..14).map(|_| random_row(&mut rng, &all_types(), size)).collect();
        story.commit(&mut writer, rows).unwrap();
    }
    story.close(&mut writer).unwrap();
    let count = story.tape.ops().iter().filter(|op| matches!(op, Op::Write(..))).count();
    assert!(count > 10, "{count} writes: too few to be torn apart");
    survives("many writes", &story, 1, false);
}

#[test]
fn a_full_disk_at_any_write_stops_the_writer_and_the_file_is_good() {
    let mut broken = 0;
    for first in 0..40 {
        let (mut rng, mut story) = (Rng(first as u64), Story::new());
        let mut writer = story.open(1 << 30);
        let rows = some_rows(&mut rng, 6);
        story.commit(&mut writer, rows).unwrap();
        story.tape.break_next(Faults { write: Some(first), sync: None });
        let failed = (0..8).any(|_| {
            let rows = some_rows(&mut rng, 6);
            story.commit(&mut writer, rows).is_err()
        });
        if !failed {
            continue;
        }
        broken += 1;
        refuses_to_go_on(&mut writer, &mut rng);
        story.tape.break_next(Faults::default());
        drop(writer);
        // The next writer finds a whole commit and continues; the file survives further crashes as
        // well.
        let mut writer = story.open(1 << 30);
        let found = writer.committed() as usize;
        story.commits.truncate(story.commits.iter().rposition(|&rows| rows == found).unwrap() + 1);
        let rows = some_rows(&mut rng, 6);
        story.commit(&mut writer, rows).unwrap();
        story.close(&mut writer).unwrap();
        assert_eq!(story.commits.last(), Some(&story.rows.len()));
        let folder = folder();
        let path = folder.path().join("x.frec");
        fs::write(&path, story.tape.live()).unwrap();
        assert_holds(&path, &story.rows);
        survives(&format!("disk full at write {first}"), &story, 1, false);
    }
    assert!(broken > 20, "only {broken} sessions met the full disk");
}

fn refuses_to_go_on(writer: &mut Writer, rng: &mut Rng) {
    let row = random_row(rng, &all_types(), 10);
    for refused in [append(writer, &row), writer.commit(), writer.close().map(|()| 0)] {
        let error = refused.unwrap_err();
        let Error::WriterFailed { recovery, .. } = error else { panic!("{error}") };
        assert_eq!(recovery.records, writer.committed());
    }
}

#[test]
fn a_failed_sync_stops_the_writer_and_a_crash_after_it_leaves_a_whole_commit() {
    for fails in 0..8 {
        let (mut rng, mut story) = (Rng(100 + fails as u64), Story::new());
        let mut writer = story.open(1 << 30);
        for _ in 0..2 {
            let rows = (0..3).map(|_| random_row(&mut rng, &all_types(), 2000)).collect();
            story.commit(&mut writer, rows).unwrap();
        }
        story.tape.break_next(Faults { write: None, sync: Some(fails) });
        while story.commit(&mut writer, vec![random_row(&mut rng, &all_types(), 2000)]).is_ok() {}
        refuses_to_go_on(&mut writer, &mut rng);
        drop(writer);
        survives(&format!("failed sync {fails}"), &story, 10, true);
        // The file is also whole for the running system; the next writer continues from there, and
        // may crash.
        let mut writer = story.open(1 << 30);
        let found = writer.len() as usize;
        story.commits.truncate(story.commits.iter().rposition(|&rows| rows == found).unwrap() + 1);
        for _ in 0..2 {
            let rows = (0..2).map(|_| random_row(&mut rng, &all_types(), 2000)).collect();
            story.commit(&mut writer, rows).unwrap();
        }
        story.close(&mut writer).unwrap();
        survives(&format!("failed sync {fails}, next session"), &story, 20, false);
    }
}

#[test]
fn a_full_disk_while_a_real_file_grows_leaves_its_last_commit() {
    // The limit applies to a whole process, so this test runs itself in a process of its own.
    const CHILD: &str = "FASTRECORD_TEST_FILE_SIZE_LIMIT";
    if std::env::var_os(CHILD).is_none() {
        let name = "safety::crash::a_full_disk_while_a_real_file_grows_leaves_its_last_commit";
        let child = Command::new(std::env::current_exe().unwrap()).args(["--exact", name]).env(CHILD, "1").output();
        let output = child.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
        return;
    }
    let folder = folder();
    let path = folder.path().join("x.frec");
    let (mut rng, mut rows) = (Rng(11), Vec::new());
    let mut writer = Writer::open(&path, Some(all_types()), None, &options(Mode::Create)).unwrap();
    for _ in 0..5 {
        rows.push(random_row(&mut rng, &all_types(), 1000));
        append(&mut writer, rows.last().unwrap()).unwrap();
    }
    writer.commit().unwrap();
    let length = fs::metadata(&path).unwrap().len();
    // The system itself refuses to let the file grow.
    limit_file_size(length + 100_000);
    let big = random_row(&mut rng, &all_types(), 0);
    let error = (0..).find_map(|_| {
        let mut row = big.clone();
        row[1] = common::Cell::Bytes(rng.bytes(200_000));
        append(&mut writer, &row).and_then(|_| writer.commit()).err()
    });
    let Some(Error::WriteFailed { recovery, .. }) = error else { panic!("{error:?}") };
    assert_eq!((recovery.commit, recovery.records, recovery.cause), (1, 5, Cause::TooLarge));
    refuses_to_go_on(&mut writer, &mut rng);
    // `close` failed, but it released the lock.
    assert_eq!(Writer::open(&path, None, None, &options(Mode::Append)).unwrap().len(), 5);
    drop(writer);
    assert_eq!(fs::metadata(&path).unwrap().len(), length, "the tail is cut off");
    assert_holds(&path, &rows);
}

#[allow(unsafe_code)]
fn limit_file_size(bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: both calls take numbers and a struct on this stack. Ignoring SIGXFSZ makes writes
    // fail with EFBIG.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
    }
}
