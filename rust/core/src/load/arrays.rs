//! `ArrayPlan`: the loader's plan for arrays. It copies the values of a few records at a time into
//! their slots of the batch.

use std::sync::Arc;
use std::time::Instant;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::format::field_type::FieldType;
use crate::format::schema::FieldIndex;
use crate::load::batch::{Fill, LoadCounters, Plan, Task, add, nanos};
use crate::load::loader::Loader;
use crate::load::sources::{LoadFile, LoadSource, Located, Recent, Sources};
use crate::read::seen::Verify;
use crate::sys::DiskWatch;

/// Target size of a part in bytes.
const PART_BYTES: usize = 128 << 10;
/// Maximum number of rows in a part, however small the rows are.
const PART_ROWS: usize = 4096;

/// The plan for values of fixed size, stacked row by row into one buffer per field.
#[derive(Debug)]
pub struct ArrayPlan {
    sources: Sources,
    /// The buffers for payload fields.
    payloads: Vec<usize>,
    /// The buffers for fields whose values lie in columns.
    values: Vec<usize>,
    /// Bytes per row of each buffer.
    row_bytes: Vec<usize>,
    verify: Verify,
    disk: DiskWatch,
}

impl ArrayPlan {
    /// Plans to stack the values of fields, one buffer per field. Rows number the records of all
    /// files consecutively.
    ///
    /// # Errors
    /// The first file is not open, the files differ in their number of fields, or the values of a
    /// field differ in size.
    pub fn new(files: Vec<LoadFile>, verify: Verify) -> Result<Self> {
        let Some(first) = files.first().and_then(LoadFile::open) else {
            return Err(Error::Plan("a plan needs an open file".to_owned()));
        };
        let count = first.fields.len();
        let sizes = |source: &LoadSource| -> Result<Vec<usize>> {
            source.fields.iter().map(|&field| value_bytes(source, field)).collect()
        };
        let row_bytes = sizes(first)?;
        for source in files.iter().filter_map(LoadFile::open) {
            if source.fields.len() != count {
                return Err(Error::Plan(format!("a file has {} fields for {count} buffers", source.fields.len())));
            }
            let sizes = sizes(source)?;
            if let Some(at) = (0..count).find(|&at| sizes[at] != row_bytes[at]) {
                let expected = format!("in the first file its values have {} bytes each", row_bytes[at]);
                return Err(source.reader.wrong_type(source.fields[at], &expected));
            }
        }
        let schema = first.reader.schema();
        let (payloads, values): (Vec<usize>, Vec<usize>) =
            (0..count).partition(|&at| schema[first.fields[at]].kind.has_payloads());
        let (sources, disk) = (Sources::new(files, payloads.clone())?, DiskWatch::default());
        Ok(Self { sources, payloads, values, row_bytes, verify, disk })
    }

    /// Starts `threads` threads.
    ///
    /// # Errors
    /// [`Error::Threads`] if the system allows not even one thread.
    pub fn start(self: &Arc<Self>, counters: Arc<LoadCounters>, threads: usize) -> Result<Loader> {
        Loader::start(Arc::clone(self) as Arc<dyn Plan>, counters, threads)
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
        for &output in &self.values {
            let (len, mut failed) = (self.row_bytes[output], Vec::new());
            for run in good.chunk_by(|&a, &b| a + 1 == b && place(a).0 == place(b).0) {
                let (file, start) = (place(run[0]).0, run[0] - first);
                let records: Vec<u64> = run.iter().map(|&row| place(row).1).collect();
                let out = &mut task.part.bytes[output][start * len..][..run.len() * len];
                let mut copy = |records: &[u64], out: &mut [u8]| {
                    let source = recent.source(file)?;
                    let records = source.reader.records(records)?;
                    source.reader.values_into(source.fields[output], &records, out)
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
        let at = row - task.part.rows.start;
        let Some((_, record)) = located.rows[row] else { return Ok(0) };
        let mut stored = 0;
        for (&output, extents) in self.payloads.iter().zip(&located.extents) {
            let (field, len) = (source.fields[output], self.row_bytes[output]);
            let out = &mut task.part.bytes[output][at * len..][..len];
            source.reader.copy_from(mapped, field, record, &extents[row], out, self.verify)?;
            stored += extents[row].stored;
        }
        Ok(stored)
    }

    /// Fills a part.
    fn fill_part(&self, located: &Located, task: &mut Task<'_>) {
        let start = Instant::now();
        let (mut made, mut bytes) = (0, 0);
        let mut recent = Recent::new(&self.sources);
        let rows = self.copy_values(&mut recent, located, task);
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
                        made += 1;
                        bytes += stored;
                    }
                    Err(error) => task.fail(row, error),
                }
            }
        }
        let width: usize = self.values.iter().map(|&output| self.row_bytes[output]).sum();
        add(&task.counters.records, made);
        add(&task.counters.reads, made * self.payloads.len() as u64);
        add(&task.counters.bytes, bytes + made * width as u64);
        add(&task.counters.read_nanos, nanos(start.elapsed()));
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

impl Plan for ArrayPlan {
    fn is_random(&self) -> bool {
        false
    }

    fn rows(&self) -> u64 {
        self.sources.rows()
    }

    fn no_row(&self, row: u64) -> Error {
        self.sources.no_row(row)
    }

    fn row_bytes(&self) -> Vec<usize> {
        self.row_bytes.clone()
    }

    fn granularity(&self) -> usize {
        (PART_BYTES / self.row_bytes.iter().sum::<usize>().max(1)).clamp(1, PART_ROWS)
    }

    fn locate(&self, rows: &[u64], fail: &mut dyn FnMut(usize, Error)) -> Located {
        let cold = !self.payloads.is_empty() && self.disk.was_read();
        self.sources.locate(rows, cold, fail)
    }

    fn prefetch(&self, rows: &[u64], control: &dyn Control) {
        self.sources.prefetch(rows, control);
    }

    fn fill(&self) -> Fill<'_> {
        Box::new(|located, task| self.fill_part(located, task))
    }
}
