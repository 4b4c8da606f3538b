//! `Mender`: restores damaged index blocks from chunks of older commits. Merging chunks leaves the
//! old ones in the file.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::file::storage::Storage;
use crate::format::chunk::{Chunk, Part};
use crate::format::layout::{BLOCK, CHUNK_LEN, Footer};
use crate::format::schema::Schema;
use crate::read::chunk::ChunkData;
use crate::read::index::Index;
use crate::read::source::Source;
use crate::repair::salvage::Loss;

/// The byte that fills lost entries. A reader rejects such an extent.
const LOST: u8 = 0xFF;

/// Calls its argument with the footer and directory of each older commit, newest first.
type Walk<'a> = dyn FnMut(&mut dyn FnMut(&Footer, &[u8])) -> Result<()> + 'a;

/// Chunks of a column by their offset, with the newest commit that refers to each.
type ByOffset = BTreeMap<u64, (Chunk, u64)>;

/// Chunks of earlier commits, loaded lazily on the first damaged block.
pub(crate) struct OlderChunks<'a> {
    walk: Box<Walk<'a>>,
    found: Option<BTreeMap<(u32, Part), ByOffset>>,
}

impl<'a> OlderChunks<'a> {
    pub(crate) fn new(walk: impl FnMut(&mut dyn FnMut(&Footer, &[u8])) -> Result<()> + 'a) -> Self {
        Self { walk: Box::new(walk), found: None }
    }

    /// Other chunks of the same column that share records with `chunk`.
    fn like(&mut self, chunk: &Chunk) -> Result<Vec<(Chunk, u64)>> {
        if self.found.is_none() {
            let mut found: BTreeMap<_, BTreeMap<u64, (Chunk, u64)>> = BTreeMap::new();
            (self.walk)(&mut |footer, directory| {
                for bytes in directory.chunks_exact(CHUNK_LEN) {
                    let Ok(chunk) = Chunk::decode(bytes, footer) else { continue };
                    let column = found.entry((chunk.field, chunk.part)).or_default();
                    if let Entry::Vacant(new) = column.entry(chunk.offset) {
                        new.insert((chunk, footer.commit));
                    }
                }
            })?;
            self.found = Some(found);
        }
        let column = self.found.as_ref().and_then(|found| found.get(&(chunk.field, chunk.part)));
        let fits = |other: &Chunk| {
            other.offset != chunk.offset
                && (other.width, other.encoding) == (chunk.width, chunk.encoding)
                && other.first < chunk.end_record()
                && other.end_record() > chunk.first
        };
        Ok(column.into_iter().flat_map(BTreeMap::values).filter(|(other, _)| fits(other)).copied().collect())
    }
}

/// Restores the columns of a commit.
pub(crate) struct Mender<'a> {
    pub path: &'a Path,
    pub file: &'a Arc<File>,
    pub older: OlderChunks<'a>,
    /// Records with lost entries.
    pub losses: Vec<Loss>,
    /// The entries taken from older commits, as text.
    pub mended: Vec<String>,
}

impl Mender<'_> {
    /// Checks each block. Replaces chunks with damaged blocks by their readable entries.
    pub(crate) fn mend(&mut self, index: &mut Index, schema: &Schema) -> Result<()> {
        for column in index.columns_mut() {
            let name = column.name().to_owned();
            for data in &mut column.chunks {
                match data.check_all(self.path, &name) {
                    Ok(()) => {}
                    Err(Error::Corrupt { .. }) => {
                        let field = schema.fields().iter().find(|field| field.id == data.chunk.field);
                        let field = field.map_or_else(String::new, |field| field.name.clone());
                        *data = self.mend_chunk(data, &name, &field)?;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn read(&self, chunk: &Chunk) -> Result<Vec<u8>> {
        let mut bytes = vec![0; (chunk.end() - chunk.offset) as usize];
        self.file.read_at(&mut bytes, chunk.offset).map_err(|e| Error::io(self.path, e))?;
        Ok(bytes)
    }

    fn mend_chunk(&mut self, data: &ChunkData, name: &str, field: &str) -> Result<ChunkData> {
        let chunk = data.chunk;
        let (width, blocks) = (usize::from(chunk.width), chunk.table().1 as usize);
        let mut bytes = self.read(&chunk)?;
        // For each record whose entry touches a damaged block: the error of that block.
        let mut missing: BTreeMap<u64, Arc<str>> = BTreeMap::new();
        for block in 0..blocks {
            if let Err(error) = data.check_block(self.path, name, &bytes, block) {
                let end = ((block + 1) * BLOCK).min(chunk.length() as usize);
                let why: Arc<str> = error.coded().into();
                for record in (block * BLOCK / width) as u64..=((end - 1) / width) as u64 {
                    missing.insert(chunk.first + record, Arc::clone(&why));
                }
            }
        }
        for (other, commit) in self.older.like(&chunk)? {
            let range = other.first.max(chunk.first)..other.end_record().min(chunk.end_record());
            if missing.range(range.clone()).next().is_none() {
                continue;
            }
            let (older, copy) = (self.read(&other)?, ChunkData::new(other, Source::File(Arc::clone(self.file))));
            let wanted: Vec<u64> = missing.range(range).map(|(record, _)| *record).collect();
            let mut taken: Vec<u64> = Vec::new();
            for record in wanted {
                let (from, to) = ((record - other.first) as usize * width, (record - chunk.first) as usize * width);
                let good = (from / BLOCK..=(from + width - 1) / BLOCK)
                    .all(|block| copy.check_block(self.path, name, &older, block).is_ok());
                if let (true, Some(entry), Some(place)) =
                    (good, older.get(from..from + width), bytes.get_mut(to..to + width))
                {
                    place.copy_from_slice(entry);
                    missing.remove(&record);
                    taken.push(record);
                }
            }
            if let (Some(first), Some(last)) = (taken.first(), taken.last()) {
                let path = self.path.display();
                let entries = taken.len();
                self.mended.push(format!(
                    "{path}: column {name}, records {first} to {last}: {entries} entries were taken from commit {commit}"
                ));
            }
        }
        for (record, why) in missing {
            let at = (record - chunk.first) as usize * width;
            bytes.get_mut(at..at + width).unwrap_or_default().fill(LOST);
            match self.losses.last_mut() {
                Some(last) if last.records.end == record && *last.why == *why => last.records.end += 1,
                _ => {
                    let field = Some(field.to_owned());
                    self.losses.push(Loss { records: record..record + 1, field, why: why.to_string() });
                }
            }
        }
        Ok(ChunkData::mended(chunk, Source::File(Arc::clone(self.file)), bytes))
    }
}
