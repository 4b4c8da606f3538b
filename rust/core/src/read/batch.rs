//! Reading many records with one call: `Reader` methods that prefetch, copy and check in parallel.

use crate::control::Control;
use crate::error::{Error, Result};
use crate::format::extent::Extent;
use crate::format::field_type::FieldType;
use crate::format::schema::FieldIndex;
use crate::memory;
use crate::parallel::disjoint::fill_parts;
use crate::parallel::pool::Pool;
use crate::read::prefetch::{GROUP, WINDOW, groups_of};
use crate::read::reader::Reader;
use crate::read::records::Records;
use crate::read::seen::{Verify, is_set};

/// Below this many bytes, waking another thread costs more than it saves.
const ALONE: u64 = 512 << 10;
/// Payloads up to this size are touched before they are copied. For larger ones the processor's own
/// prefetching is enough.
const TOUCHED: u64 = 512;

/// Offset and length of each value of a batch; `None` where it is missing.
pub type Ranges = Vec<Option<(u64, u64)>>;

impl Reader {
    /// The start of each payload of a batch when they lie without gaps: N + 1 offsets.
    /// `None` if no buffer holds so many bytes.
    fn starts(extents: &[Extent]) -> Result<Option<Vec<u64>>> {
        let mut starts = memory::room(extents.len() + 1)?;
        let mut end = 0_u64;
        starts.push(0);
        for extent in extents {
            let Some(next) = end.checked_add(extent.length()) else { return Ok(None) };
            starts.push(next);
            end = next;
        }
        Ok(Some(starts))
    }

    /// The number of bytes of each record's value; 0 for a missing value.
    ///
    /// # Errors
    /// A damaged index, or a field of single numbers.
    pub fn lengths(&self, field: FieldIndex, records: &Records<'_>) -> Result<Vec<u64>> {
        if let FieldType::Array(array) = self.kind(field)
            && let Some(bytes) = array.nbytes()
        {
            self.own(records)?;
            return memory::collected(records.iter().map(|_| bytes));
        }
        memory::collected(self.extents(field, records)?.iter().map(Extent::length))
    }

    /// The bytes of all values of a field, and their stored bytes without side bytes. Reads the index
    /// entry of every record.
    ///
    /// # Errors
    /// A damaged index, or a field without payloads.
    pub fn sizes(&self, field: FieldIndex) -> Result<(u64, u64)> {
        const AT_ONCE: u64 = 16 << 10;
        let mut sizes = (0, 0);
        for first in (0..self.len()).step_by(AT_ONCE as usize) {
            let records = self.run(first..self.len().min(first + AT_ONCE))?;
            for extent in self.extents(field, &records)? {
                sizes = (sizes.0 + extent.raw, sizes.1 + extent.stored - extent.side());
            }
        }
        Ok(sizes)
    }

    /// The position of each value of a batch, for reading through a mapping; `None` for a missing
    /// value.
    ///
    /// Returns `None` for the whole batch if one of its values is compressed: use
    /// [`Reader::read_batch_owned`] then. Checks in place, on all threads, the payloads that
    /// `verify` selects.
    ///
    /// If anything was read from a disk since the previous batch, the whole batch is prefetched.
    /// Without that, views of cold pages would be read page by page.
    ///
    /// # Errors
    /// A damaged index, a field without payloads, a truncated file, or the first damaged payload.
    pub fn view_batch(
        &self,
        field: FieldIndex,
        records: &Records<'_>,
        verify: Verify,
        control: &dyn Control,
    ) -> Result<Option<Ranges>> {
        let extents = self.extents(field, records)?;
        if !extents.iter().all(Extent::is_plain) {
            return Ok(None);
        }
        let cold = self.disk_was_read();
        let bits = self.inner.seen.bits(field);
        // Not `all`: without a branch, a record takes a nanosecond.
        let known = match verify {
            Verify::Never => true,
            Verify::Once => records.iter().fold(true, |known, &record| known & is_set(bits, record)),
            Verify::Always => false,
        };
        let (mut due, mut found) = (Vec::new(), Vec::new());
        if !known {
            (due, found) = (memory::room(records.len())?, memory::room(records.len())?);
            for (&record, &extent) in records.iter().zip(&extents) {
                if !extent.missing && Self::is_due_in(bits, record, verify) {
                    due.push(record);
                    found.push(extent);
                }
            }
        }
        if !due.is_empty() {
            self.check_all(field, due, found, verify, cold, control)?;
        } else if cold {
            self.ask_unless(&extents, control)?;
        }
        memory::collected(extents.iter().map(|e| (!e.missing).then_some((e.offset, e.length())))).map(Some)
    }

