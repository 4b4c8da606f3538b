//! `Records`: record numbers that a reader has checked. Only a reader makes them.

use std::borrow::Cow;
use std::ops::Deref;

/// Record numbers that exist in a snapshot, in any order, with repeats.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    pub(super) numbers: Cow<'a, [u64]>,
    /// The length of the snapshot that checked them: every number is below it.
    pub(super) end: u64,
}

impl Deref for Records<'_> {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.numbers
    }
}

impl Records<'_> {
    /// The same numbers in memory of their own.
    pub fn into_owned(self) -> Records<'static> {
        Records { numbers: Cow::Owned(self.numbers.into_owned()), end: self.end }
    }
}
