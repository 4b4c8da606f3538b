//! `Output`: the buffered tail of the file that a writer writes. It knows offsets and bytes, no
//! fields and no records.

use std::fs::File;
use std::io;
use std::mem;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::file::storage::Storage;
use crate::format::crc::crc32c;
use crate::format::layout::{CheckedRange, PAGE, align};
use crate::memory;

/// Bytes gathered before one write. Writes end at multiples of it, so no two share a page. Much
/// smaller ones take the kernel longer. Much larger ones make it look for large pieces of memory,
/// which takes some virtual machines several times as long as the write.
const BUFFER: usize = 32 << 10;
/// Gathering at least this many bytes takes as long as a small write.
const LONG: usize = 64 << 10;
/// Bytes written before the kernel is asked to write them to the disk.
const WRITEBACK: u64 = 16 << 20;
/// Bytes of strings gathered before they are written together.
const STRINGS: usize = 4 << 20;

/// The end of a file that grows: what was written, then the buffer, then the gathered strings.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    /// `None` once the file is released.
    storage: Option<Box<dyn Storage>>,
    buffer: Vec<u8>,
    /// The offset of the buffer in the file.
    buffer_at: u64,
    writeback_at: u64,
    /// Strings of several records, which are written together.
    strings: Vec<u8>,
}

impl Output {
    /// Continues a file at an offset.
    pub(super) fn new(path: &Path, storage: Box<dyn Storage>, at: u64) -> Self {
        Self {
            path: path.to_owned(),
            storage: Some(storage),
            buffer: Vec::with_capacity(BUFFER),
            buffer_at: at,
            writeback_at: at,
            strings: Vec::new(),
        }
    }

