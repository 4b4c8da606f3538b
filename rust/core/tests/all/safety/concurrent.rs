//! Concurrent readers see whole commits only; a second writer is refused; a forked child keeps no
//! lock and does not hang on a resource of its parent.
#![allow(unsafe_code)] // fork

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::common::{Cell, Nth, Row, append, append_all, assert_holds, folder, never, open, options, read_by_batch};
use fastrecord_core::{Access, DType, Depth, Error, FieldType, Mode, Reader, Schema, Value, Verify, Writer, verify};

fn schema() -> Schema {
    Schema::new([("data", FieldType::Bytes), ("key", FieldType::String), ("label", FieldType::Scalar(DType::Int64))])
        .unwrap()
}

/// The record with a given number; its content reveals any mix-up.
fn row(number: u64) -> Row {
    let data: Vec<u8> = (0..number % 300).map(|i| (number * 7 + i) as u8).collect();
    vec![Cell::Bytes(data), Cell::Text(format!("key {number}")), Cell::Int(number.cast_signed())]
}

fn rows(count: u64) -> Vec<Row> {
    (0..count).map(row).collect()
}

fn create(path: &Path) -> Writer {
    Writer::open(path, Some(schema()), None, &options(Mode::Create)).unwrap()
}

fn reopen(path: &Path) -> fastrecord_core::Result<Writer> {
    Writer::open(path, None, None, &options(Mode::Append))
}

fn append_next(writer: &mut Writer, count: u64) {
    for number in writer.len()..writer.len() + count {
        append(writer, &row(number)).unwrap();
    }
}

const STEP: u64 = 7;
const LAST: u64 = 250 * STEP;

/// Commits every [`STEP`] records up to [`LAST`], in sessions that end in every possible way.
fn write_all(path: &Path) {
    for session in 0.. {
        let mut writer = reopen(path).unwrap();
        for _ in 0..12 {
            if writer.len() == LAST {
                return writer.close().unwrap();
            }
            append_next(&mut writer, STEP);
            writer.commit().unwrap();
        }
        if session % 3 == 0 {
            // This is more than the write buffer holds, so there is a tail, which the drop removes.
            append(&mut writer, &vec![Cell::Bytes(vec![1; 5 << 20]), Cell::Text(String::new()), Cell::Int(0)]).unwrap();
        } else {
            writer.close().unwrap();
        }
    }
}

/// Opens and refreshes until the writer is done; all present records must be right each time.
fn read_along(path: &Path, access: Access, done: &AtomicBool) -> usize {
    let expected = rows(LAST);
    let mut reader = Reader::open(path, access, None).unwrap();
    let mut commits = 0;
    loop {
        let last_look = done.load(Ordering::Relaxed);
        assert_eq!(reader.len() % STEP, 0, "a part of a commit");
        assert!(read_by_batch(&reader).unwrap() == expected[..reader.len() as usize]);
        match reader.refresh().unwrap() {
            Some(newer) => {
                // A writer that closes may merge chunks in a commit without new records.
                assert!(newer.len() >= reader.len() && newer.snapshot().commit > reader.snapshot().commit);
                reader = newer;
                commits += 1;
            }
            None if last_look => break,
            None => reader = Reader::open(path, access, None).unwrap(),
        }
    }
    assert_eq!(reader.len(), LAST);
    commits
}

#[test]
fn readers_beside_a_writer_see_whole_commits_only() {
    const CHILD: &str = "FASTRECORD_TEST_WRITER_OF";
    if let Some(path) = std::env::var_os(CHILD) {
        return write_all(Path::new(&path));
    }
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut writer = create(&path);
    append_next(&mut writer, STEP);
    writer.close().unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (path, done) = (&path, &done);
        let readers = [Access::Mmap, Access::Pread].map(|access| scope.spawn(move || read_along(path, access, done)));
        let name = "safety::concurrent::readers_beside_a_writer_see_whole_commits_only";
        let child = Command::new(std::env::current_exe().unwrap()).args(["--exact", name]).env(CHILD, path).output();
        done.store(true, Ordering::Relaxed);
        let output = child.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let commits: usize = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        assert!(commits > 2, "the readers saw {commits} commits: nothing ran side by side");
    });
    assert_holds(&path, &rows(LAST));
}

