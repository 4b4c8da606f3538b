//! `resident_bytes`: how much of a file is in the page cache. It reads none of the file's bytes.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::{Mmap, MmapOptions};

use crate::error::{Error, Result};
use crate::sys::files::open_regular;

/// Bytes queried per call: the answer takes one byte per page.
const WINDOW: u64 = 1 << 30;

/// Returns how many bytes of a file are in the page cache, and its size. Reads none of its bytes.
///
/// The kernel answers only callers that own the file or can write to it. For others, all bytes seem
/// to be cached.
///
/// # Errors
/// The file cannot be opened or is not a regular file, or the system does not answer.
pub fn resident_bytes(path: &Path) -> Result<(u64, u64)> {
    let io = |e| Error::io(path, e);
    let file = open_regular(path)?;
    let length = file.metadata().map_err(io)?.len();
    let (mut resident, mut at) = (0, 0);
    while at < length {
        let window = WINDOW.min(length - at);
        resident += resident_in(&file, at, window).map_err(io)?;
        at += window;
    }
    Ok((resident, length))
}

/// Returns how many bytes of a part of a file are in the page cache. The part begins at a multiple
/// of the page size.
#[cfg(target_os = "linux")]
fn resident_in(file: &File, offset: u64, length: u64) -> io::Result<u64> {
    // SAFETY: a mapping's bytes must not change while a slice of them is alive. No slice of this
    // mapping is ever made, and no byte is read through it. So a file that shrinks meanwhile raises
    // no signal either.
    let map: Mmap = unsafe { MmapOptions::new().offset(offset).len(length as usize).map(file) }?;
    // SAFETY: sysconf takes a number and touches no memory.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).map_err(io::Error::other)?;
    let mut pages = vec![0_u8; length.div_ceil(page) as usize];
    // SAFETY: mincore takes the start and the length of a mapping, which lives until the end of
    // this function. It writes one byte for each page, and `pages` has room for all of them.
    let status = unsafe { libc::mincore(map.as_ptr().cast_mut().cast(), length as usize, pages.as_mut_ptr()) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    let whole: u64 = pages.iter().map(|state| u64::from(state & 1) * page).sum();
    // The last page may extend beyond the end of the file.
    let beyond = if pages.last().is_some_and(|state| state & 1 == 1) { pages.len() as u64 * page - length } else { 0 };
    Ok(whole - beyond)
}

#[cfg(not(target_os = "linux"))]
fn resident_in(_file: &File, _offset: u64, _length: u64) -> io::Result<u64> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn bytes_just_written_are_resident_and_a_hole_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut file = File::create(&path).unwrap();
        file.write_all(&[1; 10_001]).unwrap();
        assert_eq!(resident_bytes(&path).unwrap(), (10_001, 10_001));
        // The file spans more than one window, and only its first bytes were ever cached.
        file.set_len(WINDOW + 4097).unwrap();
        let (resident, length) = resident_bytes(&path).unwrap();
        assert_eq!(length, WINDOW + 4097);
        assert!((10_001..1 << 20).contains(&resident), "{resident}");
        File::create(&path).unwrap();
        assert_eq!(resident_bytes(&path).unwrap(), (0, 0));
    }

    #[test]
    fn what_is_no_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(resident_bytes(folder.path()).is_err());
        assert!(resident_bytes(&folder.path().join("absent")).is_err());
        assert!(resident_bytes(Path::new("/dev/null")).is_err());
    }
}
