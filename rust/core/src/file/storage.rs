//! `Storage`: the file operations of a writer. Tests implement it to record and break writes.

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::Result;
use crate::sys;

/// The few operations through which a [`crate::Writer`] touches its file.
pub trait Storage: Debug + Send + Sync {
    /// Writes all bytes at an offset.
    ///
    /// # Errors
    /// I/O errors; some of the bytes may have been written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Fills a buffer from an offset.
    ///
    /// # Errors
    /// I/O errors, and `UnexpectedEof`.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    /// Makes everything written so far durable.
    ///
    /// # Errors
    /// I/O errors. Bytes written since the last sync may then be lost, even if a later sync
    /// succeeds.
    fn sync(&self) -> io::Result<()>;
    /// Truncates the file, or extends it with zeros.
    ///
    /// # Errors
    /// I/O errors.
    fn set_len(&self, length: u64) -> io::Result<()>;
    /// The length of the file in bytes.
    ///
    /// # Errors
    /// I/O errors.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file is empty.
    ///
    /// # Errors
    /// I/O errors.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Starts to write a range to the disk without waiting. This is a hint.
    fn start_writeback(&self, _offset: u64, _length: u64) {}
    /// Makes the name of the file durable. Storage without a name has nothing to do.
    ///
    /// # Errors
    /// I/O errors.
    fn sync_name(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }
    /// Checks that a path still leads to the file. `records` is for the error.
    ///
    /// # Errors
    /// [`crate::Error::NameLost`].
    fn check_name(&self, _path: &Path, _records: u64) -> Result<()> {
        Ok(())
    }
    /// Removes a name of the file, if it still leads to the file.
    fn remove_name(&self, _path: &Path) {}
    /// Frees what a writer that gave up has written after the last commit. This is a hint.
    fn free_tail(&self, _length: u64) {}
    /// Copies bytes of another file to an offset inside the kernel. Returns the number of bytes
    /// copied.
    ///
    /// # Errors
    /// I/O errors. If the system does not support this, the caller must read and write instead.
    fn copy_from(&self, _source: &File, _from: u64, _to: u64, _length: u64) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Storage for File {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset) // retries after EINTR and short writes
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
