//! Each call of a writer fails once, in each way that a disk may fail. The error names the failure
//! and the safe commit, and the writer stops. The file holds at least that commit, even after a
//! crash, and the next writer continues.
//!
//! `FASTRECORD_TORTURE` sets the number of faults, `FASTRECORD_SEED` selects the stories.
#![allow(clippy::print_stdout, clippy::print_stderr)] // the report, which `python -m tests.torture` reads, and the place of a failure

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::common::faulty::{Call, Fault, Plan};
use crate::common::story::{Failure, Story, TAPE, recovered};
use crate::common::tape::{Replay, newest};
use crate::common::{Rng, folder, variable};
use fastrecord_core::{Access, Cause, Error, Recovery};
use serde_json::json;

const fn fault(errno: i32, short: bool, lasting: bool) -> Fault {
    Fault { errno, short, lasting }
}

/// A full disk stays full. After any other fault the next call reports success, which the writer
/// must not trust.
const WRITES: [Fault; 6] = [
    fault(libc::ENOSPC, true, true),
    fault(libc::ENOSPC, false, false),
    fault(libc::EDQUOT, true, true),
    fault(libc::EFBIG, true, true),
    fault(libc::EIO, true, false),
    fault(libc::EINTR, false, false),
];
const OTHERS: [Fault; 3] =
    [fault(libc::EIO, false, false), fault(libc::EIO, false, true), fault(libc::EINTR, false, false)];
const SYNCS: [Fault; 3] =
    [fault(libc::EIO, false, false), fault(libc::ENOSPC, false, false), fault(libc::EDQUOT, false, true)];

fn faults(call: Call) -> &'static [Fault] {
    match call {
        Call::Write | Call::Copy => &WRITES,
        Call::Sync => &SYNCS,
        Call::Read | Call::SetLen | Call::Len => &OTHERS,
    }
}

/// Prints the place if a check fails.
struct Place<'a>(&'a dyn Fn() -> String);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("it failed at {}", (self.0)());
        }
    }
}