#[test]
fn a_second_writer_is_refused_with_the_name_of_the_first() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut writer = create(&path);
    append_next(&mut writer, 1);
    writer.commit().unwrap();
    let error = reopen(&path).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }));
    let text = error.to_string();
    assert!(text.contains("x.frec: another writer has it open"), "{text}");
    if cfg!(target_os = "linux") {
        assert!(text.contains(&format!("(pid {}: ", std::process::id())), "{text}");
    }
    assert_eq!(open(&path).len(), 1, "readers need no lock");
    append_next(&mut writer, 1); // the first writer continues
    writer.close().unwrap();
    assert_holds(&path, &rows(2));
}

#[test]
fn the_lock_is_free_after_a_writer_is_closed_dropped_or_refused() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut closed = create(&path);
    append_next(&mut closed, 1);
    closed.close().unwrap(); // and stays alive
    let mut aborted = reopen(&path).unwrap();
    aborted.abort();
    drop(reopen(&path).unwrap());
    let other = Schema::new([("x", FieldType::Scalar(DType::Int64))]).unwrap();
    assert!(Writer::open(&path, Some(other), None, &options(Mode::Append)).is_err());
    let mut writer = reopen(&path).unwrap();
    append_next(&mut writer, 1);
    writer.close().unwrap();
    assert!(matches!(closed.append(&[]), Err(Error::WriterClosed { .. })));
    assert!(matches!(aborted.commit(), Err(Error::WriterClosed { .. })));
    assert_holds(&path, &rows(2));
}

/// Forks a child that runs `body` and exits with 0 if it returned true; a child that hangs is
/// killed.
fn fork(body: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child runs `body` on this thread alone and leaves by `_exit`, so the test harness
    // does not run twice. `body` takes only locks of the allocator, which glibc makes usable after
    // a fork, and the locks under test.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0);
        if pid == 0 {
            libc::alarm(20);
            let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
            libc::_exit(i32::from(!good));
        }
        pid
    }
}

fn wait(pid: libc::pid_t) {
    let mut status = 0;
    // SAFETY: waitpid fills the given integer, which lives on this stack.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "the child failed, or hung and was killed");
}

#[test]
fn a_forked_child_does_not_keep_the_lock() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut writer = create(&path);
    append_next(&mut writer, 1);
    writer.commit().unwrap();
    let mut pipe = [0; 2];
    // SAFETY: pipe fills the two given integers.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    let child = fork(|| {
        let mut byte = 0_u8;
        // SAFETY: the child closes its copy of the writing end and waits until the parent closes
        // its own. It reads at most one byte, into a byte on this stack.
        unsafe {
            libc::close(pipe[1]);
            libc::read(pipe[0], (&raw mut byte).cast(), 1) == 0
        }
    });
    drop(writer);
    let again = reopen(&path); // while the child lives
    // SAFETY: this test owns the descriptor.
    unsafe { libc::close(pipe[1]) };
    wait(child);
    again.unwrap().close().unwrap();
}

#[test]
fn a_forked_child_does_not_keep_the_lock_of_a_writer_that_was_killed() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    create(&path).close().unwrap();
    let (mut ready, mut over) = ([0; 2], [0; 2]);
    // SAFETY: pipe fills the two given integers.
    unsafe { assert_eq!((libc::pipe(ready.as_mut_ptr()), libc::pipe(over.as_mut_ptr())), (0, 0)) };
    let byte = |read: bool, fd| {
        let mut byte = 0_u8;
        let at = (&raw mut byte).cast();
        // SAFETY: each call reads or writes at most one byte, which lives on this stack.
        unsafe { if read { libc::read(fd, at, 1) } else { libc::write(fd, at, 1) } }
    };
    let owner = fork(|| {
        let writer = reopen(&path).unwrap();
        fork(|| {
            byte(false, ready[1]);
            // SAFETY: the descriptor is this process's copy. Closing it lets the end of the test's
            // own copy end the wait.
            unsafe { libc::close(over[1]) };
            byte(true, over[0]) == 0
        });
        byte(true, ready[0]);
        std::mem::forget(writer); // simulates a kill
        true
    });
    wait(owner);
    reopen(&path).unwrap().close().unwrap(); // while the grandchild lives
    // SAFETY: this test owns the descriptor.
    unsafe { libc::close(over[1]) };
}

