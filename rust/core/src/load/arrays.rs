//! `StackPlan`: the loader's plan for arrays. It copies the values of a few records at a time into
//! their slots of the batch.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use crate::error::{Error, Result};
use crate::format::extent::Extent;
use crate::format::field_type::FieldType;
use crate::format::schema::FieldIndex;
use crate::load::decoding::nanos;
use crate::load::loader::{Making, Recipe, add};
use crate::load::sources::{LoadSource, Sources};
use crate::read::seen::Verify;
use crate::sys;

/// Target size of a part in bytes.
const RUN_BYTES: usize = 128 << 10;
/// Maximum number of rows in a part, however small the rows are.
const RUN_ROWS: usize = 4096;

/// The plan for values of fixed size, stacked row by row into one buffer per field.
#[derive(Debug)]
pub struct StackPlan {
    /// Each file with the fields whose values are payloads.
    sources: Sources,
    /// The buffers for payload fields.
    payloads: Vec<usize>,
    /// The buffers for fields whose values lie in columns.
    values: Vec<usize>,
    /// For each file, the fields of all buffers.
    fields: Vec<Vec<FieldIndex>>,
    /// Bytes per row of each buffer.
    row_bytes: Vec<usize>,
    verify: Verify,
    /// Disk blocks read by this process when the last batch was located.
    blocks_seen: AtomicI64,
}

/// Where the values of a batch lie.
#[derive(Debug)]
pub struct Found {
    /// `(file, record)` for each row; `None` if the lookup failed.
    rows: Vec<Option<(usize, u64)>>,
    /// The extents of the rows, for each payload field. Extents of failed rows are meaningless.
    extents: Vec<Vec<Extent>>,
}

impl StackPlan {
    /// Plans to stack the values of fields, one buffer per field. Rows number the records of all
    /// files consecutively.
    ///
    /// # Errors
    /// There is no file, the files differ in their number of fields, or the values of a field
    /// differ in size.
    pub fn new(mut sources: Vec<LoadSource>, verify: Verify) -> Result<Self> {
        let Some(first) = sources.first() else { return Err(Error::Plan("there must be a file".to_owned())) };
        let count = first.fields.len();
        let mut sizes: Vec<Vec<usize>> = Vec::with_capacity(sources.len());
        for source in &sources {
            if source.fields.len() != count {
                return Err(Error::Plan(format!("{} fields for {count} buffers", source.fields.len())));
            }
            sizes.push(source.fields.iter().map(|&field| value_bytes(source, field)).collect::<Result<_>>()?);
        }
        let row_bytes = sizes.swap_remove(0);
        for (source, sizes) in sources[1..].iter().zip(&sizes) {
            if let Some(at) = (0..count).find(|&at| sizes[at] != row_bytes[at]) {
                let expected = format!("in the first file its values have {} bytes each", row_bytes[at]);
                return Err(source.reader.wrong_type(source.fields[at], &expected));
            }
        }
        let (schema, of) = (sources[0].reader.schema(), &sources[0].fields);
        let (payloads, values): (Vec<usize>, Vec<usize>) =
            (0..count).partition(|&at| schema[of[at]].kind.has_payloads());
        let fields: Vec<Vec<FieldIndex>> = sources.iter().map(|source| source.fields.clone()).collect();
        for source in &mut sources {
            source.fields = payloads.iter().map(|&at| source.fields[at]).collect();
        }
        let (sources, blocks_seen) = (Sources::new(sources), AtomicI64::new(-1));
        Ok(Self { sources, payloads, values, fields, row_bytes, verify, blocks_seen })
    }

    /// Reports whether the process has read from a disk since the last call; always true at the
    /// first call.
    fn disk_was_read(&self) -> bool {
        let blocks = sys::blocks_read();
        self.blocks_seen.swap(blocks, Ordering::Relaxed) != blocks
    }

    /// Copies column values, one run of records of one file at a time. Returns the rows that still
    /// need their payloads.
    fn copy_values(&self, making: &mut Making<'_, Found>) -> Vec<usize> {
        let found = making.found;
        let (first, mut good) = (making.part.rows.start, Vec::with_capacity(making.part.rows.len()));
        for row in making.part.rows.clone() {
            match found.rows[row] {
                Some(_) => good.push(row),
                None => making.part.clear(row),
            }
        }
        let place = |row: usize| found.rows[row].unwrap_or_default();
        for &output in &self.values {
            let (len, mut failed) = (self.row_bytes[output], Vec::new());
            for run in good.chunk_by(|&a, &b| a + 1 == b && place(a).0 == place(b).0) {
                let (file, start) = (place(run[0]).0, run[0] - first);
                let (reader, field) = (&self.sources[file].reader, self.fields[file][output]);
                let records: Vec<u64> = run.iter().map(|&row| place(row).1).collect();
                let out = &mut making.part.bytes[output][start * len..][..run.len() * len];
                if reader.records(&records).and_then(|all| reader.values_into(field, &all, out)).is_ok() {
                    continue;
                }
                // One damaged block must not fail the records of other blocks.
                for ((&row, &record), out) in run.iter().zip(&records).zip(out.chunks_exact_mut(len)) {
                    if let Err(error) = reader.records(&[record]).and_then(|one| reader.values_into(field, &one, out)) {
                        failed.push((row, error));
                    }
                }
            }
            for (row, error) in failed {
                making.fail(row, error);
                good.retain(|&other| other != row);
            }
        }
        good
    }

