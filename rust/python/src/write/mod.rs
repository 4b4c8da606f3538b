//! `Writer`, `NewFieldWriter`, and the conversion of Python values to the core's. May import `convert` and
//! lower modules; may not import `read`.

pub(crate) mod add_index;
pub(crate) mod input;
pub(crate) mod new_field;
pub(crate) mod recode;
pub(crate) mod records;
pub(crate) mod state;
pub(crate) mod writer;
