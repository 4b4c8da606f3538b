//! Replaces rust/core/src/load/sources.rs in the model.

/// The rows of a batch.
#[derive(Debug)]
pub(crate) struct Located(pub(crate) Vec<u64>);
