//! Locks, waits and caught panics: the rules that all threads of the core share.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

pub(crate) use crate::parallel::primitives::*;

/// How often a waiting thread asks its caller's control.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// Locks a mutex. Work is done outside of the locks, so the data of a poisoned lock are intact.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for `changed`.
pub(crate) fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Waits for `changed`, at most for `limit`. Returns whether the time is over.
pub(crate) fn wait_at_most<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    limit: Duration,
) -> (MutexGuard<'a, T>, bool) {
    let (guard, waited) = changed.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner);
    (guard, waited.timed_out())
}

/// The first panic of the threads that work on one call. It continues in the calling thread.
#[derive(Debug, Default)]
pub(crate) struct FirstPanic(Mutex<Option<Box<dyn Any + Send>>>);

impl FirstPanic {
    /// Runs `work`. Returns `None` if it panicked.
    pub(crate) fn catch<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(done) => Some(done),
            Err(panic) => {
                lock(&self.0).get_or_insert(panic);
                None
            }
        }
    }

    /// Continues the panic, if there was one.
    pub(crate) fn resume(&self) {
        let panic = lock(&self.0).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}
