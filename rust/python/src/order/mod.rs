//! The epoch order and random draws, as functions of the module.

pub(crate) mod blocks;
pub(crate) mod draw;
pub(crate) mod random;
