//! Finds the id of a damaged file and its newest whole commit. Only reads.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::file::find_commit::{Opening, scan_pages};
use crate::file::storage::Storage;
use crate::format::directory::decode_directory;
use crate::format::layout::{FileId, Footer, PAGE, decode_superblock};
use crate::format::metadata::Metadata;

/// Notes to the user about the file's structure, without duplicates.
#[derive(Debug, Default)]
pub(crate) struct Notes(pub(crate) Vec<String>);

impl Notes {
    pub(crate) fn say(&mut self, note: String) {
        if !self.0.contains(&note) {
            self.0.push(note);
        }
    }

    pub(crate) fn add(&mut self, error: &Error) {
        self.say(error.coded());
    }
}

/// Returns `None` for damaged data. Failed reads and newer versions stay errors.
pub(crate) fn kept<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(Error::Corrupt { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Finds the file's id, the newest whole commit, and notes on the search. The id comes from the
/// superblock, or else from most of the footers.
///
/// # Errors
/// The file has neither superblock nor footers, or a read fails.
pub(crate) fn find(path: &Path, file: &Arc<File>, control: &dyn Control) -> Result<Option<(FileId, State, Notes)>> {
    let io = |e| Error::io(path, e);
    let length = Storage::len(file.as_ref()).map_err(io)?;
    let mut page = vec![0; length.min(PAGE) as usize];
    file.read_at(&mut page, 0).map_err(io)?;
    let of_id = |id: FileId, control: &dyn Control| {
        let opening = Opening::with_id(path, file.as_ref(), id)?;
        let mut more = Notes::default();
        let found = Search { path, file, opening: &opening, control }.newest_whole(&mut more)?;
        Ok::<_, Error>(found.map(|state| (id, state, more)))
    };
    let said = decode_superblock(path, &page);
    let own = match said {
        Ok(id) => of_id(id, control)?,
        Err(_) => None,
    };
    if own.as_ref().is_some_and(|(_, state, _)| state.footer.offset + PAGE == length) {
        return Ok(own);
    }
    // Page 0 may belong to another file, and so may other pages, with footers at their correct
    // offsets.
    let mut seen: BTreeMap<FileId, (u64, u64)> = BTreeMap::new();
    scan_pages(path, file.as_ref(), length, |page, offset| {
        control.check()?;
        if let Some((id, at)) = Footer::claim(page)
            && at == offset
            && kept(Footer::decode(path, page, offset, &id))?.flatten().is_some()
        {
            let (count, last) = seen.entry(id).or_default();
            (*count, *last) = (*count + 1, offset.max(*last));
        }
        Ok(None::<()>)
    })?;
    let Some((id, _)) = seen.into_iter().max_by_key(|&(_, seen)| seen) else { return said.map(|_| None) };
    if own.as_ref().is_some_and(|(own, ..)| *own == id) {
        return Ok(own);
    }
    let Some(mut found) = of_id(id, control)? else { return Ok(own) };
    if said.is_ok_and(|said| said != id) {
        found.2.say(format!("{}: page 0 belongs to another file than the commits", path.display()));
    }
    Ok(Some(found))
}

/// The commit from which a damaged file is read.
pub(crate) struct State {
    pub(crate) footer: Footer,
    pub(crate) directory: Vec<u8>,
    pub(crate) metadata: Metadata,
    /// Whether the metadata comes from an older commit.
    pub(crate) borrowed: bool,
    /// Records of the newest valid footer.
    pub(crate) records: u64,
    /// The commit of the newest valid footer.
    pub(crate) newest: u64,
}

/// Visits the footers of a file, starting with the newest.
pub(crate) struct Search<'a> {
    pub(crate) path: &'a Path,
    pub(crate) file: &'a Arc<File>,
    pub(crate) opening: &'a Opening<'a>,
    pub(crate) control: &'a dyn Control,
}

impl Search<'_> {
    /// The last valid footer that ends at or before `end`.
    fn scan(&mut self, end: u64) -> Result<Option<Footer>> {
        let (path, id) = (self.path, self.opening.id);
        scan_pages(path, self.file.as_ref(), end, |page, offset| {
            self.control.check()?;
            Ok(kept(Footer::decode(path, page, offset, &id))?.flatten())
        })
    }

    /// The footer before another one.
    pub(crate) fn before(&mut self, footer: &Footer) -> Result<Option<Footer>> {
        if footer.previous == 0 {
            return Ok(None);
        }
        let named = kept(self.opening.footer_at(footer.previous))?.flatten();
        match named.filter(|before| before.commit < footer.commit) {
            Some(before) => Ok(Some(before)),
            None => self.scan(footer.previous),
        }
    }

    /// Finds the newest whole commit. A commit with damaged metadata may use an older commit's
    /// metadata.
    fn newest_whole(&mut self, notes: &mut Notes) -> Result<Option<State>> {
        let mut next = self.scan(self.opening.length)?;
        let Some(Footer { records, commit: newest, .. }) = next else { return Ok(None) };
        // Commits with intact directories and damaged metadata, newest first.
        let mut waiting: Vec<(Footer, Vec<u8>)> = Vec::new();
        while let Some(footer) = next {
            let mut read = |result: Result<Vec<u8>>| match result {
                Err(error @ Error::Corrupt { .. }) => {
                    notes.add(&error);
                    Ok(None)
                }
                other => other.map(Some),
            };
            let directory = read(self.opening.directory(&footer))?;
            let metadata = match self.opening.metadata(&footer) {
                Err(error @ Error::Corrupt { .. }) => {
                    notes.add(&error);
                    None
                }
                other => Some(other?),
            };
            if let Some(metadata) = metadata {
                let own = directory.map(|directory| (footer, directory, false));
                let newer = waiting.drain(..).map(|(footer, directory)| (footer, directory, true));
                for (footer, directory, borrowed) in newer.chain(own) {
                    match decode_directory(self.path, &directory, &footer, &metadata.schema) {
                        Ok(_) => return Ok(Some(State { footer, directory, metadata, borrowed, records, newest })),
                        Err(error) => notes.add(&error),
                    }
                }
            } else {
                waiting.extend(directory.map(|directory| (footer, directory)));
            }
            next = self.before(&footer)?;
        }
        Ok(None)
    }
}
