//! `FieldWriter`: writes the payloads of one field, and gathers the entries of its columns.
//! `NewFieldWriter`: one for a field that is being added to existing records.

use std::collections::HashMap;

use crate::codec::Codec;
use crate::error::Result;
use crate::format::chunk::{Chunk, Part};
use crate::format::dictionary::DictionaryRange;
use crate::format::extent::{EXTENT_LEN, Extent};
use crate::format::schema::Field;
use crate::write::column::{ColumnKey, ColumnWriter, MergeRule};
use crate::write::compress::{Decision, FieldEncoder, KEEP, Packed, Payload};
use crate::write::output::Output;
use crate::write::value::Value;

/// One field of the file that is being written.
#[derive(Debug)]
pub(super) struct FieldWriter {
    /// The column of values or extents, then columns of image sizes or variable dimensions.
    columns: Vec<ColumnWriter>,
    /// Encodes the payloads of a compressed field.
    encoder: Option<FieldEncoder>,
    place: Place,
    /// Which dimensions of an array that is a payload vary.
    varies: Vec<bool>,
}

/// Where the payloads of a field go.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// Payloads begin at multiples of this. Compressed ones need no alignment, because they are
    /// decompressed into other memory.
    Aligned(u64),
    /// They are gathered with the strings of other records and fields.
    Strings,
}

impl Place {
    /// Appends a payload. Returns its extent. The offset of a string is relative.
    fn put(self, output: &mut Output, payload: &Payload<'_>) -> Result<Extent> {
        let Payload { ref bytes, side, raw, codec, crc } = *payload;
        let offset = match self {
            Self::Strings => output.put_string(bytes)?,
            Self::Aligned(alignment) => {
                output.pad(if codec == Codec::None { alignment } else { 1 })?;
                let offset = output.position();
                output.put(bytes)?;
                output.put(side)?;
                offset
            }
        };
        Ok(Extent { offset, stored: payload.stored(), raw, crc, codec, missing: false })
    }
}

impl FieldWriter {
    pub(super) fn new(field: &Field) -> Self {
        let (kind, array) = (&field.kind, field.kind.payload_array());
        Self {
            columns: ColumnKey::of(field).map(ColumnWriter::new).collect(),
            encoder: FieldEncoder::new(field),
            place: if kind.holds_text() { Place::Strings } else { Place::Aligned(kind.alignment()) },
            varies: array.map_or_else(Vec::new, |array| array.shape().iter().map(Option::is_none).collect()),
        }
    }

    /// Appends a value that fits the field. `size` is the size of an image.
    pub(super) fn append(
        &mut self,
        value: &Value<'_>,
        size: (u32, u32),
        output: &mut Output,
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        let in_column = !self.columns[0].has_extents();
        let longest = match value {
            Value::Number(bytes) => bytes.len(),
            Value::Array { data, .. } if in_column => data.len(),
            _ => 0,
        };
        for column in &mut self.columns {
            column.reserve(longest.max(EXTENT_LEN))?;
        }
        match *value {
            Value::Int(value) => self.columns[0].push(&value.to_le_bytes()),
            Value::Float(value) => self.columns[0].push(&value.to_le_bytes()),
            Value::Number(bytes) => self.columns[0].push(bytes),
            Value::Array { data, .. } if in_column => self.columns[0].push(data),
            Value::Array { data, shape } => {
                self.append_payload(data, output, scratch)?;
                self.push_dims(shape);
            }
            Value::Str(text) => self.append_payload(text.as_bytes(), output, scratch)?,
            Value::Bytes(data) | Value::List(data) => self.append_payload(data, output, scratch)?,
            Value::Image { data, .. } if self.encoder.is_some() => self.append_payload(data, output, scratch)?,
            Value::Image { data, side, crc, .. } => {
                let extent = self.place.put(output, &Payload::image(data, side, crc))?;
                self.columns[0].push(&extent.encode());
            }
            Value::PackedJpeg { packed, length, crc, .. } => {
                let extent = self.place.put(output, &Payload::packed_jpeg(packed, length, crc))?;
                self.columns[0].push(&extent.encode());
            }
        }
        // A field of bytes also takes images, but has no columns for their sizes.
        if let (Value::Bytes(_) | Value::Image { .. } | Value::PackedJpeg { .. }, [_, width, height, _]) =
            (value, &mut self.columns[..])
        {
            width.push(&size.0.to_le_bytes());
            height.push(&size.1.to_le_bytes());
        }
        Ok(())
    }

    /// Appends a payload, or holds it until the compression is chosen.
    fn append_payload(&mut self, value: &[u8], output: &mut Output, scratch: &mut Vec<u8>) -> Result<()> {
        let extent = match &mut self.encoder {
            None => self.place.put(output, &Payload::plain(value))?,
            Some(encoder) => {
                if encoder.hold(value) {
                    return Ok(());
                }
                let extent = self.place.put(output, &encoder.encode(value, scratch)?)?;
                if scratch.capacity() > KEEP {
                    *scratch = Vec::new();
                }
                extent
            }
        };
        self.columns[0].push(&extent.encode());
        Ok(())
    }

