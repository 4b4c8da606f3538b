//! The core's own sources of its thread pool, its loader and its batch buffers, compiled with primitives that try out schedules.
//!
//! Each function of [`scenarios`] is one use of them, which a model checker runs over and over, each time in another order of
//! the threads' steps: every order (feature `loom`, for small ones), or random ones (for large ones). A deadlock, a lost wake-up,
//! a data race or a failed assertion is reported with the schedule that leads to it.
#![allow(dead_code)] // what the core's other modules call is not called here

mod error;
mod load;
#[path = "../../core/src/memory.rs"]
mod memory;
mod parallel;
pub mod scenarios;
mod tracked;
