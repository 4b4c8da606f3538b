//! The thread pool, and memory that threads fill in disjoint parts. May import `error` and
//! `memory`.

pub(crate) mod buffers;
pub(crate) mod disjoint;
pub(crate) mod pool;
pub(crate) mod sync;
