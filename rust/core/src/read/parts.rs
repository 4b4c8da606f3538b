//! Parts of a snapshot: where the bytes of columns and payloads lie, and whether they are intact,
//! for whoever keeps a copy of a file of which some parts are still elsewhere.

use std::path::Path;

use crate::error::{Error, Result};
use crate::format::extent::Extent;
use crate::format::layout::{Footer, PAGE, decode_superblock};
use crate::format::schema::FieldIndex;
use crate::memory;
use crate::read::reader::Reader;
use crate::read::records::Records;

/// Bytes of a file: offset and length.
type Stretch = (u64, u64);

/// What a footer says of its commit, and where the rest lies that opening reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitParts {
    /// The file's id.
    pub file_id: [u8; 16],
    /// The commit number.
    pub commit: u64,
    /// Records at that commit.
    pub records: u64,
    /// Whether the footer's CRC depends on all values of the commit. Writers before this flag left the
    /// contents of columns out.
    pub covers_content: bool,
    /// Where the directory lies.
    pub directory: Stretch,
    /// Where the metadata lies.
    pub metadata: Stretch,
}

impl CommitParts {
    /// Reads them from page 0 and the page of a footer at an offset.
    ///
    /// # Errors
    /// The pages are not those of a .frec file, or the second is not a valid footer of it.
    pub fn of(path: &Path, first: &[u8], footer: &[u8], offset: u64) -> Result<Self> {
        let id = decode_superblock(path, first)?;
        let footer = Footer::decode(path, footer, offset, &id)?;
        let Some(footer) = footer else {
            let end = offset.saturating_add(PAGE);
            return Err(Error::corrupt(path, format!("bytes {offset} to {end}"), "they are not a valid footer"));
        };
        let stretch = |range: crate::format::layout::CheckedRange| (range.offset, range.length);
        let (directory, metadata) = (stretch(footer.directory), stretch(footer.metadata));
        let Footer { commit, records, covers_content, .. } = footer;
        Ok(Self { file_id: id, commit, records, covers_content, directory, metadata })
    }
}

/// Where the payload of a record lies, and its side bytes that lie elsewhere; lengths are 0 where
/// it has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PayloadParts {
    /// The value, and the side bytes that follow it.
    pub value: Stretch,
    /// Side bytes elsewhere.
    pub side: Stretch,
}

impl Reader {
    /// Where the columns of a field lie, with their check tables, and its dictionaries.
    pub fn field_parts(&self, field: FieldIndex) -> Vec<Stretch> {
        let chunks = self.index().of_field(field).iter().flat_map(|column| &column.chunks);
        let columns = chunks.map(|data| (data.chunk.offset, data.chunk.end() - data.chunk.offset));
        let compression = self.schema()[field].compression.iter();
        columns.chain(compression.flat_map(|c| &c.dictionaries).map(|d| (d.offset, d.length))).collect()
    }

    /// Checks every block of the columns of a field.
    ///
    /// # Errors
    /// Damage, and failed reads.
    pub fn check_field(&self, field: FieldIndex) -> Result<()> {
        self.check_file()?;
        for column in self.index().of_field(field) {
            for data in &column.chunks {
                if let Some((_, error)) = data.damaged_blocks(self.path(), column.name())?.into_iter().next() {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Where the payloads of records lie.
    ///
    /// # Errors
    /// A damaged index, or a field without payloads.
    pub fn payload_parts(&self, field: FieldIndex, records: &Records<'_>) -> Result<Vec<PayloadParts>> {
        let (values, sides) = (self.extents(field, records)?, self.side_extents(field, records)?);
        let stretch = |extent: &Extent| (extent.offset, extent.stored);
        let side = |i| sides.get(i).map_or((0, 0), stretch);
        let parts = values.iter().enumerate().map(|(i, value)| PayloadParts { value: stretch(value), side: side(i) });
        memory::collected(parts)
    }

    /// Positions in `records` of the payloads whose bytes differ from their checksums. Reads the
    /// file, whatever was checked before.
    ///
    /// # Errors
    /// A damaged index, a field without payloads, and failed reads.
    pub fn damaged_payloads(&self, field: FieldIndex, records: &Records<'_>) -> Result<Vec<u64>> {
        let (values, sides) = (self.extents(field, records)?, self.side_extents(field, records)?);
        let mut piece = Vec::new();
        let mut damaged = Vec::new();
        for (i, value) in values.iter().enumerate() {
            let mut differs = |extent: &Extent| {
                Ok::<_, Error>(extent.stored > 0 && self.read_crc(extent, 0, 0, &mut piece)? != extent.crc)
            };
            if differs(value)? || sides.get(i).map_or(Ok(false), differs)? {
                damaged.push(i as u64);
            }
        }
        Ok(damaged)
    }
}
