//! Synchronization primitives of the standard library, under one name. rust/model compiles
//! `parallel/` and `load/` with primitives that explore schedules.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, atomic};
pub(crate) use std::thread;
pub(crate) use std::time::Instant;
