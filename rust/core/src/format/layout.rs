//! Encoding and decoding of the fixed structures of a file: superblock, `Slot`, `Footer`. See
//! docs/format.md, sections 1 to 6.

use std::path::Path;

use crate::error::{Error, Result};
use crate::limits::{MAX_RECORDS, check_metadata};

pub(crate) const MAGIC: [u8; 9] = *b"\x89FREC\r\n\x1a\n";
pub(crate) const FOOTER_MAGIC: [u8; 8] = *b"FRECEND\n";
/// The newest format version that this crate reads, and the version that it writes.
pub const FORMAT_VERSION: u32 = 1;
pub(crate) const PAGE: u64 = 4096;
pub(crate) const PAGE_LEN: usize = PAGE as usize;
/// Bytes of a column chunk that one entry of its check table covers.
pub(crate) const BLOCK: usize = 4096;
pub(crate) const SUPERBLOCK_LEN: usize = 32;
pub(crate) const SLOT_LEN: usize = 32;
pub(crate) const CHUNK_LEN: usize = 64;
pub(crate) const CHUNK_ALIGN: u64 = 64;
/// The flag of a footer whose directory has the CRCs of check tables: docs/format.md, section 6.
const CONTENT: u32 = 1;

/// The random bytes that identify a file.
pub type FileId = [u8; 16];

/// `x` rounded up to a multiple of `a` (a power of two), or `None` past `u64::MAX`.
pub(crate) fn align(x: u64, a: u64) -> Option<u64> {
    Some(x.checked_add(a - 1)? & !(a - 1))
}

/// The offset of a commit's slot in page 0.
pub(crate) fn slot_offset(commit: u64) -> u64 {
    512 + 512 * (commit % 2)
}

/// The bytes of a fixed structure from `at` on. A place outside of it is a bug, and panics.
#[inline]
fn bytes_at<const N: usize, const LEN: usize>(bytes: &[u8; LEN], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

#[inline]
pub(crate) fn u16_at<const LEN: usize>(bytes: &[u8; LEN], at: usize) -> u16 {
    u16::from_le_bytes(bytes_at(bytes, at))
}

#[inline]
pub(crate) fn u32_at<const LEN: usize>(bytes: &[u8; LEN], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(bytes, at))
}

#[inline]
pub(crate) fn u64_at<const LEN: usize>(bytes: &[u8; LEN], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, at))
}

pub(crate) fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Encodes the whole first page, with empty slots.
pub(crate) fn encode_superblock(id: &FileId) -> Vec<u8> {
    let mut page = vec![0; PAGE_LEN];
    put(&mut page, 0, &MAGIC);
    page[9] = FORMAT_VERSION as u8;
    put(&mut page, 16, id);
    let crc = superblock_crc(&page);
    put(&mut page, 12, &crc.to_le_bytes());
    page
}

fn superblock_crc(page: &[u8]) -> u32 {
    crate::format::crc::crc32c_append(crate::format::crc::crc32c(&page[0..12]), &page[16..32])
}

/// Checks the first bytes of a file (up to a page) and returns its id.
pub(crate) fn decode_superblock(path: &Path, page: &[u8]) -> Result<FileId> {
    let not_frec = |reason: &str| Error::NotFrec { path: path.to_owned(), reason: reason.to_owned() };
    if page.is_empty() {
        return Err(not_frec("it is empty"));
    }
    let head = &page[..page.len().min(MAGIC.len())];
    if head != &MAGIC[..head.len()] {
        return Err(not_frec("it does not begin with the magic bytes 89 46 52 45 43 0d 0a 1a 0a"));
    }
    let Some(page) = page.first_chunk::<SUPERBLOCK_LEN>() else {
        return Err(not_frec(&format!("it ends after {} bytes, within the superblock", page.len())));
    };
    // Check the version before the CRC: a newer version may have another layout.
    if u32::from(page[9]) > FORMAT_VERSION {
        return Err(Error::Version { path: path.to_owned(), found: page[9].into(), supported: FORMAT_VERSION });
    }
    let (stored, computed) = (u32_at(page, 12), superblock_crc(page));
    if stored != computed {
        let detail = format!("stored CRC {stored:#010x}, computed {computed:#010x} (bytes 0 to 32)");
        return Err(Error::corrupt(path, "superblock", detail));
    }
    if page[9] == 0 || u16_at(page, 10) != 0 {
        return Err(Error::corrupt(path, "superblock", "version or reserved bytes are not allowed"));
    }
    Ok(bytes_at(page, 16))
}

