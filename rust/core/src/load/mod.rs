//! Batches loaded ahead of a consumer, by threads of their own. May import `augment`, `read`,
//! `image` and lower folders; may not import `write`.

pub(crate) mod batch;
pub(crate) mod decode_records;
pub(crate) mod images;
pub(crate) mod loader;
pub(crate) mod output;
mod paired;
pub(crate) mod plan;
pub(crate) mod sources;
mod stacks;
mod worker;
