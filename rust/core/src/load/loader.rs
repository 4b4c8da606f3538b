//! `Loader`: threads that load batches ahead of the consumer. They live as long as an iteration.
//!
//! A [`Recipe`] defines the work. Each image of a batch is an item, or each run of a few arrays. A
//! thread that finishes an item takes the next one, from the same batch or the following one. A
//! slow record therefore blocks no other thread. The consumer waits for batches in submission
//! order.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::panic::resume_unwind;
use std::time::Duration;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::load::worker::Worker;
use crate::parallel::buffers::{BatchBuffer, Part, Parts};
use crate::parallel::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::parallel::sync::thread::{self, JoinHandle};
use crate::parallel::sync::{Arc, Condvar, Instant, Mutex, MutexGuard, OnceLock, PoisonError};

/// How often a waiting consumer checks for interrupts.
const SLICE: Duration = Duration::from_millis(100);
/// How long `drop` waits for the worker threads. A slower thread is decoding a huge image or
/// blocked in a read. It owns all that it needs to end later on its own.
const PATIENCE: Duration = Duration::from_millis(500);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Batches are computed outside of the locks, so the data behind a poisoned lock are intact.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

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

/// The work of a loader in two steps: locate the rows of a batch, then fill one part after the
/// other.
pub trait Recipe: Debug + Send + Sync + 'static {
    /// Where the values of a batch lie.
    type Found: Debug + Send + Sync;
    /// The scratch state of one thread.
    type Tools;
    /// Whether the result depends on seed, epoch and positions.
    const RANDOM: bool;

    /// The number of rows.
    fn rows(&self) -> u64;
    /// The error for a row that does not exist.
    fn no_row(&self, row: u64) -> Error;
    /// Bytes per row of each buffer.
    fn row_bytes(&self) -> Vec<usize>;
    /// Rows per part.
    fn run(&self) -> usize;
    /// Creates the tools of one thread.
    fn tools(&self) -> Self::Tools;
    /// Locates rows, and prefetches them. Calls `fail` for each row that cannot be loaded.
    fn look_up(&self, rows: &[u64], fail: &mut dyn FnMut(usize, Error)) -> Self::Found;
    /// Prefetches ascending rows of later batches, until `stop` returns true.
    fn ask_ahead(&self, rows: &[u64], stop: &dyn Fn() -> bool);
    /// Fills a part. Rows that fail now or failed earlier become zeros.
    fn make(&self, tools: &mut Self::Tools, making: &mut Making<'_, Self::Found>);
}

/// A part to fill.
#[allow(missing_debug_implementations)] // lives within a call
pub struct Making<'a, F> {
    pub(crate) batch: &'a Batch,
    pub(crate) found: &'a F,
    pub(crate) part: Part<'a>,
    pub(crate) counters: &'a LoadCounters,
}

impl<F> Making<'_, F> {
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
    /// Positions in the epoch order, one per row; empty if nothing is random.
    pub positions: Vec<u64>,
    /// Rows of later batches to prefetch after the rows of this one, in ascending order; may be
    /// empty.
    pub ahead: Vec<u64>,
    /// The memory of each output: its rows back to back.
    pub buffers: Vec<BatchBuffer>,
}

/// A record of a batch that could not be loaded. Its slot in the buffers is zeros.
#[derive(Debug)]
pub struct Failure {
    /// Slot in the batch.
    pub place: usize,
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
    pub(crate) parts: Parts,
    pub(crate) outcome: Mutex<Outcome>,
    pub(crate) finished: Condvar,
}

#[derive(Debug)]
pub(crate) struct Job<F> {
    pub(crate) batch: Arc<Batch>,
    /// `None` before the lookup, or if the lookup panicked; the panic is in the outcome.
    pub(crate) found: OnceLock<F>,
}

#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) failures: Vec<Failure>,
    pub(crate) panic: Option<Box<dyn Any + Send>>,
}

impl Batch {
    pub(crate) fn fail(&self, place: usize, error: Error, counters: &LoadCounters) {
        add(&counters.failures, 1);
        log::debug!(target: "fastrecord_core::loader", "nothing could be made of a record: {}", error.coded());
        lock(&self.outcome).failures.push(Failure { place, error });
    }

