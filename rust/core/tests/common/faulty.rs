//! A recording storage in which one call fails, as on a full or broken disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard};

use fastrecord_core::Storage;

use super::tape::Tape;

/// The calls that a writer makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    Write,
    Read,
    Sync,
    SetLen,
    Len,
    Copy,
}

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The call returns the system's error.
    pub errno: i32,
    /// A write or a copy does a part of its work and then fails.
    pub short: bool,
    /// If true, all later calls of this kind fail, too; else they report success.
    pub lasting: bool,
}

#[derive(Debug, Default)]
struct State {
    calls: Vec<Call>,
    fault: Option<(usize, Fault)>,
    fired: Option<Call>,
}

/// Selects the call that fails, counted from 0 over all kinds, and records all calls.
#[derive(Debug, Clone, Default)]
pub struct Plan(Arc<Mutex<State>>);

impl Plan {
    pub fn failing(call: usize, fault: Fault) -> Self {
        Self(Arc::new(Mutex::new(State { fault: Some((call, fault)), ..State::default() })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    /// The call that failed, if the story reached it.
    pub fn fired(&self) -> Option<Call> {
        self.state().fired
    }

    /// Ends the failure: the disk has room again and works.
    pub fn heal(&self) {
        self.state().fault = None;
    }

    fn next(&self, call: Call) -> Option<Fault> {
        let mut state = self.state();
        let number = state.calls.len();
        state.calls.push(call);
        let (at, fault) = state.fault?;
        if number == at {
            state.fired = Some(call);
            return Some(fault);
        }
        (fault.lasting && state.fired == Some(call)).then_some(Fault { short: false, ..fault })
    }
}

#[derive(Debug)]
pub struct Faulty {
    pub tape: Tape,
    pub plan: Plan,
}

impl Faulty {
    fn call<T>(&self, call: Call, part: impl FnOnce(), work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self.plan.next(call) {
            None => work(),
            Some(Fault { errno, short, .. }) => {
                if short {
                    part();
                }
                Err(io::Error::from_raw_os_error(errno))
            }
        }
    }
}

impl Storage for Faulty {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let part = || self.tape.write_at(&bytes[..bytes.len() * 2 / 3], offset).unwrap();
        self.call(Call::Write, part, || self.tape.write_at(bytes, offset))
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.call(Call::Read, || {}, || self.tape.read_at(bytes, offset))
    }

    fn sync(&self) -> io::Result<()> {
        let synced = self.call(Call::Sync, || {}, || self.tape.sync());
        if synced.is_err() {
            self.tape.fail_sync();
        }
        synced
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.call(Call::SetLen, || {}, || self.tape.set_len(length))
    }

    fn len(&self) -> io::Result<u64> {
        self.call(Call::Len, || {}, || self.tape.len())
    }

    fn copy_from(&self, source: &File, from: u64, to: u64, length: u64) -> io::Result<u64> {
        let copy = |length: u64| {
            let mut bytes = vec![0; length as usize];
            source.read_exact_at(&mut bytes, from)?;
            self.tape.write_at(&bytes, to)?;
            Ok(length)
        };
        // A system call may copy fewer bytes than requested.
        self.call(Call::Copy, || drop(copy(length / 2)), || copy(length.min(50_000)))
    }
}
