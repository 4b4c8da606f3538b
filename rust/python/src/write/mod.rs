//! `Writer`, the filler of new fields, and the conversion of Python's values into the core's. Imports `convert`.

pub(crate) mod compression;
pub(crate) mod field_filler;
pub(crate) mod input;
pub(crate) mod recode;
pub(crate) mod records;
pub(crate) mod unclosed;
pub(crate) mod writer;
