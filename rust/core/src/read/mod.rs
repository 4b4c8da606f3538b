//! A file as of one commit: its mapping, index, payloads and batches. Imports `file`, `format`,
//! `codec`, `parallel` and `sys`.

pub(crate) mod batch;
pub(crate) mod chunk;
pub(crate) mod columns;
pub(crate) mod extents;
pub(crate) mod index;
pub(crate) mod mapping;
pub(crate) mod open;
pub(crate) mod padded;
pub(crate) mod payload;
pub(crate) mod prefetch;
pub(crate) mod reader;
pub(crate) mod record;
pub(crate) mod records;
pub(crate) mod seal;
pub(crate) mod seen;
pub(crate) mod snapshot;
pub(crate) mod source;
