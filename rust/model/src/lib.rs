//! Compiles the core's own thread pool, loader and batch buffers with synchronisation primitives
//! that explore schedules.
//!
//! Each function of [`scenarios`] is one use of them. A model checker runs it repeatedly, each time
//! with another order of the threads' steps: every order (feature `loom`, for small scenarios) or
//! random orders (for large ones). It reports a deadlock, a lost wake-up, a data race or a failed
//! assertion with the schedule that leads to it.
#![allow(dead_code)] // only the core's other modules call some functions

#[path = "../../core/src/control.rs"]
mod control;
mod error;
mod load;
#[path = "../../core/src/memory.rs"]
mod memory;
mod parallel;
pub mod scenarios;
mod tracked;
