//! Records from file to file, payloads as they are stored. Imports `read` and `write`.

pub(crate) mod column;
pub(crate) mod copier;
pub(crate) mod gather;
pub(crate) mod pieces;
pub(crate) mod transfer;