/// Returns the text of the first error; the writer returns the same error for every later call.
fn said(failure: &mut Failure, fault: Fault) -> Option<Recovery> {
    let text = failure.error.to_string();
    let reason = std::io::Error::from_raw_os_error(fault.errno).to_string();
    assert!(text.starts_with(&format!("{TAPE}: {reason}")), "{text}");
    let Some(writer) = &mut failure.writer else {
        // Opening failed and changed nothing; or a copy failed, which has only its own output.
        match &failure.error {
            Error::Io { .. } => return None,
            Error::WriteFailed { recovery, .. } => return Some(*recovery),
            other => panic!("{other:?}"),
        }
    };
    let Error::WriteFailed { recovery, .. } = failure.error else { panic!("{text}") };
    assert_eq!(
        (recovery.commit == 0, recovery.records),
        (writer.committed() == 0 && recovery.commit == 0, writer.committed())
    );
    let cause = match fault.errno {
        libc::ENOSPC | libc::EDQUOT => Cause::NoSpace,
        libc::EFBIG => Cause::TooLarge,
        _ => Cause::Other,
    };
    assert_eq!(recovery.cause, cause);
    if recovery.commit > 0 {
        assert!(
            text.contains(&format!("the file is good up to its last commit ({} record", recovery.records)),
            "{text}"
        );
        assert!(text.ends_with("open it again to continue"), "{text}");
    } else {
        assert!(text.contains("nothing was committed"), "{text}");
    }
    for refused in [writer.commit().map(drop), writer.append(&[]).map(drop), writer.close(), writer.close()] {
        let Err(Error::WriterFailed { recovery: again, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(again, recovery);
    }
    Some(recovery)
}

struct Torture {
    seed: u64,
    wanted: u64,
    by_call: BTreeMap<String, u64>,
    done: u64,
    footer_pending: u64,
}

impl Torture {
    fn rng(&self, number: u64) -> Rng {
        Rng(Rng(self.seed ^ 0xFA17).next() ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// Repeats a story for each of its calls, and lets the call fail in all its ways.
    fn break_story(&mut self, number: u64, path: &Path) {
        let mut whole = Story::on(Plan::default());
        whole.tell(&mut self.rng(number), path).unwrap();
        let calls = whole.plan.as_ref().map(Plan::calls).unwrap_or_default();
        for (at, &call) in calls.iter().enumerate() {
            for &fault in faults(call) {
                if self.done >= self.wanted {
                    return;
                }
                let seed = self.seed;
                let text = || {
                    let again = format!("FASTRECORD_SEED={seed} FASTRECORD_STORY={number}");
                    format!("seed {seed}, story {number} ({again}): call {at}, a {call:?}: {fault:?}")
                };
                let place = Place(&text);
                self.break_call(number, at, fault, path);
                drop(place);
            }
        }
    }

    fn break_call(&mut self, number: u64, at: usize, fault: Fault, path: &Path) {
        let plan = Plan::failing(at, fault);
        let mut story = Story::on(plan.clone());
        let mut rng = self.rng(number);
        let Err(mut failure) = story.tell(&mut rng, path) else {
            // A copy continues without the kernel's help; every other error is reported.
            assert!(plan.fired() == Some(Call::Copy), "no failure was reported");
            return;
        };
        self.done += 1;
        *self.by_call.entry(format!("{:?}", plan.fired().expect("it failed"))).or_default() += 1;
        let before = story.tape.live();
        let recovery = said(&mut failure, fault);
        drop(failure);
        assert!(story.tape.live() == before, "a writer that has failed has written");
        // The commit that the error names as safe is safe, on the disk and after a crash.
        if let Some(recovery) = recovery.filter(|recovery| recovery.commit > 0) {
            story.tape.promise(recovery.commit);
            self.footer_pending += u64::from(recovery.footer_pending);
        }
        let ops = story.tape.ops();
        let mut replay = Replay::of(story.before.clone(), story.promised);
        for op in &ops {
            replay.step(op, &mut rng);
        }
        for _ in 0..3 {
            look(&story, &replay.crash(&mut rng), replay.promised, path);
        }
        let commit = look(&story, &before, replay.promised, path);
        assert!(
            recovery.is_none_or(|recovery| recovery.footer_pending || recovery.commit == commit),
            "{recovery:?}, and commit {commit} is there"
        );
        // The next writer continues, and may crash.
        plan.heal();
        story.plan = None;
        story.back_to(commit);
        story.session(&mut rng).unwrap();
        let found = look(&story, &story.tape.live(), commit, path);
        assert_eq!(found, story.newest());
        // A writer that gave up may have left a tail.
        assert!(newest(&story.tape.live()).is_none_or(|last| last == found));
        let ops = story.tape.ops();
        let mut replay = Replay::of(story.before.clone(), story.promised);
        for op in &ops {
            replay.step(op, &mut rng);
        }
        look(&story, &replay.crash(&mut rng), replay.promised, path);
    }
}

/// Asserts that a file holds an existing commit, not older than the promised one; returns its
/// number.
fn look(story: &Story, disk: &[u8], promised: u64, path: &Path) -> u64 {
    fs::write(path, disk).unwrap();
    let (commit, found) = recovered(path, Access::Mmap).unwrap_or_default();
    assert!(commit >= promised, "commit {promised} was promised, {commit} is there");
    if commit > 0 {
        let expected = story.commits.get(&commit).unwrap_or_else(|| panic!("no session made commit {commit}"));
        assert!(found == **expected, "commit {commit} holds something else than was written");
    }
    commit
}

#[test]
fn every_call_that_fails_is_told_with_what_is_safe_and_the_next_writer_goes_on() {
    let (wanted, seed) = (variable("FASTRECORD_TORTURE", 1_500), variable("FASTRECORD_SEED", 6));
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut torture = Torture { seed, wanted, by_call: BTreeMap::new(), done: 0, footer_pending: 0 };
    for number in variable("FASTRECORD_STORY", 0).. {
        if torture.done >= wanted {
            break;
        }
        torture.break_story(number, &path);
    }
    let Torture { by_call, done, footer_pending, .. } = torture;
    assert!(by_call.len() >= 5 && footer_pending > 0, "{by_call:?}: some calls were never made");
    let calls: Vec<String> =
        by_call.iter().map(|(call, count)| format!("{count} of {}", call.to_lowercase())).collect();
    println!("torture: {}", json!({"count": done, "detail": format!("seed {seed}; {}", calls.join(", "))}));
}