#[test]
fn a_writer_in_a_forked_child_refuses_to_write_and_leaves_the_file_to_its_owner() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut writer = Some(create(&path));
    append_next(writer.as_mut().unwrap(), 1);
    let owner = std::process::id();
    let child = fork(|| {
        let mut mine = writer.take().unwrap();
        let wrong = |error| matches!(error, Error::WrongProcess { owner: o, here, .. } if o == owner && here != owner);
        let refused = wrong(mine.append(&[Value::Bytes(b""), Value::Str(""), Value::Int(0)]).unwrap_err())
            && wrong(mine.commit().unwrap_err())
            && wrong(mine.close().unwrap_err());
        drop(mine);
        refused && path.exists()
    });
    wait(child);
    let mut writer = writer.take().unwrap();
    assert!(matches!(Writer::open(&path, None, None, &options(Mode::Append)), Err(Error::Locked { .. })));
    append_next(&mut writer, 1);
    writer.close().unwrap();
    assert_holds(&path, &rows(2));
}

#[test]
fn a_forked_child_reads_batches_with_threads_of_its_own() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut writer = create(&path);
    let large: Vec<Row> =
        (0..16).map(|i| vec![Cell::Bytes(vec![i; 200_000]), Cell::Text(String::new()), Cell::Int(0)]).collect();
    append_all(&mut writer, &large);
    writer.close().unwrap();
    let reader = open(&path);
    let records = reader.run(0..16).unwrap();
    let read = || reader.read_batch_copy(reader.nth(0), &records, Verify::Always, &never).unwrap();
    let expected = read(); // the parent's threads are running now
    let child = fork(|| read() == expected && verify(&reader, Depth::Checksums, &|| false).unwrap().errors.is_empty());
    wait(child);
    assert!(read() == expected);
}

#[test]
fn many_threads_share_a_reader() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut writer = create(&path);
    append_next(&mut writer, 2000);
    writer.close().unwrap();
    for access in [Access::Mmap, Access::Pread] {
        let (reader, expected) = (Reader::open(&path, access, None).unwrap(), rows(2000));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert!(read_by_batch(&reader).unwrap() == expected));
            }
        });
    }
}

#[test]
fn temporary_files_of_killed_overwrites_are_cleared_away_and_those_at_work_are_not() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let overwrite = || Writer::open(&path, Some(schema()), None, &options(Mode::Overwrite)).unwrap();
    let names = || {
        let entries = fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    fs::write(folder.path().join("x.frec.tmp-0123abcd"), b"left by a kill").unwrap();
    fs::write(folder.path().join("x.frec.tmp-notes"), b"the user's own").unwrap();
    // No file exists to be replaced, so the new file has its name from the start.
    let mut writer = overwrite();
    assert_eq!(names(), ["x.frec", "x.frec.tmp-notes"]);
    append_next(&mut writer, 1);
    writer.close().unwrap();
    let mut first = overwrite();
    append_next(&mut first, 2);
    // The replaced file is removed together with its lock: another writer creates a file there.
    fs::remove_file(&path).unwrap();
    let mut second = overwrite();
    assert_eq!(names().len(), 3, "{:?}", names());
    append_next(&mut second, 3);
    second.close().unwrap();
    // The first writer's file is complete, and it has not replaced the other file.
    let Err(Error::Replace { finished, .. }) = first.close() else { panic!("two files, one name") };
    assert_holds(&path, &rows(3));
    assert_holds(&finished, &rows(2));
}

#[test]
fn a_file_that_is_being_replaced_takes_no_other_writer_and_stays_as_it_is_until_then() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut writer = create(&path);
    append_next(&mut writer, 1);
    writer.close().unwrap();
    let mut replacing = Writer::open(&path, Some(schema()), None, &options(Mode::Overwrite)).unwrap();
    append_next(&mut replacing, 2);
    for mode in [Mode::Append, Mode::Overwrite] {
        let error = Writer::open(&path, Some(schema()), None, &options(mode)).unwrap_err();
        assert!(matches!(error, Error::Locked { .. }), "{error}");
    }
    assert_holds(&path, &rows(1));
    replacing.close().unwrap();
    assert_holds(&path, &rows(2));
    let mut writer = Writer::open(&path, None, None, &options(Mode::Append)).unwrap();
    let error = Writer::open(&path, Some(schema()), None, &options(Mode::Overwrite)).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    writer.close().unwrap();
    assert_holds(&path, &rows(2));
}
