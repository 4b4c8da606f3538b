//! A file as of one commit.

use std::io;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value as Json};

use crate::error::{Error, Result};
use crate::format::chunk::Part;
use crate::format::extent::Extent;
use crate::format::layout::FORMAT_VERSION;
use crate::format::schema::{Field, Schema};
use crate::memory;
use crate::read::index::Column;
use crate::read::mapping::Mapping;
use crate::read::snapshot::{Access, Snapshot, SnapshotId};
use crate::read::source::Source;
use crate::sys::sigbus;

/// A snapshot of a file. Cloning is cheap and shares it; any number of threads may read.
#[derive(Debug, Clone)]
pub struct Reader {
    pub(crate) inner: Arc<Snapshot>,
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

    pub(crate) fn no_field(&self, name: &str) -> Error {
        let names: Vec<&str> = self.schema().fields().iter().map(|f| f.name.as_str()).collect();
        Error::NoField { path: self.path().to_owned(), field: name.to_owned(), known: names.join(", ") }
    }

    pub(crate) fn field_at(&self, position: usize) -> Result<&Field> {
        self.schema().fields().get(position).ok_or_else(|| self.no_field(&position.to_string()))
    }

    pub(crate) fn main_column(&self, field: usize) -> Result<&Column> {
        self.inner.index.column(field, Part::MAIN).ok_or_else(|| self.no_field(&field.to_string()))
    }

    /// Turns record numbers as users give them, negative ones counting from the end, into positions.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] names the first that is none.
    pub fn resolve(&self, numbers: &[i64]) -> Result<Vec<u64>> {
        let len = self.len();
        let mut records = memory::room(numbers.len())?;
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
                sigbus::arm();
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

    pub(crate) fn name_of(&self, field: usize) -> String {
        self.schema().fields().get(field).map_or_else(String::new, |f| f.name.clone())
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
}
