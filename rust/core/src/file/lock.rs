//! `Lock` and the functions that take the exclusive lock of a file: one writer at a time. A lock
//! belongs to the process that took it.

use crate::sys::files::Identity;
use crate::sys::files::identity;
use crate::sys::files::leads_to;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::sys;

/// Takes the lock of a file.
///
/// # Errors
/// [`Error::Locked`] names the holder if the system reports it.
pub(crate) fn lock(path: &Path, file: &File) -> Result<()> {
    if sys::try_lock(file).map_err(|e| Error::io(path, e))? {
        return Ok(());
    }
    Err(Error::Locked { path: path.to_owned(), holder: sys::lock_holder(file) })
}

/// Opens a file for appending and takes its lock.
///
/// # Errors
/// As [`lock`], and I/O errors of opening.
pub(crate) fn open_locked(path: &Path) -> Result<File> {
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
        lock(path, &file)?;
        // Between opening and locking, another writer may have put a new file at this path.
        if leads_to(path, identity(&file).map_err(io)?).map_err(io)? {
            return Ok(file);
        }
    }
}

/// Creates a file that must not exist yet, and takes its lock.
///
/// # Errors
/// As [`lock`], and I/O errors of creating: the path exists.
pub(crate) fn create_locked(path: &Path) -> Result<File> {
    let io = |e| Error::io(path, e);
    let file = sys::open(OpenOptions::new().read(true).write(true).create_new(true), path).map_err(io)?;
    lock(path, &file)?;
    // Between creating and locking, another writer may have replaced the file.
    if leads_to(path, identity(&file).map_err(io)?).map_err(io)? {
        Ok(file)
    } else {
        Err(io(io::ErrorKind::AlreadyExists.into()))
    }
}

/// Checks that the path of an open file still leads to it. If the check itself fails, assumes that
/// it does.
///
/// # Errors
/// [`Error::NameLost`] reports where the file's `records` are.
pub(crate) fn check_name(path: &Path, identity: Identity, fd: Option<RawFd>, records: u64) -> Result<()> {
    if leads_to(path, identity).unwrap_or(true) {
        return Ok(());
    }
    let what = if path.symlink_metadata().is_ok() {
        "another file has this name now"
    } else {
        "the file was removed or moved"
    };
    let open = fd.map(|fd| PathBuf::from(format!("/proc/self/fd/{fd}")));
    let links = open.as_ref().and_then(|open| open.metadata().ok()).map(|meta| meta.nlink());
    let place = open.and_then(|open| open.read_link().ok()).filter(|place| leads_to(place, identity).unwrap_or(false));
    let records = if records == 1 { "1 record is".to_owned() } else { format!("{records} records are") };
    let left = match (links, place) {
        (Some(0), _) => format!("its {records} lost: write them again"),
        (_, Some(place)) => format!("its {records} in {}: open that file to continue", place.display()),
        _ => format!("its {records} in the file of inode {}: look for its name", identity.1),
    };
    Err(Error::NameLost { path: path.to_owned(), what, left })
}

/// The lock of a file that is to be replaced. Dropping it releases the lock; forked children do not
/// inherit it.
#[derive(Debug)]
pub(crate) struct Lock {
    file: Option<File>,
    process: u32,
}

/// Takes the lock of a file that is to be replaced, so that no writer appends to it. `None` if the
/// file does not exist.
///
/// # Errors
/// As [`lock`]; the path is a folder or a device.
pub(crate) fn lock_replaced(path: &Path) -> Result<Option<Lock>> {
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
        lock(path, &file)?;
        // Between opening and locking, another writer may have replaced or removed the file.
        if leads_to(path, identity(&file).map_err(io)?).map_err(io)? {
            sys::close_in_children(file.as_raw_fd());
            return Ok(Some(Lock { file: Some(file), process: std::process::id() }));
        }
    }
}

impl Lock {
    /// The file that is to be replaced.
    pub(crate) fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Checks that the path still leads to that file, or does not exist.
    ///
    /// # Errors
    /// Another writer has created a file there in the meantime, which this lock does not protect.
    /// Also I/O errors.
    pub(crate) fn still_at(&self, path: &Path) -> io::Result<()> {
        if leads_to(path, identity(self.file()?)?)? || !path.try_exists()? {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::AlreadyExists, "another file has this name now"))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return };
        if self.process == std::process::id() {
            sys::forget_fd(file.as_raw_fd());
            // A child that was just forked may not have closed its copy yet.
            sys::unlock(file.as_raw_fd());
        } else {
            // Closed at the fork; its number may belong to another file by now.
            std::mem::forget(file);
        }
    }
}
