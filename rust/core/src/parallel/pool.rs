//! `Pool`: the thread pool. Each process id has its own, so a forked child does not wait for
//! threads that fork did not copy.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use arc_swap::ArcSwapOption;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::memory;
use crate::parallel::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::parallel::sync::{
    Arc, Condvar, FirstPanic, Instant, Mutex, SLICE, lock, spin_loop, thread, wait, wait_at_most,
};

/// Waking a sleeping thread takes about this long. For shorter waits, spinning is cheaper.
const SPIN: Duration = Duration::from_micros(60);

static CURRENT: ArcSwapOption<Pool> = ArcSwapOption::const_empty();

/// What the stack of a thread takes of the memory that a process may have.
const STACK: usize = 2 << 20;

type Body<'a> = dyn Fn(usize) -> Result<()> + Sync + 'a;

/// The body of a call, which the calling thread owns. Threads that still hold the job after the
/// call do not use it.
struct BodyPointer(*const Body<'static>);

// SAFETY: the body is `Sync`, and `Job::work` explains why it is alive when it is called.
unsafe impl Send for BodyPointer {}
// SAFETY: as above.
unsafe impl Sync for BodyPointer {}

/// Threads that share the items of a call. The calling thread works too.
#[derive(Debug)]
pub struct Pool {
    process: u32,
    threads: usize,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<VecDeque<Arc<Job>>>,
    wake: Condvar,
    closed: AtomicBool,
}

struct Job {
    body: BodyPointer,
    items: usize,
    next: AtomicUsize,
    done: AtomicUsize,
    stop: AtomicBool,
    /// The failed item with the lowest number. This makes the error independent of timing, as far
    /// as both items were tried.
    error: Mutex<Option<(usize, Error)>>,
    panic: FirstPanic,
    finished: Condvar,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("items", &self.items).finish_non_exhaustive()
    }
}

impl Job {
    /// Takes items until none is left.
    fn work(&self, mut between: impl FnMut()) {
        loop {
            let item = self.next.fetch_add(1, Ordering::Relaxed);
            if item >= self.items {
                return;
            }
            if !self.stop.load(Ordering::Relaxed) {
                // SAFETY: `Pool::run` owns the body and neither returns nor unwinds before all items
                // are done. This item is not done yet, and no item is taken twice.
                let body = unsafe { &*self.body.0 };
                let ended = self.panic.catch(|| body(item));
                if !matches!(ended, Some(Ok(()))) {
                    self.stop.store(true, Ordering::Relaxed);
                }
                if let Some(Err(error)) = ended {
                    let mut first = lock(&self.error);
                    if first.as_ref().is_none_or(|(number, _)| item < *number) {
                        *first = Some((item, error));
                    }
                }
            }
            // Release: a thread that sees the last item done also sees what the bodies wrote.
            if self.done.fetch_add(1, Ordering::AcqRel) + 1 == self.items {
                drop(lock(&self.error)); // so that no thread misses the wake-up
                self.finished.notify_all();
            }
            between();
        }
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire) == self.items
    }
}

impl Pool {
    /// Returns the pool of this process. The first call creates it, with one thread per CPU that
    /// the process may run on.
    pub fn current() -> Arc<Self> {
        let process = std::process::id();
        if let Some(pool) = &*CURRENT.load()
            && pool.process == process
        {
            return Arc::clone(pool);
        }
        let made = Arc::new(Self::new(default_threads()));
        let before = CURRENT.load_full();
        if let Some(pool) = before.as_ref().filter(|pool| pool.process == process) {
            return Arc::clone(pool); // another thread was faster
        }
        let found = CURRENT.compare_and_swap(&before, Some(Arc::clone(&made)));
        let found = arc_swap::Guard::into_inner(found);
        let quicker = found.clone().filter(|pool| pool.process == process);
        // After a fork, the threads that held the locks of the parent's pool do not exist here and
        // cannot release them.
        std::mem::forget((before, found));
        quicker.unwrap_or(made)
    }

