//! Batches loaded ahead of a consumer, by threads of their own. May import `read`, `image`
//! and lower folders; may not import `write`.

pub(crate) mod batch;
pub(crate) mod decode_records;
pub(crate) mod images;
pub(crate) mod loader;
mod paired;
pub(crate) mod plan;
pub(crate) mod sources;
mod stacks;
mod worker;
