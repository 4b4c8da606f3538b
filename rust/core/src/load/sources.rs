//! `Sources`: files that a loader reads as one sequence of rows, and `Located`: where the values of
//! a batch lie in them.

use std::collections::{HashMap, VecDeque};
use std::ops::Deref;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::format::extent::Extent;
use crate::format::field_type::FieldType;
use crate::format::layout::PAGE;
use crate::format::schema::FieldIndex;
use crate::parallel::sync::{Arc, Mutex, lock};
use crate::read::reader::Reader;
use crate::read::shard::Shard;
use crate::read::snapshot::Access;
use crate::sys::files::most_open;

/// An open file, and the fields of it that a loader reads, one per output.
#[derive(Debug, Clone)]
pub struct LoadSource {
    /// The file.
    pub reader: Reader,
    /// Fields of its schema.
    pub fields: Vec<FieldIndex>,
}

/// A file that a loader reads.
#[derive(Debug, Clone)]
pub enum LoadFile {
    /// It is open.
    Open(LoadSource),
    /// It is opened when a batch needs it, and may be closed when others are opened. It has the
    /// fields that the first file has.
    Shard(Arc<Shard>),
}

/// Where the values of a batch lie.
#[derive(Debug)]
pub(crate) struct Located {
    /// `(number of the file, record)` for each row; `None` if it cannot be loaded.
    pub(crate) rows: Vec<Option<(usize, u64)>>,
    /// For each field, the extents of the rows. Extents of rows that cannot be loaded are
    /// meaningless.
    pub(crate) extents: Vec<Vec<Extent>>,
    /// For each field, the extents of side bytes that lie elsewhere; without a byte where there are none.
    pub(crate) sides: Vec<Vec<Extent>>,
}

/// Where the values of records of one file lie, for each field.
struct Extents {
    values: Vec<Vec<Extent>>,
    /// Side bytes that lie elsewhere. Empty for a field without any.
    sides: Vec<Vec<Extent>>,
}

/// Files whose records form one sequence of rows.
#[derive(Debug)]
pub(crate) struct Sources {
    files: Vec<LoadFile>,
    /// For each file, the number of rows up to its end.
    ends: Vec<u64>,
    /// The first file's name and type of each output.
    fields: Vec<(String, FieldType)>,
    /// How shards are opened: as the first file was.
    access: Access,
    /// The outputs whose values have extents.
    located: Vec<usize>,
    opened: Mutex<Opened>,
    /// The most shards that are kept open.
    most: usize,
}

/// A file in use: it stays open meanwhile.
pub(crate) enum InUse<'a> {
    Open(&'a LoadSource),
    Shard(Arc<LoadSource>),
}

impl Deref for InUse<'_> {
    type Target = LoadSource;

    fn deref(&self) -> &LoadSource {
        match self {
            Self::Open(source) => source,
            Self::Shard(source) => source,
        }
    }
}

/// The shards that one thread used last. It finds them without a lock.
pub(crate) struct Recent<'a> {
    sources: &'a Sources,
    shards: VecDeque<(usize, InUse<'a>)>,
}

impl<'a> Recent<'a> {
    /// Few, because each keeps a file open.
    const MOST: usize = 8;

    pub(crate) fn new(sources: &'a Sources) -> Self {
        Self { sources, shards: VecDeque::new() }
    }

    /// Returns a file, opened if need be.
    pub(crate) fn source(&mut self, number: usize) -> Result<&LoadSource> {
        if let LoadFile::Open(source) = &self.sources.files[number] {
            return Ok(source);
        }
        let at = self.shards.iter().position(|(other, _)| *other == number);
        let at = if let Some(at) = at {
            at
        } else {
            let source = self.sources.source(number)?;
            if self.shards.len() == Self::MOST {
                self.shards.pop_front();
            }
            self.shards.push_back((number, source));
            self.shards.len() - 1
        };
        Ok(&self.shards[at].1)
    }
}

/// Shards that are open, in the order of their opening.
#[derive(Debug, Default)]
struct Opened {
    sources: HashMap<usize, Arc<LoadSource>>,
    order: VecDeque<usize>,
}

impl Sources {
    /// Returns the files as one sequence. `located` are the outputs whose values have extents.
    ///
    /// # Errors
    /// There is no file, or the first one is not open.
    pub(crate) fn new(files: Vec<LoadFile>, located: Vec<usize>) -> Result<Self> {
        let Some(LoadFile::Open(LoadSource { reader, fields })) = files.first() else {
            return Err(Error::Plan("a plan needs an open file".to_owned()));
        };
        let field = |&at: &FieldIndex| (reader.schema()[at].name.clone(), reader.kind(at).clone());
        let (fields, access) = (fields.iter().map(field).collect(), reader.access());
        let mut end = 0;
        let ends = files.iter().map(|file| {
            end += file.len();
            end
        });
        let ends = ends.collect();
        Ok(Self { files, ends, fields, access, located, opened: Mutex::default(), most: most_open() })
    }

