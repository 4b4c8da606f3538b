//! `Sources`: files that a loader reads as one sequence of rows, and `Located`: where the values of
//! a batch lie in them.

use std::ops::Index;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::format::extent::Extent;
use crate::format::layout::PAGE;
use crate::format::schema::FieldIndex;
use crate::read::reader::Reader;

/// A file, and the fields of it that a loader reads, one per output.
#[derive(Debug, Clone)]
pub struct LoadSource {
    /// The file.
    pub reader: Reader,
    /// Fields of its schema.
    pub fields: Vec<FieldIndex>,
}

/// Where the values of a batch lie.
#[derive(Debug)]
pub(crate) struct Located {
    /// `(file, record)` for each row; `None` if it cannot be loaded.
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
    sources: Vec<LoadSource>,
    /// For each file, the number of rows up to its end.
    ends: Vec<u64>,
}

impl Index<usize> for Sources {
    type Output = LoadSource;

    fn index(&self, number: usize) -> &LoadSource {
        &self.sources[number]
    }
}

impl Sources {
    pub(crate) fn new(sources: Vec<LoadSource>) -> Self {
        let mut end = 0;
        let ends = sources.iter().map(|source| {
            end += source.reader.len();
            end
        });
        let ends = ends.collect();
        Self { sources, ends }
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
        if self.sources.len() == 1 && rows.iter().all(|&row| row < self.rows()) {
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
        let fields = self.sources.first().map_or(0, |source| source.fields.len());
        let extents = vec![vec![Extent::default(); rows.len()]; fields];
        let mut located = Located { rows: vec![None; rows.len()], sides: extents.clone(), extents };
        for (file, slots, records) in self.split(rows) {
            let source = &self.sources[file];
            let look_up = |records: &[u64]| {
                source.extents(records).inspect(|all| {
                    if prefetch {
                        source.ask(all);
                    }
                })
            };
            let all = look_up(&records);
            for (i, (&slot, &record)) in slots.iter().zip(&records).enumerate() {
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
                        Some(at) => Err(source.reader.missing(source.fields[at], record)),
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
    /// A full disk queue makes it wait. It ignores bad index entries: they are reported when their
    /// record is loaded.
    pub(crate) fn prefetch(&self, rows: &[u64], control: &dyn Control) {
        const AT_ONCE: usize = 64;
        for run in rows.chunk_by(|&a, &b| self.find(a).0 == self.find(b).0) {
            let source = self.find(run[0]).0;
            for rows in run.chunks(AT_ONCE) {
                if control.is_stopped() {
                    return;
                }
                let records: Vec<u64> = rows.iter().map(|&row| self.find(row).1).collect();
                if let Ok(all) = self.sources[source].extents(&records) {
                    self.sources[source].ask(&all);
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

    /// Looks up where the values of records lie.
    fn extents(&self, records: &[u64]) -> Result<Extents> {
        let (reader, records) = (&self.reader, self.reader.records(records)?);
        Ok(Extents {
            values: self.fields.iter().map(|&field| reader.extents(field, &records)).collect::<Result<_>>()?,
            sides: self.fields.iter().map(|&field| reader.side_extents(field, &records)).collect::<Result<_>>()?,
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
