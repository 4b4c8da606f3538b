//! Checks of a value beyond its checksum: whether it decompresses, decodes and parses.

use std::os::unix::fs::FileExt;

use serde::de::IgnoredAny;

use crate::error::damage::Damage;
use crate::error::decode::DecodeError;
use crate::error::{Error, Result};
use crate::format::chunk::Part;
use crate::format::dtype::DType;
use crate::format::extent::Extent;
use crate::format::field_type::FieldType;
use crate::format::list::{list_items, list_numbers};
use crate::format::schema::FieldIndex;
use crate::image::{CROP_INDEX, DecodeOptions, SixteenBit, check_crop_index, with_decoded};
use crate::read::payload::resized;
use crate::read::reader::Reader;

/// Buffers up to this size, in bytes, are reused for the next value.
const KEEP: usize = 16 << 20;

/// The buffers of one thread, for one value at a time.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub stored: Vec<u8>,
    value: Vec<u8>,
    pub side: Vec<u8>,
}

/// The numbers of images found in a value.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Found {
    pub decoded: u64,
    pub undecoded: u64,
}

/// Reads a value, and checks its checksum and its contents.
pub(crate) fn check_value(
    reader: &Reader,
    field: FieldIndex,
    record: u64,
    extent: &Extent,
    memory: &mut Memory,
) -> Result<Found> {
    let kind = reader.kind(field);
    if extent.missing {
        return Ok(Found::default());
    }
    if extent.is_plain() && !has_inside(kind) {
        let crc = reader.read_crc(extent, 0, 0, &mut memory.stored)?;
        return reader.compare_crc(field, record, extent.crc, crc).map(|()| Found::default());
    }
    for buffer in [&mut memory.stored, &mut memory.value, &mut memory.side] {
        if buffer.capacity() > KEEP {
            *buffer = Vec::new();
        }
    }
    resized(&mut memory.stored, extent.stored)?;
    reader.file().read_exact_at(&mut memory.stored, extent.offset).map_err(|e| Error::io(reader.path(), e))?;
    let bytes = if extent.is_plain() {
        reader.check_crc(field, record, extent, &memory.stored)?;
        &memory.stored[..extent.length() as usize]
    } else if !extent.is_compressed() {
        // A packed JPEG is decoded as it is.
        reader.check_crc(field, record, extent, &memory.stored)?;
        &memory.stored
    } else {
        resized(&mut memory.value, extent.length())?;
        let made = reader.decompress(field, record, extent, &memory.stored, &mut memory.value);
        // The damaged dictionary is already reported; this error reports the value.
        made.map_err(|error| match error {
            Error::Corrupt { part, detail, .. } => {
                let detail = format!("the {part} is damaged: {detail}");
                reader.damaged(field, record, Damage::Compressed(detail))
            }
            error => error,
        })?;
        &memory.value
    };
    let mut found = Found::default();
    let size = look_into(kind, bytes, &mut found).map_err(|damage| reader.damaged(field, record, damage))?;
    if let Some(size) = size {
        check_image_size(reader, field, record, size)?;
        if !extent.is_plain() {
            return Ok(found);
        }
        let (value, after) = memory.stored.split_at(extent.length() as usize);
        let index = if read_side(reader, field, record, &mut memory.side)? { &memory.side[..] } else { after };
        if index.first() == Some(&CROP_INDEX) {
            let checked = check_crop_index(value, index);
            checked.map_err(|error| {
                // The image itself has been decoded.
                let detail = if let DecodeError::Damaged { detail, .. } = error { detail } else { error.to_string() };
                reader.damaged(field, record, Damage::Side(detail))
            })?;
        }
    }
    Ok(found)
}

