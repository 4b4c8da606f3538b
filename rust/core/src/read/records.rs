//! `Records`: record numbers that a [`Reader`] has checked. Only a reader makes them.

use std::borrow::Cow;
use std::ops::{Deref, Range};

use crate::error::{Error, Result};
use crate::memory;
use crate::read::reader::Reader;

/// Record numbers that exist in a snapshot, in any order, with repeats.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    numbers: Cow<'a, [u64]>,
    /// The length of the snapshot that checked them: every number is below it.
    end: u64,
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

impl Reader {
    /// Checks record numbers from users. Negative numbers count from the end.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] names the first number that is out of range.
    pub fn resolve(&self, numbers: &[i64]) -> Result<Records<'static>> {
        let mut records = memory::room(numbers.len())?;
        for &number in numbers {
            records.push(self.resolve_one(number)?);
        }
        Ok(Records { numbers: Cow::Owned(records), end: self.len() })
    }

    /// Checks one record number from a user. A negative number counts from the end.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    #[inline]
    pub fn resolve_one(&self, number: i64) -> Result<u64> {
        let len = self.len();
        let record = if number < 0 { number.wrapping_add_unsigned(len) } else { number }.cast_unsigned();
        if record < len { Ok(record) } else { Err(self.out_of_range(number)) }
    }

    /// Checks record numbers.
    ///
    /// # Errors
    /// As [`Reader::resolve`].
    pub fn records<'a>(&self, numbers: impl Into<Cow<'a, [u64]>>) -> Result<Records<'a>> {
        let (numbers, end) = (numbers.into(), self.len());
        match numbers.iter().find(|&&record| record >= end) {
            Some(record) => Err(self.out_of_range(record.cast_signed())),
            None => Ok(Records { numbers, end }),
        }
    }

    /// Checks a range of records.
    ///
    /// # Errors
    /// As [`Reader::resolve`], and too little memory for the numbers.
    pub fn run(&self, run: Range<u64>) -> Result<Records<'static>> {
        if run.start < run.end && run.end > self.len() {
            return Err(self.out_of_range(run.end.cast_signed() - 1));
        }
        let mut numbers = memory::room(run.end.saturating_sub(run.start) as usize)?;
        numbers.extend(run);
        Ok(Records { numbers: Cow::Owned(numbers), end: self.len() })
    }

    /// The numbers, after a check that they exist in this snapshot too.
    #[inline]
    pub(super) fn own<'a>(&self, records: &'a Records<'_>) -> Result<&'a [u64]> {
        if records.end > self.len() {
            self.records(&records[..])?;
        }
        Ok(records)
    }

    pub(crate) fn out_of_range(&self, record: i64) -> Error {
        Error::OutOfRange { path: self.path().to_owned(), record, len: self.len() }
    }
}
