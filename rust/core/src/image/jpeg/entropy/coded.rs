//! `Coded`: the coded data of a scan without their stuffing.

use crate::error::decode::DecodeError;
use crate::memory;

const MARKER: u8 = 0xFF;

/// The first of the eight restart markers.
pub(in crate::image::jpeg) const RESTART: u8 = 0xD0;

/// Zeros after the data, so that the last bits can be read like the others.
const PADDING: usize = 16;

/// Coded data: no zeros stuffed after bytes of ones, and no markers. Its memory is used again.
#[derive(Debug, Default)]
pub(in crate::image::jpeg) struct Coded {
    bytes: Vec<u8>,
    len: usize,
    /// Where the parts between restart markers end, in these bytes. The last part has no entry.
    ends: Vec<usize>,
    /// The bytes after which a stuffed zero was left out.
    stuffed: Vec<usize>,
    /// Where the data stopped in the original bytes.
    stop: usize,
}

impl Coded {
    /// Reads data up to the first marker that is not the expected restart marker. The first
    /// restart marker has the given number, if any are expected; the others count on from it.
    pub(in crate::image::jpeg) fn read(&mut self, raw: &[u8], mut restart: Option<u8>) -> Result<(), DecodeError> {
        self.bytes.clear();
        self.ends.clear();
        self.stuffed.clear();
        let memory_error = |_| DecodeError::Memory { bytes: raw.len() as u64 };
        memory::reserve(&mut self.bytes, raw.len() + PADDING).map_err(memory_error)?;
        let mut from = 0;
        self.stop = raw.len();
        for at in memchr::memchr_iter(MARKER, raw) {
            match raw.get(at + 1) {
                Some(0) => {
                    self.bytes.extend_from_slice(&raw[from..=at]);
                    memory::reserve(&mut self.stuffed, 1).map_err(memory_error)?;
                    self.stuffed.push(self.bytes.len());
                }
                Some(&marker) if restart.is_some_and(|number| marker == RESTART + number % 8) => {
                    self.bytes.extend_from_slice(&raw[from..at]);
                    memory::reserve(&mut self.ends, 1).map_err(memory_error)?;
                    self.ends.push(self.bytes.len());
                    restart = restart.map(|number| number.wrapping_add(1));
                }
                _ => {
                    self.stop = at;
                    break;
                }
            }
            from = at + 2;
        }
        self.bytes.extend_from_slice(raw.get(from..self.stop).unwrap_or_default());
        self.len = self.bytes.len();
        self.bytes.extend([0; PADDING]);
        Ok(())
    }

    /// The memory that is used again, in bytes.
    pub(in crate::image::jpeg) const fn memory(&self) -> usize {
        self.bytes.capacity() + size_of::<usize>() * (self.ends.capacity() + self.stuffed.capacity())
    }

    /// The data, and some zeros.
    pub(in crate::image::jpeg) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where the part ends that follows `restarts` restart markers, in bytes.
    pub(in crate::image::jpeg) fn end(&self, restarts: usize) -> usize {
        self.ends.get(restarts).copied().unwrap_or(self.len)
    }

    /// The number of restart markers.
    pub(in crate::image::jpeg) fn restarts(&self) -> usize {
        self.ends.len()
    }

    /// Where the data stopped in the original bytes: at a marker, or at their end.
    pub(in crate::image::jpeg) fn stop(&self) -> usize {
        self.stop
    }

    /// Returns the place of a byte in the original bytes. The first byte after a restart marker
    /// has the place after the marker.
    pub(in crate::image::jpeg) fn original(&self, byte: usize) -> usize {
        let before = |places: &[usize]| places.partition_point(|&end| end <= byte);
        byte + before(&self.stuffed) + 2 * before(&self.ends)
    }
}
