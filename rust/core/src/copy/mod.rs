//! Copying records from file to file, with payloads in their stored form. Imports `read` and
//! `write`.

pub(crate) mod column;
pub(crate) mod copier;
pub(crate) mod gather;
pub(crate) mod pieces;
pub(crate) mod transfer;