    /// Returns a file, opened if need be.
    pub(crate) fn source(&self, number: usize) -> Result<InUse<'_>> {
        let shard = match &self.files[number] {
            LoadFile::Open(source) => return Ok(InUse::Open(source)),
            LoadFile::Shard(shard) => shard,
        };
        if let Some(source) = lock(&self.opened).sources.get(&number) {
            return Ok(InUse::Shard(Arc::clone(source)));
        }
        // Opened without the lock: meanwhile another thread may open it too, which is harmless.
        let source = Arc::new(self.open(shard)?);
        let mut opened = lock(&self.opened);
        if opened.sources.insert(number, Arc::clone(&source)).is_none() {
            opened.order.push_back(number);
        }
        let oldest = (opened.order.len() > self.most).then(|| opened.order.pop_front()).flatten();
        let closed = oldest.and_then(|number| opened.sources.remove(&number));
        drop(opened);
        drop(closed); // unmapping takes time
        Ok(InUse::Shard(source))
    }

    fn open(&self, shard: &Shard) -> Result<LoadSource> {
        let reader = shard.open(self.access, None)?;
        let mut fields = Vec::with_capacity(self.fields.len());
        for (name, kind) in &self.fields {
            let field = reader.field(name)?;
            if reader.kind(field) != kind {
                return Err(reader.wrong_type(field, "in the first file it has another type"));
            }
            fields.push(field);
        }
        Ok(LoadSource { reader, fields })
    }

    /// Returns the number of rows in all files.
    pub(crate) fn rows(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    pub(crate) fn no_row(&self, row: u64) -> Error {
        Error::Plan(format!("row {row} is out of range: the files have {} records", self.rows()))
    }

    /// Returns the number of the file, and the record number in it.
    fn find(&self, row: u64) -> (usize, u64) {
        let source = self.ends.partition_point(|&end| end <= row);
        (source, row - source.checked_sub(1).map_or(0, |before| self.ends[before]))
    }

    /// Groups rows by file: the number of each file, the slots of its rows in `rows`, in order, and
    /// their record numbers. Rows out of range are left out.
    pub(crate) fn split(&self, rows: &[u64]) -> Vec<(usize, Vec<usize>, Vec<u64>)> {
        if self.files.len() == 1 && rows.iter().all(|&row| row < self.rows()) {
            return vec![(0, (0..rows.len()).collect(), rows.to_vec())];
        }
        let mut located: Vec<(usize, usize, u64)> = Vec::with_capacity(rows.len());
        for (slot, &row) in rows.iter().enumerate().filter(|&(_, &row)| row < self.rows()) {
            let (source, record) = self.find(row);
            located.push((source, slot, record));
        }
        located.sort_unstable();
        let one = |run: &[(usize, usize, u64)]| {
            let (slots, records) = run.iter().map(|&(_, slot, record)| (slot, record)).unzip();
            (run[0].0, slots, records)
        };
        located.chunk_by(|a, b| a.0 == b.0).map(one).collect()
    }

    /// Locates rows, and prefetches them if asked. Calls `fail` for each row that cannot be loaded.
    pub(crate) fn locate(&self, rows: &[u64], prefetch: bool, fail: &mut dyn FnMut(usize, Error)) -> Located {
        let extents = vec![vec![Extent::default(); rows.len()]; self.located.len()];
        let mut located = Located { rows: vec![None; rows.len()], sides: extents.clone(), extents };
        for (file, slots, records) in self.split(rows) {
            // A file that cannot be opened fails its records one by one: it may be back for the next.
            let mut open = None;
            let failed = slots.iter().take_while(|&&slot| match self.source(file) {
                Ok(source) => {
                    open = Some(source);
                    false
                }
                Err(error) => {
                    fail(slot, error);
                    true
                }
            });
            let failed = failed.count();
            let Some(source) = open else { continue };
            let (slots, records) = (&slots[failed..], &records[failed..]);
            let look_up = |records: &[u64]| {
                source.extents(records, &self.located).inspect(|all| {
                    if prefetch {
                        source.ask(all);
                    }
                })
            };
            let all = look_up(records);
            for (i, (&slot, &record)) in slots.iter().zip(records).enumerate() {
                let mut set = |all: &Extents, i: usize| {
                    for (into, extents) in located.extents.iter_mut().zip(&all.values) {
                        into[slot] = extents[i];
                    }
                    for (into, extents) in located.sides.iter_mut().zip(&all.sides) {
                        if let Some(extent) = extents.get(i) {
                            into[slot] = *extent;
                        }
                    }
                    match all.values.iter().position(|extents| extents[i].missing) {
                        Some(at) => Err(source.reader.missing(source.fields[self.located[at]], record)),
                        None => Ok(()),
                    }
                };
                let set = match &all {
                    Ok(all) => set(all, i),
                    // One damaged entry must not fail its neighbours: look up each record alone.
                    Err(_) => look_up(&[record]).and_then(|all| set(&all, 0)),
                };
                match set {
                    Ok(()) => located.rows[slot] = Some((file, record)),
                    Err(error) => fail(slot, error),
                }
            }
        }
        located
    }

    /// Prefetches the payloads of ascending rows of later batches.
    ///
    /// A full disk queue makes it wait. It ignores bad files and index entries: they are reported when
    /// their record is loaded.
    pub(crate) fn prefetch(&self, rows: &[u64], control: &dyn Control) {
        const AT_ONCE: usize = 64;
        for run in rows.chunk_by(|&a, &b| self.find(a).0 == self.find(b).0) {
            let Ok(source) = self.source(self.find(run[0]).0) else { continue };
            for rows in run.chunks(AT_ONCE) {
                if control.is_stopped() {
                    return;
                }
                let records: Vec<u64> = rows.iter().map(|&row| self.find(row).1).collect();
                if let Ok(all) = source.extents(&records, &self.located) {
                    source.ask(&all);
                }
            }
        }
    }
}

