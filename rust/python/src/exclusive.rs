//! Calls of several threads, one after the other.

use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use fastrecord_core::Error;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::error::to_py;

/// How long a thread waits before it looks for signals.
const SLICE: Duration = Duration::from_millis(100);

/// A value that one thread of one process uses at a time.
///
/// A plain lock would hang where this raises: when the thread that holds it asks again (a signal handler runs in the middle of a
/// call), and in a forked child of a process that had it locked. And Ctrl-C ends the waiting.
pub(crate) struct Turns<T> {
    process: u32,
    user: Mutex<Option<ThreadId>>,
    free: Condvar,
    value: Mutex<T>,
}

/// The value, as long as this thread has it.
pub(crate) struct InUse<'a, T> {
    // Fields are dropped in order: the value is let go before the turn is.
    value: MutexGuard<'a, T>,
    _turn: Turn<'a, T>,
}

struct Turn<'a, T>(&'a Turns<T>);

impl<T: Send> Turns<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { process: std::process::id(), user: Mutex::new(None), free: Condvar::new(), value: Mutex::new(value) }
    }

    /// Looks at the value; `None` while a thread uses it.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&T) -> R) -> Option<R> {
        self.value.try_lock().ok().map(|value| look(&value))
    }

    pub(crate) fn is_from_another_process(&self) -> bool {
        self.process != std::process::id()
    }

    /// Waits, without the GIL, until no other thread uses the value. `path` is for messages.
    pub(crate) fn take(&self, py: Python<'_>, path: &Path) -> PyResult<InUse<'_, T>> {
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
        Ok(InUse { value: self.value.lock().unwrap_or_else(PoisonError::into_inner), _turn: turn })
    }
}

impl<T> Turns<T> {
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

impl<T> Deref for InUse<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for InUse<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}
