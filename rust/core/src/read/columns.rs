//! Values stored in columns of the index: `Reader` methods for some records or a whole column.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::chunk::Part;
use crate::format::dtype::ArrayType;
use crate::format::field_type::FieldType;
use crate::format::schema::FieldIndex;
use crate::memory;
use crate::read::reader::Reader;
use crate::read::records::Records;

/// A column's bytes: in the mapping, or in memory.
#[derive(Debug, Clone)]
pub enum ColumnBytes {
    /// Offset and length within the mapping.
    Mapped(u64, u64),
    /// Gathered or read once, and then shared.
    Copied(Arc<Vec<u8>>),
}

impl Reader {
    /// The values of records stored in the field's column, without gaps.
    ///
    /// # Errors
    /// A damaged column, a field of another type, or a record without a value.
    pub fn values(&self, field: FieldIndex, records: &Records<'_>) -> Result<Vec<u8>> {
        let mut out = memory::zeros(self.values_width(field)?.saturating_mul(records.len()))?;
        self.values_into(field, records, &mut out)?;
        Ok(out)
    }

    /// As [`Reader::values`], into the start of a buffer.
    ///
    /// # Errors
    /// As [`Reader::values`], and [`Error::BufferTooSmall`].
    pub fn values_into(&self, field: FieldIndex, records: &Records<'_>, out: &mut [u8]) -> Result<()> {
        let needed = self.values_width(field)?.saturating_mul(records.len());
        let given = out.len() as u64;
        let Some(out) = out.get_mut(..needed) else {
            return Err(Error::BufferTooSmall { path: self.path().to_owned(), needed: needed as u64, given });
        };
        self.own(records)?;
        self.check_file()?;
        self.main_column(field).gather(self.path(), records, out, |i| self.missing(field, records[i]))
    }

    /// Bytes of a value stored in the field's column.
    fn values_width(&self, field: FieldIndex) -> Result<usize> {
        if self.kind(field).has_payloads() {
            return Err(self.wrong_type(field, "its values are not in its column"));
        }
        Ok(self.main_column(field).width)
    }

    /// All values of a column and their type, after checking every block. Columns are `label`,
    /// small arrays, `image.width` and `image.height`.
    ///
    /// # Errors
    /// No such column, damage, or a record without a value.
    pub fn column(&self, name: &str) -> Result<(ArrayType, ColumnBytes)> {
        self.column_in(name, false)
    }

    /// As [`Reader::column`], but never in the mapping of the views.
    ///
    /// # Errors
    /// As [`Reader::column`].
    pub fn column_copy(&self, name: &str) -> Result<(ArrayType, ColumnBytes)> {
        self.column_in(name, true)
    }

    fn column_in(&self, name: &str, copy: bool) -> Result<(ArrayType, ColumnBytes)> {
        self.check_file()?;
        let (base, part) = match name.rsplit_once('.') {
            Some((base, "width")) => (base, Part::WIDTH),
            Some((base, "height")) => (base, Part::HEIGHT),
            _ => (name, Part::MAIN),
        };
        let field = self.field(base)?;
        let kind = self.kind(field);
        let index = &self.inner.index;
        let no_column = || self.wrong_type(field, &format!("it has no column {name:?}"));
        let column = index.column(field, part).ok_or_else(no_column)?;
        let Some(entries) = kind.column_type(part) else {
            if part != Part::MAIN {
                return Err(no_column());
            }
            let hint = match kind {
                FieldType::Image => format!("; it has {base}.width and {base}.height"),
                _ => String::new(),
            };
            return Err(self.wrong_type(field, &format!("only scalars and small arrays are columns{hint}")));
        };
        if let Some(chunk) = column.single(self.len())
            && let Some(offset) = chunk.mapped_at()
        {
            if copy {
                return Ok((entries, ColumnBytes::Copied(Arc::new(chunk.copy(self.path(), name)?))));
            }
            chunk.check_all(self.path(), name)?;
            return Ok((entries, ColumnBytes::Mapped(offset, chunk.chunk.length())));
        }
        if let Some(copy) = column.copy.get() {
            return Ok((entries, ColumnBytes::Copied(Arc::clone(copy))));
        }
        if let Some(record) = column.first_missing(self.len()) {
            return Err(self.missing(field, record));
        }
        let mut all = memory::room((self.len() as usize).saturating_mul(column.width))?;
        column.for_each_chunk(self.path(), |_, bytes| {
            all.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok((entries, ColumnBytes::Copied(Arc::clone(column.copy.get_or_init(|| Arc::new(all))))))
    }
}
