//! Files of images into records, and the crop index of a file's images, on threads. May import
//! `read`, `write`, `image` and lower folders.

pub(crate) mod add_index;
pub(crate) mod counts;
pub(crate) mod ingest;
pub(crate) mod recode;
