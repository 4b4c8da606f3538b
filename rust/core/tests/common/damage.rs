//! Simulates the damage that disks, copies and programs cause.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::Rng;

const PAGE: u64 = 4096;

/// The data that damage is made from.
pub struct Sources<'a> {
    /// The intact file.
    pub sound: &'a [u8],
    /// Another file.
    pub other: &'a [u8],
    /// The same file at an earlier commit.
    pub earlier: &'a [u8],
}

/// One damage: its offset, and the bytes that replace the original ones.
pub type Patch = (u64, Vec<u8>);

fn page_of(bytes: &[u8], at: u64, length: u64) -> Vec<u8> {
    let at = at as usize;
    let mut page = bytes.get(at.min(bytes.len())..(at + length as usize).min(bytes.len())).unwrap_or_default().to_vec();
    page.resize(length as usize, 0);
    page
}

/// The name of a kind of damage.
pub const KINDS: [&str; 8] = [
    "a bit",
    "some bits",
    "a burst",
    "a zeroed page",
    "two swapped pages",
    "a page of another file",
    "a range that is there twice",
    "a stale page",
];

/// Creates damage of the given kind, a number below 8.
pub fn make(rng: &mut Rng, kind: u64, sources: &Sources<'_>) -> Vec<Patch> {
    let (sound, length) = (sources.sound, sources.sound.len() as u64);
    let flipped = |at: u64, bit: u64| (at, vec![sound[at as usize] ^ 1 << bit]);
    let page = |rng: &mut Rng| rng.below(length / PAGE) * PAGE;
    match kind {
        0 => vec![flipped(rng.below(length), rng.below(8))],
        1 => {
            let mut places: Vec<u64> = (0..2 + rng.below(63)).map(|_| rng.below(length)).collect();
            places.sort_unstable();
            places.dedup();
            places.into_iter().map(|at| flipped(at, rng.below(8))).collect()
        }
        2 => {
            let (at, count) = (rng.below(length), 1 + rng.below(512));
            let count = count.min(length - at);
            vec![(at, rng.bytes(count as usize))]
        }
        3 => vec![(page(rng), vec![0; PAGE as usize])],
        4 => {
            let (one, other) = (page(rng), page(rng));
            vec![(one, page_of(sound, other, PAGE)), (other, page_of(sound, one, PAGE))]
        }
        5 => {
            let at = page(rng);
            vec![(at, page_of(sources.other, at, PAGE))]
        }
        6 => {
            let count = (1 + rng.below(20_000)).min(length / 2);
            let (from, to) = (rng.below(length - count), rng.below(length - count));
            vec![(to, page_of(sound, from, count))]
        }
        _ => {
            let at = page(rng);
            vec![(at, page_of(sources.earlier, at, PAGE))]
        }
    }
}

/// Damages a file; returns the ranges whose bytes differ from the original.
pub fn apply(file: &File, patches: &[Patch], sound: &[u8]) -> Vec<Range<u64>> {
    for (at, bytes) in patches {
        file.write_all_at(bytes, *at).unwrap();
    }
    let mut changed: Vec<Range<u64>> = Vec::new();
    let mut ranges: Vec<Range<u64>> = patches.iter().map(|(at, bytes)| *at..at + bytes.len() as u64).collect();
    ranges.sort_by_key(|range| range.start);
    for range in ranges {
        let mut found = vec![0; (range.end - range.start) as usize];
        file.read_exact_at(&mut found, range.start).unwrap();
        for (at, byte) in (range.start..).zip(found) {
            if byte == sound[at as usize] {
                continue;
            }
            match changed.last_mut() {
                Some(last) if last.end == at => last.end += 1,
                _ => changed.push(at..at + 1),
            }
        }
    }
    changed
}

/// Restores the original file.
pub fn undo(file: &File, patches: &[Patch], sound: &[u8]) {
    for (at, bytes) in patches {
        let at = *at as usize;
        file.write_all_at(&sound[at..at + bytes.len()], at as u64).unwrap();
    }
}
