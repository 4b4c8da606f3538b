//! `SnapshotGuard`: the bytes that identify the opened file, and the checks that they are still there. Only
//! reads the file.

use crate::error::Error;
use crate::error::Result;
use crate::format::layout::FileId;
use crate::format::layout::Footer;
use crate::format::layout::PAGE;
use crate::format::layout::hex;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::path::PathBuf;

const FOOTER_LEN: usize = PAGE as usize;

/// Length of the footer's fields. Only the footer's CRC follows, at its very end. The CRC is also
/// gone if the file was truncated within this page and then extended again.
const FIELDS_LEN: usize = 104;

const CRC_AT: usize = FOOTER_LEN - 4;

/// Offset of the file id.
const ID_AT: usize = 16;

/// The bytes that identify the opened file: its id and the snapshot's footer.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotGuard {
    pub(super) path: PathBuf,
    id: FileId,
    commit: u64,
    pub(super) at: u64,
    pub(super) end: u64,
    fields: [u8; FIELDS_LEN],
    crc: [u8; 4],
}

impl SnapshotGuard {
    /// # Errors
    /// [`Error::Truncated`] or [`Error::Replaced`] if the footer is gone, and I/O errors.
    pub(crate) fn new(path: &Path, file: &File, id: FileId, footer: &Footer) -> Result<Self> {
        // The id as stored: for a damaged file that is being salvaged, `id` comes from the footers.
        let seen = id_in(path, file)?;
        let (path, commit, at, end) = (path.to_owned(), footer.commit, footer.offset, footer.end());
        let mut guard = Self { path, id: seen, commit, at, end, fields: [0; FIELDS_LEN], crc: [0; 4] };
        let page = guard.footer(file)?;
        if Footer::decode(&guard.path, &page, at, &id)? != Some(*footer) {
            return Err(guard.replaced());
        }
        guard.fields.copy_from_slice(&page[..FIELDS_LEN]);
        guard.crc.copy_from_slice(&page[CRC_AT..]);
        Ok(guard)
    }

    /// Reads the current page of the footer.
    fn footer(&self, file: &File) -> Result<[u8; FOOTER_LEN]> {
        self.check_size(file)?;
        let mut page = [0; FOOTER_LEN];
        file.read_exact_at(&mut page, self.at).map_err(|e| Error::unreadable(&self.path, "footer", e))?;
        Ok(page)
    }

    /// The CRC of the footer.
    pub(super) fn crc(&self) -> u32 {
        u32::from_le_bytes(self.crc)
    }

    fn is_footer(&self, page: &[u8]) -> bool {
        page[..FIELDS_LEN] == self.fields && page[CRC_AT..] == self.crc
    }

    pub(super) fn fits(&self, bytes: &[u8]) -> bool {
        bytes.get(ID_AT..ID_AT + self.id.len()) == Some(&self.id[..])
            && bytes.get(self.at as usize..self.end as usize).is_some_and(|page| self.is_footer(page))
    }

    fn replaced(&self) -> Error {
        self.not_here("other bytes in the place of that commit".to_owned())
    }

    fn not_here(&self, found: String) -> Error {
        let expected = format!("file {} at commit {}", hex(&self.id), self.commit);
        Error::Replaced { path: self.path.clone(), expected, found }
    }

    /// Checks that the file is still as long as the snapshot.
    ///
    /// # Errors
    /// [`Error::Truncated`], and I/O errors.
    pub(crate) fn check_size(&self, file: &File) -> Result<()> {
        let found = file.metadata().map_err(|e| Error::io(&self.path, e))?.len();
        if found < self.end {
            return Err(Error::Truncated { path: self.path.clone(), found, expected: self.end, commit: self.commit });
        }
        Ok(())
    }

    /// Checks that the commit's end is still there, after a read that no checksum covers. If the
    /// file was truncated and then extended again, the read returned zeros without an error.
    ///
    /// # Errors
    /// As [`SnapshotGuard::check`].
    pub(crate) fn check_after(&self, file: &File) -> Result<()> {
        let mut page = [0; FOOTER_LEN];
        match file.read_exact_at(&mut page, self.at) {
            Ok(()) if self.is_footer(&page) => Ok(()),
            _ => self.check(file),
        }
    }

    /// Checks that the file is the one that was opened.
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::Replaced`], and I/O errors.
    pub(crate) fn check(&self, file: &File) -> Result<()> {
        let page = self.footer(file)?;
        let id = id_in(&self.path, file)?;
        if id != self.id {
            Err(self.not_here(format!("file {}, written over it", hex(&id))))
        } else if self.is_footer(&page) {
            Ok(())
        } else {
            Err(self.replaced())
        }
    }
}

fn id_in(path: &Path, file: &File) -> Result<FileId> {
    let mut id = FileId::default();
    file.read_exact_at(&mut id, ID_AT as u64).map_err(|e| Error::unreadable(path, "superblock", e))?;
    Ok(id)
}
