//! `Exclusive`: gives one thread at a time exclusive use of a value.

use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use fastrecord_core::Error;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::error::to_py;

/// How long a thread waits between checks for signals.
const SLICE: Duration = Duration::from_millis(100);

/// A value that one thread of one process uses at a time.
///
/// It raises in two cases where a plain lock would hang. One is a second request by the thread that
/// holds it, from a signal handler during a call. The other is a forked child whose parent held the
/// lock. Ctrl-C also ends the wait.
pub(crate) struct Exclusive<T> {
    process: u32,
    user: Mutex<Option<ThreadId>>,
    free: Condvar,
    value: Mutex<T>,
}

/// Exclusive use of the value by this thread.
pub(crate) struct ExclusiveGuard<'a, T> {
    // Fields drop in order: the value's lock is released before the turn.
    value: MutexGuard<'a, T>,
    _turn: Turn<'a, T>,
}

struct Turn<'a, T>(&'a Exclusive<T>);

impl<T: Send> Exclusive<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { process: std::process::id(), user: Mutex::new(None), free: Condvar::new(), value: Mutex::new(value) }
    }

    /// Reads the value; returns `None` while a thread uses it.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&T) -> R) -> Option<R> {
        self.value.try_lock().ok().map(|value| look(&value))
    }

    pub(crate) fn is_from_another_process(&self) -> bool {
        self.process != std::process::id()
    }

    /// Waits, without the GIL, until no other thread uses the value. `path` is for error messages.
    pub(crate) fn take(&self, py: Python<'_>, path: &Path) -> PyResult<ExclusiveGuard<'_, T>> {
        if self.is_from_another_process() {
            let (owner, here) = (self.process, std::process::id());
            return Err(to_py(Error::WrongProcess { path: path.to_owned(), owner, here }));
        }
        let here = thread::current().id();
        loop {
            let mut user = self.user();
            match *user {
                None => {
                    *user = Some(here);
                    break;
                }
                Some(thread) if thread == here => {
                    return Err(PyRuntimeError::new_err(format!(
                        "{}: the writer is in the middle of a call of this thread: a signal handler cannot use it",
                        path.display()
                    )));
                }
                Some(_) => drop(user),
            }
            py.detach(|| {
                let user = self.user();
                if user.is_some() {
                    drop(self.free.wait_timeout(user, SLICE).unwrap_or_else(PoisonError::into_inner));
                }
            });
            py.check_signals()?;
        }
        let turn = Turn(self);
        Ok(ExclusiveGuard { value: self.value.lock().unwrap_or_else(PoisonError::into_inner), _turn: turn })
    }
}

impl<T> Exclusive<T> {
    fn user(&self) -> MutexGuard<'_, Option<ThreadId>> {
        self.user.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        *self.0.user() = None;
        self.0.free.notify_one();
    }
}

impl<T> Deref for ExclusiveGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for ExclusiveGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}
