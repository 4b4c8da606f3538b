//! The core's `parallel/`, compiled with primitives that explore schedules.

#[path = "../../../core/src/parallel/buffers.rs"]
pub(crate) mod buffers;
#[path = "../../../core/src/parallel/pool.rs"]
pub(crate) mod pool;
pub(crate) mod sync;
