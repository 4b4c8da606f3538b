//! The epoch order and random draws, as module functions. May import `convert`.

pub(crate) mod blocks;
pub(crate) mod draw;
pub(crate) mod random;