    /// The final path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn error(&self, source: io::Error) -> Error {
        Error::io(&self.path, source)
    }

    pub(super) fn storage(&self) -> Result<&dyn Storage> {
        self.storage.as_deref().ok_or_else(|| Error::WriterClosed { path: self.path.clone() })
    }

    /// The offset of the next byte.
    pub(crate) fn position(&self) -> u64 {
        self.buffer_at + self.buffer.len() as u64
    }

    /// Whether `put` of so many bytes writes to the file.
    pub(super) fn may_write(&self, bytes: usize) -> bool {
        bytes >= LONG || bytes >= self.room() || self.strings.len() + bytes >= STRINGS
    }

    /// Bytes until the next write.
    fn room(&self) -> usize {
        BUFFER - (self.position() % BUFFER as u64) as usize
    }

    /// Appends zeros up to a multiple of `to`.
    pub(crate) fn pad(&mut self, to: u64) -> Result<()> {
        let at = self.position();
        let padded = align(at, to).ok_or_else(|| self.error(io::ErrorKind::FileTooLarge.into()))?;
        self.put_zeros(padded - at)
    }

    /// Appends zeros until the next offset equals `place` modulo `to`, a power of two.
    pub(crate) fn pad_like(&mut self, place: u64, to: u64) -> Result<()> {
        self.put_zeros(place.wrapping_sub(self.position()) % to)
    }

    /// Appends less than a page of zeros.
    fn put_zeros(&mut self, count: u64) -> Result<()> {
        const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];
        self.put(&ZEROS[..count as usize])
    }

    /// Appends bytes.
    pub(crate) fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        while let Some((now, rest)) = bytes.split_at_checked(self.room()) {
            if self.buffer.is_empty() {
                self.write_at(now, self.buffer_at)?;
                self.wrote(now.len())?;
            } else {
                self.buffer.extend_from_slice(now);
                self.flush()?;
            }
            bytes = rest;
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// Appends bytes at a multiple of 8. Returns their place and checksum.
    pub(super) fn put_checked(&mut self, bytes: &[u8]) -> Result<CheckedRange> {
        self.pad(8)?;
        let range = CheckedRange { offset: self.position(), length: bytes.len() as u64, crc: crc32c(bytes) };
        self.put(bytes)?;
        Ok(range)
    }

    /// Gathers a string. Its offset is relative to what [`Output::put_strings`] returns.
    pub(super) fn put_string(&mut self, bytes: &[u8]) -> Result<u64> {
        let offset = self.strings.len() as u64;
        memory::reserve(&mut self.strings, bytes.len())?;
        self.strings.extend_from_slice(bytes);
        Ok(offset)
    }

    /// Appends the gathered strings. Returns their offset.
    pub(super) fn put_strings(&mut self) -> Result<u64> {
        let (at, strings) = (self.position(), mem::take(&mut self.strings));
        self.put(&strings)?;
        Ok(at)
    }

    /// Bytes of gathered strings.
    pub(super) fn string_bytes(&self) -> usize {
        self.strings.len()
    }

    /// Whether the gathered strings must be written.
    pub(super) fn strings_are_due(&self) -> bool {
        self.strings.len() >= STRINGS
    }

    /// Writes the buffer to the file.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let bytes = self.buffer.len();
        if bytes > 0 {
            self.write_at(&self.buffer, self.buffer_at)?;
            self.buffer.clear();
        }
        self.wrote(bytes)
    }

    /// Moves on after a write, and asks the kernel to write what has gathered there to the disk.
    fn wrote(&mut self, bytes: usize) -> Result<()> {
        self.buffer_at += bytes as u64;
        let unasked = self.buffer_at - self.writeback_at;
        if unasked >= WRITEBACK {
            self.storage()?.start_writeback(self.writeback_at, unasked);
            self.writeback_at = self.buffer_at;
        }
        Ok(())
    }

    /// Writes the buffer and frees its memory: little is appended from now on.
    pub(crate) fn flush_and_free(&mut self) -> Result<()> {
        self.flush()?;
        self.free();
        Ok(())
    }

    pub(super) fn free(&mut self) {
        self.buffer = Vec::new();
    }

    /// Reserves space for bytes that [`Output::write_at`] writes later. Returns its offset.
    pub(super) fn reserve(&mut self, bytes: u64, alignment: u64) -> Result<u64> {
        self.pad(alignment)?;
        self.flush()?;
        let at = self.buffer_at;
        let end = at.checked_add(bytes).ok_or_else(|| self.error(io::ErrorKind::FileTooLarge.into()))?;
        (self.buffer_at, self.writeback_at) = (end, end);
        Ok(at)
    }

    /// Appends bytes of another file, copied by the kernel. The buffer must be flushed. Returns the
    /// number of bytes copied.
    pub(crate) fn put_from(&mut self, source: &File, from: u64, length: u64) -> io::Result<u64> {
        let storage = self.storage.as_deref().ok_or(io::ErrorKind::NotConnected)?;
        let copied = storage.copy_from(source, from, self.buffer_at, length)?;
        self.buffer_at += copied;
        Ok(copied)
    }

    pub(super) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.storage()?.write_at(bytes, offset).map_err(|e| self.error(e))
    }

    pub(super) fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        self.storage()?.read_at(bytes, offset).map_err(|e| self.error(e))
    }

    pub(super) fn start_writeback(&self, offset: u64, length: u64) -> Result<()> {
        self.storage()?.start_writeback(offset, length);
        Ok(())
    }

    pub(super) fn sync(&self) -> Result<()> {
        self.storage()?.sync().map_err(|e| self.error(e))
    }

    /// Continues at an offset. Everything before it was written.
    pub(super) fn continue_at(&mut self, offset: u64) {
        (self.buffer_at, self.writeback_at) = (offset, offset);
    }

    /// Truncates the file, durably, and drops what was not written yet.
    pub(super) fn cut(&mut self, offset: u64) -> Result<()> {
        self.strings.clear();
        self.buffer.clear();
        // The truncation must be durable before anything is written there: after a crash no old
        // tail may follow a new one.
        let storage = self.storage()?;
        storage.set_len(offset).and_then(|()| storage.sync()).map_err(|e| self.error(e))?;
        self.continue_at(offset);
        Ok(())
    }

    /// Releases the file. Nothing can be written afterwards.
    pub(super) fn release(&mut self) {
        self.free();
        self.storage = None;
    }
}
