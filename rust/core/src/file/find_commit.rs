//! `Opening`: finds and checks the newest footer, for readers and writers. Never writes. See
//! docs/format.md, section 8.

use std::cmp::Reverse;
use std::io;
use std::path::Path;

use crate::error::{Error, Result};
use crate::file::storage::Storage;
use crate::format::layout::{
    CheckedRange, FileId, Footer, PAGE, SLOT_LEN, Slot, SlotState, decode_superblock, slot_offset,
};
use crate::format::metadata::Metadata;

/// A commit: its footer, directory and metadata.
#[derive(Debug)]
pub(crate) struct Commit {
    pub id: FileId,
    pub footer: Footer,
    pub directory: Vec<u8>,
    pub metadata: Metadata,
    /// Length of the file in bytes when it was opened.
    pub file_length: u64,
}

/// A file whose newest commit is being looked up.
pub(crate) struct Opening<'a> {
    path: &'a Path,
    storage: &'a dyn Storage,
    pub(crate) length: u64,
    pub(crate) id: FileId,
    slots: [SlotState; 2],
}

impl<'a> Opening<'a> {
    /// Reads and checks page 0.
    pub(crate) fn new(path: &'a Path, storage: &'a dyn Storage) -> Result<Self> {
        let io = |e| Error::io(path, e);
        let mut page = vec![0; storage.len().map_err(io)?.min(PAGE) as usize];
        storage.read_at(&mut page, 0).map_err(io)?;
        let id = decode_superblock(path, &page)?;
        let mut slots = decode_slots(&page, &id);
        // A writer may be writing a slot right now: read it again before treating it as damaged.
        for _ in 0..3 {
            if !slots.contains(&SlotState::Unreadable) {
                break;
            }
            storage.read_at(&mut page, 0).map_err(io)?;
            slots = decode_slots(&page, &id);
        }
        // Read the length last: then no sealed slot can point to a footer beyond this length.
        let length = storage.len().map_err(io)?;
        Ok(Self { path, storage, length, id, slots })
    }

    /// Opens a file with an id from elsewhere. Page 0 may be damaged.
    pub(crate) fn with_id(path: &'a Path, storage: &'a dyn Storage, id: FileId) -> Result<Self> {
        let io = |e| Error::io(path, e);
        let length = storage.len().map_err(io)?;
        let mut page = vec![0; length.min(PAGE) as usize];
        storage.read_at(&mut page, 0).map_err(io)?;
        Ok(Self { path, storage, length, id, slots: decode_slots(&page, &id) })
    }

    /// Whether a slot is damaged.
    pub(crate) fn has_damaged_slot(&self) -> bool {
        self.slots.contains(&SlotState::Unreadable)
    }

    /// The highest commit that a slot marks as sealed.
    pub(crate) fn sealed(&self) -> Option<u64> {
        let commit = |state: &SlotState| match state {
            SlotState::Valid(slot) if slot.sealed => Some(slot.commit),
            _ => None,
        };
        self.slots.iter().filter_map(commit).max()
    }

    fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>> {
        // Ranges were checked against the footer's offset, so this allocates less than the file's
        // size.
        let mut bytes = vec![0; length as usize];
        self.storage.read_at(&mut bytes, offset).map_err(|e| Error::io(self.path, e))?;
        Ok(bytes)
    }

