//! `add_crop_index`: adds the crop index to the images of a file that exists. Several threads read
//! images and build indexes ahead, while the calling thread appends the indexes in record order.

use std::mem;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::codec::Codec;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::format::extent::Extent;
use crate::format::field_type::FieldType;
use crate::format::schema::FieldIndex;
use crate::image::{CROP_INDEX, crop_index};
use crate::parallel::ordered::{CloseOnDrop, OrderedQueue};
use crate::parallel::pool;
use crate::parallel::sync::SLICE;
use crate::read::payload::resized;
use crate::read::{Access, Reader};
use crate::write::writer::{Mode, Writer, WriterOptions};

/// Maximum number of indexes, and of their bytes, that wait in memory to be appended.
const AHEAD: usize = 1024;
const AHEAD_BYTES: usize = 32 << 20;
/// Images that a thread claims together.
const AT_ONCE: usize = 8;
/// Payload buffers up to this size are kept for the next image.
const KEEP: usize = 16 << 20;
/// The time between two commits: the most that a killed process loses.
const COMMIT: Duration = Duration::from_secs(20);
/// Records whose entries are counted at once.
const WINDOW: u64 = 16 << 10;

/// How [`add_crop_index`] works.
#[derive(Debug, Clone, Copy)]
pub struct IndexOptions {
    /// Make all indexes again. This drops the side bytes that lie apart from their values. Those after
    /// a value stay, and no longer count if the index differs from them.
    pub rebuild: bool,
    /// Commit after this many records, if 20 seconds have not passed before. This bounds memory.
    pub commit_records: u64,
}

impl Default for IndexOptions {
    fn default() -> Self {
        Self { rebuild: false, commit_records: 1 << 20 }
    }
}

/// The images of a field, and which of them have a crop index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IndexCounts {
    /// Images that got a crop index from this call.
    pub indexed: u64,
    /// Images that had a crop index before.
    pub present: u64,
    /// Images that have none, because they gain nothing or cannot be decoded in parts.
    pub without: u64,
    /// Packed JPEGs, which need none.
    pub packed: u64,
    /// Bytes of the indexes that this call added.
    pub bytes: u64,
}

/// Adds the crop index to the images of a field. Images keep their bytes.
///
/// Commits now and then, and a later call continues after the last commit. Leaves images alone that
/// have an index, unless it rebuilds.
///
/// Reports the number of records done.
///
/// # Errors
/// The field does not exist or is not of type image; a damaged value, a failed read, and interrupts:
/// what was done before is committed. A failed write. Otherwise as [`Writer::open`].
pub fn add_crop_index(path: &Path, field: &str, options: &IndexOptions, control: &dyn Control) -> Result<IndexCounts> {
    let mut writer = Writer::open(path, None, None, &WriterOptions { mode: Mode::Append, ..WriterOptions::default() })?;
    let reader = Reader::open(path, Access::Mmap, None)?;
    let index = reader.field(field)?;
    if *reader.kind(index) != FieldType::Image {
        return Err(reader.wrong_type(index, "only images have a crop index"));
    }
    let todo = Todo::of(&reader, index, options.rebuild)?;
    let mut tally = IndexCounts::default();
    if options.rebuild {
        writer.drop_sides(index.position())?;
    } else {
        count_done(&reader, index, &todo, &mut tally, control)?;
    }
    let indexed = Indexer { reader: &reader, field: index, options }.run(&mut writer, &todo, &mut tally, control);
    indexed.and_then(|()| writer.close())?;
    Ok(tally)
}

/// Records to index.
struct Run {
    records: Range<u64>,
    /// The column has a chunk for these records, in which some entries are missing. A copy in another
    /// order leaves such chunks. The new chunk replaces it as a whole.
    replaces: bool,
}

/// The records to index.
struct Todo {
    runs: Vec<Run>,
    /// Records of the file.
    all: u64,
    /// Records of the runs.
    count: u64,
}

