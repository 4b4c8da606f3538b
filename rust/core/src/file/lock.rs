//! `LockedFile`: a file that one writer has open at a time. Its lock belongs to the process that
//! took it.

use crate::sys::files::Identity;
use crate::sys::files::identity;
use crate::sys::files::leads_to;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::file::storage::Storage;
use crate::sys;

/// A file and its exclusive lock. Dropping it releases the lock; forked children do not inherit it.
#[derive(Debug)]
pub(crate) struct LockedFile {
    /// `None` only while it is dropped.
    file: Option<File>,
    identity: Identity,
    process: u32,
}

impl LockedFile {
    /// Takes the lock of a file.
    ///
    /// # Errors
    /// [`Error::Locked`] names the holder if the system reports it. [`Error::NoLocks`].
    pub(crate) fn new(path: &Path, file: File) -> Result<Self> {
        let io = |e| Error::io(path, e);
        let refused = |e: io::Error| match e.raw_os_error() {
            Some(libc::ENOLCK | libc::EOPNOTSUPP | libc::ENOSYS) => Error::NoLocks { path: path.to_owned(), source: e },
            _ => io(e),
        };
        if !sys::try_lock(&file).map_err(refused)? {
            return Err(Error::Locked { path: path.to_owned(), holder: sys::lock_holder(&file) });
        }
        let identity = identity(&file).map_err(io)?;
        sys::close_in_children(file.as_raw_fd());
        Ok(Self { file: Some(file), identity, process: std::process::id() })
    }

    pub(crate) fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Whether a path leads to the file.
    fn is_at(&self, path: &Path) -> io::Result<bool> {
        leads_to(path, self.identity)
    }

    /// Checks that the path still leads to that file, or does not exist.
    ///
    /// # Errors
    /// Another writer has created a file there in the meantime, which this lock does not protect.
    /// Also I/O errors.
    pub(crate) fn still_at(&self, path: &Path) -> io::Result<()> {
        if self.is_at(path)? || !path.try_exists()? {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::AlreadyExists, "another file has this name now"))
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return };
        if self.process == std::process::id() {
            sys::forget_fd(file.as_raw_fd());
            // Closing alone would leave the lock with children that were just forked and have not
            // closed their copy yet.
            sys::unlock(file.as_raw_fd());
        } else {
            // A forked child: the descriptor was closed at the fork, and its number may belong to
            // another file by now.
            std::mem::forget(file);
        }
    }
}

impl Storage for LockedFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file()?.write_at(bytes, offset)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file()?.read_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file()?.sync()
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.file()?.set_len(length)
    }

    fn len(&self) -> io::Result<u64> {
        Storage::len(self.file()?)
    }

    fn start_writeback(&self, offset: u64, length: u64) {
        if let Ok(file) = self.file() {
            file.start_writeback(offset, length);
        }
    }

    fn sync_name(&self, path: &Path) -> io::Result<()> {
        sys::sync_parent(path)
    }

    /// Where the check itself fails, the path is assumed to lead to the file.
    fn check_name(&self, path: &Path, records: u64) -> Result<()> {
        if self.is_at(path).unwrap_or(true) {
            return Ok(());
        }
        let what = if path.symlink_metadata().is_ok() {
            "another file has this name now"
        } else {
            "the file was removed or moved"
        };
        let links = self.file().and_then(File::metadata).map_or(1, |meta| meta.nlink());
        let open = self.file().map(|file| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())));
        let place = open.and_then(|open| open.read_link()).ok().filter(|place| self.is_at(place).unwrap_or(false));
        let records = if records == 1 { "1 record is".to_owned() } else { format!("{records} records are") };
        let left = match (links, place) {
            (0, _) => format!("its {records} lost: write them again"),
            (_, Some(place)) => format!("its {records} in {}: open that file to continue", place.display()),
            _ => format!("its {records} in the file of inode {}: look for its name", self.identity.1),
        };
        Err(Error::NameLost { path: path.to_owned(), what, left })
    }

    fn remove_name(&self, path: &Path) {
        if self.is_at(path).unwrap_or(false) {
            let _ = std::fs::remove_file(path);
        }
    }

    fn free_tail(&self, length: u64) {
        let _ = self.set_len(length);
    }

    fn copy_from(&self, source: &File, from: u64, to: u64, length: u64) -> io::Result<u64> {
        self.file()?.copy_from(source, from, to, length)
    }
}

/// Opens a file for appending and takes its lock.
///
/// # Errors
/// As [`LockedFile::new`], and I/O errors of opening.
pub(crate) fn open_locked(path: &Path) -> Result<LockedFile> {
    let io = |e| Error::io(path, e);
    let regular = |meta: Metadata| {
        if meta.is_dir() {
            return Err(io(io::Error::from_raw_os_error(libc::EISDIR)));
        }
        let reason = || "it is not a regular file".to_owned();
        if meta.is_file() { Ok(()) } else { Err(Error::NotFrec { path: path.to_owned(), reason: reason() }) }
    };
    loop {
        regular(path.metadata().map_err(io)?)?; // opening alone has effects on some devices
        let mut options = OpenOptions::new();
        let file = sys::open(options.read(true).write(true).custom_flags(libc::O_NONBLOCK), path).map_err(io)?;
        regular(file.metadata().map_err(io)?)?;
        let file = LockedFile::new(path, file)?;
        // Between opening and locking, another writer may have put a new file at this path.
        if file.is_at(path).map_err(io)? {
            return Ok(file);
        }
    }
}

/// Creates a file that must not exist yet, and takes its lock. Leaves no file that cannot be locked.
///
/// # Errors
/// As [`LockedFile::new`], and I/O errors of creating: the path exists.
pub(crate) fn create_locked(path: &Path) -> Result<LockedFile> {
    let io = |e| Error::io(path, e);
    let file = sys::open(OpenOptions::new().read(true).write(true).create_new(true), path).map_err(io)?;
    let created = identity(&file).map_err(io)?;
    let file = LockedFile::new(path, file).inspect_err(|error| {
        // It is another writer's if that has locked it.
        if !matches!(error, Error::Locked { .. }) && leads_to(path, created).unwrap_or(false) {
            let _ = std::fs::remove_file(path);
        }
    })?;
    // Between creating and locking, another writer may have replaced the file.
    if file.is_at(path).map_err(io)? { Ok(file) } else { Err(io(io::ErrorKind::AlreadyExists.into())) }
}

/// Takes the lock of a file that is to be replaced, so that no writer appends to it. `None` if the
/// file does not exist.
///
/// # Errors
/// As [`LockedFile::new`]; the path is a folder or a device.
pub(crate) fn lock_replaced(path: &Path) -> Result<Option<LockedFile>> {
    let io = |e| Error::io(path, e);
    loop {
        match path.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io(error)),
            Ok(meta) if meta.is_dir() => return Err(io(io::Error::from_raw_os_error(libc::EISDIR))),
            Ok(meta) if !meta.is_file() => {
                return Err(io(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
            }
            Ok(_) => {}
        }
        // Some network file systems give exclusive locks only to writable files, but a read-only
        // file may also be replaced. Non-blocking: the path may lead to a pipe by now.
        let open = |write| sys::open(OpenOptions::new().read(true).write(write).custom_flags(libc::O_NONBLOCK), path);
        let file = match open(true).or_else(|_| open(false)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            outcome => outcome.map_err(io)?,
        };
        let file = LockedFile::new(path, file)?;
        // Between opening and locking, another writer may have replaced or removed the file.
        if file.is_at(path).map_err(io)? {
            return Ok(Some(file));
        }
    }
}
