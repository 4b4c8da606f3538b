//! Opening regular files, and checking whether two paths name the same file. It has no knowledge of
//! .frec.

use crate::error::Error;
use crate::error::Result;
use crate::sys;
use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

/// Opens a regular file and refuses all others: opening a pipe would wait for its other end.
pub(crate) fn open_regular(path: &Path) -> Result<Arc<File>> {
    let io = |e| Error::io(path, e);
    let file = sys::open(OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK), path).map_err(io)?;
    let kind = file.metadata().map_err(io)?.file_type();
    if kind.is_dir() {
        return Err(io(std::io::Error::from_raw_os_error(libc::EISDIR)));
    }
    if !kind.is_file() {
        return Err(Error::NotFrec { path: path.to_owned(), reason: "it is not a regular file".to_owned() });
    }
    Ok(Arc::new(file))
}

pub(crate) fn same_file(a: &File, b: &File) -> std::io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let (a, b) = (a.metadata()?, b.metadata()?);
    Ok((a.dev(), a.ino()) == (b.dev(), b.ino()))
}

/// Returns the target of a symbolic link: a writer replaces the target, not the link. Returns
/// `None` if the path is not a link.
///
/// # Errors
/// System errors; for example, the link is dangling.
pub(crate) fn resolve_link(path: &Path) -> Result<Option<PathBuf>> {
    match path.symlink_metadata() {
        Ok(meta) if meta.is_symlink() => path.canonicalize().map(Some).map_err(|e| Error::io(path, e)),
        _ => Ok(None),
    }
}

/// Device and inode, which identify an open file under any path.
pub(crate) type Identity = (u64, u64);

pub(crate) fn identity(file: &File) -> io::Result<Identity> {
    file.metadata().map(|meta| (meta.dev(), meta.ino()))
}

/// Reports whether a path leads to the given file. A dangling path does not.
pub(crate) fn leads_to(path: &Path, identity: Identity) -> io::Result<bool> {
    match path.metadata() {
        Ok(meta) => Ok((meta.dev(), meta.ino()) == identity),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The most shards that are kept open at a time: a share of the files that the process may open.
pub fn most_open() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call only writes to `limit`, which lives.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    let share = if known { limit.rlim_cur / 8 } else { 0 };
    usize::try_from(share).unwrap_or(usize::MAX).clamp(4, 1024)
}
