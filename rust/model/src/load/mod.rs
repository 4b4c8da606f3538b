//! The threads of the core's `load/`; the scenarios supply the plans.

#[path = "../../../core/src/load/batch.rs"]
pub(crate) mod batch;
#[path = "../../../core/src/load/loader.rs"]
pub(crate) mod loader;
pub(crate) mod sources;
#[path = "../../../core/src/load/worker.rs"]
pub(crate) mod worker;
