//! The thread pool, a queue of values that threads make ahead, and memory that threads fill in
//! disjoint parts. May import `error`, `control` and `memory`.

pub(crate) mod buffers;
pub(crate) mod disjoint;
pub(crate) mod ordered;
pub(crate) mod pool;
mod primitives;
pub(crate) mod sync;
