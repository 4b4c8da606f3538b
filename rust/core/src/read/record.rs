//! `Datum`: the value of one field of one record, of any type.

use crate::error::damage::Damage;
use crate::format::list::ListItem;
use crate::format::list::list_items;
use crate::format::list::list_numbers;
use std::os::unix::fs::FileExt;

use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::format::dtype::DType;
use crate::format::extent::Extent;
use crate::format::field_type::FieldType;
use crate::format::schema::FieldIndex;
use crate::memory;
use crate::read::payload::resized;
use crate::read::reader::Reader;
use crate::read::records::Records;
use crate::read::seen::Verify;

/// One value of a record.
#[derive(Debug, Clone, PartialEq)]
pub enum Datum {
    /// A payload's value: offset and length in the file. Read it through the mapping or with
    /// [`Reader::payload`].
    Payload(u64, u64),
    /// A payload's value in its own memory: a compressed value, or a list that the caller must
    /// decode.
    Decompressed(Vec<u8>),
    /// Text, possibly JSON text.
    Str(String),
    /// An int64.
    Int(i64),
    /// A float64.
    Float(f64),
    /// A number of another type, or an array stored in its column: little-endian, in C order.
    Values(Vec<u8>),
    /// The record has no value for the field.
    Missing,
}

impl Reader {
    /// One value of one record.
    ///
    /// # Errors
    /// Damage; with `verify`, also of a payload.
    pub fn datum(&self, field: FieldIndex, record: u64, verify: Verify) -> Result<Datum> {
        match self.kind(field) {
            FieldType::String | FieldType::Json => {
                Ok(self.strings(field, &self.records(&[record])?)?.pop().flatten().map_or(Datum::Missing, Datum::Str))
            }
            kind if kind.has_payloads() => {
                let extent = self.extent(field, record)?;
                if extent.missing {
                    return Ok(Datum::Missing);
                }
                if !extent.is_plain() || matches!(kind, FieldType::List(_)) {
                    return Ok(Datum::Decompressed(self.read_checked(field, record, &extent)?));
                }
                if self.is_due(field, record, verify) {
                    self.check_mapped(field, &[record], &[extent], verify)?;
                }
                Ok(Datum::Payload(extent.offset, extent.length()))
            }
            kind => {
                let values = match self.values(field, &self.records(&[record])?) {
                    Err(Error::Missing { .. }) => return Ok(Datum::Missing),
                    values => values?,
                };
                Ok(match (kind, values.as_slice().try_into()) {
                    (FieldType::Scalar(DType::Int64), Ok(word)) => Datum::Int(i64::from_le_bytes(word)),
                    (FieldType::Scalar(DType::Float64), Ok(word)) => Datum::Float(f64::from_le_bytes(word)),
                    _ => Datum::Values(values),
                })
            }
        }
    }

    /// The texts of records; `None` for a missing text.
    ///
    /// # Errors
    /// A damaged index or payload (checksums are always checked here), or a field of another type.
    pub fn strings(&self, field: FieldIndex, records: &Records<'_>) -> Result<Vec<Option<String>>> {
        if !self.kind(field).holds_text() {
            return Err(self.wrong_type(field, "it has no text"));
        }
        let extents = self.extents(field, records)?;
        let mut texts = memory::room(extents.len())?;
        for (extent, &record) in extents.iter().zip(records.iter()) {
            let bytes = if extent.missing { None } else { Some(self.read_checked(field, record, extent)?) };
            let text = bytes.map(String::from_utf8).transpose();
            texts.push(text.map_err(|_| self.damaged(field, record, Damage::Text))?);
        }
        Ok(texts)
    }

    /// A copy of one value, decompressed, read by a system call. Compressed values are always
    /// checked.
    ///
    /// # Errors
    /// A failed read, damage, or a record without a value.
    pub fn payload(&self, field: FieldIndex, record: u64, verify: Verify) -> Result<Vec<u8>> {
        let extent = self.extent(field, record)?;
        if extent.missing {
            return Err(self.missing(field, record));
        }
        if !extent.is_plain() {
            return self.decompressed(field, record, &extent);
        }
        let mut bytes = self.pread(field, record, &extent)?;
        if verify == Verify::Never {
            self.inner.guard.check_after(&self.inner.file)?;
        } else {
            self.check_crc(field, record, &extent, &bytes)?;
        }
        bytes.truncate(extent.length() as usize);
        Ok(bytes)
    }

    /// As [`Reader::payload`], to be decoded: a packed JPEG stays as it is stored.
    ///
    /// # Errors
    /// As [`Reader::payload`].
    pub(crate) fn encoded_image(&self, field: FieldIndex, record: u64, verify: Verify) -> Result<Vec<u8>> {
        let extent = self.extent(field, record)?;
        if extent.codec != Codec::PackedJpeg {
            return self.payload(field, record, verify);
        }
        let bytes = self.pread(field, record, &extent)?;
        self.check_crc(field, record, &extent, &bytes)?;
        Ok(bytes)
    }

    /// Copies one value, decompressed, to `out`, which must have its size. Reads from the mapping
    /// if there is one.
    ///
    /// # Errors
    /// A buffer of another size, a failed read, damage, or a record without a value.
    pub fn value_into(&self, field: FieldIndex, record: u64, out: &mut [u8], verify: Verify) -> Result<()> {
        let extent = self.extent(field, record)?;
        if extent.missing {
            return Err(self.missing(field, record));
        }
        let (needed, given) = (extent.length(), out.len() as u64);
        if needed != given {
            return Err(Error::BufferTooSmall { path: self.path().to_owned(), needed, given });
        }
        self.copy_one(field, record, &extent, out, verify)
    }

    fn read_checked(&self, field: FieldIndex, record: u64, extent: &Extent) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        resized(&mut bytes, extent.length())?;
        self.copy_one(field, record, extent, &mut bytes, Verify::Always)?;
        Ok(bytes)
    }

    fn pread(&self, field: FieldIndex, record: u64, extent: &Extent) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        resized(&mut bytes, extent.stored)?;
        let read = self.inner.file.read_exact_at(&mut bytes, extent.offset);
        read.map_err(|e| self.failed_read(field, record, e))?;
        Ok(bytes)
    }

    /// The positions of the items of a list whose payload is `bytes`.
    ///
    /// # Errors
    /// [`Damage::List`]; a field of another type.
    pub fn items(&self, field: FieldIndex, record: u64, bytes: &[u8]) -> Result<Vec<ListItem>> {
        match self.kind(field) {
            FieldType::List(kind) => match **kind {
                FieldType::Scalar(dtype) => list_numbers(dtype, bytes).map(|range| {
                    let shape = vec![(range.len() / dtype.size()) as u64];
                    vec![ListItem { range, shape }]
                }),
                _ => list_items(kind, bytes),
            }
            .map_err(|detail| self.damaged(field, record, Damage::List(detail))),
            _ => Err(self.wrong_type(field, "it holds no lists")),
        }
    }
}