impl LoadSource {
    /// Looks the fields up by their names.
    ///
    /// # Errors
    /// [`Error::NoField`].
    pub fn new(reader: Reader, fields: &[impl AsRef<str>]) -> Result<Self> {
        let fields = fields.iter().map(|name| reader.field(name.as_ref())).collect::<Result<_>>()?;
        Ok(Self { reader, fields })
    }

    /// Returns the field of an output.
    ///
    /// # Errors
    /// There is not one for each output.
    pub(super) fn field(&self, output: usize, outputs: usize) -> Result<FieldIndex> {
        let found = self.fields.get(output).filter(|_| self.fields.len() == outputs);
        let wrong = || Error::Plan(format!("a file has {} fields for {outputs} outputs", self.fields.len()));
        found.copied().ok_or_else(wrong)
    }

    /// Returns the size of a field's values in bytes.
    ///
    /// # Errors
    /// They are not all of one size.
    pub(super) fn value_bytes(&self, field: FieldIndex) -> Result<usize> {
        let bytes = match self.reader.kind(field) {
            FieldType::Scalar(dtype) => Some(dtype.size()),
            FieldType::Array(array) => array.nbytes().and_then(|bytes| usize::try_from(bytes).ok()),
            _ => None,
        };
        bytes.ok_or_else(|| self.reader.wrong_type(field, "its values are not all of one size, and cannot be stacked"))
    }

    /// Looks up where the values of records lie, for some outputs.
    fn extents(&self, records: &[u64], outputs: &[usize]) -> Result<Extents> {
        let (reader, records) = (&self.reader, self.reader.records(records)?);
        let fields = || outputs.iter().map(|&output| self.fields[output]);
        Ok(Extents {
            values: fields().map(|field| reader.extents(field, &records)).collect::<Result<_>>()?,
            sides: fields().map(|field| reader.side_extents(field, &records)).collect::<Result<_>>()?,
        })
    }

    /// Prefetches payloads, neighbours in one call.
    fn ask(&self, extents: &Extents) {
        let all = extents.values.iter().chain(&extents.sides).flatten();
        let mut ranges: Vec<(u64, u64)> =
            all.filter(|e| e.stored > 0).map(|e| (e.offset, e.offset + e.stored)).collect();
        ranges.sort_unstable();
        let mut ranges = ranges.into_iter().peekable();
        while let Some((start, mut end)) = ranges.next() {
            while let Some((_, next)) = ranges.next_if(|&(next, _)| next <= end + PAGE) {
                end = end.max(next);
            }
            self.reader.ask_range(start, end - start);
        }
    }
}

impl LoadFile {
    /// Returns the file if it is open.
    pub(crate) fn open(&self) -> Option<&LoadSource> {
        if let Self::Open(source) = self { Some(source) } else { None }
    }

    /// Returns the number of records.
    fn len(&self) -> u64 {
        match self {
            Self::Open(source) => source.reader.len(),
            Self::Shard(shard) => shard.records,
        }
    }
}

impl From<LoadSource> for LoadFile {
    fn from(source: LoadSource) -> Self {
        Self::Open(source)
    }
}
