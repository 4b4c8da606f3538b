//! Checks of a value beyond its checksum: whether it decompresses, decodes and parses.

use std::os::unix::fs::FileExt;

use serde::de::IgnoredAny;

use crate::error::decode::DecodeError;
use crate::error::{Error, Result};
use crate::format::chunk::Part;
use crate::format::dtype::DType;
use crate::format::extent::Extent;
use crate::format::field_type::FieldType;
use crate::format::list::{list_items, list_numbers};
use crate::format::schema::FieldIndex;
use crate::image::with_decoded;
use crate::image::{DecodeOptions, SixteenBit};
use crate::read::payload::resized;
use crate::read::reader::Reader;

/// Buffers up to this size, in bytes, are reused for the next value.
const KEEP: usize = 16 << 20;

/// The buffers of one thread, for one value at a time.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub stored: Vec<u8>,
    value: Vec<u8>,
}

/// The numbers of images found in a value.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Found {
    pub decoded: u64,
    pub undecoded: u64,
}

impl Reader {
    /// Reads a value, and checks its checksum and its contents.
    pub(crate) fn check_value(
        &self,
        field: FieldIndex,
        record: u64,
        extent: &Extent,
        memory: &mut Memory,
    ) -> Result<Found> {
        let kind = self.kind(field);
        if extent.missing {
            return Ok(Found::default());
        }
        if extent.is_plain() && !has_inside(kind) {
            let crc = self.read_crc(extent, 0, 0, &mut memory.stored)?;
            return self.compare_crc(field, record, extent.crc, crc).map(|()| Found::default());
        }
        for buffer in [&mut memory.stored, &mut memory.value] {
            if buffer.capacity() > KEEP {
                *buffer = Vec::new();
            }
        }
        resized(&mut memory.stored, extent.stored)?;
        self.inner.file.read_exact_at(&mut memory.stored, extent.offset).map_err(|e| Error::io(self.path(), e))?;
        let bytes = if extent.is_plain() {
            self.check_crc(field, record, extent, &memory.stored)?;
            memory.stored.get(..extent.length() as usize).unwrap_or_default()
        } else {
            resized(&mut memory.value, extent.length())?;
            let made = self.decompress(field, record, extent, &memory.stored, &mut memory.value);
            // The damaged dictionary is already reported; this error reports the value.
            made.map_err(|error| match error {
                Error::Corrupt { part, detail, .. } => {
                    let (path, field) = (self.path().to_owned(), self.name_of(field));
                    Error::BadPayload { path, record, field, detail: format!("the {part} is damaged: {detail}") }
                }
                error => error,
            })?;
            &memory.value
        };
        let mut found = Found::default();
        let size = look_into(kind, bytes, &mut found).map_err(|bad| self.bad(field, record, bad))?;
        if let Some(size) = size {
            self.check_image_size(field, record, size)?;
        }
        Ok(found)
    }

    fn bad(&self, field: FieldIndex, record: u64, bad: Bad) -> Error {
        let (path, field) = (self.path().to_owned(), self.name_of(field));
        match bad {
            Bad::Text => Error::BadString { path, record, field },
            Bad::Json(detail) => Error::BadJson { path, record, field, detail },
            Bad::List(detail) => Error::BadList { path, record, field, detail },
            Bad::Image(source) => Error::Decode { path, record, field, source },
            Bad::Value(detail) => Error::BadStored { path, record, field, detail },
        }
    }

    /// Compares the decoded size with the columns of widths and heights, which samplers and users
    /// rely on.
    fn check_image_size(&self, field: FieldIndex, record: u64, (width, height): (u32, u32)) -> Result<()> {
        for (part, name, decoded) in [(Part::WIDTH, "width", width), (Part::HEIGHT, "height", height)] {
            let Some(column) = self.inner.index.column(field, part) else { continue };
            let mut said = Ok(());
            // A damaged block of the column is already reported.
            let one = self.records(std::slice::from_ref(&record))?;
            let _ = column.for_each::<4>(self.path(), &one, |_, entry| {
                if let Some(stored) = entry.map(|entry| u32::from_le_bytes(*entry)).filter(|&stored| stored != decoded)
                {
                    let detail = format!("its {name} is {decoded} pixels, the column says {stored}");
                    said = Err(self.bad(field, record, Bad::Value(detail)));
                }
                Ok(())
            });
            said?;
        }
        Ok(())
    }

