//! A file as of one commit.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value as Json};

use crate::dtype::{ArrayType, DType, shape_text};
use crate::error::{Error, Result};
use crate::extent::{EXTENT_LEN, Extent};
use crate::faults;
use crate::field_type::FieldType;
use crate::index::{Column, Source};
use crate::layout::{FORMAT_VERSION, Part};
use crate::map::Mapping;
use crate::payload::resized;
use crate::schema::{Field, Schema};
use crate::snapshot::{Access, Snapshot, SnapshotId};

/// Payloads of arrays and lists begin at multiples of this.
const ARRAY_ALIGN: u64 = 64;

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
    /// A payload's value in memory of its own: one that is stored compressed, or a list, which is to be taken apart.
    Decompressed(Vec<u8>),
    /// Text, which may be that of JSON.
    Str(String),
    /// An int64.
    Int(i64),
    /// A float64.
    Float(f64),
    /// A number of another type, or an array that lies in its column: little-endian, in C order.
    Values(Vec<u8>),
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

    /// The mapping for views; `None` if the file is read by system calls.
    pub fn mapping(&self) -> Option<&Arc<Mapping>> {
        self.inner.views.as_ref().map(|views| &views[0])
    }

    /// The mapping for views that are read in random order; `None` if the file is read by system calls.
    pub fn random_mapping(&self) -> Option<&Arc<Mapping>> {
        self.inner.views.as_ref().map(|views| &views[1])
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

    /// Makes sure that the file is still the one that was opened, and that a read through a mapping which fails all the same comes to
    /// be an error.
    ///
    /// Everything that reads from the file begins with this: `extents`, `values`, `column`, `verify`.
    pub(crate) fn check_file(&self) -> Result<()> {
        match &self.inner.random {
            Source::Mapped(_) => {
                faults::arm();
                // Whether it was overwritten, `Guarded::read` sees for itself.
                self.inner.seal.check_size(&self.inner.file)
            }
            Source::File(file) => self.inner.seal.check(file),
        }
    }

    /// The error for a payload that could not be read by a system call.
    pub(crate) fn failed_read(&self, field: usize, record: u64, source: io::Error) -> Error {
        if source.kind() == io::ErrorKind::UnexpectedEof
            && let Err(error) = self.check_file()
        {
            return error;
        }
        Error::unreadable(self.path(), &format!("record {record}, field {}", self.name_of(field)), source)
    }

    /// Names the record in an error of a mapping of which a page could not be read.
    pub(crate) fn name_lost(&self, field: usize, records: &[u64], extents: &[Extent], mut error: Error) -> Error {
        if let (Error::Lost { place, .. } | Error::Unreadable { place, .. }, Source::Mapped(map)) =
            (&mut error, &self.inner.random)
            && let Some(at) = map.lost_at()
            // The page, of which the record may have no more than a part.
            && let Some(i) = extents.iter().position(|e| e.stored > 0 && e.offset <= at | 4095 && at < e.offset + e.stored)
            && let Some(record) = records.get(i)
        {
            *place = format!("record {record}, field {}", self.name_of(field));
        }
        error
    }

    fn main_column(&self, field: usize) -> Result<&Column> {
        self.inner.index.column(field, Part::MAIN).ok_or_else(|| self.no_field(&field.to_string()))
    }

    /// The extents of records that [`Reader::resolve`] gave; those of arrays fit their shapes.
    pub(crate) fn extents(&self, field: usize, records: &[u64]) -> Result<Vec<Extent>> {
        let kind = &self.field_at(field)?.kind;
        if !kind.has_payloads() {
            return Err(self.wrong_type(field, "it has no payloads"));
        }
        self.check_file()?;
        let (limit, image) = (self.inner.footer.offset, *kind == FieldType::Image);
        let mut extents = Vec::with_capacity(records.len());
        self.main_column(field)?.for_each::<EXTENT_LEN>(self.path(), records, |i, entry| {
            let extent = match entry {
                Some(bytes) => match Extent::decode(bytes, limit) {
                    Some(extent) if if image { extent.is_plain() } else { extent.side() == 0 } => extent,
                    Some(extent) => {
                        let detail = if image {
                            "it is compressed, which images are not".to_owned()
                        } else {
                            format!("{} side bytes, which only images have", extent.side())
                        };
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
        if kind.alignment() == ARRAY_ALIGN {
            self.check_extents(field, kind, records, &extents)?;
        }
        Ok(extents)
    }

    /// What extents of arrays and lists are checked for beside the rest.
    fn check_extents(&self, field: usize, kind: &FieldType, records: &[u64], extents: &[Extent]) -> Result<()> {
        for (i, extent) in extents.iter().enumerate() {
            if !extent.missing && extent.is_plain() && !extent.offset.is_multiple_of(ARRAY_ALIGN) {
                let detail = format!("it is at {}, which is no multiple of {ARRAY_ALIGN}", extent.offset);
                return Err(self.bad_extent(field, records[i], detail));
            }
        }
        let Some(array) = kind.payload_array() else { return Ok(()) };
        if array.variable() > 1 {
            return self.shapes_of(field, array, records, extents).map(drop);
        }
        let bad = |e: &Extent| !e.missing && array.shape_of_bytes(e.length()).is_none();
        match extents.iter().position(bad) {
            Some(i) => Err(self.bad_extent(field, records[i], no_shape(array, extents[i].length()))),
            None => Ok(()),
        }
    }

    /// The shapes of arrays, one behind the other; zeros where the value is missing.
    fn shapes_of(&self, field: usize, array: &ArrayType, records: &[u64], extents: &[Extent]) -> Result<Vec<u64>> {
        let variable = array.variable();
        // What is not told stays a dimension that no array has.
        let mut dims = vec![u64::MAX; records.len() * variable];
        if variable > 1 {
            for part in 0..variable {
                let column = self.inner.index.column(field, Part(1 + part as u8));
                let column = column.ok_or_else(|| self.no_field(&field.to_string()))?;
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
        let mut shapes = Vec::with_capacity(records.len() * array.shape().len());
        for (i, extent) in extents.iter().enumerate() {
            if extent.missing {
                shapes.resize(shapes.len() + array.shape().len(), 0);
                continue;
            }
            let mut dims = dims[i * variable..(i + 1) * variable].iter();
            let start = shapes.len();
            shapes.extend(array.shape().iter().map(|dim| dim.or_else(|| dims.next().copied()).unwrap_or_default()));
            if array.nbytes_of(&shapes[start..]) != Some(extent.length()) {
                let detail = format!("{}: shape {}", no_shape(array, extent.length()), shape_text(&shapes[start..]));
                return Err(self.bad_extent(field, records[i], detail));
            }
        }
        Ok(shapes)
    }

    /// The shapes of arrays, all dimensions of a value and then those of the next; zeros for a missing value.
    ///
    /// # Errors
    /// A damaged index, or a field of another type.
    pub fn shapes(&self, field: usize, records: &[u64]) -> Result<Vec<u64>> {
        match &self.field_at(field)?.kind {
            FieldType::Array(array) if array.nbytes().is_some() => {
                let shape: Vec<u64> = array.shape().iter().flatten().copied().collect();
                Ok(shape.repeat(records.len()))
            }
            FieldType::Array(array) => {
                let extents = self.extents(field, records)?;
                self.shapes_of(field, array, records, &extents)
            }
            _ => Err(self.wrong_type(field, "it has no shape")),
        }
    }

    pub(crate) fn name_of(&self, field: usize) -> String {
        self.schema().fields().get(field).map_or_else(String::new, |f| f.name.clone())
    }

    pub(crate) fn bad_extent(&self, field: usize, record: u64, detail: String) -> Error {
        Error::BadExtent { path: self.path().to_owned(), record, field: self.name_of(field), detail }
    }

    pub(crate) fn missing(&self, field: usize, record: u64) -> Error {
        Error::Missing { path: self.path().to_owned(), record, field: self.name_of(field) }
    }

    pub(crate) fn wrong_type(&self, field: usize, expected: &str) -> Error {
        let found = self.schema().fields().get(field).map_or_else(|| "unknown".to_owned(), |f| f.kind.to_string());
        Error::FieldType {
            path: self.path().to_owned(),
            field: self.name_of(field),
            found,
            expected: expected.to_owned(),
        }
    }

    /// The values of records that lie in the field's column, one behind the other.
    ///
    /// # Errors
    /// A damaged column, a field of another type, or a record without a value.
    pub fn values(&self, field: usize, records: &[u64]) -> Result<Vec<u8>> {
        let mut out = vec![0; self.values_width(field)?.saturating_mul(records.len())];
        self.values_into(field, records, &mut out)?;
        Ok(out)
    }

    /// As [`Reader::values`], into the start of a buffer.
    ///
    /// # Errors
    /// As there, and [`Error::BufferTooSmall`].
    pub fn values_into(&self, field: usize, records: &[u64], out: &mut [u8]) -> Result<()> {
        let needed = self.values_width(field)?.saturating_mul(records.len());
        let given = out.len() as u64;
        let Some(out) = out.get_mut(..needed) else {
            return Err(Error::BufferTooSmall { path: self.path().to_owned(), needed: needed as u64, given });
        };
        self.check_file()?;
        self.main_column(field)?.gather(self.path(), records, out, |i| self.missing(field, records[i]))
    }

    /// Bytes of a value that lies in the field's column.
    fn values_width(&self, field: usize) -> Result<usize> {
        if self.field_at(field)?.kind.has_payloads() {
            return Err(self.wrong_type(field, "its values are not in its column"));
        }
        Ok(self.main_column(field)?.width)
    }

    /// The texts of records; a missing one is `None`.
    ///
    /// # Errors
    /// A damaged index or payload (checksums are always checked here), or a field of another type.
    pub fn strings(&self, field: usize, records: &[u64]) -> Result<Vec<Option<String>>> {
        if !self.field_at(field)?.kind.holds_text() {
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
        let mut bytes = Vec::new();
        resized(&mut bytes, extent.length())?;
        self.copy_one(field, record, extent, &mut bytes, true)?;
        Ok(bytes)
    }

    fn pread(&self, field: usize, record: u64, extent: &Extent) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        resized(&mut bytes, extent.stored)?;
        let read = self.inner.file.read_exact_at(&mut bytes, extent.offset);
        read.map_err(|e| self.failed_read(field, record, e))?;
        Ok(bytes)
    }

    pub(crate) fn check_crc(&self, field: usize, record: u64, extent: &Extent, bytes: &[u8]) -> Result<()> {
        self.compare_crc(field, record, extent.crc, crate::crc::crc32c(bytes))
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
        match &self.field_at(field)?.kind {
            FieldType::String | FieldType::Json => {
                Ok(self.strings(field, &[record])?.pop().flatten().map_or(Datum::Missing, Datum::Str))
            }
            kind if kind.has_payloads() => {
                let extent = self.extents(field, &[record])?.pop().unwrap_or_default();
                if extent.missing {
                    return Ok(Datum::Missing);
                }
                if !extent.is_plain() || matches!(kind, FieldType::List(_)) {
                    return Ok(Datum::Decompressed(self.read_checked(field, record, &extent)?));
                }
                if verify {
                    self.check_mapped(field, &[record], &[extent])?;
                }
                Ok(Datum::Payload(extent.offset, extent.length()))
            }
            kind => {
                let values = match self.values(field, &[record]) {
                    Err(Error::Missing { .. }) => return Ok(Datum::Missing),
                    values => values?,
                };
                let word = |values: &[u8]| values.try_into().unwrap_or_default();
                Ok(match kind {
                    FieldType::Scalar(DType::Int64) => Datum::Int(i64::from_le_bytes(word(&values))),
                    FieldType::Scalar(DType::Float64) => Datum::Float(f64::from_le_bytes(word(&values))),
                    _ => Datum::Values(values),
                })
            }
        }
    }

    /// A copy of one value, decompressed, read by a system call. (Compressed ones are always checked.)
    ///
    /// # Errors
    /// A failed read, damage, or a record without a value.
    pub fn payload(&self, field: usize, record: u64, verify: bool) -> Result<Vec<u8>> {
        let extent = self.extents(field, &[record])?.pop().unwrap_or_default();
        if extent.missing {
            return Err(self.missing(field, record));
        }
        if !extent.is_plain() {
            return self.decompressed(field, record, &extent);
        }
        let mut bytes = self.pread(field, record, &extent)?;
        if verify {
            self.check_crc(field, record, &extent, &bytes)?;
        }
        bytes.truncate(extent.length() as usize);
        Ok(bytes)
    }

    /// Copies one value, decompressed, to `out`, which is of its size; from the mapping if there is one.
    ///
    /// # Errors
    /// A buffer of another size, a failed read, damage, or a record without a value.
    pub fn value_into(&self, field: usize, record: u64, out: &mut [u8], verify: bool) -> Result<()> {
        let extent = self.extents(field, &[record])?.pop().unwrap_or_default();
        if extent.missing {
            return Err(self.missing(field, record));
        }
        let (needed, given) = (extent.length(), out.len() as u64);
        if needed != given {
            return Err(Error::BufferTooSmall { path: self.path().to_owned(), needed, given });
        }
        self.copy_one(field, record, &extent, out, verify)
    }

    /// All values of a column, every block checked, and what each is: `label`, small arrays, `image.width`, `image.height`.
    ///
    /// # Errors
    /// No such column, damage, or a record without a value.
    pub fn column(&self, name: &str) -> Result<(ArrayType, ColumnBytes)> {
        self.column_in(name, false)
    }

    /// As [`Reader::column`], but never in the mapping for views.
    ///
    /// # Errors
    /// As there.
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
        let kind = &self.field_at(field)?.kind;
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

fn no_shape(array: &ArrayType, bytes: u64) -> String {
    format!("{bytes} bytes are no {array}")
}
