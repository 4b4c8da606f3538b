//! Temporary files that replace an existing file: their names, their permissions and the removal of
//! stale ones.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::file::lock::LockedFile;
use crate::sys;
use crate::sys::files::open_regular;

const TEMPORARY: &str = ".tmp-";

/// A name in the folder of `path` that no other writer uses.
pub(crate) fn temporary_name(path: &Path) -> Result<PathBuf> {
    let mut random = [0; 4];
    getrandom::fill(&mut random).map_err(|e| Error::io(path, io::Error::other(e.to_string())))?;
    let mut name = path.as_os_str().to_owned();
    name.push(format!("{TEMPORARY}{:08x}", u32::from_le_bytes(random)));
    Ok(name.into())
}

/// Creates a file that will replace another. Only the owner may access it until it has the
/// permissions of the replaced file.
pub(crate) fn create_temporary(name: &Path, replaced: &LockedFile) -> io::Result<File> {
    let file = sys::open(OpenOptions::new().read(true).write(true).create_new(true).mode(0o600), name)?;
    if let Err(error) = replaced.file().and_then(|old| keep_permissions(old, &file)) {
        let _ = std::fs::remove_file(name);
        return Err(error);
    }
    Ok(file)
}

/// Copies owner, group and permissions from an old file to a new one, as far as this process may.
/// Never copies set-user-id or set-group-id, and grants nothing to a group that the old file did
/// not have.
fn keep_permissions(old: &File, new: &File) -> io::Result<()> {
    let (before, made) = (old.metadata()?, new.metadata()?);
    let mut bits = before.mode() & 0o777;
    if before.uid() != made.uid() {
        let _ = fchown(new, Some(before.uid()), None); // only root may change the owner
    }
    if before.gid() != made.gid() && fchown(new, None, Some(before.gid())).is_err() {
        bits &= 0o707 | (bits & 0o007) << 3;
    }
    match new.set_permissions(Permissions::from_mode(bits)) {
        // A file system without permissions, or with fixed ones.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOTSUP | libc::ENOSYS)) => Ok(()),
        outcome => outcome,
    }
}

/// Removes temporary files of killed writers: those that are not locked.
pub(crate) fn remove_stale_temporaries(path: &Path) {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (Some(name), Ok(entries)) = (path.file_name().and_then(|n| n.to_str()), std::fs::read_dir(parent)) else {
        return;
    };
    for entry in entries.flatten() {
        let other = entry.file_name();
        let suffix = other.to_str().and_then(|o| o.strip_prefix(name)).and_then(|o| o.strip_prefix(TEMPORARY));
        if suffix.is_some_and(|s| s.len() == 8 && s.bytes().all(|b| b.is_ascii_hexdigit()))
            && let Ok(file) = open_regular(&entry.path())
            && sys::try_lock(&file).unwrap_or(false)
        {
            let (path, removed) = (entry.path(), std::fs::remove_file(entry.path()));
            match removed {
                Ok(()) => {
                    log::info!(target: "fastrecord_core::temporary", "{}: removed: an interrupted writer left it", path.display());
                }
                Err(error) => {
                    log::warn!(target: "fastrecord_core::temporary", "{}: an interrupted writer left it, and it cannot be removed: {error}", path.display());
                }
            }
        }
    }
}
