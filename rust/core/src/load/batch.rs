//! `Plan`, the work of a loader, and `Batch`: what the loader's threads share.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::time::Duration;

use crate::control::Control;
use crate::error::Error;
use crate::load::sources::Located;
use crate::parallel::buffers::{BatchBuffer, Part, PartQueue};
use crate::parallel::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::parallel::sync::{Arc, Condvar, FirstPanic, Mutex, OnceLock, lock};

/// Counters of a loader's work; may be read at any time.
#[derive(Debug, Default)]
#[allow(missing_docs)] // the names are enough
pub struct LoadCounters {
    pub records: AtomicU64,
    pub failures: AtomicU64,
    pub reads: AtomicU64,
    pub bytes: AtomicU64,
    pub read_nanos: AtomicU64,
    pub decode_nanos: AtomicU64,
    pub resize_nanos: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Fills a part of a batch. Each thread has its own, with its scratch memory.
pub(crate) type Fill<'a> = Box<dyn FnMut(&Located, &mut Task<'_>) + 'a>;

/// The work of a loader in two steps: locate the rows of a batch, then fill one part after the
/// other.
pub(crate) trait Plan: Debug + Send + Sync {
    /// The number of images in a row, whose crops depend on seed, epoch and positions.
    fn images(&self) -> usize;
    /// Whether pairs of rows are mixed when both are complete.
    fn mixes(&self) -> bool;
    /// The number of rows.
    fn rows(&self) -> u64;
    /// The error for a row that does not exist.
    fn no_row(&self, row: u64) -> Error;
    /// Bytes per row of each buffer.
    fn row_bytes(&self) -> &[usize];
    /// Rows per part.
    fn granularity(&self) -> usize;
    /// Locates rows, and prefetches them. Calls `fail` for each row that cannot be loaded.
    fn locate(&self, rows: &[u64], fail: &mut dyn FnMut(usize, Error)) -> Located;
    /// Prefetches ascending rows of later batches.
    fn prefetch(&self, rows: &[u64], control: &dyn Control);
    /// Returns what fills parts on one thread. Rows that fail now or failed earlier become zeros.
    fn fill(&self) -> Fill<'_>;
}

/// A part to fill.
#[allow(missing_debug_implementations)] // lives within a call
pub(crate) struct Task<'a> {
    pub(crate) batch: &'a Batch,
    pub(crate) part: Part<'a>,
    pub(crate) counters: &'a LoadCounters,
}

impl Task<'_> {
    /// Records the error of a row and fills it with zeros.
    pub(crate) fn fail(&mut self, row: usize, error: Error) {
        self.part.clear(row);
        self.batch.fail(row, error, self.counters);
    }
}

/// A batch to load.
#[derive(Debug)]
pub struct Workload {
    /// With the epoch and the position, it determines the crop.
    pub seed: u64,
    /// The epoch of the order.
    pub epoch: u64,
    /// Record numbers over all files.
    pub rows: Vec<u64>,
    /// Positions in the epoch order, one per row; may be empty if there are no images.
    pub positions: Vec<u64>,
    /// Rows of later batches to prefetch after the rows of this one, in ascending order; may be
    /// empty.
    pub ahead: Vec<u64>,
    /// The memory of each output: its rows back to back.
    pub buffers: Vec<BatchBuffer>,
}

/// A record of a batch that could not be loaded. Its slot in the buffers is zeros; if an image fails, in
/// those of the images only.
#[derive(Debug)]
pub struct Failure {
    /// Slot in the batch.
    pub slot: usize,
    /// The error, which names file and record.
    pub error: Error,
}

/// A batch in progress.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) seed: u64,
    pub(crate) epoch: u64,
    pub(crate) rows: Vec<u64>,
    pub(crate) positions: Vec<u64>,
    pub(crate) ahead: Vec<u64>,
    pub(crate) parts: PartQueue,
    /// Width and height of each image, row by row; zeros for rows without one.
    pub(crate) images: Vec<AtomicU64>,
    pub(crate) failures: Mutex<Vec<Failure>>,
    pub(crate) panic: FirstPanic,
    pub(crate) finished: Condvar,
    /// Unset before the batch is located, or if that panicked.
    pub(crate) located: OnceLock<Located>,
}

impl Batch {
    pub(crate) fn fail(&self, slot: usize, error: Error, counters: &LoadCounters) {
        add(&counters.failures, 1);
        log::debug!(target: "fastrecord_core::loader", "a record cannot be loaded: {}", error.coded());
        lock(&self.failures).push(Failure { slot, error });
    }

    /// Takes note of the size (width, height) of an image.
    pub(crate) fn note_image(&self, row: usize, number: usize, (width, height): (u32, u32)) {
        if let Some(image) = self.images.get(self.image_at(row, number)) {
            image.store(u64::from(width) << 32 | u64::from(height), Ordering::Relaxed);
        }
    }

    /// Returns the size (width, height) of an image; zeros if there was none.
    pub(crate) fn image(&self, row: usize, number: usize) -> (u32, u32) {
        let image = self.images.get(self.image_at(row, number)).map_or(0, |image| image.load(Ordering::Relaxed));
        ((image >> 32) as u32, image as u32)
    }

    fn image_at(&self, row: usize, number: usize) -> usize {
        row * (self.images.len() / self.rows.len().max(1)) + number
    }

    pub(crate) fn announce(&self) {
        drop(lock(&self.failures)); // so that no thread misses the wake-up
        self.finished.notify_all();
    }
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Batches to locate, in submission order.
    pub(crate) fresh: VecDeque<(u64, Arc<Batch>)>,
    /// Batches located and prefetched, in submission order.
    pub(crate) ready: VecDeque<(u64, Arc<Batch>)>,
    pub(crate) next: u64,
    /// Number of running threads.
    pub(crate) alive: usize,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) plan: Arc<dyn Plan>,
    pub(crate) counters: Arc<LoadCounters>,
    pub(crate) queue: Mutex<Queue>,
    pub(crate) work: Condvar,
    pub(crate) ended: Condvar,
    pub(crate) closed: Arc<AtomicBool>,
    /// Batches wait to be located. That comes before filling others, because it keeps the disk
    /// busy.
    pub(crate) fresh: AtomicBool,
}
