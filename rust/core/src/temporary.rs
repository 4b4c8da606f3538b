//! The name that a file has while it is written to take the place of another.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::sys;

const TEMPORARY: &str = ".tmp-";

/// A name beside `path` that no other writer has.
pub(crate) fn temporary_name(path: &Path) -> Result<PathBuf> {
    let mut random = [0; 4];
    getrandom::fill(&mut random).map_err(|e| Error::io(path, io::Error::other(e.to_string())))?;
    let mut name = path.as_os_str().to_owned();
    name.push(format!("{TEMPORARY}{:08x}", u32::from_le_bytes(random)));
    Ok(name.into())
}

/// Removes temporary files of overwrites that were killed: those that nobody holds the lock of.
pub(crate) fn remove_stale_temporaries(path: &Path) {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (Some(name), Ok(entries)) = (path.file_name().and_then(|n| n.to_str()), std::fs::read_dir(parent)) else {
        return;
    };
    for entry in entries.flatten() {
        let other = entry.file_name();
        let suffix = other.to_str().and_then(|o| o.strip_prefix(name)).and_then(|o| o.strip_prefix(TEMPORARY));
        if suffix.is_some_and(|s| s.len() == 8 && s.bytes().all(|b| b.is_ascii_hexdigit()))
            && let Ok(file) = File::open(entry.path())
            && sys::try_lock(&file).unwrap_or(false)
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
