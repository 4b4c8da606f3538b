//! `Writer` methods that add side bytes to images of existing records, apart from their values. See
//! docs/format.md, "Side bytes".

use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::format::crc::crc32c;
use crate::format::extent::Extent;
use crate::limits::MAX_SIDE_BYTES;
use crate::write::column::ColumnWriter;
use crate::write::field::FieldWriter;
use crate::write::writer::Writer;

/// Side bytes begin at multiples of this.
const ALIGN: u64 = 8;

impl Writer {
    /// Adds the side bytes of the next image to a field; empty if it gets none. They lie apart from
    /// the value. [`Writer::end_sides`] says which records they belong to.
    ///
    /// # Errors
    /// The field is not of type image, too many bytes, or a failed write.
    pub(crate) fn put_side(&mut self, field: usize, side: &[u8]) -> Result<()> {
        self.check_appendable()?;
        side_column(&mut self.fields, field)?;
        if side.len() as u64 > MAX_SIDE_BYTES {
            return Err(Error::Schema(format!("{} side bytes", side.len())));
        }
        let put = self.put_one_side(side).and_then(|extent| self.keep_side(field, &extent));
        self.guard(put)
    }

    fn put_one_side(&mut self, side: &[u8]) -> Result<Extent> {
        self.output.pad(ALIGN)?;
        let (offset, length) = (self.output.position(), side.len() as u64);
        self.output.put(side)?;
        Ok(Extent { offset, stored: length, raw: length, crc: crc32c(side), codec: Codec::None, missing: false })
    }

    /// As [`Writer::put_side`], for side bytes that are in the file already.
    pub(crate) fn keep_side(&mut self, field: usize, extent: &Extent) -> Result<()> {
        let column = side_column(&mut self.fields, field)?;
        let entry = extent.encode();
        column.reserve(entry.len())?;
        column.push(&entry);
        Ok(())
    }

    /// Ends a run of side bytes: those put since the last run belong to the records before `end`. They
    /// replace the chunks of these records. Call it before each commit.
    ///
    /// # Errors
    /// The field is not of type image; a failed write.
    pub(crate) fn end_sides(&mut self, field: usize, end: u64) -> Result<()> {
        self.check_usable()?;
        let Self { fields, output, .. } = self;
        let written = side_column(fields, field).and_then(|column| column.replace_with_pending(output, end));
        self.columns_changed |= self.guard(written)?;
        Ok(())
    }

    /// Drops the side bytes that were put since the last run.
    pub(crate) fn drop_pending_sides(&mut self, field: usize) -> Result<()> {
        side_column(&mut self.fields, field).map(ColumnWriter::drop_pending)
    }

    /// Drops all side bytes of a field that lie apart from the values, with the next commit. Their
    /// bytes stay in the file.
    ///
    /// # Errors
    /// The field is not of type image.
    pub(crate) fn drop_sides(&mut self, field: usize) -> Result<()> {
        self.check_appendable()?;
        let column = side_column(&mut self.fields, field)?;
        self.columns_changed |= !column.chunks().is_empty();
        column.clear();
        Ok(())
    }
}

fn side_column(fields: &mut [FieldWriter], field: usize) -> Result<&mut ColumnWriter> {
    let column = fields.get_mut(field).and_then(FieldWriter::side_column_mut);
    column.ok_or_else(|| Error::Schema("only images have side bytes".to_owned()))
}