/// Reads and checks the side bytes of a record that lie elsewhere than after its value. Returns false
/// if it has none.
pub(crate) fn read_side(reader: &Reader, field: FieldIndex, record: u64, side: &mut Vec<u8>) -> Result<bool> {
    if reader.side_column(field).is_none() {
        return Ok(false);
    }
    match reader.side_extents(field, &reader.records(&[record])?) {
        Ok(extents) => match extents.first() {
            Some(extent) if extent.stored > 0 => reader.read_side(field, record, extent, true, side).map(|()| true),
            _ => Ok(false),
        },
        // A damaged block of the index is already reported.
        Err(error) if error.place().is_none() && !error.is_of_the_file() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Compares the decoded size with the columns of widths and heights, which samplers and users
/// rely on.
fn check_image_size(reader: &Reader, field: FieldIndex, record: u64, (width, height): (u32, u32)) -> Result<()> {
    for (part, name, decoded) in [(Part::WIDTH, "width", width), (Part::HEIGHT, "height", height)] {
        let Some(column) = reader.index().column(field, part) else { continue };
        let mut said = Ok(());
        // A damaged block of the column is already reported.
        let one = reader.records(std::slice::from_ref(&record))?;
        let _ = column.for_each::<4>(reader.path(), &one, |_, entry| {
            if let Some(stored) = entry.map(|entry| u32::from_le_bytes(*entry)).filter(|&stored| stored != decoded) {
                let detail = format!("its {name} is {decoded} pixels, but {stored} in the column");
                said = Err(reader.damaged(field, record, Damage::Content(detail)));
            }
            Ok(())
        });
        said?;
    }
    Ok(())
}

/// Checks values stored in columns. Skips damaged blocks, which are reported elsewhere.
pub(crate) fn check_columns(reader: &Reader, mut note: impl FnMut(&Error)) -> Result<()> {
    for (field, definition) in reader.schema().iter() {
        let Some(values) = definition.kind.values().filter(|values| values.dtype() == DType::Bool) else {
            continue;
        };
        let (Some(column), Some(bytes)) = (reader.index().column(field, Part::MAIN), values.nbytes()) else {
            continue;
        };
        for data in &column.chunks {
            let entries = match data.copy(reader.path(), column.name()) {
                Err(error) if error.is_of_the_file() => return Err(error),
                Err(_) => continue,
                Ok(entries) => entries,
            };
            for (record, entry) in (data.chunk.first..).zip(entries.chunks_exact(bytes as usize)) {
                if let Err(bad) = check_bools(entry) {
                    note(&reader.damaged(field, record, bad));
                }
            }
        }
    }
    Ok(())
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
fn look_into(kind: &FieldType, bytes: &[u8], found: &mut Found) -> std::result::Result<Option<(u32, u32)>, Damage> {
    match kind {
        FieldType::Image => return look_at_image(bytes, found),
        FieldType::String => std::str::from_utf8(bytes).map(drop).map_err(|_| Damage::Text)?,
        FieldType::Json => {
            let text = std::str::from_utf8(bytes).map_err(|_| Damage::Text)?;
            let parsed = serde_json::from_str::<IgnoredAny>(text);
            parsed.map_err(|error| Damage::Json(error.to_string()))?;
        }
        FieldType::List(item) => match &**item {
            FieldType::Scalar(dtype) => {
                let numbers = list_numbers(*dtype, bytes).map_err(Damage::List)?;
                if *dtype == DType::Bool {
                    check_bools(&bytes[numbers])?;
                }
            }
            item => {
                for (i, part) in list_items(item, bytes).map_err(Damage::List)?.into_iter().enumerate() {
                    let looked = look_into(item, &bytes[part.range], found);
                    looked.map_err(|damage| match damage {
                        Damage::Text => Damage::List(format!("item {i} is not valid UTF-8")),
                        Damage::Json(detail) => Damage::List(format!("item {i} is not valid JSON: {detail}")),
                        Damage::Content(detail) => Damage::List(format!("item {i}: {detail}")),
                        Damage::Image(error) => Damage::List(format!("item {i}: {error}")),
                        damage => damage,
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

fn look_at_image(bytes: &[u8], found: &mut Found) -> std::result::Result<Option<(u32, u32)>, Damage> {
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
        Err(error) => Err(Damage::Image(error)),
    }
}

fn check_bools(bytes: &[u8]) -> std::result::Result<(), Damage> {
    match bytes.iter().find(|&&byte| byte > 1) {
        Some(byte) => Err(Damage::Content(format!("the byte {byte}, but a bool is 0 or 1"))),
        None => Ok(()),
    }
}