/// A pointer to a footer, in page 0. It is only a hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    pub footer: u64,
    pub commit: u64,
    pub sealed: bool,
}

/// The state of a slot's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotState {
    Empty,
    Unreadable,
    Valid(Slot),
}

impl Slot {
    pub(crate) fn encode(self, id: &FileId) -> [u8; SLOT_LEN] {
        let mut out = [0; SLOT_LEN];
        put(&mut out, 0, &self.footer.to_le_bytes());
        put(&mut out, 8, &self.commit.to_le_bytes());
        put(&mut out, 16, &(1 + u64::from(self.sealed)).to_le_bytes());
        let crc = crate::format::crc::crc32c_append(crate::format::crc::crc32c(&out[..28]), id);
        put(&mut out, 28, &crc.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8], id: &FileId) -> SlotState {
        let Some(bytes) = bytes.first_chunk::<SLOT_LEN>() else { return SlotState::Empty };
        if bytes.iter().all(|&b| b == 0) {
            return SlotState::Empty;
        }
        let crc = crate::format::crc::crc32c_append(crate::format::crc::crc32c(&bytes[..28]), id);
        let state = u64_at(bytes, 16);
        if crc != u32_at(bytes, 28) || !(1..=2).contains(&state) {
            return SlotState::Unreadable;
        }
        SlotState::Valid(Slot { footer: u64_at(bytes, 0), commit: u64_at(bytes, 8), sealed: state == 2 })
    }
}

/// A byte range with the CRC of its bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CheckedRange {
    pub offset: u64,
    pub length: u64,
    pub crc: u32,
}

/// The end of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Footer {
    pub offset: u64,
    pub commit: u64,
    pub records: u64,
    pub directory: CheckedRange,
    pub metadata: CheckedRange,
    pub previous: u64,
    /// Whether the directory has the CRC of each check table, so that the footer's own CRC depends on
    /// all values.
    pub covers_content: bool,
}

impl Footer {
    /// The end of the commit. Its readers may not read beyond it.
    pub(crate) fn end(&self) -> u64 {
        self.offset + PAGE
    }

    pub(crate) fn encode(&self, id: &FileId) -> Vec<u8> {
        let mut out = vec![0; PAGE_LEN];
        put(&mut out, 0, &FOOTER_MAGIC);
        put(&mut out, 8, &FORMAT_VERSION.to_le_bytes());
        put(&mut out, 12, &(u32::from(self.covers_content) * CONTENT).to_le_bytes());
        put(&mut out, 16, id);
        let words = [
            self.offset,
            self.commit,
            self.records,
            self.directory.offset,
            self.directory.length,
            self.metadata.offset,
            self.metadata.length,
        ];
        for (i, word) in words.iter().enumerate() {
            put(&mut out, 32 + 8 * i, &word.to_le_bytes());
        }
        put(&mut out, 88, &self.directory.crc.to_le_bytes());
        put(&mut out, 92, &self.metadata.crc.to_le_bytes());
        put(&mut out, 96, &self.previous.to_le_bytes());
        let crc = crate::format::crc::crc32c(&out[..PAGE_LEN - 4]);
        put(&mut out, PAGE_LEN - 4, &crc.to_le_bytes());
        out
    }

    /// The file and the offset that a page names as its own, if it has the magic of a footer.
    pub(crate) fn claim(page: &[u8]) -> Option<(FileId, u64)> {
        let page = page.first_chunk::<PAGE_LEN>().filter(|page| Self::has_magic(&page[..]))?;
        Some((bytes_at(page, 16), u64_at(page, 32)))
    }

    /// Whether a page has the magic of a footer.
    pub(crate) fn has_magic(page: &[u8]) -> bool {
        page.starts_with(&FOOTER_MAGIC)
    }

