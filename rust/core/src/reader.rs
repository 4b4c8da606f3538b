//! A file as of one commit.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value as Json};

use crate::error::{Error, Result};
use crate::index::{Column, Source};
use crate::layout::{EXTENT_LEN, Extent, FORMAT_VERSION, Part};
use crate::map::Mapping;
use crate::schema::{ColumnType, Field, FieldType, Schema};
use crate::snapshot::{Access, Snapshot, SnapshotId};

/// A snapshot of a file. Cloning is cheap and shares it; any number of threads may read.
#[derive(Debug, Clone)]
pub struct Reader {
    pub(crate) inner: Arc<Snapshot>,
}

/// A column's bytes: in the mapping, or in memory.
#[derive(Debug, Clone)]
pub enum ColumnBytes {
    /// Offset and length within the mapping.
    Mapped(u64, u64),
    /// Gathered or read once; shared from then on.
    Copied(Arc<Vec<u8>>),
}

/// One value of a record.
#[derive(Debug, Clone, PartialEq)]
pub enum Datum {
    /// A payload's value: offset and length in the file. Read it through the mapping, or by [`Reader::payload`].
    Payload(u64, u64),
    /// Text.
    Str(String),
    /// A signed 64-bit integer.
    Int(i64),
    /// A 64-bit float.
    Float(f64),
    /// The record has no value for the field.
    Missing,
}

impl Reader {
    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// How it gets at the bytes.
    pub fn access(&self) -> Access {
        self.inner.access
    }

    /// Threads that work on one call at the most.
    pub fn threads(&self) -> usize {
        self.inner.threads
    }

