//! The threads of the core's `load/`; the scenarios supply the plans.

#[path = "../../../core/src/load/loader.rs"]
pub(crate) mod loader;
#[path = "../../../core/src/load/worker.rs"]
pub(crate) mod worker;