    /// Checks values stored in columns. Skips damaged blocks, which are reported elsewhere.
    pub(crate) fn check_columns(&self, mut note: impl FnMut(&Error)) -> Result<()> {
        for (field, definition) in self.schema().iter() {
            let Some(values) = definition.kind.values().filter(|values| values.dtype() == DType::Bool) else {
                continue;
            };
            let (Some(column), Some(bytes)) = (self.inner.index.column(field, Part::MAIN), values.nbytes()) else {
                continue;
            };
            for data in &column.chunks {
                let entries = match data.copy(self.path(), column.name()) {
                    Err(error) if error.is_of_the_file() => return Err(error),
                    Err(_) => continue,
                    Ok(entries) => entries,
                };
                for (record, entry) in (data.chunk.first..).zip(entries.chunks_exact(bytes as usize)) {
                    if let Err(bad) = check_bools(entry) {
                        note(&self.bad(field, record, bad));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Why a value is invalid.
enum Bad {
    Text,
    Json(String),
    List(String),
    Image(DecodeError),
    Value(String),
}

/// Whether a value of this type can be invalid although its checksum is right.
fn has_inside(kind: &FieldType) -> bool {
    match kind {
        FieldType::Image | FieldType::String | FieldType::Json | FieldType::List(_) => true,
        FieldType::Array(array) => array.dtype() == DType::Bool,
        FieldType::Scalar(dtype) => *dtype == DType::Bool,
        FieldType::Bytes => false,
    }
}

/// Checks the bytes of a value or list item. For an image, returns its size in pixels.
fn look_into(kind: &FieldType, bytes: &[u8], found: &mut Found) -> std::result::Result<Option<(u32, u32)>, Bad> {
    match kind {
        FieldType::Image => return look_at_image(bytes, found),
        FieldType::String => std::str::from_utf8(bytes).map(drop).map_err(|_| Bad::Text)?,
        FieldType::Json => {
            let text = std::str::from_utf8(bytes).map_err(|_| Bad::Text)?;
            let parsed = serde_json::from_str::<IgnoredAny>(text);
            parsed.map_err(|error| Bad::Json(error.to_string()))?;
        }
        FieldType::List(item) => match &**item {
            FieldType::Scalar(dtype) => {
                let numbers = list_numbers(*dtype, bytes).map_err(Bad::List)?;
                if *dtype == DType::Bool {
                    check_bools(bytes.get(numbers).unwrap_or_default())?;
                }
            }
            item => {
                for (i, part) in list_items(item, bytes).map_err(Bad::List)?.into_iter().enumerate() {
                    let looked = look_into(item, bytes.get(part.range).unwrap_or_default(), found);
                    looked.map_err(|bad| match bad {
                        Bad::Text => Bad::List(format!("item {i} is not valid UTF-8")),
                        Bad::Json(detail) => Bad::List(format!("item {i} is not valid JSON: {detail}")),
                        Bad::Value(detail) => Bad::List(format!("item {i}: {detail}")),
                        Bad::Image(error) => Bad::List(format!("item {i}: {error}")),
                        bad @ Bad::List(_) => bad,
                    })?;
                }
            }
        },
        FieldType::Array(array) if array.dtype() == DType::Bool => check_bools(bytes)?,
        FieldType::Scalar(DType::Bool) => check_bools(bytes)?,
        FieldType::Bytes | FieldType::Array(_) | FieldType::Scalar(_) => {}
    }
    Ok(None)
}

fn look_at_image(bytes: &[u8], found: &mut Found) -> std::result::Result<Option<(u32, u32)>, Bad> {
    let options = DecodeOptions { sixteen_bit: SixteenBit::Clip, ..DecodeOptions::default() };
    match with_decoded(bytes, options, |image| (image.width, image.height)) {
        Ok(size) => {
            found.decoded += 1;
            Ok(Some(size))
        }
        // Other decoders may support it: it was verified to be an image when it was appended.
        Err(DecodeError::Unknown { .. } | DecodeError::Unsupported { .. })
            if crate::image::size::image_size(bytes).is_ok() =>
        {
            found.undecoded += 1;
            Ok(None)
        }
        Err(error) => Err(Bad::Image(error)),
    }
}

fn check_bools(bytes: &[u8]) -> std::result::Result<(), Bad> {
    match bytes.iter().find(|&&byte| byte > 1) {
        Some(byte) => Err(Bad::Value(format!("the byte {byte}, where a bool is 0 or 1"))),
        None => Ok(()),
    }
}
