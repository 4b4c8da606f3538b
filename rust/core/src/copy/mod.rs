//! Copying records from file to file, with payloads in their stored form, or images in the other one.
//! Imports `read` and `write`.

pub(crate) mod column;
pub(crate) mod convert;
pub(crate) mod copier;
pub(crate) mod gather;
pub(crate) mod pieces;
pub(crate) mod transfer;
