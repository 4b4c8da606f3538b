//! What stands in for rust/core/src/parallel/sync.rs.
//!
//! A moment has passed whenever somebody asks, so nobody spins; and waits with a limit wait without one: a lost wake-up, which
//! a limit would hide, is a deadlock here.

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

    #[allow(clippy::unused_self)] // as the standard library's
    pub(crate) fn elapsed(self) -> Duration {
        Duration::from_millis(1)
    }
}
