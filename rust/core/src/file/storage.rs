//! What a writer needs of a file: the seam at which tests record and break writes.

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::sys;

/// The few operations through which a [`crate::Writer`] touches its file.
pub trait Storage: Debug + Send + Sync {
    /// Writes all bytes at an offset.
    ///
    /// # Errors
    /// Those of the system; some of the bytes may have been written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Fills a buffer from an offset.
    ///
    /// # Errors
    /// Those of the system, and `UnexpectedEof`.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    /// Makes all that was written durable.
    ///
    /// # Errors
    /// Those of the system; what was written since the last sync may then be lost, whatever a later sync says.
    fn sync(&self) -> io::Result<()>;
    /// Cuts the file off, or extends it by zeros.
    ///
    /// # Errors
    /// Those of the system.
    fn set_len(&self, length: u64) -> io::Result<()>;
    /// Bytes in the file.
    ///
    /// # Errors
    /// Those of the system.
    fn len(&self) -> io::Result<u64>;
    /// Whether there is no byte in the file.
    ///
    /// # Errors
    /// Those of the system.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Starts to write a range to the disk without waiting; a hint.
    fn start_writeback(&self, _offset: u64, _length: u64) {}
    /// Copies bytes of another file to an offset without passing them through memory of this process; returns how many.
    ///
    /// # Errors
    /// Those of the system; among them that it can not: the caller then reads and writes.
    fn copy_from(&self, _source: &File, _from: u64, _to: u64, _length: u64) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Storage for File {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset) // goes on after EINTR and short writes
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        File::set_len(self, length)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn start_writeback(&self, offset: u64, length: u64) {
        sys::start_writeback(self, offset, length);
    }

    fn copy_from(&self, source: &File, from: u64, to: u64, length: u64) -> io::Result<u64> {
        sys::copy_range(source, from, self, to, length)
    }
}
