//! Corrects every checksum of a file, whatever else it holds (docs/format.md). A fuzzer cannot
//! guess checksums, and would never get past the first one.

use super::bytes::{put, range, u16_at, u64_at};

pub const PAGE: usize = 4096;
pub const MAGIC: &[u8; 10] = b"\x89FREC\r\n\x1a\n\x01";
pub const FOOTER_MAGIC: &[u8; 8] = b"FRECEND\n";
/// The size of a directory entry, and the maximum number of entries to process.
const ENTRY: usize = 64;
const MOST: usize = 4096;
const EXTENT: usize = 32;
const EXTENTS: u8 = 2;

/// Seals a whole file: superblock, slots, and the commit of every page that begins like a footer,
/// the last one last.
pub fn seal(file: &mut [u8]) {
    if file.len() < 32 {
        return;
    }
    seal_superblock(file);
    let id: [u8; 16] = file[16..32].try_into().unwrap_or_default();
    for at in [512, 1024] {
        if let Some(slot) = file.get_mut(at..at + 32)
            && slot.iter().any(|&byte| byte != 0)
        {
            let crc = crc32c::crc32c_append(crc32c::crc32c(&slot[..28]), &id);
            put(slot, 28, &crc.to_le_bytes());
        }
    }
    for at in (PAGE..file.len().saturating_sub(PAGE - 1)).step_by(PAGE) {
        if file[at..].starts_with(FOOTER_MAGIC) {
            seal_commit(file, at);
        }
    }
}

/// Corrects the CRC of a superblock.
pub fn seal_superblock(page: &mut [u8]) {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&page[..12]), &page[16..32]);
    put(page, 12, &crc.to_le_bytes());
}

/// Seals everything that the footer at `at` refers to, and then the footer.
pub fn seal_commit(file: &mut [u8], at: usize) {
    let (directory, length) = (u64_at(file, at + 56), u64_at(file, at + 64));
    let covers_content = file[at + 12] & 1 == 1;
    if let Some(entries) = range(file, directory, length) {
        for entry in entries.clone().step_by(ENTRY).take(MOST) {
            if entry + ENTRY <= entries.end {
                seal_chunk(file, entry, covers_content);
            }
        }
        let crc = crc32c::crc32c(&file[entries]);
        put(file, at + 88, &crc.to_le_bytes());
    }
    if let Some(metadata) = range(file, u64_at(file, at + 72), u64_at(file, at + 80)) {
        let crc = crc32c::crc32c(&file[metadata]);
        put(file, at + 92, &crc.to_le_bytes());
    }
    let crc = crc32c::crc32c(&file[at..at + PAGE - 4]);
    put(file, at + PAGE - 4, &crc.to_le_bytes());
}

/// Seals the chunk of a directory entry: first the CRCs of payloads, then the CRCs of blocks, then the
/// CRC of the check table if the entry has one.
fn seal_chunk(file: &mut [u8], entry: usize, covers_content: bool) {
    let (encoding, width) = (file[entry + 5], u16_at(file, entry + 6));
    let (offset, length) = (u64_at(file, entry + 24), u64_at(file, entry + 16).saturating_mul(width.into()));
    let Some(chunk) = range(file, offset, length) else { return };
    if encoding == EXTENTS {
        for extent in chunk.clone().step_by(EXTENT).take(MOST) {
            // A missing value is all zeros except for its flag.
            if extent + EXTENT <= chunk.end
                && file[extent + 29] & 1 == 0
                && let Some(payload) = range(file, u64_at(file, extent), u64_at(file, extent + 8))
            {
                let crc = crc32c::crc32c(&file[payload]);
                put(file, extent + 24, &crc.to_le_bytes());
            }
        }
    }
    let table = chunk.end.next_multiple_of(8);
    for (block, start) in chunk.clone().step_by(PAGE).enumerate() {
        let crc = crc32c::crc32c(&file[start..(start + PAGE).min(chunk.end)]);
        put(file, table + 4 * block, &crc.to_le_bytes());
    }
    let table = range(file, table as u64, 4 * chunk.len().div_ceil(PAGE) as u64);
    if let Some(table) = table.filter(|_| covers_content) {
        let crc = crc32c::crc32c(&file[table]);
        put(file, entry + 40, &crc.to_le_bytes());
    }
}
