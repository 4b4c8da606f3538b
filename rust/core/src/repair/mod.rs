//! Verifying a file, and saving the readable records of a damaged one. Only reads. Imports `read`,
//! `file` and `image`.

pub(crate) mod find_whole;
pub(crate) mod salvage;
pub(crate) mod verify;
pub(crate) mod verify_values;