    pub(crate) fn announce(&self) {
        drop(lock(&self.outcome)); // so that no thread misses the wake-up
        self.finished.notify_all();
    }
}

#[derive(Debug)]
pub(crate) struct Queue<F> {
    /// Jobs to locate, in submission order.
    pub(crate) fresh: VecDeque<(u64, Arc<Job<F>>)>,
    /// Jobs located and prefetched, in submission order.
    pub(crate) ready: VecDeque<(u64, Arc<Job<F>>)>,
    pub(crate) next: u64,
    /// Number of running threads.
    pub(crate) alive: usize,
}

#[derive(Debug)]
pub(crate) struct Shared<R: Recipe> {
    pub(crate) recipe: Arc<R>,
    pub(crate) counters: Arc<LoadCounters>,
    pub(crate) queue: Mutex<Queue<R::Found>>,
    pub(crate) work: Condvar,
    pub(crate) ended: Condvar,
    pub(crate) closed: Arc<AtomicBool>,
    /// Batches wait to be located. That comes before filling others, because it keeps the disk
    /// busy.
    pub(crate) fresh: AtomicBool,
}

/// Threads that load batches. `drop` stops them after their current parts, and waits at most half a
/// second.
#[derive(Debug)]
pub struct Loader<R: Recipe> {
    process: u32,
    shared: Arc<Shared<R>>,
    threads: Vec<JoinHandle<()>>,
}

/// A batch in progress.
#[derive(Debug)]
pub struct Load {
    process: u32,
    batch: Arc<Batch>,
    closed: Arc<AtomicBool>,
}

impl<R: Recipe> Loader<R> {
    /// Starts `threads` threads.
    ///
    /// # Errors
    /// [`Error::Threads`] if the system allows not even one thread.
    pub fn start(recipe: Arc<R>, counters: Arc<LoadCounters>, threads: usize) -> Result<Self> {
        let queue = Queue { fresh: VecDeque::new(), ready: VecDeque::new(), next: 0, alive: 0 };
        let shared = Arc::new(Shared {
            recipe,
            counters,
            queue: Mutex::new(queue),
            work: Condvar::new(),
            ended: Condvar::new(),
            closed: Arc::default(),
            fresh: AtomicBool::new(false),
        });
        let mut loader = Self { process: std::process::id(), shared, threads: Vec::new() };
        for number in 0..threads.max(1) {
            let alive = Alive::new(&loader.shared);
            let builder = thread::Builder::new().name(format!("frec-load-{number}"));
            match builder.spawn(move || Worker::new(&alive.0).serve()) {
                Ok(thread) => loader.threads.push(thread),
                // A process at its thread limit works with fewer.
                Err(error) if number == 0 => return Err(Error::Threads(error)),
                Err(error) => {
                    log::warn!(target: "fastrecord_core::loader", "{number} of {threads} threads load: no other could be started: {error}");
                    break;
                }
            }
        }
        log::debug!(target: "fastrecord_core::loader", "{} threads load", loader.threads.len());
        Ok(loader)
    }

    /// Queues a batch after the earlier ones; returns at once.
    ///
    /// # Errors
    /// Rows, positions and buffers do not match each other or the recipe. In a forked child the
    /// threads do not exist.
    pub fn submit(&self, load: Workload) -> Result<Load> {
        check_process(self.process)?;
        let Workload { seed, epoch, rows, positions, ahead, buffers } = load;
        let recipe = &self.shared.recipe;
        if rows.is_empty() || positions.len() != if R::RANDOM { rows.len() } else { 0 } {
            return Err(Error::Plan(format!("a batch of {} rows and {} positions", rows.len(), positions.len())));
        }
        if let Some(&row) = rows.iter().chain(&ahead).find(|&&row| row >= recipe.rows()) {
            return Err(recipe.no_row(row));
        }
        let bytes: Vec<usize> = recipe.row_bytes().iter().map(|row| row * rows.len()).collect();
        if !bytes.iter().eq(buffers.iter().map(BatchBuffer::len).collect::<Vec<_>>().iter()) {
            return Err(Error::Plan(format!("buffers of {bytes:?} bytes are wanted for {} rows", rows.len())));
        }
        let parts = Parts::new(buffers, rows.len(), recipe.run().max(1));
        let (outcome, finished) = (Mutex::default(), Condvar::new());
        let batch = Arc::new(Batch { seed, epoch, rows, positions, ahead, parts, outcome, finished });
        let job = Arc::new(Job { batch: Arc::clone(&batch), found: OnceLock::new() });
        let mut queue = lock(&self.shared.queue);
        let number = queue.next;
        queue.next += 1;
        queue.fresh.push_back((number, job));
        self.shared.fresh.store(true, Ordering::Relaxed);
        drop(queue);
        self.shared.work.notify_one();
        Ok(Load { process: self.process, batch, closed: Arc::clone(&self.shared.closed) })
    }