    pub(crate) fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared::default());
        for number in 1..threads {
            let shared = Arc::clone(&shared);
            let builder = thread::Builder::new().name(format!("fastrecord-{number}"));
            // A process at its thread limit, or short of memory for a stack, works with fewer: the
            // calling thread processes all remaining items.
            let started = memory::check(STACK).map_err(|error| error.to_string());
            let started =
                started.and_then(|()| builder.spawn(move || serve(&shared)).map_err(|error| error.to_string()));
            if let Err(error) = started {
                log::warn!(target: "fastrecord_core::pool", "only {number} of {threads} pool threads could be started: {error}");
                break;
            }
        }
        log::debug!(target: "fastrecord_core::pool", "a pool of up to {threads} threads, including the calling one");
        Self { process: std::process::id(), threads, shared }
    }

    /// Calls `body` once for each item in `0..items`, on up to `threads` threads, and waits for all
    /// of them.
    ///
    /// Asks `control` on the calling thread at least every 100 ms. Items that have not started when
    /// it stops the call are skipped.
    ///
    /// # Errors
    /// The error of a failed item (the lowest-numbered one, if several failed), or
    /// [`Error::Interrupted`].
    pub fn run(
        &self,
        items: usize,
        threads: usize,
        control: &dyn Control,
        body: impl Fn(usize) -> Result<()> + Sync,
    ) -> Result<()> {
        if items == 0 {
            return Ok(());
        }
        let body: &Body<'_> = &body;
        // SAFETY: only the lifetime changes. `Job::work` explains why no thread calls the body later.
        let body = BodyPointer(unsafe { std::mem::transmute::<&Body<'_>, &Body<'static>>(body) });
        let job = Arc::new(Job {
            body,
            items,
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            error: Mutex::default(),
            panic: FirstPanic::default(),
            finished: Condvar::new(),
        });
        let helpers = threads.min(self.threads).min(items).saturating_sub(1);
        if helpers > 0 {
            lock(&self.shared.queue).extend((0..helpers).map(|_| Arc::clone(&job)));
            for _ in 0..helpers {
                self.shared.wake.notify_one();
            }
        }
        let mut stopped = false;
        let mut ask = |job: &Job| {
            // Items may be writing into memory that the caller lent: nothing may unwind before they
            // finish.
            if !stopped && catch_unwind(AssertUnwindSafe(|| control.is_stopped())).unwrap_or(true) {
                stopped = true;
                job.stop.store(true, Ordering::Relaxed);
            }
        };
        let mut asked = Instant::now();
        job.work(|| {
            if asked.elapsed() >= SLICE {
                ask(&job);
                asked = Instant::now();
            }
        });
        let start = Instant::now();
        while !job.is_done() && start.elapsed() < SPIN {
            spin_loop();
        }
        let mut error = lock(&job.error);
        while !job.is_done() {
            drop(wait_at_most(&job.finished, error, SLICE));
            if !job.is_done() {
                ask(&job);
            }
            error = lock(&job.error);
        }
        job.panic.resume();
        match error.take() {
            Some((_, error)) => Err(error),
            None if stopped => Err(Error::Interrupted),
            None => Ok(()),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.shared.closed.store(true, Ordering::Relaxed);
            drop(lock(&self.shared.queue)); // so that no thread misses the wake-up
            self.shared.wake.notify_all();
        }
    }
}

fn serve(shared: &Shared) {
    let mut queue = lock(&shared.queue);
    // Check again after each job: the pool may have been closed meanwhile, and a thread is woken
    // only once.
    while !shared.closed.load(Ordering::Relaxed) {
        if let Some(job) = queue.pop_front() {
            drop(queue);
            job.work(|| ());
            drop(job);
            queue = lock(&shared.queue);
        } else {
            queue = wait(&shared.wake, queue);
        }
    }
}

/// Returns the CPUs that this process may use (its affinity mask and its cgroup's quota).
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn every_item_runs_once_whatever_the_threads() {
        for threads in [1, 2, 7] {
            let pool = Pool::new(threads);
            let counts: Arc<Vec<AtomicU64>> = Arc::new((0..1000).map(|_| AtomicU64::new(0)).collect());
            for _ in 0..50 {
                let counts = Arc::clone(&counts);
                let body = move |i: usize| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                    Ok(())
                };
                pool.run(1000, threads, &|| false, body).unwrap();
            }
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 50));
        }
    }

    #[test]
    fn a_failed_item_is_the_error_of_the_call_and_the_pool_lives_on() {
        let pool = Pool::new(3);
        let fail = |i: usize| if i == 5 { Err(Error::Schema("five".into())) } else { Ok(()) };
        assert!(matches!(pool.run(100, 3, &|| false, fail), Err(Error::Schema(text)) if text == "five"));
        let panics = |i: usize| if i == 5 { panic!("five") } else { Ok(()) };
        assert!(catch_unwind(AssertUnwindSafe(|| pool.run(100, 3, &|| false, panics))).is_err());
        pool.run(100, 3, &|| false, |_| Ok(())).unwrap();
    }

    #[test]
    fn an_interrupt_ends_a_call_after_the_items_under_way() {
        let pool = Pool::new(2);
        let begun = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&begun);
        let slow = move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(30));
            Ok(())
        };
        assert!(matches!(pool.run(10_000, 2, &|| true, slow), Err(Error::Interrupted)));
        assert!(begun.load(Ordering::Relaxed) < 100);
    }
}