impl Todo {
    fn of(reader: &Reader, field: FieldIndex, rebuild: bool) -> Result<Self> {
        let (mut runs, mut next, all) = (Vec::new(), 0, reader.len());
        let mut push = |records: Range<u64>, replaces| runs.push(Run { records, replaces });
        if let Some(column) = reader.side_column(field).filter(|_| !rebuild) {
            column.for_each_chunk(reader.path(), |first, entries| {
                let (entries, _) = entries.as_chunks();
                let end = first + entries.len() as u64;
                push(next..first, false);
                if entries.iter().any(Extent::is_missing) {
                    push(first..end, true);
                }
                next = end;
                Ok(())
            })?;
        }
        push(next..all, false);
        runs.retain(|run| !run.records.is_empty());
        let count = runs.iter().map(|run| run.records.end - run.records.start).sum();
        Ok(Self { runs, all, count })
    }

    /// The records that need no work, in runs.
    fn done(&self) -> impl Iterator<Item = Range<u64>> {
        let starts = std::iter::once(0).chain(self.runs.iter().map(|run| run.records.end));
        let ends = self.runs.iter().map(|run| run.records.start).chain([self.all]);
        starts.zip(ends).map(|(start, end)| start..end)
    }
}

/// Counts the images that have an entry already.
fn count_done(
    reader: &Reader,
    field: FieldIndex,
    todo: &Todo,
    tally: &mut IndexCounts,
    control: &dyn Control,
) -> Result<()> {
    for run in todo.done() {
        for first in run.clone().step_by(WINDOW as usize) {
            let records = reader.run(first..run.end.min(first + WINDOW))?;
            let after = reader.extents(field, &records)?;
            for (side, value) in reader.side_extents(field, &records)?.iter().zip(after) {
                *(match value.codec {
                    Codec::PackedJpeg => &mut tally.packed,
                    _ if side.stored > 0 || value.side() > 0 => &mut tally.present,
                    _ => &mut tally.without,
                }) += 1;
            }
            control.check()?;
        }
    }
    Ok(())
}

/// What one image gets.
enum Made {
    Index(Vec<u8>),
    /// The image has side bytes after its value.
    Present,
    Without,
    /// The image is a packed JPEG.
    Packed,
    /// The entry that it has.
    Kept(Extent),
}

/// Builds the indexes of one field.
struct Indexer<'a> {
    reader: &'a Reader,
    field: FieldIndex,
    options: &'a IndexOptions,
}

