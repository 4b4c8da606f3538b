//! The core's `parallel/`, compiled with primitives that explore schedules.

#[path = "../../../core/src/parallel/buffers.rs"]
pub(crate) mod buffers;
#[path = "../../../core/src/parallel/ordered.rs"]
pub(crate) mod ordered;
#[path = "../../../core/src/parallel/pool.rs"]
pub(crate) mod pool;
mod primitives;
#[path = "../../../core/src/parallel/sync.rs"]
pub(crate) mod sync;
