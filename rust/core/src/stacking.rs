//! The recipe for arrays: copy the values of a few records at a time, each to its place in the batch.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use crate::decoding::nanos;
use crate::error::{Error, Result};
use crate::layout::Extent;
use crate::loader::{Making, Recipe, add};
use crate::sources::{LoadSource, Sources};
use crate::sys;

/// A thread copies about so many bytes at a time.
const RUN_BYTES: usize = 128 << 10;
/// And no more rows than this, however small they are.
const RUN_ROWS: usize = 4096;

/// Values of one size, to be stacked row by row: of each field one buffer.
#[derive(Debug)]
pub struct StackPlan {
    sources: Sources,
    row_bytes: Vec<usize>,
    verify: bool,
    /// Blocks that this process had read from disks when a batch was last looked up.
    blocks_seen: AtomicI64,
}

/// Where the values of a batch lie.
#[derive(Debug)]
pub struct Found {
    /// Of each row the number of its file and that of the record there; None if it failed.
    rows: Vec<Option<(usize, u64)>>,
    /// Of each field the extents of the rows; those of failed rows are of no meaning.
    extents: Vec<Vec<Extent>>,
}

impl StackPlan {
    /// Plans to stack the values of fields; all files' records are one run of rows.
    ///
    /// # Errors
    /// No file or field, or a file without a field for each of `row_bytes`.
    pub fn new(sources: Vec<LoadSource>, row_bytes: Vec<usize>, verify: bool) -> Result<Self> {
        if sources.is_empty() || row_bytes.is_empty() {
            return Err(Error::Plan("there must be a file and a field".to_owned()));
        }
        for source in &sources {
            if source.fields.len() != row_bytes.len() {
                return Err(Error::Plan(format!("{} fields for {} outputs", source.fields.len(), row_bytes.len())));
            }
        }
        Ok(Self { sources: Sources::new(sources), row_bytes, verify, blocks_seen: AtomicI64::new(-1) })
    }

    /// Whether anything was read from a disk since this was last asked; yes, the first time.
    fn disk_was_read(&self) -> bool {
        let blocks = sys::blocks_read();
        self.blocks_seen.swap(blocks, Ordering::Relaxed) != blocks
    }

    /// The extents of one record, of the sizes that they are to have.
    fn fitting(&self, source: &LoadSource, record: u64, extents: Vec<Extent>) -> Result<Vec<Extent>> {
        let extents = source.present(record, extents)?;
        let unfit = |&at: &usize| extents[at].length() != self.row_bytes[at] as u64;
        match (0..extents.len()).find(unfit) {
            Some(at) => {
                let detail = format!("{} bytes, where each value has {}", extents[at].length(), self.row_bytes[at]);
                Err(source.reader.bad_extent(source.fields[at], record, detail))
            }
            None => Ok(extents),
        }
    }

    fn copy_row(&self, making: &mut Making<'_, Found>, row: usize, (file, record): (usize, u64)) -> Result<()> {
        let source = &self.sources[file];
        let at = row - making.part.rows.start;
        for (output, &len) in self.row_bytes.iter().enumerate() {
            let extent = &making.found.extents[output][row];
            let out = &mut making.part.bytes[output][at * len..][..len];
            source.reader.copy_one(source.fields[output], record, extent, out, self.verify)?;
        }
        Ok(())
    }
}

impl Recipe for StackPlan {
    type Found = Found;
    type Tools = ();
    const RANDOM: bool = false;

    fn rows(&self) -> u64 {
        self.sources.rows()
    }

    fn no_row(&self, row: u64) -> Error {
        self.sources.no_row(row)
    }

    fn row_bytes(&self) -> Vec<usize> {
        self.row_bytes.clone()
    }

    fn run(&self) -> usize {
        (RUN_BYTES / self.row_bytes.iter().sum::<usize>().max(1)).clamp(1, RUN_ROWS)
    }

    fn tools(&self) {}

    fn look_up(&self, rows: &[u64], fail: &mut dyn FnMut(usize, Error)) -> Found {
        let cold = self.disk_was_read();
        let mut found = Found {
            rows: vec![None; rows.len()],
            extents: self.row_bytes.iter().map(|_| vec![Extent::default(); rows.len()]).collect(),
        };
        for (file, places, records) in self.sources.split(rows) {
            let source = &self.sources[file];
            let all = source.extents(&records);
            if let (Ok(all), true) = (&all, cold) {
                source.ask(all);
            }
            for (i, (&place, &record)) in places.iter().zip(&records).enumerate() {
                let extents = match &all {
                    Ok(all) => Ok(all.iter().map(|extents| extents[i]).collect()),
                    // One damaged entry must not spoil the records beside it: each by itself.
                    Err(_) => source.extents(&[record]).map(|all| all.into_iter().flatten().collect()),
                };
                match extents.and_then(|extents| self.fitting(source, record, extents)) {
                    Ok(extents) => {
                        found.rows[place] = Some((file, record));
                        for (field, extent) in extents.into_iter().enumerate() {
                            found.extents[field][place] = extent;
                        }
                    }
                    Err(error) => fail(place, error),
                }
            }
        }
        found
    }

    fn ask_ahead(&self, rows: &[u64], stop: &dyn Fn() -> bool) {
        self.sources.ask_ahead(rows, stop);
    }

    fn make(&self, (): &mut (), making: &mut Making<'_, Found>) {
        let start = Instant::now();
        let (mut made, mut stored) = (0, 0);
        for row in making.part.rows.clone() {
            let Some(place) = making.found.rows[row] else {
                making.part.clear(row);
                continue;
            };
            match self.copy_row(making, row, place) {
                Ok(()) => {
                    made += 1;
                    stored += making.found.extents.iter().map(|extents| extents[row].stored).sum::<u64>();
                }
                Err(error) => making.fail(row, error),
            }
        }
        add(&making.counters.records, made);
        add(&making.counters.reads, made * self.row_bytes.len() as u64);
        add(&making.counters.bytes, stored);
        add(&making.counters.read_nanos, nanos(start.elapsed()));
    }
}
