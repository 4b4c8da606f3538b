//! `parallel/` of the core, compiled with primitives that try out schedules.

#[path = "../../../core/src/parallel/buffers.rs"]
pub(crate) mod buffers;
#[path = "../../../core/src/parallel/pool.rs"]
pub(crate) mod pool;
pub(crate) mod sync;
