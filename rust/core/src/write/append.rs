//! `Writer::append`: checks values, writes payloads, and gathers index entries until the commit.

use crate::write::value::check_value;
use std::io;
use std::mem;

use crate::error::{Error, Result};
use crate::file::storage::Storage;
use crate::format::extent::{EXTENT_LEN, Extent};
use crate::format::layout::{PAGE, align};
use crate::format::schema::Field;
use crate::memory;
use crate::write::value::Value;
use crate::write::writer::Writer;

/// Bytes gathered before one write.
pub(crate) const BUFFER: usize = 1 << 20;
/// Payloads of at least this size are written directly: gathering them would copy them once more.
const DIRECT: usize = 64 << 10;
/// Bytes written before the kernel is asked to write them to the disk.
const WRITEBACK: u64 = 16 << 20;
/// Bytes of texts gathered before they are written together.
const HEAP: usize = 4 << 20;
/// Index bytes held in memory before a commit, whatever the size of the payloads.
const INDEX: usize = 64 << 20;

impl Writer {
    /// Appends one record, a value for each field of the schema in order, and returns its number.
    ///
    /// # Errors
    /// A value does not fit its field (nothing is appended), or a write fails.
    pub fn append(&mut self, values: &[Value<'_>]) -> Result<u64> {
        self.check_appendable()?;
        let sizes = self.check_values(values)?;
        let record = self.records;
        self.append_row(values, &sizes)?;
        Ok(record)
    }

    /// Appends a record whose values have been checked.
    pub(crate) fn append_row(&mut self, values: &[Value<'_>], sizes: &[(u32, u32)]) -> Result<()> {
        let appended = self.append_checked(values, sizes);
        self.guard(appended)?;
        self.records += 1;
        if self.commit_is_due(0) {
            self.commit()?;
        }
        Ok(())
    }

    /// Whether appending this many bytes may write to the file or commit. The call then
    /// takes long enough that other threads should run during it.
    pub fn may_write(&self, bytes: usize) -> bool {
        // A record adds padding and entries to the bytes of its values. A false positive costs
        // little.
        const MORE: usize = 4096;
        bytes >= DIRECT
            || self.buffer.len() + bytes + MORE > BUFFER
            || self.heap.len() + bytes >= HEAP
            || self.is_sampling()
            || self.commit_is_due(bytes + MORE)
    }

    /// Whether this many more bytes, of payloads or of the index, would trigger a commit.
    fn commit_is_due(&self, more: usize) -> bool {
        let payloads = self.position() + (self.heap.len() + self.held()) as u64 - self.commit_start;
        let index: usize = self.columns.iter().map(|c| c.pending.len()).sum();
        payloads + more as u64 >= self.commit_bytes || index + more >= INDEX
    }

    /// Checks all values before any is written. Returns the image size of each value, or zeros.
    fn check_values(&self, values: &[Value<'_>]) -> Result<Vec<(u32, u32)>> {
        let fields = self.document.schema.fields();
        if values.len() != fields.len() {
            return Err(Error::Schema(format!("{} values for {} fields", values.len(), fields.len())));
        }
        let check = |(field, value): (&Field, _)| {
            check_value(&field.kind, value).map_err(|detail| self.bad_value(self.records, &field.name, detail))
        };
        fields.iter().zip(values).map(check).collect()
    }

    pub(crate) fn bad_value(&self, record: u64, field: &str, detail: String) -> Error {
        Error::BadValue { path: self.path.clone(), record, field: field.to_owned(), detail }
    }

    fn append_checked(&mut self, values: &[Value<'_>], sizes: &[(u32, u32)]) -> Result<()> {
        let mut column = 0;
        for (value, &size) in values.iter().zip(sizes) {
            column = self.append_value(column, value, size)?;
        }
        if self.heap_is_full() { self.flush_heap() } else { Ok(()) }
    }

    /// Appends a checked value to the columns of its field, which start at `column`. Returns the
    /// first column of the next field.
    pub(crate) fn append_value(
        &mut self,
        column: usize,
        value: &Value<'_>,
        (width, height): (u32, u32),
    ) -> Result<usize> {
        let next = column + self.columns[column].parts;
        let longest = match value {
            Value::Number(bytes) => bytes.len(),
            Value::Array { data, .. } if !self.columns[column].has_extents() => data.len(),
            _ => 0,
        };
        for column in &mut self.columns[column..next] {
            memory::reserve(&mut column.pending, longest.max(EXTENT_LEN))?;
        }
        let main = &mut self.columns[column];
        match *value {
            Value::Int(value) => main.pending.extend_from_slice(&value.to_le_bytes()),
            Value::Float(value) => main.pending.extend_from_slice(&value.to_le_bytes()),
            Value::Number(bytes) => main.pending.extend_from_slice(bytes),
            Value::Str(text) => self.append_packed(column, text.as_bytes())?,
            Value::Array { data, .. } if !main.has_extents() => main.pending.extend_from_slice(data),
            Value::Array { data, shape } => {
                self.append_packed(column, data)?;
                self.append_dims(column, shape);
            }
            Value::Bytes(data) | Value::List(data) => self.append_packed(column, data)?,
            Value::Image { data, .. } if main.packing.is_some() => self.append_packed(column, data)?,
            Value::Image { data, side, crc, .. } => self.append_image(column, data, side, crc)?,
        }
        // A field of bytes also takes images, but has no columns for their sizes.
        if let (Value::Bytes(_) | Value::Image { .. }, true) = (value, next > column + 1) {
            self.columns[column + 1].pending.extend_from_slice(&width.to_le_bytes());
            self.columns[column + 2].pending.extend_from_slice(&height.to_le_bytes());
        }
        Ok(next)
    }

    /// Whether the gathered texts must be written.
    pub(crate) fn heap_is_full(&self) -> bool {
        self.heap.len() >= HEAP
    }

    /// Appends the variable dimensions of an array, if its byte length does not determine them.
    fn append_dims(&mut self, column: usize, shape: &[u64]) {
        if self.columns[column].parts == 1 {
            return;
        }
        let columns = &mut self.columns[column..];
        let mut part = 0;
        for (dim, fixed) in shape.iter().zip(columns[0].shape.clone().iter()) {
            if fixed.is_none() {
                part += 1;
                columns[part].pending.extend_from_slice(&dim.to_le_bytes());
            }
        }
    }

    fn append_image(&mut self, column: usize, data: &[u8], side: &[u8], crc: u32) -> Result<()> {
        self.pad(self.columns[column].alignment)?;
        let (offset, stored) = (self.position(), (data.len() + side.len()) as u64);
        let extent = Extent { offset, stored, raw: data.len() as u64, crc, ..Extent::default() };
        self.put(data)?;
        self.put(side)?;
        self.columns[column].pending.extend(extent.encode());
        Ok(())
    }

    /// Writes the gathered texts together and updates their extents.
    pub(crate) fn flush_heap(&mut self) -> Result<()> {
        let (at, heap) = (self.position(), mem::take(&mut self.heap));
        self.put(&heap)?;
        for column in self.columns.iter_mut().filter(|c| c.is_heaped()) {
            column.place_texts(at);
        }
        Ok(())
    }

    /// The offset of the next byte in the file.
    pub(crate) fn position(&self) -> u64 {
        self.buffer_at + self.buffer.len() as u64
    }

    /// Appends zeros up to a multiple of `to`.
    pub(crate) fn pad(&mut self, to: u64) -> Result<()> {
        const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];
        let at = self.position();
        let padded = align(at, to).ok_or_else(|| Error::io(&self.path, io::ErrorKind::FileTooLarge.into()))?;
        self.put(&ZEROS[..(padded - at) as usize])
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() >= DIRECT {
            self.flush()?;
            self.write_at(bytes, self.buffer_at)?;
            self.buffer_at += bytes.len() as u64;
        } else {
            if self.buffer.len() + bytes.len() > BUFFER {
                self.flush()?;
            }
            self.buffer.extend_from_slice(bytes);
        }
        Ok(())
    }

    pub(crate) fn flush(&mut self) -> Result<()> {
        if !self.buffer.is_empty() {
            let buffer = mem::take(&mut self.buffer);
            let written = self.write_at(&buffer, self.buffer_at);
            self.buffer_at += buffer.len() as u64;
            self.buffer = buffer;
            self.buffer.clear();
            written?;
        }
        let behind = self.buffer_at - self.writeback_at;
        if behind >= WRITEBACK {
            self.storage()?.start_writeback(self.writeback_at, behind);
            self.writeback_at = self.buffer_at;
        }
        Ok(())
    }

    pub(crate) fn storage(&self) -> Result<&dyn Storage> {
        self.storage.as_deref().ok_or_else(|| Error::WriterClosed { path: self.path.clone() })
    }

    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.storage()?.write_at(bytes, offset).map_err(|e| Error::io(&self.path, e))
    }

    pub(crate) fn sync(&self) -> Result<()> {
        self.storage()?.sync().map_err(|e| Error::io(&self.path, e))
    }
}
