//! Files of images into records, on threads. May import `write` and `image`.

pub(crate) mod ingest;
pub(crate) mod recode;
