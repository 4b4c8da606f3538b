//! The threads of `load/` of the core; the scenarios bring what they load.

#[path = "../../../core/src/load/loader.rs"]
pub(crate) mod loader;
#[path = "../../../core/src/load/worker.rs"]
pub(crate) mod worker;
