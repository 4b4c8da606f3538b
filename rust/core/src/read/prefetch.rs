//! Prefetching: groups of neighbouring payloads, and requests to the kernel to read them ahead.

use std::ops::Range;

use crate::control::Control;
use crate::error::Result;
use crate::format::extent::Extent;
use crate::format::schema::FieldIndex;
use crate::memory;
use crate::read::reader::Reader;
use crate::read::records::Records;
use crate::sys;

/// Bytes that a thread takes at a time, roughly. Small enough to share a batch evenly, large enough
/// to make the hand-over cheap.
pub(crate) const GROUP: u64 = 256 << 10;
/// Bytes requested from the kernel ahead of the copying. Enough to keep the disk busy, and copying
/// starts at once (with 16 MiB a cold batch of 28 MiB took a fifth longer).
pub(crate) const WINDOW: u64 = 6 << 20;
/// From this average size of payloads on, some of a batch are looked up in the page cache. Smaller
/// ones are prefetched only after a batch that had to read from the disk: the look-up would take
/// longer than copying them.
const LOOKED_UP: u64 = 16 << 10;
/// How many payloads of a batch are looked up.
const SAMPLE: usize = 8;
const GROUPS_AHEAD: usize = WINDOW.div_ceil(GROUP) as usize;

/// Ranges of neighbouring positions of about [`GROUP`] bytes each.
///
/// # Errors
/// [`crate::Error::Memory`].
pub(crate) fn groups_of(starts: &[u64]) -> Result<Vec<Range<usize>>> {
    let mut groups = Vec::new();
    let mut first = 0;
    for next in 1..starts.len() {
        if starts[next] - starts[first] >= GROUP || next + 1 == starts.len() {
            memory::reserve(&mut groups, 1)?;
            groups.push(first..next);
            first = next;
        }
    }
    Ok(groups)
}

impl Reader {
    /// Asks the kernel to read the payloads of records into the page cache, without waiting.
    /// Returns their bytes.
    ///
    /// # Errors
    /// A damaged index, or a field without payloads.
    pub fn prefetch(&self, field: FieldIndex, records: &Records<'_>, control: &dyn Control) -> Result<u64> {
        let extents = self.extents(field, records)?;
        self.ask_unless(&extents, control)?;
        Ok(extents.iter().map(|e| e.stored).sum())
    }

    /// Whether this process has read from a disk since the last call. The first call returns true.
    pub(crate) fn disk_was_read(&self) -> bool {
        self.inner.disk.was_read()
    }

    /// Whether a batch is worth prefetching: after a batch that had to read from the disk, or if some
    /// of the payloads looked up are not in the page cache. Asking for a payload of 110 KB that is
    /// there takes a quarter of the time of copying it.
    pub(crate) fn must_ask(&self, extents: &[Extent], total: u64, disk_was_read: bool) -> bool {
        let cached = |extent: &Extent| extent.stored == 0 || sys::is_cached(&self.inner.file, extent.offset);
        disk_was_read
            || total >= LOOKED_UP * extents.len() as u64
                && !extents.iter().step_by(extents.len().div_ceil(SAMPLE).max(1)).all(cached)
    }

    /// Asks the kernel to read one payload.
    pub(crate) fn ask(&self, extent: &Extent) {
        self.ask_range(extent.offset, extent.stored);
    }

    /// Asks the kernel to read a part of the file.
    pub(crate) fn ask_range(&self, offset: u64, length: u64) {
        let advice = *self.inner.advice.get_or_init(|| sys::largest_advice(&self.inner.file));
        sys::will_need(&self.inner.file, offset, length, advice);
    }

    pub(crate) fn ask_all(&self, extents: &[Extent]) {
        for extent in extents {
            self.ask(extent);
        }
    }

    /// Asks for any number of payloads. It can be stopped after each window.
    pub(crate) fn ask_unless(&self, extents: &[Extent], control: &dyn Control) -> Result<()> {
        let mut asked = 0;
        for extent in extents {
            self.ask(extent);
            asked += extent.stored;
            if asked >= WINDOW {
                asked = 0;
                control.check()?;
            }
        }
        Ok(())
    }

    /// Asks for the groups of the first window, before any payload of the batch is touched.
    pub(crate) fn ask_first(&self, extents: &[Extent], groups: &[Range<usize>]) {
        for group in groups.iter().take(GROUPS_AHEAD) {
            self.ask_all(&extents[group.clone()]);
        }
    }

    /// Asks for the group that is one window ahead of the given group.
    pub(crate) fn ask_ahead_of(&self, group: usize, extents: &[Extent], groups: &[Range<usize>]) {
        if let Some(coming) = groups.get(group + GROUPS_AHEAD) {
            self.ask_all(&extents[coming.clone()]);
        }
    }
}