    /// Returns the recipe.
    pub fn recipe(&self) -> &Arc<R> {
        &self.shared.recipe
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        self.shared.recipe.rows()
    }

    /// Returns the bytes per row of each buffer.
    pub fn row_bytes(&self) -> Vec<usize> {
        self.shared.recipe.row_bytes()
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }
}

impl<R: Recipe> Drop for Loader<R> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // Fork did not copy the threads: there is nothing to wait for, and a lock may never be
            // released.
            std::mem::forget(std::mem::take(&mut self.threads));
            std::mem::forget(Arc::clone(&self.shared));
            return;
        }
        self.shared.closed.store(true, Ordering::Relaxed);
        let mut queue = lock(&self.shared.queue); // so that no thread misses the wake-up
        self.shared.work.notify_all();
        let start = Instant::now();
        while queue.alive > 0 {
            let Some(left) = PATIENCE.checked_sub(start.elapsed()) else { return };
            let waited = self.shared.ended.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(queue);
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // panics were caught, and belong to their batches
        }
    }
}

fn check_process(owner: u32) -> Result<()> {
    let here = std::process::id();
    if owner == here { Ok(()) } else { Err(Error::ForkedLoader { owner, here }) }
}

impl Load {
    /// Waits until the batch is complete. Returns its buffers and the failed records, ordered by
    /// slot.
    ///
    /// After [`Error::Interrupted`] the batch may be waited for again.
    ///
    /// # Errors
    /// [`Error::Interrupted`]; the loader was dropped before the batch was complete; or this is a
    /// forked child.
    ///
    /// # Panics
    /// If a thread panicked during the batch, which is a bug.
    pub fn wait(&self, control: &dyn Control) -> Result<(Vec<BatchBuffer>, Vec<Failure>)> {
        check_process(self.process)?;
        let batch = &self.batch;
        let mut outcome = lock(&batch.outcome);
        while !batch.parts.all_filled() {
            if self.closed.load(Ordering::Relaxed) {
                return Err(Error::LoaderClosed);
            }
            let (guard, _) = batch.finished.wait_timeout(outcome, SLICE).unwrap_or_else(PoisonError::into_inner);
            drop(guard);
            if !batch.parts.all_filled() {
                control.check()?;
            }
            outcome = lock(&batch.outcome);
        }
        if let Some(panic) = outcome.panic.take() {
            drop(outcome);
            resume_unwind(panic);
        }
        let mut failures = std::mem::take(&mut outcome.failures);
        failures.sort_by_key(|failure| failure.place);
        Ok((batch.parts.take(), failures))
    }

    /// Reports whether `wait` would return at once.
    pub fn is_ready(&self) -> bool {
        self.batch.parts.all_filled()
    }
}

/// Counts a running thread until it ends.
struct Alive<R: Recipe>(Arc<Shared<R>>);

impl<R: Recipe> Alive<R> {
    fn new(shared: &Arc<Shared<R>>) -> Self {
        lock(&shared.queue).alive += 1;
        Self(Arc::clone(shared))
    }
}

impl<R: Recipe> Drop for Alive<R> {
    fn drop(&mut self) {
        lock(&self.0.queue).alive -= 1;
        self.0.ended.notify_all();
    }
}
