//! Replaces rust/core/src/parallel/primitives.rs in the model.
//!
//! Each look at the clock finds that a moment has passed, so no thread spins. Waits with a time
//! limit wait without one: a limit would hide a lost wake-up, which is a deadlock here.

use std::time::Duration;

pub(crate) use std::sync::{Arc, OnceLock, PoisonError};

#[cfg(feature = "loom")]
pub(crate) use loom::{
    hint::spin_loop,
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread,
};
#[cfg(not(feature = "loom"))]
pub(crate) use shuttle::{
    hint::spin_loop,
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread,
};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Instant;

impl Instant {
    pub(crate) fn now() -> Self {
        Self
    }

    #[allow(clippy::unused_self)] // the standard library's signature
    pub(crate) fn elapsed(self) -> Duration {
        Duration::from_millis(1)
    }
}
