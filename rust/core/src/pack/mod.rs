//! Files of images into records, on threads. May import `write`, `image` and lower
//! folders; may not import `read`.

pub(crate) mod ingest;
pub(crate) mod recode;
pub(crate) mod tally;