    /// Decodes the page at `offset`; `None` if it is not a valid footer of the file `id` at this
    /// offset.
    ///
    /// # Errors
    /// A valid footer with an unknown version or unknown flags, or with ranges outside its commit.
    pub(crate) fn decode(path: &Path, page: &[u8], offset: u64, id: &FileId) -> Result<Option<Self>> {
        let Some(page) = page.first_chunk::<PAGE_LEN>() else { return Ok(None) };
        let crc = crate::format::crc::crc32c(&page[..PAGE_LEN - 4]);
        if !Self::has_magic(page)
            || crc != u32_at(page, PAGE_LEN - 4)
            || u64_at(page, 32) != offset
            || page[16..32] != id[..]
        {
            return Ok(None);
        }
        let (version, flags) = (u32_at(page, 8), u32_at(page, 12));
        if version > FORMAT_VERSION {
            return Err(Error::Version { path: path.to_owned(), found: version, supported: FORMAT_VERSION });
        }
        if flags & !CONTENT != 0 {
            return Err(Error::Unsupported { path: path.to_owned(), what: format!("footer flags {flags:#x}") });
        }
        let range = |at: usize, crc: usize| CheckedRange {
            offset: u64_at(page, at),
            length: u64_at(page, at + 8),
            crc: u32_at(page, crc),
        };
        let footer = Self {
            offset,
            commit: u64_at(page, 40),
            records: u64_at(page, 48),
            directory: range(56, 88),
            metadata: range(72, 92),
            previous: u64_at(page, 96),
            covers_content: flags & CONTENT != 0,
        };
        footer.check(path)?;
        Ok(Some(footer))
    }

    fn check(&self, path: &Path) -> Result<()> {
        let bad = |detail: &str| Err(Error::corrupt(path, format!("footer of commit {}", self.commit), detail));
        for (name, range) in [("directory", self.directory), ("metadata", self.metadata)] {
            let end = range.offset.checked_add(range.length);
            if range.offset < PAGE || end.is_none_or(|end| end > self.offset) {
                return bad(&format!("the {name} lies outside of the file"));
            }
        }
        if !self.directory.length.is_multiple_of(CHUNK_LEN as u64) || !self.directory.offset.is_multiple_of(8) {
            return bad("the directory's range is not aligned");
        }
        if self.records > MAX_RECORDS {
            return bad(&format!("{} records are more than 2^63 - 1", self.records));
        }
        check_metadata(path, self.metadata.length)?;
        if self.commit == 0
            || self.commit == u64::MAX
            || !self.offset.is_multiple_of(PAGE)
            || self.previous >= self.offset
            || !self.previous.is_multiple_of(PAGE)
        {
            return bad("commit number or offsets are not allowed");
        }
        Ok(())
    }
}

/// A file id as users see it: 32 hexadecimal digits.
pub fn hex(id: &FileId) -> String {
    format!("{:032x}", u128::from_be_bytes(*id))
}

/// Parses the output of [`hex`].
pub fn from_hex(text: &str) -> Option<FileId> {
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    let mut id = FileId::default();
    for (i, byte) in id.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_with_any_flipped_bit_says_nothing() {
        let (id, slot) = ([7; 16], Slot { footer: 8192, commit: 3, sealed: true });
        let bytes = slot.encode(&id);
        assert_eq!(Slot::decode(&bytes, &id), SlotState::Valid(slot));
        for bit in 0..SLOT_LEN * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Slot::decode(&flipped, &id), SlotState::Unreadable, "bit {bit}");
        }
    }

    #[test]
    fn a_footer_is_valid_only_where_it_was_written() {
        let (path, id) = (Path::new("x.frec"), [9; 16]);
        let range = CheckedRange { offset: 4096, length: 64, crc: 1 };
        let (directory, metadata) = (range, range);
        let old =
            Footer { offset: 8192, commit: 1, records: 5, directory, metadata, previous: 0, covers_content: false };
        let footer = Footer { covers_content: true, ..old };
        for footer in [old, footer] {
            assert_eq!(Footer::decode(path, &footer.encode(&id), 8192, &id).unwrap(), Some(footer));
        }
        let page = footer.encode(&id);
        assert_eq!(Footer::decode(path, &page, 12288, &id).unwrap(), None);
        assert_eq!(Footer::decode(path, &page, 8192, &[1; 16]).unwrap(), None);
    }
}
