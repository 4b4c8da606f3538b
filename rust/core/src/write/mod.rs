//! Appending records, compressing, committing and adding fields. Imports `file`, `format`, `codec`,
//! `parallel`, and `image` for sizes.

pub(crate) mod add_field;
pub(crate) mod append;
pub(crate) mod column;
pub(crate) mod commit;
pub(crate) mod compress;
pub(crate) mod extend;
pub(crate) mod open;
pub(crate) mod tally;
pub(crate) mod value;
pub(crate) mod writer;
