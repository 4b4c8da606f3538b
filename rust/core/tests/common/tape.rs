//! A storage that records every write instead of using a disk. A test can replay each moment of a
//! session, in any state that a crash may leave on the disk.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use fastrecord_core::{Access, Depth, Error, Reader, Storage, verify};

use super::{Rng, Row, read_by_batch};

/// The unit that a disk writes atomically: a sector of an old disk, or a page.
const SECTORS: [usize; 2] = [512, 4096];

#[derive(Debug, Clone)]
pub enum Op {
    Write(usize, Vec<u8>),
    SetLen(usize),
    Sync,
    /// Data that is not yet durable may or may not become durable; later syncs do not change that.
    FailedSync,
    /// A promise to the caller: this commit is durable.
    Promise(u64),
}

/// The failure to inject, and the call of its kind that it affects.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// This write, counted from 0, writes a part of its bytes and reports a full disk; later writes
    /// do nothing.
    pub write: Option<usize>,
    pub sync: Option<usize>,
}

#[derive(Debug, Default)]
struct State {
    /// The file as the running system sees it.
    live: Vec<u8>,
    ops: Vec<Op>,
    faults: Faults,
    writes: usize,
    syncs: usize,
}

#[derive(Debug, Clone, Default)]
pub struct Tape(Arc<Mutex<State>>);

impl Tape {
    pub fn holding(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(State { live: bytes, ..State::default() })))
    }

    /// The tape after its writer is killed at some operation: the system keeps running and loses
    /// nothing.
    pub fn killed(before: Vec<u8>, ops: Vec<Op>) -> Self {
        let mut live = before;
        for op in &ops {
            apply(&mut live, op);
        }
        Self(Arc::new(Mutex::new(State { live, ops, ..State::default() })))
    }

    pub fn live(&self) -> Vec<u8> {
        self.0.lock().unwrap().live.clone()
    }

    pub fn ops(&self) -> Vec<Op> {
        self.0.lock().unwrap().ops.clone()
    }

    pub fn break_next(&self, faults: Faults) {
        let mut state = self.0.lock().unwrap();
        (state.faults, state.writes, state.syncs) = (faults, 0, 0);
    }

    pub fn fail_sync(&self) {
        self.0.lock().unwrap().ops.push(Op::FailedSync);
    }

    pub fn promise(&self, commit: u64) {
        self.0.lock().unwrap().ops.push(Op::Promise(commit));
    }
}

fn apply(disk: &mut Vec<u8>, op: &Op) {
    match op {
        Op::Write(at, bytes) => {
            disk.resize(disk.len().max(at + bytes.len()), 0);
            disk[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        Op::SetLen(length) => disk.resize(*length, 0),
        Op::Sync | Op::FailedSync | Op::Promise(_) => {}
    }
}

impl Storage for Tape {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        let number = state.writes;
        state.writes += 1;
        let full = state.faults.write.is_some_and(|first| number >= first);
        let written = match state.faults.write {
            Some(first) if number == first => bytes.len() * 2 / 3,
            Some(first) if number > first => 0,
            _ => bytes.len(),
        };
        let op = Op::Write(offset as usize, bytes[..written].to_vec());
        apply(&mut state.live, &op);
        state.ops.push(op);
        if full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.0.lock().unwrap();
        let from = state.live.get(offset as usize..offset as usize + bytes.len());
        bytes.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        let number = state.syncs;
        state.syncs += 1;
        let fails = state.faults.sync == Some(number);
        state.ops.push(if fails { Op::FailedSync } else { Op::Sync });
        if fails { Err(io::Error::other("the disk lost it")) } else { Ok(()) }
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        let op = Op::SetLen(length as usize);
        apply(&mut state.live, &op);
        state.ops.push(op);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().live.len() as u64)
    }
}

/// Replays a tape, one operation after the other.
#[derive(Debug, Clone, Default)]
pub struct Replay<'a> {
    durable: Vec<u8>,
    pending: Vec<&'a Op>,
    /// The commit that must be present.
    pub promised: u64,
}

