//! `Stacks`: values of a fixed size, copied into their slots of the batch, a few records at a time.

use std::time::Instant;

use crate::error::Result;
use crate::load::batch::{Task, add, nanos};
use crate::load::sources::{LoadSource, Located, Recent};
use crate::read::seen::Verify;

/// Target size of a part in bytes.
const PART_BYTES: usize = 128 << 10;
/// Maximum number of rows in a part, however small the rows are.
const PART_ROWS: usize = 4096;

/// An output of values of one field.
#[derive(Debug)]
pub(super) struct StackOutput {
    /// Its number among the outputs.
    pub(super) at: usize,
    /// Where its values are located; `None` if they lie in a column.
    pub(super) place: Option<usize>,
    /// Bytes of each value.
    pub(super) bytes: usize,
}

/// The outputs that are stacked.
#[derive(Debug)]
pub(super) struct Stacks {
    values: Vec<StackOutput>,
    payloads: Vec<(StackOutput, usize)>,
    row_bytes: usize,
    verify: Verify,
}

impl Stacks {
    pub(super) fn new(outputs: Vec<StackOutput>, verify: Verify) -> Self {
        let row_bytes = outputs.iter().map(|output| output.bytes).sum();
        let (mut values, mut payloads) = (Vec::new(), Vec::new());
        for output in outputs {
            match output.place {
                Some(place) => payloads.push((output, place)),
                None => values.push(output),
            }
        }
        Self { values, payloads, row_bytes, verify }
    }

    pub(super) fn have_payloads(&self) -> bool {
        !self.payloads.is_empty()
    }

    /// Rows per part.
    pub(super) fn granularity(&self) -> usize {
        (PART_BYTES / self.row_bytes.max(1)).clamp(1, PART_ROWS)
    }

    /// Copies column values, one run of records of one file at a time. Returns the rows that still
    /// need their payloads.
    fn copy_values(&self, recent: &mut Recent<'_>, located: &Located, task: &mut Task<'_>) -> Vec<usize> {
        let (first, mut good) = (task.part.rows.start, Vec::with_capacity(task.part.rows.len()));
        for row in task.part.rows.clone() {
            match located.rows[row] {
                Some(_) => good.push(row),
                None => task.part.clear(row),
            }
        }
        let place = |row: usize| located.rows[row].unwrap_or_default();
        for &StackOutput { at, bytes: len, .. } in &self.values {
            let mut failed = Vec::new();
            for run in good.chunk_by(|&a, &b| a + 1 == b && place(a).0 == place(b).0) {
                let (file, start) = (place(run[0]).0, run[0] - first);
                let records: Vec<u64> = run.iter().map(|&row| place(row).1).collect();
                let out = &mut task.part.bytes[at][start * len..][..run.len() * len];
                let mut copy = |records: &[u64], out: &mut [u8]| {
                    let source = recent.source(file)?;
                    let records = source.reader.records(records)?;
                    source.reader.values_into(source.fields[at], &records, out)
                };
                if copy(&records, out).is_ok() {
                    continue;
                }
                // One damaged block must not fail the records of other blocks.
                for ((&row, record), out) in run.iter().zip(&records).zip(out.chunks_exact_mut(len)) {
                    if let Err(error) = copy(std::slice::from_ref(record), out) {
                        failed.push((row, error));
                    }
                }
            }
            for (row, error) in failed {
                task.fail(row, error);
                good.retain(|&other| other != row);
            }
        }
        good
    }

    /// Copies the payloads of one row, and returns their stored bytes. `mapped` comes from
    /// [`Source::with`].
    ///
    /// [`Source::with`]: crate::read::source::Source::with
    fn copy_payloads(
        &self,
        source: &LoadSource,
        located: &Located,
        task: &mut Task<'_>,
        row: usize,
        mapped: Option<&[u8]>,
    ) -> Result<u64> {
        let slot = row - task.part.rows.start;
        let Some((_, record)) = located.rows[row] else { return Ok(0) };
        let mut stored = 0;
        for &(StackOutput { at, bytes: len, .. }, place) in &self.payloads {
            let extent = &located.extents[place][row];
            let out = &mut task.part.bytes[at][slot * len..][..len];
            source.reader.copy_from(mapped, source.fields[at], record, extent, out, self.verify)?;
            stored += extent.stored;
        }
        Ok(stored)
    }

    /// Fills a part. Returns the rows whose values are all there.
    pub(super) fn fill(&self, recent: &mut Recent<'_>, located: &Located, task: &mut Task<'_>) -> Vec<usize> {
        let start = Instant::now();
        let mut rows = self.copy_values(recent, located, task);
        let mut bytes = 0;
        if self.have_payloads() {
            let mut made = Vec::with_capacity(rows.len());
            let file = |row: usize| located.rows[row].unwrap_or_default().0;
            for run in rows.chunk_by(|&a, &b| file(a) == file(b)) {
                let file = file(run[0]);
                // If the whole file is lost, each record reports its own error.
                let copied: Vec<Result<u64>> = if let Ok(source) = recent.source(file) {
                    let mut all = |mapped: Option<&[u8]>| -> Vec<Result<u64>> {
                        run.iter().map(|&row| self.copy_payloads(source, located, task, row, mapped)).collect()
                    };
                    source.reader.source().with(|mapped| Ok(all(mapped))).unwrap_or_else(|_| all(None))
                } else {
                    let mut one = |row| self.copy_payloads(recent.source(file)?, located, task, row, None);
                    run.iter().map(|&row| one(row)).collect()
                };
                for (&row, copied) in run.iter().zip(copied) {
                    match copied {
                        Ok(stored) => {
                            made.push(row);
                            bytes += stored;
                        }
                        Err(error) => task.fail(row, error),
                    }
                }
            }
            rows = made;
        }
        let width: usize = self.values.iter().map(|output| output.bytes).sum();
        add(&task.counters.reads, (rows.len() * self.payloads.len()) as u64);
        add(&task.counters.bytes, bytes + (rows.len() * width) as u64);
        add(&task.counters.read_nanos, nanos(start.elapsed()));
        rows
    }
}
