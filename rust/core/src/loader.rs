//! Batches of images, made ahead of the consumer by threads that live as long as an iteration.
//!
//! Each image of each batch is an item by itself: a thread that is done with one takes the next, of the same batch or of the
//! one behind it, so a slow record stalls nobody. The consumer waits for batches in the order in which it asked for them.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::filling::{BatchBuffer, Parts};
use crate::plan::{LoadPlan, Place};
use crate::work::Worker;

/// How long the consumer waits before it asks again whether it was interrupted.
const SLICE: Duration = Duration::from_millis(100);
/// How long who drops a loader waits for its threads. One that takes longer is in a huge image or a slow read; it has all
/// that it needs to end by itself after that.
const PATIENCE: Duration = Duration::from_millis(500);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Images are made outside of the locks, so a poisoned lock still guards whole data.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What loaders have done so far; may be read at any time.
#[derive(Debug, Default)]
#[allow(missing_docs)] // the names say it
pub struct LoadCounters {
    pub images: AtomicU64,
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

/// A batch to make.
#[derive(Debug)]
pub struct Workload {
    /// With the epoch and the position it decides the crop.
    pub seed: u64,
    /// Of the records' order.
    pub epoch: u64,
    /// Numbers of records, counted over all files.
    pub rows: Vec<u64>,
    /// Positions in the epoch order, one for each row.
    pub positions: Vec<u64>,
    /// Rows of later batches for which the kernel is asked too, behind those of this one; ascending, and there may be none.
    pub ahead: Vec<u64>,
    /// Memory for each output: the images of the rows, one behind the other, each height x width x 3 bytes.
    pub buffers: Vec<BatchBuffer>,
}

/// A record of a batch that gave no image; its place in the buffers is black.
#[derive(Debug)]
pub struct Failure {
    /// Position in the batch.
    pub place: usize,
    /// Which file and record, and why.
    pub error: Error,
}

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) seed: u64,
    pub(crate) epoch: u64,
    pub(crate) rows: Vec<u64>,
    pub(crate) positions: Vec<u64>,
    pub(crate) ahead: Vec<u64>,
    /// None where the record has no image to read, which is among the failures.
    pub(crate) places: OnceLock<Vec<Option<Place>>>,
    pub(crate) parts: Parts,
    pub(crate) outcome: Mutex<Outcome>,
    pub(crate) finished: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) failures: Vec<Failure>,
    pub(crate) panic: Option<Box<dyn Any + Send>>,
}

impl Job {
    pub(crate) fn fail(&self, place: usize, error: Error, counters: &LoadCounters) {
        add(&counters.failures, 1);
        lock(&self.outcome).failures.push(Failure { place, error });
    }

    pub(crate) fn announce(&self) {
        drop(lock(&self.outcome)); // so that a consumer between its check and its wait is not missed
        self.finished.notify_all();
    }
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Not yet looked up, in the order of their numbers.
    pub(crate) fresh: VecDeque<(u64, Arc<Job>)>,
    /// Looked up and asked for, in the order of their numbers.
    pub(crate) ready: VecDeque<(u64, Arc<Job>)>,
    pub(crate) next: u64,
    /// Threads that have not ended.
    pub(crate) alive: usize,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) plan: Arc<LoadPlan>,
    pub(crate) counters: Arc<LoadCounters>,
    pub(crate) queue: Mutex<Queue>,
    pub(crate) work: Condvar,
    pub(crate) ended: Condvar,
    pub(crate) closed: Arc<AtomicBool>,
    /// Batches wait to be asked for: that goes before decoding, as it keeps the disk busy meanwhile.
    pub(crate) fresh: AtomicBool,
    /// Some payload was pixels as they are: it is worth to look for more of them in the mapping.
    pub(crate) raw: AtomicBool,
}

/// Threads that make batches. Dropping it ends them after the images under way, for which it waits half a second at most.
#[derive(Debug)]
pub struct Loader {
    process: u32,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// A batch that is being made.
#[derive(Debug)]
pub struct Load {
    process: u32,
    job: Arc<Job>,
    closed: Arc<AtomicBool>,
}

impl Loader {
    /// Starts `threads` threads.
    ///
    /// # Errors
    /// [`Error::Threads`] if the system allows not even one.
    pub fn start(plan: Arc<LoadPlan>, counters: Arc<LoadCounters>, threads: usize) -> Result<Self> {
        let shared = Arc::new(Shared {
            plan,
            counters,
            queue: Mutex::default(),
            work: Condvar::new(),
            ended: Condvar::new(),
            closed: Arc::default(),
            fresh: AtomicBool::new(false),
            raw: AtomicBool::new(false),
        });
        let mut loader = Self { process: std::process::id(), shared, threads: Vec::new() };
        for number in 0..threads.max(1) {
            let alive = Alive::new(&loader.shared);
            let builder = thread::Builder::new().name(format!("frec-load-{number}"));
            match builder.spawn(move || Worker::new(&alive.0).serve()) {
                Ok(thread) => loader.threads.push(thread),
                // A process at its limit of threads works with fewer.
                Err(error) if number == 0 => return Err(Error::Threads(error)),
                Err(_) => break,
            }
        }
        Ok(loader)
    }