    /// Appends the variable dimensions of an array, if its byte length does not determine them.
    fn push_dims(&mut self, shape: &[u64]) {
        let variable = shape.iter().zip(&self.varies).filter(|&(_, varies)| *varies);
        for (column, (dim, _)) in self.columns[1..].iter_mut().zip(variable) {
            column.push(&dim.to_le_bytes());
        }
    }

    /// Turns the offsets of strings into offsets into the file. They were written at `at`.
    pub(super) fn resolve_strings(&mut self, at: u64) {
        if matches!(self.place, Place::Strings) {
            self.columns[0].resolve_offsets(at);
        }
    }

    /// Chooses the compression from the held values, writes it into the schema row `field`, and
    /// appends the values. Returns false if no value is held.
    pub(super) fn choose(&mut self, field: &mut Field, output: &mut Output, scratch: &mut Vec<u8>) -> Result<bool> {
        let Some(encoder) = &mut self.encoder else { return Ok(false) };
        let Some(Decision { mut compression, dictionary, first }) = encoder.choose()? else { return Ok(false) };
        if let (Some(compression), Some(bytes)) = (&mut compression, dictionary) {
            compression.dictionaries.push(put_dictionary(output, &bytes)?);
        }
        (field.compression, field.choice) = (compression, None);
        let Packed { field, codec, level, why, .. } = encoder.report(&field.name);
        let level = level.map_or_else(String::new, |level| format!(" level {level}"));
        let (path, codec) = (output.path().display(), codec.map_or("none", Codec::name));
        log::info!(target: "fastrecord_core::packing", "{path}: field {field}: compression {codec}{level}: {why}");
        first.values().try_for_each(|value| self.append_payload(value, output, scratch))?;
        Ok(true)
    }

    /// How payloads are encoded, if the field is compressed.
    pub(super) fn encoder(&self) -> Option<&FieldEncoder> {
        self.encoder.as_ref()
    }

    pub(super) fn encoder_mut(&mut self) -> Option<&mut FieldEncoder> {
        self.encoder.as_mut()
    }

    /// Uses another encoder for further values of a compressed field.
    pub(super) fn set_encoder(&mut self, encoder: FieldEncoder) {
        self.encoder = Some(encoder);
    }

    /// Bytes of entries that are held in memory.
    pub(super) fn pending(&self) -> usize {
        self.columns.iter().map(ColumnWriter::pending).sum()
    }

    /// Takes over the field's chunks, which are in the file already.
    pub(super) fn adopt(&mut self, by_column: &mut HashMap<(u32, Part), Vec<Chunk>>) {
        self.columns.iter_mut().for_each(|column| column.adopt(by_column));
    }

    /// The column of the side bytes of an image that lie elsewhere than after the value.
    pub(super) fn side_column_mut(&mut self) -> Option<&mut ColumnWriter> {
        self.columns.get_mut(usize::from(Part::SIDE.0)).filter(|column| column.has_extents())
    }

    /// The field's chunks, column by column.
    pub(super) fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.columns.iter().flat_map(ColumnWriter::chunks)
    }

    /// Whether a commit would merge chunks.
    pub(super) fn merges(&self, rule: MergeRule, position: u64) -> bool {
        self.columns.iter().any(|column| column.merge_from(rule, position).is_some())
    }

    /// Writes the pending entries as chunks, merged with older ones where that is due.
    pub(super) fn write_columns(&mut self, output: &mut Output, rule: MergeRule, end: u64) -> Result<()> {
        self.columns.iter_mut().try_for_each(|column| column.write(output, rule, end))
    }

    /// Writes the pending entries as separate chunks.
    pub(super) fn write_pending(&mut self, output: &mut Output, end: u64) -> Result<()> {
        self.columns.iter_mut().try_for_each(|column| column.write_pending(output, end))
    }
}

/// A field that is being added.
#[derive(Debug)]
pub(super) struct NewFieldWriter {
    pub(super) field: Field,
    pub(super) writer: FieldWriter,
    /// Records that have a value.
    pub(super) filled: u64,
}

impl NewFieldWriter {
    /// Chooses the compression, if values are held.
    pub(super) fn choose(&mut self, output: &mut Output, scratch: &mut Vec<u8>) -> Result<()> {
        self.writer.choose(&mut self.field, output, scratch).map(drop)
    }
}

/// Appends a dictionary to the file. Returns its place, for the schema row.
pub(super) fn put_dictionary(output: &mut Output, bytes: &[u8]) -> Result<DictionaryRange> {
    let id = crate::codec::dictionary_id(bytes).unwrap_or_default();
    let range = output.put_checked(bytes)?;
    Ok(DictionaryRange { id, offset: range.offset, length: range.length, crc: range.crc })
}