    /// Copies the values of records into `out` on all threads, without gaps. Returns the N + 1
    /// offsets.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`] before anything is written. Damage (with `verify`, also of
    /// payloads), a record without a value, failed reads and interrupts can occur after parts of
    /// `out` have been written.
    pub fn read_batch_into(
        &self,
        field: FieldIndex,
        records: &Records<'_>,
        out: &mut [u8],
        verify: Verify,
        control: &dyn Control,
    ) -> Result<Vec<u64>> {
        if let FieldType::Array(array) = self.kind(field)
            && let Some(bytes) = array.nbytes().filter(|_| !self.kind(field).has_payloads())
        {
            self.values_into(field, records, out)?;
            let bounds = records.len() + 1;
            return memory::collected((0..bounds).map(|i| i as u64 * bytes));
        }
        let extents = self.extents(field, records)?;
        let starts = self.fitting_starts(&extents, out.len() as u64)?;
        self.all_there(field, records, &extents)?;
        self.copy(field, records, &extents, &starts, out, verify, control)?;
        Ok(starts)
    }

    /// As [`Reader::read_batch_into`], into a new buffer of the right size.
    ///
    /// # Errors
    /// As [`Reader::read_batch_into`].
    pub fn read_batch_copy(
        &self,
        field: FieldIndex,
        records: &Records<'_>,
        verify: Verify,
        control: &dyn Control,
    ) -> Result<(Vec<u8>, Vec<u64>)> {
        let extents = self.extents(field, records)?;
        self.all_there(field, records, &extents)?;
        self.copy_to_new(field, records, &extents, verify, control)
    }

    /// As [`Reader::read_batch_copy`], but returns the offset and length of each value in the
    /// buffer; `None` for a missing value.
    ///
    /// # Errors
    /// As [`Reader::read_batch_copy`], except for missing values.
    pub fn read_batch_owned(
        &self,
        field: FieldIndex,
        records: &Records<'_>,
        verify: Verify,
        control: &dyn Control,
    ) -> Result<(Vec<u8>, Ranges)> {
        let extents = self.extents(field, records)?;
        let missing = memory::collected(extents.iter().map(|e| e.missing))?;
        let (bytes, starts) = self.copy_to_new(field, records, &extents, verify, control)?;
        let ranges = starts.windows(2).zip(missing);
        let ranges = ranges.map(|(pair, missing)| (!missing).then_some((pair[0], pair[1] - pair[0])));
        Ok((bytes, memory::collected(ranges)?))
    }

    fn copy_to_new(
        &self,
        field: FieldIndex,
        records: &[u64],
        extents: &[Extent],
        verify: Verify,
        control: &dyn Control,
    ) -> Result<(Vec<u8>, Vec<u64>)> {
        let starts = self.fitting_starts(extents, u64::MAX)?;
        let size = total_of(&starts);
        // Callers copy values out of the batch, which would be freed and allocated page by page.
        memory::keep_freed();
        // Repeated records of a hostile file could need more memory than there is: return an error,
        // do not abort.
        let mut out = memory::zeros(size as usize)?;
        self.copy(field, records, extents, &starts, &mut out, verify, control)?;
        Ok((out, starts))
    }

    fn all_there(&self, field: FieldIndex, records: &[u64], extents: &[Extent]) -> Result<()> {
        match extents.iter().position(|e| e.missing) {
            Some(i) => Err(self.missing(field, records[i])),
            None => Ok(()),
        }
    }