    /// Begins a batch, behind those begun before; returns at once.
    ///
    /// # Errors
    /// Rows, positions and buffers do not fit each other or the plan; or this is a forked child, where the threads are not.
    pub fn submit(&self, load: Workload) -> Result<Load> {
        check_process(self.process)?;
        let Workload { seed, epoch, rows, positions, ahead, buffers } = load;
        let plan = &self.shared.plan;
        if rows.is_empty() || rows.len() != positions.len() {
            return Err(Error::Plan(format!("a batch of {} rows and {} positions", rows.len(), positions.len())));
        }
        if let Some(&row) = rows.iter().chain(&ahead).find(|&&row| row >= plan.rows()) {
            return Err(plan.no_row(row));
        }
        let bytes: Vec<usize> = plan.image_bytes().iter().map(|image| image * rows.len()).collect();
        if !bytes.iter().eq(buffers.iter().map(BatchBuffer::len).collect::<Vec<_>>().iter()) {
            return Err(Error::Plan(format!("buffers of {bytes:?} bytes are wanted for {} rows", rows.len())));
        }
        let parts = Parts::new(buffers, rows.len());
        let (places, outcome, finished) = (OnceLock::new(), Mutex::default(), Condvar::new());
        let job = Arc::new(Job { seed, epoch, rows, positions, ahead, places, parts, outcome, finished });
        let mut queue = lock(&self.shared.queue);
        let number = queue.next;
        queue.next += 1;
        queue.fresh.push_back((number, Arc::clone(&job)));
        self.shared.fresh.store(true, Ordering::Relaxed);
        drop(queue);
        self.shared.work.notify_one();
        Ok(Load { process: self.process, job, closed: Arc::clone(&self.shared.closed) })
    }

    /// Threads that make batches.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // Fork has not copied the threads: there is nobody to wait for, and a lock may be held for ever.
            std::mem::forget(std::mem::take(&mut self.threads));
            std::mem::forget(Arc::clone(&self.shared));
            return;
        }
        self.shared.closed.store(true, Ordering::Relaxed);
        let queue = lock(&self.shared.queue); // so that a thread between its check and its wait is not missed
        self.shared.work.notify_all();
        let ended = self.shared.ended.wait_timeout_while(queue, PATIENCE, |queue| queue.alive > 0);
        let all = ended.unwrap_or_else(PoisonError::into_inner).0.alive == 0;
        for thread in self.threads.drain(..).filter(|thread| all || thread.is_finished()) {
            let _ = thread.join(); // panics were caught, and are the batches' own
        }
    }
}

fn check_process(owner: u32) -> Result<()> {
    let here = std::process::id();
    if owner == here { Ok(()) } else { Err(Error::ForkedLoader { owner, here }) }
}

impl Load {
    /// Waits until the batch is whole; gives its buffers and the records that failed, in the order of their places.
    ///
    /// `interrupted` is asked at least every 100 ms; when it says true, the batch may be waited for again.
    ///
    /// # Errors
    /// [`Error::Interrupted`]; the loader was dropped before the batch was whole; or this is a forked child.
    ///
    /// # Panics
    /// If a thread panicked over it, which is a bug.
    pub fn wait(&self, mut interrupted: impl FnMut() -> bool) -> Result<(Vec<BatchBuffer>, Vec<Failure>)> {
        check_process(self.process)?;
        let job = &self.job;
        let mut outcome = lock(&job.outcome);
        while !job.parts.all_filled() {
            let (guard, _) = job.finished.wait_timeout(outcome, SLICE).unwrap_or_else(PoisonError::into_inner);
            drop(guard);
            if self.closed.load(Ordering::Relaxed) && !job.parts.all_filled() {
                return Err(Error::LoaderClosed);
            }
            if !job.parts.all_filled() && interrupted() {
                return Err(Error::Interrupted);
            }
            outcome = lock(&job.outcome);
        }
        if let Some(panic) = outcome.panic.take() {
            drop(outcome);
            resume_unwind(panic);
        }
        let mut failures = std::mem::take(&mut outcome.failures);
        failures.sort_by_key(|failure| failure.place);
        Ok((job.parts.take(), failures))
    }

    /// Whether waiting would take no time.
    pub fn is_ready(&self) -> bool {
        self.job.parts.all_filled()
    }
}

/// Counts a thread until it has ended.
struct Alive(Arc<Shared>);

impl Alive {
    fn new(shared: &Arc<Shared>) -> Self {
        lock(&shared.queue).alive += 1;
        Self(Arc::clone(shared))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        lock(&self.0.queue).alive -= 1;
        self.0.ended.notify_all();
    }
}
