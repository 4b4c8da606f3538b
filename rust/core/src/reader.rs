//! A file as of one commit.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value as Json};

use crate::error::{Error, Result};
use crate::index::{Column, Index, Source};
use crate::layout::{EXTENT_LEN, Extent, FORMAT_VERSION, FileId, Footer, Part};
use crate::map::{Mapping, Pattern};
use crate::open::{Commit, Opening};
use crate::pool;
use crate::schema::{ColumnType, Document, Field, FieldType, Schema};
use crate::sys;

/// How a reader gets at the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// By a mapping: views cost nothing. A file truncated by another program under a view is a SIGBUS.
    Mmap,
    /// By system calls alone: nothing is mapped, every read is a copy, every failure an error.
    Pread,
}

/// What names one snapshot of one file; a reader in another process opens it again by this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotId {
    /// The file's random id.
    pub file_id: FileId,
    /// The commit's number.
    pub commit: u64,
    /// Where the commit's footer lies.
    pub footer: u64,
}

/// A snapshot of a file. Cloning is cheap and shares it; any number of threads may read.
#[derive(Debug, Clone)]
pub struct Reader {
    pub(crate) inner: Arc<Snapshot>,
}

#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) path: PathBuf,
    access: Access,
    pub(crate) threads: usize,
    id: FileId,
    pub(crate) footer: Footer,
    document: Document,
    file_length: u64,
    pub(crate) index: Index,
    /// Copies of columns that are not one chunk of a mapping, made once each.
    copies: Vec<OnceLock<Arc<Vec<u8>>>>,
    /// For the size check, for advice, and for reading in order.
    pub(crate) file: Arc<File>,
    map: Option<Arc<Mapping>>,
    /// For batches in random order: the kernel reads what is asked for and no more.
    pub(crate) random: Source,
    /// [`sys::blocks_read`] as of the last batch.
    pub(crate) blocks_seen: AtomicI64,
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
    /// A payload: offset and length in the file. Read it through the mapping, or by [`Reader::payload`].
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
    /// Opens a file at its newest commit.
    ///
    /// `threads` bounds the threads that work on one call; by default all CPUs that the process may run on.
    ///
    /// # Errors
    /// The file cannot be opened, is no .frec file, of a newer version, damaged, truncated, or has no commit.
    pub fn open(path: &Path, access: Access, threads: Option<usize>) -> Result<Self> {
        let file = Arc::new(File::open(path).map_err(|e| Error::io(path, e))?);
        let opening = Opening::new(path, file.as_ref())?;
        let footer = opening.newest()?;
        Self::load(path, access, threads, Arc::clone(&file), opening, footer)
    }

    /// Opens the very snapshot that another reader had.
    ///
    /// # Errors
    /// As [`Reader::open`], and [`Error::Replaced`] if the path holds another file now.
    pub fn open_snapshot(path: &Path, access: Access, threads: Option<usize>, wanted: SnapshotId) -> Result<Self> {
        let file = Arc::new(File::open(path).map_err(|e| Error::io(path, e))?);
        let opening = Opening::new(path, file.as_ref())?;
        let replaced = |found: String| {
            let expected = format!("file {} at commit {}", hex(&wanted.file_id), wanted.commit);
            Error::Replaced { path: path.to_owned(), expected, found }
        };
        if opening.id != wanted.file_id {
            return Err(replaced(format!("file {}", hex(&opening.id))));
        }
        let footer = opening.footer_at(wanted.footer)?.filter(|f| f.commit == wanted.commit);
        let footer = footer.ok_or_else(|| replaced("the same file without that commit".to_owned()))?;
        Self::load(path, access, threads, Arc::clone(&file), opening, footer)
    }

    fn load(
        path: &Path,
        access: Access,
        threads: Option<usize>,
        file: Arc<File>,
        opening: Opening<'_>,
        footer: Footer,
    ) -> Result<Self> {
        let io = |e| Error::io(path, e);
        let Commit { id, footer, directory, document, file_length } = opening.load(footer)?;
        let (map, source, random) = match access {
            Access::Mmap => {
                let map = Arc::new(Mapping::new(&file, footer.end(), Pattern::Normal).map_err(io)?);
                let random = Arc::new(Mapping::new(&file, footer.end(), Pattern::Random).map_err(io)?);
                (Some(Arc::clone(&map)), Source::Mapped(map), Source::Mapped(random))
            }
            Access::Pread => {
                // Advice belongs to an open file, so batches need one of their own.
                let random = File::open(path).map_err(io)?;
                if !same_file(&file, &random).map_err(io)? {
                    let (expected, found) = (format!("file {}", hex(&id)), "another file".to_owned());
                    return Err(Error::Replaced { path: path.to_owned(), expected, found });
                }
                sys::advise_random(&random);
                (None, Source::File(Arc::clone(&file)), Source::File(Arc::new(random)))
            }
        };
        let index = Index::new(path, &directory, &footer, &document.schema, &source)?;
        let copies = index.columns().iter().map(|_| OnceLock::new()).collect();
        let inner = Snapshot {
            path: path.to_owned(),
            access,
            threads: threads.unwrap_or(usize::MAX).clamp(1, pool::default_threads()),
            id,
            footer,
            document,
            file_length,
            index,
            copies,
            file,
            map,
            random,
            blocks_seen: AtomicI64::new(-1),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Looks for a newer commit and opens it; `None` if this is the newest.
    ///
    /// # Errors
    /// As [`Reader::open`], and [`Error::Replaced`] if the path holds another file now.
    pub fn refresh(&self) -> Result<Option<Self>> {
        let new = Self::open(self.path(), self.inner.access, Some(self.inner.threads))?;
        if new.inner.id != self.inner.id {
            let expected = format!("file {}", hex(&self.inner.id));
            let found = format!("file {}", hex(&new.inner.id));
            return Err(Error::Replaced { path: self.path().to_owned(), expected, found });
        }
        Ok((new.inner.footer.commit > self.inner.footer.commit).then_some(new))
    }

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
    /// # Errors
    /// [`Error::Truncated`].
    pub fn check_size(&self) -> Result<()> {
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
        let limit = self.inner.footer.offset;
        let mut extents = Vec::with_capacity(records.len());
        self.main_column(field)?.for_each::<EXTENT_LEN>(self.path(), records, |i, entry| {
            let extent = match entry {
                Some(bytes) => match Extent::decode(bytes, limit) {
                    Some(extent) => extent,
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

    fn name_of(&self, field: usize) -> String {
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
                Ok(Datum::Payload(extent.offset, extent.stored))
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
        let bytes = self.pread(&extent)?;
        if verify {
            self.check_crc(field, record, &extent, &bytes)?;
        }
        Ok(bytes)
    }

    /// All values of a fixed-width column, every block checked: `label`, `image.width`, `image.height`.
    ///
    /// # Errors
    /// No such column, damage, or a record without a value.
    pub fn column(&self, name: &str) -> Result<(ColumnType, ColumnBytes)> {
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

fn same_file(a: &File, b: &File) -> std::io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let (a, b) = (a.metadata()?, b.metadata()?);
    Ok((a.dev(), a.ino()) == (b.dev(), b.ino()))
}

/// A file id as users see it: 32 hexadecimal digits.
pub fn hex(id: &FileId) -> String {
    id.iter().map(|b| format!("{b:02x}")).collect()
}

/// Reads what [`hex`] wrote.
pub fn from_hex(text: &str) -> Option<FileId> {
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    let mut id = FileId::default();
    for (i, byte) in id.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(id)
}
