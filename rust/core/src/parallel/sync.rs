//! What threads share and wait by: the standard library's, under one name, so that rust/model can compile the same sources with
//! primitives that try out schedules.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, atomic};
pub(crate) use std::thread;
pub(crate) use std::time::Instant;
