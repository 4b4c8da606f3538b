//! `Loader`: threads that load batches ahead of the consumer. They live as long as an iteration.
//!
//! A [`Plan`] defines the work. Each image of a batch is an item, or each run of a few arrays. A
//! thread that finishes an item takes the next one, from the same batch or the following one. A
//! slow record therefore blocks no other thread. The consumer waits for batches in submission
//! order.

use std::time::Duration;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::load::batch::{Batch, Failure, LoadCounters, Plan, Queue, Shared, Workload};
use crate::load::worker::Worker;
use crate::parallel::buffers::{BatchBuffer, PartQueue};
use crate::parallel::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::parallel::sync::thread::{self, JoinHandle};
use crate::parallel::sync::{Arc, Condvar, FirstPanic, Instant, Mutex, OnceLock, SLICE, lock, wait_at_most};

/// How long `drop` waits for the worker threads. A slower thread is decoding a huge image or
/// blocked in a read. It owns all that it needs to end later on its own.
const PATIENCE: Duration = Duration::from_millis(500);

/// Threads that load batches. `drop` stops them after their current parts, and waits at most half a
/// second.
#[derive(Debug)]
pub struct Loader {
    process: u32,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// A batch in progress.
#[derive(Debug)]
pub struct Load {
    process: u32,
    batch: Arc<Batch>,
    closed: Arc<AtomicBool>,
}

impl Loader {
    /// Starts `threads` threads.
    ///
    /// # Errors
    /// [`Error::Threads`] if the system allows not even one thread.
    pub(crate) fn start(plan: Arc<dyn Plan>, counters: Arc<LoadCounters>, threads: usize) -> Result<Self> {
        let shared = Arc::new(Shared {
            plan,
            counters,
            queue: Mutex::new(Queue::default()),
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
                    log::warn!(target: "fastrecord_core::loader", "only {number} of {threads} loader threads could be started: {error}");
                    break;
                }
            }
        }
        log::debug!(target: "fastrecord_core::loader", "{} loader threads started", loader.threads.len());
        Ok(loader)
    }

    /// Queues a batch after the earlier ones; returns at once.
    ///
    /// # Errors
    /// Rows, positions and buffers do not match each other or the plan. In a forked child the
    /// threads do not exist.
    pub fn submit(&self, load: Workload) -> Result<Load> {
        check_process(self.process)?;
        let Workload { seed, epoch, rows, positions, ahead, buffers } = load;
        let plan = &self.shared.plan;
        let positioned = plan.images() > 0 || !positions.is_empty();
        if rows.is_empty() || positioned && positions.len() != rows.len() {
            return Err(Error::Plan(format!("a batch has {} rows and {} positions", rows.len(), positions.len())));
        }
        if let Some(&row) = rows.iter().chain(&ahead).find(|&&row| row >= plan.rows()) {
            return Err(plan.no_row(row));
        }
        let bytes: Vec<usize> = plan.row_bytes().iter().map(|row| row * rows.len()).collect();
        if !bytes.iter().eq(buffers.iter().map(BatchBuffer::len).collect::<Vec<_>>().iter()) {
            return Err(Error::Plan(format!("{} rows need buffers of {bytes:?} bytes", rows.len())));
        }
        let parts = PartQueue::new(buffers, rows.len(), plan.granularity().max(1));
        let batch = Arc::new(Batch {
            seed,
            epoch,
            images: (0..rows.len() * plan.images()).map(|_| AtomicU64::new(0)).collect(),
            parts: if plan.mixes() { parts.in_pairs() } else { parts },
            rows,
            positions,
            ahead,
            failures: Mutex::default(),
            panic: FirstPanic::default(),
            finished: Condvar::new(),
            located: OnceLock::new(),
        });
        let mut queue = lock(&self.shared.queue);
        let number = queue.next;
        queue.next += 1;
        queue.fresh.push_back((number, Arc::clone(&batch)));
        self.shared.fresh.store(true, Ordering::Relaxed);
        drop(queue);
        self.shared.work.notify_one();
        Ok(Load { process: self.process, batch, closed: Arc::clone(&self.shared.closed) })
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        self.shared.plan.rows()
    }

    /// Returns the bytes per row of each buffer.
    pub fn row_bytes(&self) -> &[usize] {
        self.shared.plan.row_bytes()
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }
}

impl Drop for Loader {
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
            (queue, _) = wait_at_most(&self.shared.ended, queue, left);
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
        let mut failures = lock(&batch.failures);
        while !batch.parts.all_filled() {
            if self.closed.load(Ordering::Relaxed) {
                return Err(Error::LoaderClosed);
            }
            drop(wait_at_most(&batch.finished, failures, SLICE));
            if !batch.parts.all_filled() {
                control.check()?;
            }
            failures = lock(&batch.failures);
        }
        batch.panic.resume();
        let mut failures = std::mem::take(&mut *failures);
        failures.sort_by_key(|failure| failure.slot);
        Ok((batch.parts.take(), failures))
    }

    /// The batch.
    pub(crate) fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Reports whether `wait` would return at once.
    pub fn is_ready(&self) -> bool {
        self.batch.parts.all_filled()
    }
}

/// Counts a running thread until it ends.
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
