//! `Reader`, its batches, arrays and iterators. May import `convert` and lower modules; may not
//! import `write`.

pub(crate) mod access;
pub(crate) mod batch;
pub(crate) mod lists;
pub(crate) mod out;
pub(crate) mod parts;
pub(crate) mod payloads;
pub(crate) mod ragged;
pub(crate) mod reader;
pub(crate) mod reopen;
pub(crate) mod state;
pub(crate) mod unopened;
pub(crate) mod values;
pub(crate) mod verify_report;