impl<'a> Replay<'a> {
    /// Starts from the content of the disk when the tape began.
    pub fn of(durable: Vec<u8>, promised: u64) -> Self {
        Self { durable, pending: Vec::new(), promised }
    }

    pub fn step(&mut self, op: &'a Op, rng: &mut Rng) {
        match op {
            Op::Promise(commit) => self.promised = *commit,
            Op::Sync => self.pending.drain(..).for_each(|op| apply(&mut self.durable, op)),
            Op::FailedSync => lose_some(&mut self.durable, std::mem::take(&mut self.pending), rng),
            op => self.pending.push(op),
        }
    }

    /// Operations that may or may not have reached the disk.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// The disk after a crash here.
    pub fn crash(&self, rng: &mut Rng) -> Vec<u8> {
        let mut disk = self.durable.clone();
        lose_some(&mut disk, self.pending.clone(), rng);
        disk
    }
}

/// The disk after a crash that follows `ops`, and the commit that must be present.
pub fn crash(ops: &[Op], rng: &mut Rng) -> (Vec<u8>, u64) {
    let mut replay = Replay::default();
    for op in ops {
        replay.step(op, rng);
    }
    (replay.crash(rng), replay.promised)
}

/// Writes an arbitrary part of some operations to the disk.
fn lose_some(disk: &mut Vec<u8>, mut ops: Vec<&Op>, rng: &mut Rng) {
    if rng.chance(30) {
        rng.shuffle(&mut ops);
    }
    let style = rng.below(4);
    let sector = SECTORS[rng.below(2) as usize];
    for op in ops {
        match op {
            Op::Write(at, bytes) => match if style == 3 { rng.below(4) } else { style } {
                0 => {}
                1 => apply(disk, op),
                _ => torn(disk, *at, bytes, sector, rng),
            },
            op => {
                if rng.chance(70) {
                    apply(disk, op);
                }
            }
        }
    }
}

/// Writes some of the sectors of a write. The file may have grown past lost sectors: they hold
/// zeros or their old content.
fn torn(disk: &mut Vec<u8>, at: usize, bytes: &[u8], sector: usize, rng: &mut Rng) {
    let keep = rng.below(101);
    let junk = rng.chance(20);
    let mut start = at;
    while start < at + bytes.len() {
        let end = (start / sector * sector + sector).min(at + bytes.len());
        if rng.chance(keep) {
            apply(disk, &Op::Write(start, bytes[start - at..end - at].to_vec()));
        } else if end > disk.len() && rng.chance(50) {
            let lost = if junk { rng.bytes(end - disk.len()) } else { vec![0; end - disk.len()] };
            disk.extend(lost);
        }
        start = end;
    }
}

/// Returns offset, commit number and records of a footer, if an operation writes one.
pub fn footer_of(op: &Op) -> Option<(usize, u64, u64)> {
    let Op::Write(at, bytes) = op else { return None };
    (bytes.len() == 4096 && bytes.starts_with(b"FRECEND\n"))
        .then(|| (*at, super::u64_at(bytes, 40), super::u64_at(bytes, 48)))
}

/// The number of the newest commit in an intact file, whose last page is its footer.
pub fn newest(bytes: &[u8]) -> Option<u64> {
    let at = (bytes.len() as u64).checked_sub(4096)?;
    (bytes.get(at as usize..at as usize + 8) == Some(b"FRECEND\n")).then(|| super::u64_at(bytes, at + 40))
}

/// Reads a file after a crash: the number of its commit and its records, or nothing.
pub fn recovered(path: &Path) -> Option<(u64, Vec<Row>)> {
    match Reader::open(path, Access::Mmap, Some(1)) {
        Ok(reader) => {
            let report = verify(&reader, Depth::Checksums, &|| false).unwrap();
            assert!(report.errors.is_empty(), "{:?}", report.errors);
            Some((reader.snapshot().commit, read_by_batch(&reader).unwrap()))
        }
        Err(Error::NoCommit { .. } | Error::NotFrec { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}
