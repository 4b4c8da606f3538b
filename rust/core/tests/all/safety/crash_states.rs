//! Random sessions of writers, with a crash or a kill at any moment. The file holds one whole
//! commit, which is not older than the last promised one, and the next writer continues from it.
//!
//! `FASTRECORD_TORTURE` sets the number of distinct states, `FASTRECORD_SEED` selects the stories.
//! A story depends only on the seed and its number, so failures are reproducible.
#![allow(clippy::print_stdout, clippy::print_stderr)] // the report, which `python -m tests.torture` reads, and the place of a failure

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;

use crate::common::story::{Story, recovered};
use crate::common::tape::Replay;
use crate::common::{Rng, folder, variable};
use fastrecord_core::Access;
use serde_json::json;

/// Prints the place if a check fails.
struct Place {
    text: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("it failed at {}", self.text);
        }
    }
}

/// Counts of the checked states.
struct Torture {
    path: PathBuf,
    wanted: u64,
    states: u64,
    without_commit: u64,
    behind: u64,
    went_on: u64,
    stories: u64,
}

impl Torture {
    /// Crashes at every moment of a story, each in several ways, and checks the resulting files.
    fn play(&mut self, story: &Story, name: &str, depth: u32, rng: &mut Rng) {
        self.stories += 1;
        let ops = story.tape.ops();
        let mut seen = HashSet::new();
        let mut replay = Replay::of(story.before.clone(), story.promised);
        for length in 0..=ops.len() {
            if let Some(op) = length.checked_sub(1).map(|last| &ops[last]) {
                replay.step(op, rng);
            }
            for time in 0..=(3 * replay.pending()).min(12) {
                let disk = replay.crash(rng);
                let mut hasher = DefaultHasher::new();
                (&disk, replay.promised).hash(&mut hasher);
                if !seen.insert(hasher.finish()) {
                    continue;
                }
                let text = format!("{name}, after {length} of {} operations, state {time}", ops.len());
                let place = Place { text };
                self.look(story, &disk, replay.promised, &place, depth, rng);
                self.states += 1;
                if self.states >= self.wanted {
                    return;
                }
            }
        }
    }

    fn look(&mut self, story: &Story, disk: &[u8], promised: u64, place: &Place, depth: u32, rng: &mut Rng) {
        fs::write(&self.path, disk).unwrap();
        let access = if rng.chance(20) { Access::Pread } else { Access::Mmap };
        let (commit, found) = recovered(&self.path, access).unwrap_or_default();
        assert!(commit >= promised, "commit {promised} was promised, {commit} is there");
        self.without_commit += u64::from(commit == 0);
        if commit == 0 {
            return;
        }
        let expected = story.commits.get(&commit).unwrap_or_else(|| panic!("no session made commit {commit}"));
        assert_eq!(found.fields, expected.fields, "commit {commit}");
        assert!(found == **expected, "commit {commit} holds something else than was written");
        self.behind += u64::from(commit > promised);
        if !rng.chance(4) {
            return;
        }
        self.went_on += 1;
        let mut next = Story::after(disk.to_vec(), commit, &story.commits);
        next.session(rng).unwrap();
        fs::write(&self.path, next.tape.live()).unwrap();
        let (commit, found) = recovered(&self.path, access).unwrap();
        assert_eq!(commit, next.newest());
        assert!(found == *next.commits[&commit], "the next writer's commit {commit} holds something else");
        if depth < 3 && rng.chance(10) {
            next.go_on(rng);
            self.play(&next, &format!("{}, then", place.text), depth + 1, rng);
        }
    }
}

#[test]
fn a_crash_or_a_kill_at_any_moment_leaves_a_whole_commit_and_the_next_writer_goes_on() {
    let (wanted, seed) = (variable("FASTRECORD_TORTURE", 20_000), variable("FASTRECORD_SEED", 6));
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut torture =
        Torture { path: path.clone(), wanted, states: 0, without_commit: 0, behind: 0, went_on: 0, stories: 0 };
    for number in variable("FASTRECORD_STORY", 0).. {
        if torture.states >= wanted {
            break;
        }
        let mut rng = Rng(Rng(seed ^ 0x5EED).next() ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let name = format!("seed {seed}, story {number} (FASTRECORD_SEED={seed} FASTRECORD_STORY={number})");
        let place = Place { text: name.clone() };
        let story = Story::tell_with_kills(&mut rng, &path);
        torture.play(&story, &name, 0, &mut rng);
        drop(place);
    }
    let Torture { states, without_commit, behind, went_on, stories, .. } = torture;
    // Else the stories would be too tame to show anything.
    assert!(
        without_commit < states / 2 && behind > states / 100 && went_on > states / 200,
        "{without_commit} {behind}"
    );
    let detail = format!(
        "seed {seed}; {stories} stories; {without_commit} states before the first commit, {behind} with a commit that was under way, {went_on} gone on from"
    );
    println!("torture: {}", json!({"count": states, "detail": detail}));
}
