//! Appending records, compressing, committing and adding fields. Imports `file`, `format`, `codec`,
//! `parallel`, and `image` for sizes.

pub(crate) mod add_field;
mod add_side;
mod append;
pub(crate) mod column;
mod commit;
pub(crate) mod compress;
mod field;
mod open;
pub(crate) mod output;
pub(crate) mod value;
pub(crate) mod writer;