    /// The valid footer at an offset, or `None`.
    pub(crate) fn footer_at(&self, offset: u64) -> Result<Option<Footer>> {
        let inside =
            offset >= PAGE && offset.is_multiple_of(PAGE) && offset.checked_add(PAGE).is_some_and(|e| e <= self.length);
        if !inside {
            return Ok(None);
        }
        match self.read(offset, PAGE) {
            Ok(page) => Footer::decode(self.path, &page, offset, &self.id),
            // The file shrank after its length was read.
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The newest footer.
    pub(crate) fn newest(&self) -> Result<Footer> {
        // A file truncated at the end of an older commit would look complete.
        let ends = |slot: &Slot| slot.footer.saturating_add(PAGE);
        let slots = || {
            self.slots.iter().filter_map(|state| if let SlotState::Valid(slot) = state { Some(*slot) } else { None })
        };
        if let Some(lost) =
            slots().filter(|slot| slot.sealed && ends(slot) > self.length).max_by_key(|slot| slot.commit)
        {
            return Err(self.lost(lost));
        }
        if self.length.is_multiple_of(PAGE)
            && self.length >= 2 * PAGE
            && let Some(footer) = self.footer_at(self.length - PAGE)?
        {
            return Ok(footer);
        }
        let mut best: Option<Footer> = None;
        let mut slots: Vec<Slot> = slots().collect();
        slots.sort_by_key(|slot| Reverse(slot.commit));
        for slot in slots {
            let found = self.footer_at(slot.footer)?.filter(|footer| footer.commit == slot.commit);
            match found {
                Some(footer) if best.is_none_or(|b| b.commit < footer.commit) => best = Some(footer),
                None if slot.sealed => return Err(self.lost(slot)),
                Some(_) | None => {}
            }
        }
        let unreadable = self.slots.contains(&SlotState::Unreadable);
        if best.is_none() || unreadable {
            let found = self.scan()?;
            if best.is_none_or(|b| found.is_some_and(|f| f.commit > b.commit)) {
                best = found;
            }
            if let Some(best) = best {
                let (path, commit) = (self.path.display(), best.commit);
                log::warn!(
                    target: "fastrecord_core::open",
                    "{path}: page 0 does not lead to the newest commit: {commit} was found by looking through the file"
                );
            }
        }
        let best = best.ok_or_else(|| Error::NoCommit { path: self.path.to_owned() })?;
        let (path, tail) = (self.path.display(), self.length.saturating_sub(best.end()));
        log::info!(target: "fastrecord_core::open", "{path}: {tail} bytes after commit {}: a writer is active, or was interrupted", best.commit);
        Ok(best)
    }

    fn lost(&self, slot: Slot) -> Error {
        let expected = slot.footer.saturating_add(PAGE);
        if expected > self.length {
            let path = self.path.to_owned();
            return Error::Truncated { path, found: self.length, expected, commit: slot.commit };
        }
        let detail = format!("bytes {} to {expected} do not hold a valid footer", slot.footer);
        Error::corrupt(self.path, format!("footer of commit {}", slot.commit), detail)
    }

    /// The last valid footer in the file. Examines every page, from the end backwards.
    fn scan(&self) -> Result<Option<Footer>> {
        scan_pages(self.path, self.storage, self.length, |page, offset| {
            Footer::decode(self.path, page, offset, &self.id)
        })
    }

    /// Reads the directory and metadata of a footer and checks their CRCs.
    pub(crate) fn load(self, footer: Footer) -> Result<Commit> {
        let (directory, metadata) = (self.directory(&footer)?, self.metadata(&footer)?);
        Ok(Commit { id: self.id, footer, directory, metadata, file_length: self.length })
    }

    /// The directory of a footer, after checking its CRC.
    pub(crate) fn directory(&self, footer: &Footer) -> Result<Vec<u8>> {
        self.read_checked(footer.directory, format!("directory of commit {}", footer.commit))
    }

    /// The metadata of a footer.
    pub(crate) fn metadata(&self, footer: &Footer) -> Result<Metadata> {
        let part = format!("metadata of commit {}", footer.commit);
        let bytes = self.read_checked(footer.metadata, part.clone())?;
        let metadata = Metadata::decode(self.path, &bytes)?;
        // Dictionaries are kept in memory. Each one lies within the file; their total must not
        // exceed it either.
        let dictionaries = metadata.schema.dictionary_bytes();
        if dictionaries > footer.offset {
            let detail = format!("the dictionaries that it names have {dictionaries} bytes, the file has fewer");
            return Err(Error::corrupt(self.path, part, detail));
        }
        Ok(metadata)
    }

    fn read_checked(&self, range: CheckedRange, part: String) -> Result<Vec<u8>> {
        let bytes = self.read(range.offset, range.length)?;
        let computed = crate::format::crc::crc32c(&bytes);
        if computed == range.crc {
            return Ok(bytes);
        }
        let (stored, end) = (range.crc, range.offset + range.length);
        let detail = format!("stored CRC {stored:#010x}, computed {computed:#010x} (bytes {} to {end})", range.offset);
        Err(Error::corrupt(self.path, part, detail))
    }
}

/// Calls `look` for each page with the magic of a footer, backwards from `end`, until it returns
/// something.
pub(crate) fn scan_pages<T>(
    path: &Path,
    storage: &dyn Storage,
    end: u64,
    mut look: impl FnMut(&[u8], u64) -> Result<Option<T>>,
) -> Result<Option<T>> {
    const STEP: u64 = 256 * PAGE;
    let mut end = end / PAGE * PAGE;
    let mut bytes = Vec::new();
    while end > PAGE {
        let start = end.saturating_sub(STEP).max(PAGE);
        bytes.resize((end - start) as usize, 0);
        storage.read_at(&mut bytes, start).map_err(|e| Error::io(path, e))?;
        for (i, page) in bytes.chunks_exact(PAGE as usize).enumerate().rev() {
            if Footer::has_magic(page)
                && let Some(found) = look(page, start + i as u64 * PAGE)?
            {
                return Ok(Some(found));
            }
        }
        end = start;
    }
    Ok(None)
}

fn decode_slots(page: &[u8], id: &FileId) -> [SlotState; 2] {
    [0, 1].map(|commit| {
        let at = slot_offset(commit) as usize;
        page.get(at..at + SLOT_LEN).map_or(SlotState::Empty, |bytes| Slot::decode(bytes, id))
    })
}