    /// Copies the payloads of one row, and returns their stored bytes. `mapped` comes from
    /// [`Source::with`].
    ///
    /// [`Source::with`]: crate::read::source::Source::with
    fn copy_payloads(&self, making: &mut Making<'_, Found>, row: usize, mapped: Option<&[u8]>) -> Result<u64> {
        let (found, at) = (making.found, row - making.part.rows.start);
        let Some((file, record)) = found.rows[row] else { return Ok(0) };
        let source = &self.sources[file];
        let mut stored = 0;
        for ((&output, &field), extents) in self.payloads.iter().zip(&source.fields).zip(&found.extents) {
            let len = self.row_bytes[output];
            let out = &mut making.part.bytes[output][at * len..][..len];
            source.reader.copy_from(mapped, field, record, &extents[row], out, self.verify)?;
            stored += extents[row].stored;
        }
        Ok(stored)
    }
}

/// Returns the size of a field's values in bytes.
fn value_bytes(source: &LoadSource, field: FieldIndex) -> Result<usize> {
    let bytes = match source.reader.kind(field) {
        FieldType::Scalar(dtype) => Some(dtype.size()),
        FieldType::Array(array) => array.nbytes().and_then(|bytes| usize::try_from(bytes).ok()),
        _ => None,
    };
    bytes.ok_or_else(|| source.reader.wrong_type(field, "its values are not all of one size, and cannot be stacked"))
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
        let cold = !self.payloads.is_empty() && self.disk_was_read();
        let mut found = Found { rows: vec![None; rows.len()], extents: Vec::new() };
        for _ in &self.payloads {
            found.extents.push(vec![Extent::default(); rows.len()]);
        }
        for (file, places, records) in self.sources.split(rows) {
            let source = &self.sources[file];
            let all = source.extents(&records);
            if let (Ok(all), true) = (&all, cold) {
                source.ask(all);
            }
            for (i, (&place, &record)) in places.iter().zip(&records).enumerate() {
                let mut set = |all: &[Vec<Extent>], i: usize| {
                    for (into, extents) in found.extents.iter_mut().zip(all) {
                        into[place] = extents[i];
                    }
                    match all.iter().position(|extents| extents[i].missing) {
                        Some(at) => Err(source.reader.missing(source.fields[at], record)),
                        None => Ok(()),
                    }
                };
                let set = match &all {
                    Ok(all) => set(all, i),
                    // One damaged entry must not fail its neighbours: look up each record alone.
                    Err(_) => source.extents(&[record]).and_then(|all| set(&all, 0)),
                };
                match set {
                    Ok(()) => found.rows[place] = Some((file, record)),
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
        let (mut made, mut bytes) = (0, 0);
        let (rows, found) = (self.copy_values(making), making.found);
        let file = |row: usize| found.rows[row].unwrap_or_default().0;
        for run in rows.chunk_by(|&a, &b| file(a) == file(b)) {
            let random = &self.sources[file(run[0])].reader.source();
            let mut all = |mapped: Option<&[u8]>| -> Vec<Result<u64>> {
                run.iter().map(|&row| self.copy_payloads(making, row, mapped)).collect()
            };
            // If the whole file is lost, each record reports its own error.
            let copied = random.with(|mapped| Ok(all(mapped))).unwrap_or_else(|_| all(None));
            for (&row, copied) in run.iter().zip(copied) {
                match copied {
                    Ok(stored) => {
                        made += 1;
                        bytes += stored;
                    }
                    Err(error) => making.fail(row, error),
                }
            }
        }
        let width: usize = self.values.iter().map(|&output| self.row_bytes[output]).sum();
        add(&making.counters.records, made);
        add(&making.counters.reads, made * self.payloads.len() as u64);
        add(&making.counters.bytes, bytes + made * width as u64);
        add(&making.counters.read_nanos, nanos(start.elapsed()));
    }
}