impl Indexer<'_> {
    fn run(&self, writer: &mut Writer, todo: &Todo, tally: &mut IndexCounts, control: &dyn Control) -> Result<()> {
        let count = usize::try_from(todo.count).map_err(|_| Error::Internal("more records than memory has bytes"))?;
        let queue = OrderedQueue::new(count, AHEAD, AHEAD_BYTES, AT_ONCE);
        let starts = todo.runs.iter().map(|run| run.records.end - run.records.start);
        let starts = starts.scan(0, |end, length| Some(mem::replace(end, *end + length)));
        let starts: Vec<u64> = starts.collect();
        let serve = || {
            let mut memory = Vec::new();
            while let Some(numbers) = queue.claim() {
                for number in numbers {
                    queue.wait_for_room(number);
                    let run = starts.partition_point(|&start| start <= number as u64) - 1;
                    let record = todo.runs[run].records.start + (number as u64 - starts[run]);
                    let kept = todo.runs[run].replaces;
                    let made = catch_unwind(AssertUnwindSafe(|| self.make(record, kept, &mut memory)));
                    let made = made.unwrap_or(Err(Error::Internal("building a crop index panicked")));
                    let bytes = if let Ok(Made::Index(side)) = &made { side.len() } else { 0 };
                    queue.put(number, made, bytes);
                }
            }
        };
        thread::scope(|scope| {
            let close = CloseOnDrop(&queue);
            for number in 0..pool::default_threads().min(count) {
                let builder = thread::Builder::new().name(format!("fastrecord-index-{number}"));
                if let Err(error) = builder.spawn_scoped(scope, serve) {
                    if number == 0 {
                        return Err(Error::Threads(error));
                    }
                    break;
                }
            }
            let done = self.append(writer, todo, &queue, tally, control);
            drop(close);
            done
        })
    }

    /// Builds the index of one image, unless its entry can be `kept`. `memory` is a thread's buffer.
    fn make(&self, record: u64, kept: bool, memory: &mut Vec<u8>) -> Result<Made> {
        let (reader, field) = (self.reader, self.field);
        let extent = reader.extent(field, record)?;
        if extent.codec == Codec::PackedJpeg {
            return Ok(Made::Packed);
        }
        let entry = if kept { reader.side_extents(field, &reader.records(&[record])?)?.pop() } else { None };
        if let Some(entry) = entry.filter(|entry| !entry.missing) {
            return Ok(Made::Kept(entry));
        }
        if extent.missing {
            return Ok(Made::Without);
        }
        if extent.side() > 0 && !self.options.rebuild {
            let (mut kind, at) = ([0], extent.offset + extent.length());
            reader.file().read_exact_at(&mut kind, at).map_err(|e| reader.failed_read(field, record, e))?;
            if kind == [CROP_INDEX] {
                return Ok(Made::Present);
            }
        }
        if memory.capacity() > KEEP {
            *memory = Vec::new();
        }
        resized(memory, extent.stored)?;
        reader.file().read_exact_at(memory, extent.offset).map_err(|e| reader.failed_read(field, record, e))?;
        reader.check_crc(field, record, &extent, memory)?;
        let (value, after) = memory.split_at(extent.length() as usize);
        Ok(match crop_index(value) {
            Some(side) if side == after => Made::Present,
            Some(side) => Made::Index(side),
            None => Made::Without,
        })
    }

    /// Appends the indexes in record order.
    fn append(
        &self,
        writer: &mut Writer,
        todo: &Todo,
        queue: &OrderedQueue<Result<Made>>,
        tally: &mut IndexCounts,
        control: &dyn Control,
    ) -> Result<()> {
        let field = self.field.position();
        let mut done = todo.all - todo.count;
        let (mut committed, mut asked) = ((done, Instant::now()), None::<Instant>);
        for Run { records, replaces } in &todo.runs {
            for record in records.clone() {
                let due = asked.is_none_or(|asked| asked.elapsed() >= SLICE);
                let go_on = if due { control.report_and_check(done) } else { Ok(()) };
                if due {
                    asked = Some(Instant::now());
                }
                let put = go_on.and_then(|()| queue.take(control)?).and_then(|made| {
                    match &made {
                        Made::Index(side) => writer.put_side(field, side),
                        Made::Kept(extent) => writer.keep_side(field, extent),
                        Made::Present | Made::Without | Made::Packed => writer.put_side(field, &[]),
                    }?;
                    tally.count(&made);
                    Ok(())
                });
                if let Err(error) = put {
                    // Fails after a failed write, which is then the error to report.
                    let end =
                        if *replaces { writer.drop_pending_sides(field) } else { writer.end_sides(field, record) };
                    let _ = end.and_then(|()| writer.commit());
                    return Err(error);
                }
                done += 1;
                let (before, at) = committed;
                let due = done - before >= self.options.commit_records || at.elapsed() >= COMMIT;
                if due && (!replaces || record + 1 == records.end) {
                    writer.end_sides(field, record + 1)?;
                    writer.commit()?;
                    (committed, asked) = ((done, Instant::now()), None);
                }
            }
            writer.end_sides(field, records.end)?;
        }
        control.report(done);
        writer.commit().map(drop)
    }
}

impl IndexCounts {
    fn count(&mut self, made: &Made) {
        match made {
            Made::Index(side) => {
                self.indexed += 1;
                self.bytes += side.len() as u64;
            }
            Made::Kept(extent) if extent.stored == 0 => self.without += 1,
            Made::Present | Made::Kept(_) => self.present += 1,
            Made::Without => self.without += 1,
            Made::Packed => self.packed += 1,
        }
    }
}
