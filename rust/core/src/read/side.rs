//! Side bytes of images, and how values are stored: `Reader` methods that find, read and check them.

use std::os::unix::fs::FileExt;

use crate::codec::Codec;
use crate::error::Result;
use crate::error::damage::Damage;
use crate::format::chunk::Part;
use crate::format::crc::crc32c;
use crate::format::extent::{EXTENT_LEN, Extent};
use crate::format::field_type::FieldType;
use crate::format::schema::FieldIndex;
use crate::memory;
use crate::read::index::Column;
use crate::read::payload::resized;
use crate::read::reader::Reader;
use crate::read::records::Records;

impl Reader {
    /// The column of side bytes that lie elsewhere than after their value, if it has any entry.
    pub(crate) fn side_column(&self, field: FieldIndex) -> Option<&Column> {
        let image = *self.kind(field) == FieldType::Image;
        let column = if image { self.inner.index.column(field, Part::SIDE) } else { None };
        column.filter(|column| !column.chunks.is_empty())
    }

    /// The extents of side bytes that lie elsewhere than after their value. They have no stored byte for
    /// records that have none there; they are missing if no writer has looked. Empty if the file has
    /// none at all.
    pub(crate) fn side_extents(&self, field: FieldIndex, records: &Records<'_>) -> Result<Vec<Extent>> {
        let Some(column) = self.side_column(field) else { return Ok(Vec::new()) };
        self.own(records)?;
        self.check_file()?;
        let limit = self.inner.footer.offset;
        let mut extents = memory::room(records.len())?;
        column.for_each::<EXTENT_LEN>(self.path(), records, |i, entry| {
            let missing = Extent { missing: true, ..Extent::default() };
            let extent = match entry {
                Some(bytes) => Extent::decode(bytes, limit).map_or_else(|| Extent::explain(bytes, limit), Ok),
                None => Ok(missing),
            };
            let extent = extent.and_then(|extent| extent.check_side().map(|()| extent));
            extents.push(extent.map_err(|detail| self.damaged(field, records[i], Damage::Side(detail)))?);
            Ok(())
        })?;
        Ok(extents)
    }

    /// Reads side bytes that lie elsewhere than after their value. With `check`, compares their CRC.
    pub(crate) fn read_side(
        &self,
        field: FieldIndex,
        record: u64,
        extent: &Extent,
        check: bool,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        resized(out, extent.stored)?;
        self.file().read_exact_at(out, extent.offset).map_err(|e| self.failed_read(field, record, e))?;
        let (stored, computed) = (extent.crc, if check { crc32c(out) } else { extent.crc });
        if stored != computed {
            let detail = format!("stored CRC {stored:#010x}, computed {computed:#010x}");
            return Err(self.damaged(field, record, Damage::Side(detail)));
        }
        Ok(())
    }

    /// How each record's value is stored; [`Codec::None`] for a missing one.
    ///
    /// # Errors
    /// As [`Reader::lengths`](crate::Reader::lengths).
    pub fn codecs(&self, field: FieldIndex, records: &Records<'_>) -> Result<Vec<Codec>> {
        memory::collected(self.extents(field, records)?.iter().map(|extent| extent.codec))
    }

    /// The kind of each record's side bytes, and 0 for a record without any. docs/format.md lists the
    /// kinds. Does not compare checksums.
    ///
    /// # Errors
    /// As [`Reader::lengths`](crate::Reader::lengths); failed reads.
    pub fn side_kinds(&self, field: FieldIndex, records: &Records<'_>) -> Result<Vec<u8>> {
        let (extents, elsewhere) = (self.extents(field, records)?, self.side_extents(field, records)?);
        let mut kinds = memory::room(records.len())?;
        for (i, extent) in extents.iter().enumerate() {
            let mut kind = [0];
            let at = match elsewhere.get(i) {
                Some(side) if side.stored > 0 => Some(side.offset),
                _ => (extent.side() > 0).then_some(extent.offset + extent.raw),
            };
            if let Some(at) = at {
                self.file().read_exact_at(&mut kind, at).map_err(|e| self.failed_read(field, records[i], e))?;
            }
            kinds.push(kind[0]);
        }
        Ok(kinds)
    }
}
