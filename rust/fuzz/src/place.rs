//! Makes bytes readable as a file in memory, without a name that could remain after a crash.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use fastrecord_core::Storage;

thread_local! {
    static FILE: RefCell<Option<File>> = const { RefCell::new(None) };
}

fn made() -> File {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempfile_in(memory) } else { tempfile::tempfile() };
    made.expect("a temporary file")
}

/// Calls `work` with the path of a file of these bytes.
///
/// # Panics
/// Panics if the system offers no place for temporary files.
pub fn with_file<T>(bytes: &[u8], work: impl FnOnce(&Path) -> T) -> T {
    FILE.with_borrow_mut(|kept| {
        let file = kept.get_or_insert_with(made);
        file.set_len(0).and_then(|()| file.write_all_at(bytes, 0)).expect("room in memory for a small file");
        work(&PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())))
    })
}

/// A file that a writer writes to memory.
#[derive(Debug, Clone, Default)]
pub struct Memory(Arc<Mutex<Vec<u8>>>);

impl Memory {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(bytes)))
    }

    /// The content of the file.
    pub fn bytes(&self) -> Vec<u8> {
        self.with(|bytes| bytes.clone())
    }

    fn with<T>(&self, work: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Storage for Memory {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.with(|all| {
            let (start, end) = (offset as usize, offset as usize + bytes.len());
            if all.len() < end {
                all.resize(end, 0);
            }
            all[start..end].copy_from_slice(bytes);
            Ok(())
        })
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.with(|all| {
            let found = super::bytes::range(all, offset, bytes.len() as u64);
            let found = found.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
            bytes.copy_from_slice(&all[found]);
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.with(|all| all.resize(length as usize, 0));
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        self.with(|all| Ok(all.len() as u64))
    }
}
