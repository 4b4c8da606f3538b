//! Verify a file, and save what can be saved of a damaged one. Only reads. Imports `read`, `file`, `image`.

pub(crate) mod find_whole;
pub(crate) mod mend_index;
pub(crate) mod salvage;
pub(crate) mod verify;
pub(crate) mod verify_values;
