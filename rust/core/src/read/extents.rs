//! Extents of payloads and shapes of arrays: `Reader` methods that look them up in the index.

use crate::codec::Codec;
use crate::error::damage::Damage;
use crate::error::{Error, Result};
use crate::format::chunk::Part;
use crate::format::dtype::{ArrayType, shape_text};
use crate::format::extent::{EXTENT_LEN, Extent};
use crate::format::field_type::FieldType;
use crate::format::schema::FieldIndex;
use crate::memory;
use crate::read::reader::Reader;
use crate::read::records::Records;

/// Payloads of arrays and lists begin at multiples of this, in bytes.
const ARRAY_ALIGN: u64 = 64;

/// Reports whether a value of a type other than image may be stored so.
fn is_of_any_type(extent: &Extent) -> bool {
    extent.side() == 0 && extent.codec != Codec::PackedJpeg
}

impl Reader {
    /// The extent of one record.
    pub(crate) fn extent(&self, field: FieldIndex, record: u64) -> Result<Extent> {
        match self.extents(field, &self.records(std::slice::from_ref(&record))?)?[..] {
            [extent] => Ok(extent),
            _ => Err(Error::Internal("the lookup of one record found no extent, or several")),
        }
    }

    /// The extents of records. Extents of arrays fit their shapes.
    pub(crate) fn extents(&self, field: FieldIndex, records: &Records<'_>) -> Result<Vec<Extent>> {
        let kind = self.kind(field);
        if !kind.has_payloads() {
            return Err(self.wrong_type(field, "it has no payloads"));
        }
        self.own(records)?;
        self.check_file()?;
        let (limit, image) = (self.inner.footer.offset, *kind == FieldType::Image);
        let mut extents = memory::room(records.len())?;
        self.main_column(field).for_each::<EXTENT_LEN>(self.path(), records, |i, entry| {
            let extent = match entry {
                Some(bytes) => match Extent::decode(bytes, limit) {
                    Some(extent) if if image { !extent.is_compressed() } else { is_of_any_type(&extent) } => extent,
                    Some(extent) => {
                        let detail = if image {
                            "it is compressed, which images are not".to_owned()
                        } else if extent.codec == Codec::PackedJpeg {
                            "it is a packed JPEG, which only images are".to_owned()
                        } else {
                            format!("{} side bytes, which only images have", extent.side())
                        };
                        return Err(self.damaged(field, records[i], Damage::Extent(detail)));
                    }
                    None => Extent::explain(bytes, limit)
                        .map_err(|detail| self.damaged(field, records[i], Damage::Extent(detail)))?,
                },
                None => Extent { missing: true, ..Extent::default() },
            };
            extents.push(extent);
            Ok(())
        })?;
        if kind.alignment() == ARRAY_ALIGN {
            self.check_extents(field, kind, records, &extents)?;
        }
        Ok(extents)
    }

    /// The CRC-32C of each record's stored bytes, from the index; 0 for a missing value.
    ///
    /// # Errors
    /// A damaged index, or a field without payloads.
    pub fn checksums(&self, field: FieldIndex, records: &Records<'_>) -> Result<Vec<u32>> {
        memory::collected(self.extents(field, records)?.iter().map(|extent| extent.crc))
    }

    /// The further checks of the extents of arrays and lists.
    fn check_extents(
        &self,
        field: FieldIndex,
        kind: &FieldType,
        records: &Records<'_>,
        extents: &[Extent],
    ) -> Result<()> {
        for (i, extent) in extents.iter().enumerate() {
            if !extent.missing && extent.is_plain() && !extent.offset.is_multiple_of(ARRAY_ALIGN) {
                let detail = format!("it begins at {}, which is not a multiple of {ARRAY_ALIGN}", extent.offset);
                return Err(self.damaged(field, records[i], Damage::Extent(detail)));
            }
        }
        let Some(array) = kind.payload_array() else { return Ok(()) };
        if array.variable() > 1 {
            return self.shapes_of(field, array, records, extents).map(drop);
        }
        let bad = |e: &Extent| !e.missing && array.shape_of_bytes(e.length()).is_none();
        match extents.iter().position(bad) {
            Some(i) => Err(self.damaged(field, records[i], Damage::Extent(no_shape(array, extents[i].length())))),
            None => Ok(()),
        }
    }

    /// The shapes of arrays: all dimensions of one value, then the next value's. Zeros for a
    /// missing value.
    ///
    /// # Errors
    /// A damaged index, or a field of another type.
    pub fn shapes(&self, field: FieldIndex, records: &Records<'_>) -> Result<Vec<u64>> {
        match self.kind(field) {
            FieldType::Array(array) if array.nbytes().is_some() => {
                self.own(records)?;
                let mut shapes = memory::room(records.len().saturating_mul(array.shape().len()))?;
                records.iter().for_each(|_| shapes.extend(array.shape().iter().flatten()));
                Ok(shapes)
            }
            FieldType::Array(array) => {
                let extents = self.extents(field, records)?;
                self.shapes_of(field, array, records, &extents)
            }
            _ => Err(self.wrong_type(field, "it has no shape")),
        }
    }

    /// The shapes of arrays, without gaps; zeros for a missing value.
    fn shapes_of(
        &self,
        field: FieldIndex,
        array: &ArrayType,
        records: &Records<'_>,
        extents: &[Extent],
    ) -> Result<Vec<u64>> {
        let variable = array.variable();
        // An unknown dimension keeps a value that no array has.
        let mut dims = memory::collected((0..records.len() * variable).map(|_| u64::MAX))?;
        if variable > 1 {
            for part in 0..variable {
                let column = self.inner.index.column(field, Part(1 + part as u8));
                let column = column.ok_or(Error::Internal("an array of a variable shape has no column for it"))?;
                column.for_each::<8>(self.path(), records, |i, entry| {
                    if let Some(entry) = entry {
                        dims[i * variable + part] = u64::from_le_bytes(*entry);
                    }
                    Ok(())
                })?;
            }
        } else if variable == 1 {
            for (dim, extent) in dims.iter_mut().zip(extents) {
                *dim = array.shape_of_bytes(extent.length()).unwrap_or(u64::MAX);
            }
        }
        let mut shapes = memory::room(records.len() * array.shape().len())?;
        for (i, extent) in extents.iter().enumerate() {
            if extent.missing {
                shapes.resize(shapes.len() + array.shape().len(), 0);
                continue;
            }
            let mut dims = dims[i * variable..(i + 1) * variable].iter();
            let start = shapes.len();
            shapes.extend(array.shape().iter().map(|dim| dim.or_else(|| dims.next().copied()).unwrap_or(u64::MAX)));
            if array.nbytes_of(&shapes[start..]) != Some(extent.length()) {
                let detail = format!("{}: shape {}", no_shape(array, extent.length()), shape_text(&shapes[start..]));
                return Err(self.damaged(field, records[i], Damage::Extent(detail)));
            }
        }
        Ok(shapes)
    }
}

fn no_shape(array: &ArrayType, bytes: u64) -> String {
    format!("{bytes} bytes are not the size of {array}")
}

impl Reader {
    /// Chunks of the column with the most chunks. After a file is closed or compacted this is 1, or
    /// 0 without records.
    pub fn chunks(&self) -> usize {
        self.inner.index.columns().iter().map(|column| column.chunks.len()).max().unwrap_or(0)
    }
}
