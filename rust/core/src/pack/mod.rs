//! Files of images into records, on threads. Imports `write` and `image`.

pub(crate) mod ingest;
pub(crate) mod recode;