    /// Records in the snapshot.
    pub fn len(&self) -> u64 {
        self.inner.footer.records
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What names this snapshot.
    pub fn snapshot(&self) -> SnapshotId {
        let footer = &self.inner.footer;
        SnapshotId { file_id: self.inner.id, commit: footer.commit, footer: footer.offset }
    }

    /// The format version of the file.
    pub fn version(&self) -> u32 {
        FORMAT_VERSION // the only one so far; others are refused
    }

    /// Bytes from the start of the file to the end of the commit.
    pub fn bytes(&self) -> u64 {
        self.inner.footer.end()
    }

    /// Bytes behind the commit when the file was opened: a commit under way, or a torn tail.
    pub fn tail_bytes(&self) -> u64 {
        self.inner.file_length.saturating_sub(self.inner.footer.end())
    }

    /// The fields of every record.
    pub fn schema(&self) -> &Schema {
        &self.inner.document.schema
    }

    /// The user's own key/values.
    pub fn metadata(&self) -> &Map<String, Json> {
        &self.inner.document.user
    }

    /// False while a bulk import is under way, or if it was stopped.
    pub fn complete(&self) -> bool {
        self.inner.document.complete
    }

    /// The mapping; `None` if the file is read by system calls.
    pub fn mapping(&self) -> Option<&Arc<Mapping>> {
        self.inner.map.as_ref()
    }

    /// The mapping for reads in random order; `None` if the file is read by system calls.
    pub fn random_mapping(&self) -> Option<&Arc<Mapping>> {
        match &self.inner.random {
            Source::Mapped(map) => Some(map),
            Source::File(_) => None,
        }
    }

    /// Position of a field in the schema.
    ///
    /// # Errors
    /// [`Error::NoField`] names those that there are.
    pub fn field(&self, name: &str) -> Result<usize> {
        self.schema().position(name).ok_or_else(|| self.no_field(name))
    }

    fn no_field(&self, name: &str) -> Error {
        let names: Vec<&str> = self.schema().fields().iter().map(|f| f.name.as_str()).collect();
        Error::NoField { path: self.path().to_owned(), field: name.to_owned(), known: names.join(", ") }
    }

    pub(crate) fn field_at(&self, position: usize) -> Result<&Field> {
        self.schema().fields().get(position).ok_or_else(|| self.no_field(&position.to_string()))
    }

    /// Turns record numbers as users give them, negative ones counting from the end, into positions.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] names the first that is none.
    pub fn resolve(&self, numbers: &[i64]) -> Result<Vec<u64>> {
        let len = self.len();
        let mut records = Vec::with_capacity(numbers.len());
        for &number in numbers {
            let record = if number < 0 { number.wrapping_add_unsigned(len) } else { number }.cast_unsigned();
            if record >= len {
                return Err(Error::OutOfRange { path: self.path().to_owned(), record: number, len });
            }
            records.push(record);
        }
        Ok(records)
    }

    /// Makes sure that the file is still as long as the snapshot: a read behind its end through a mapping would be a SIGBUS.
    ///
    /// Everything that reads from the file begins with this: `extents`, `words`, `column`, `verify`.
    pub(crate) fn check_size(&self) -> Result<()> {
        let found = self.inner.file.metadata().map_err(|e| Error::io(self.path(), e))?.len();
        let (expected, commit) = (self.inner.footer.end(), self.inner.footer.commit);
        if found < expected {
            return Err(Error::Truncated { path: self.path().to_owned(), found, expected, commit });
        }
        Ok(())
    }

    fn main_column(&self, field: usize) -> Result<&Column> {
        self.inner.index.column(field, Part::Main).ok_or_else(|| self.no_field(&field.to_string()))
    }

    /// The extents of records that [`Reader::resolve`] gave.
    pub(crate) fn extents(&self, field: usize, records: &[u64]) -> Result<Vec<Extent>> {
        let kind = self.field_at(field)?.kind;
        if !kind.is_variable() {
            return Err(self.wrong_type(field, "it has no payloads"));
        }
        self.check_size()?;
        let (limit, image) = (self.inner.footer.offset, kind == FieldType::Image);
        let mut extents = Vec::with_capacity(records.len());
        self.main_column(field)?.for_each::<EXTENT_LEN>(self.path(), records, |i, entry| {
            let extent = match entry {
                Some(bytes) => match Extent::decode(bytes, limit) {
                    Some(extent) if extent.side == 0 || image => extent,
                    Some(extent) => {
                        let detail = format!("{} side bytes, which only images have", extent.side);
                        return Err(self.bad_extent(field, records[i], detail));
                    }
                    None => {
                        Extent::explain(bytes, limit).map_err(|detail| self.bad_extent(field, records[i], detail))?
                    }
                },
                None => Extent { missing: true, ..Extent::default() },
            };
            extents.push(extent);
            Ok(())
        })?;
        Ok(extents)
    }

    pub(crate) fn name_of(&self, field: usize) -> String {
        self.schema().fields().get(field).map_or_else(String::new, |f| f.name.clone())
    }

    fn bad_extent(&self, field: usize, record: u64, detail: String) -> Error {
        Error::BadExtent { path: self.path().to_owned(), record, field: self.name_of(field), detail }
    }

    pub(crate) fn missing(&self, field: usize, record: u64) -> Error {
        Error::Missing { path: self.path().to_owned(), record, field: self.name_of(field) }
    }

    pub(crate) fn wrong_type(&self, field: usize, expected: &str) -> Error {
        let found = self.schema().fields().get(field).map_or("unknown", |f| f.kind.name()).to_owned();
        Error::FieldType {
            path: self.path().to_owned(),
            field: self.name_of(field),
            found,
            expected: expected.to_owned(),
        }
    }

    /// The 8-byte values of records, one behind the other.
    ///
    /// # Errors
    /// A damaged column, a field of another type, or a record without a value.
    pub fn words(&self, field: usize, records: &[u64]) -> Result<Vec<[u8; 8]>> {
        if self.field_at(field)?.kind.is_variable() {
            return Err(self.wrong_type(field, "it has no fixed-width values"));
        }
        self.check_size()?;
        let mut words = Vec::with_capacity(records.len());
        self.main_column(field)?.for_each::<8>(self.path(), records, |i, entry| {
            words.push(*entry.ok_or_else(|| self.missing(field, records[i]))?);
            Ok(())
        })?;
        Ok(words)
    }

    /// The texts of records; a missing one is `None`.
    ///
    /// # Errors
    /// A damaged index or payload (checksums are always checked here), or a field of another type.
    pub fn strings(&self, field: usize, records: &[u64]) -> Result<Vec<Option<String>>> {
        if self.field_at(field)?.kind != FieldType::String {
            return Err(self.wrong_type(field, "it has no text"));
        }
        let extents = self.extents(field, records)?;
        let text = |(i, extent): (usize, &Extent)| {
            if extent.missing {
                return Ok(None);
            }
            let bytes = self.read_checked(field, records[i], extent)?;
            let bad =
                |_| Error::BadString { path: self.path().to_owned(), record: records[i], field: self.name_of(field) };
            String::from_utf8(bytes).map(Some).map_err(bad)
        };
        extents.iter().enumerate().map(text).collect()
    }

    fn read_checked(&self, field: usize, record: u64, extent: &Extent) -> Result<Vec<u8>> {
        let bytes = match &self.inner.map {
            Some(map) => {
                let start = extent.offset as usize;
                map.bytes().get(start..start + extent.stored as usize).unwrap_or_default().to_vec()
            }
            None => self.pread(extent)?,
        };
        self.check_crc(field, record, extent, &bytes)?;
        Ok(bytes)
    }

    fn pread(&self, extent: &Extent) -> Result<Vec<u8>> {
        let mut bytes = vec![0; extent.stored as usize];
        self.inner.file.read_exact_at(&mut bytes, extent.offset).map_err(|e| Error::io(self.path(), e))?;
        Ok(bytes)
    }

    pub(crate) fn check_crc(&self, field: usize, record: u64, extent: &Extent, bytes: &[u8]) -> Result<()> {
        self.compare_crc(field, record, extent.crc, crc32c::crc32c(bytes))
    }

    pub(crate) fn compare_crc(&self, field: usize, record: u64, stored: u32, computed: u32) -> Result<()> {
        if stored == computed {
            return Ok(());
        }
        let (path, field) = (self.path().to_owned(), self.name_of(field));
        Err(Error::Checksum { path, record, field, stored, computed })
    }

    /// One value of one record.
    ///
    /// # Errors
    /// Damage; with `verify`, a payload's too.
    pub fn datum(&self, field: usize, record: u64, verify: bool) -> Result<Datum> {
        match self.field_at(field)?.kind {
            FieldType::String => Ok(self.strings(field, &[record])?.pop().flatten().map_or(Datum::Missing, Datum::Str)),
            FieldType::Image | FieldType::Bytes => {
                let extent = self.extents(field, &[record])?.pop().unwrap_or_default();
                if extent.missing {
                    return Ok(Datum::Missing);
                }
                if verify && self.inner.map.is_some() {
                    self.read_checked(field, record, &extent)?;
                }
                Ok(Datum::Payload(extent.offset, extent.length()))
            }
            kind => match self.words(field, &[record]) {
                Ok(words) => {
                    let word = words.first().copied().unwrap_or_default();
                    let is_int = kind == FieldType::Int64;
                    Ok(if is_int {
                        Datum::Int(i64::from_le_bytes(word))
                    } else {
                        Datum::Float(f64::from_le_bytes(word))
                    })
                }
                Err(Error::Missing { .. }) => Ok(Datum::Missing),
                Err(error) => Err(error),
            },
        }
    }

    /// A copy of one payload, read by a system call.
    ///
    /// # Errors
    /// A failed read, damage, or a record without a value.
    pub fn payload(&self, field: usize, record: u64, verify: bool) -> Result<Vec<u8>> {
        let extent = self.extents(field, &[record])?.pop().unwrap_or_default();
        if extent.missing {
            return Err(self.missing(field, record));
        }
        let mut bytes = self.pread(&extent)?;
        if verify {
            self.check_crc(field, record, &extent, &bytes)?;
        }
        bytes.truncate(extent.length() as usize);
        Ok(bytes)
    }

    /// All values of a fixed-width column, every block checked: `label`, `image.width`, `image.height`.
    ///
    /// # Errors
    /// No such column, damage, or a record without a value.
    pub fn column(&self, name: &str) -> Result<(ColumnType, ColumnBytes)> {
        self.check_size()?;
        let (base, part) = match name.rsplit_once('.') {
            Some((base, "width")) => (base, Part::Width),
            Some((base, "height")) => (base, Part::Height),
            _ => (name, Part::Main),
        };
        let field = self.field(base)?;
        let kind = self.field_at(field)?.kind;
        let index = &self.inner.index;
        let column =
            index.column(field, part).ok_or_else(|| self.wrong_type(field, &format!("it has no column {name:?}")))?;
        let Some(entries) = kind.column_type(part) else {
            let hint = if kind == FieldType::Image { "; it has image.width and image.height" } else { "" };
            return Err(self.wrong_type(field, &format!("only fields of fixed width are columns{hint}")));
        };
        if let Some(chunk) = column.single(self.len()) {
            if let Some(offset) = chunk.mapped_at() {
                chunk.checked_bytes(self.path(), name)?;
                return Ok((entries, ColumnBytes::Mapped(offset, chunk.chunk.length())));
            }
        }
        let number = index.columns().iter().position(|c| std::ptr::eq(c, column)).unwrap_or_default();
        let Some(cell) = self.inner.copies.get(number) else { return Err(self.no_field(name)) };
        if cell.get().is_none() {
            if let Some(record) = column.first_missing(self.len()) {
                return Err(self.missing(field, record));
            }
            let mut all = Vec::with_capacity(self.len() as usize * column.width);
            column.for_each_chunk(self.path(), |_, bytes| {
                all.extend_from_slice(bytes);
                Ok(())
            })?;
            let _ = cell.set(Arc::new(all));
        }
        Ok((entries, ColumnBytes::Copied(cell.get().cloned().unwrap_or_default())))
    }
}