    fn fitting_starts(&self, extents: &[Extent], given: u64) -> Result<Vec<u64>> {
        let starts = Self::starts(extents)?;
        let needed = starts.as_ref().and_then(|s| s.last().copied()).unwrap_or(u64::MAX);
        match starts {
            Some(starts) if needed <= given => Ok(starts),
            _ => Err(Error::BufferTooSmall { path: self.path().to_owned(), needed, given }),
        }
    }

    #[allow(clippy::too_many_arguments)] // one private step of the two methods above
    fn copy(
        &self,
        field: FieldIndex,
        records: &[u64],
        extents: &[Extent],
        starts: &[u64],
        out: &mut [u8],
        verify: Verify,
        control: &dyn Control,
    ) -> Result<()> {
        let total = total_of(starts);
        let ahead = self.must_ask(extents, total, self.disk_was_read());
        if total < ALONE || self.threads() == 1 {
            self.copy_alone(field, records, extents, starts, out, (verify, ahead), control)
        } else {
            let groups = groups_of(starts)?;
            if ahead {
                self.ask_first(extents, &groups);
            }
            let fill = |group: usize, i: usize, part: &mut [u8]| {
                // Once per group, at its first record.
                if ahead && groups[group].start == i {
                    self.ask_ahead_of(group, extents, &groups);
                }
                self.copy_one(field, records[i], &extents[i], part, verify)
            };
            fill_parts(&Pool::current(), self.threads(), control, out, starts, &groups, fill)
        }
    }

    #[allow(clippy::too_many_arguments)] // as above
    fn copy_alone(
        &self,
        field: FieldIndex,
        records: &[u64],
        extents: &[Extent],
        starts: &[u64],
        out: &mut [u8],
        (verify, ahead): (Verify, bool),
        control: &dyn Control,
    ) -> Result<()> {
        let mut asked = 0;
        self.with_mapped(field, records, extents, |mapped| {
            touch(mapped.filter(|_| !ahead), extents);
            for (i, extent) in extents.iter().enumerate() {
                while ahead && asked < extents.len() && starts[asked] <= starts[i] + WINDOW {
                    self.ask(&extents[asked]);
                    asked += 1;
                }
                let part = &mut out[starts[i] as usize..starts[i + 1] as usize];
                self.copy_from(mapped, field, records[i], extent, part, verify)?;
                // Small payloads are copied too fast for an interrupt to matter.
                if extent.stored >= GROUP {
                    control.check()?;
                }
            }
            Ok(())
        })
    }

    /// Checks the CRCs of records' payloads in place in the mapping, on all threads.
    fn check_all(
        &self,
        field: FieldIndex,
        records: Vec<u64>,
        extents: Vec<Extent>,
        verify: Verify,
        cold: bool,
        control: &dyn Control,
    ) -> Result<()> {
        let Some(starts) = Self::starts(&extents)? else { return Ok(()) };
        let total = total_of(&starts);
        let ahead = self.must_ask(&extents, total, cold);
        let threads = if total < ALONE { 1 } else { self.threads() };
        let groups = groups_of(&starts)?;
        if ahead {
            self.ask_first(&extents, &groups);
        } else {
            self.with_mapped(field, &records, &extents, |mapped| {
                touch(mapped, &extents);
                Ok(())
            })?;
        }
        let this = self.clone();
        Pool::current().run(groups.len(), threads, control, move |item| {
            if ahead {
                this.ask_ahead_of(item, &extents, &groups);
            }
            let group = groups[item].clone();
            this.check_mapped(field, &records[group.clone()], &extents[group], verify)
        })
    }
}

/// The bytes of a batch. Its starts end with them.
fn total_of(starts: &[u64]) -> u64 {
    starts[starts.len() - 1]
}

/// Loads the ends of small payloads all at once, instead of one cache miss after another. Call it
/// only if the payloads are in memory: otherwise each load waits for the disk before the rest is
/// requested.
fn touch(mapped: Option<&[u8]>, extents: &[Extent]) {
    let Some(mapped) = mapped else { return };
    let byte = |at: u64| mapped.get(at as usize).copied().unwrap_or_default();
    let small = extents.iter().filter(|e| (1..=TOUCHED).contains(&e.stored));
    std::hint::black_box(small.fold(0, |all, e| all ^ byte(e.offset) ^ byte(e.offset + e.stored - 1)));
}
