//! Pure functions from (seed, epoch, position) to a row or a random number. May import nothing.

pub(crate) mod blocks;
pub(crate) mod draw;
pub(crate) mod permutation;
pub(crate) mod random;
