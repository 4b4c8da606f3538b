//! Batches of images, made ahead of the consumer by threads that live as long as an iteration.
//!
//! Each image of each batch is an item by itself: a thread that is done with one takes the next, of the same batch or of the
//! one behind it, so a slow record stalls nobody. The consumer waits for batches in the order in which it asked for them.

use std::any::Any;
use std::collections::VecDeque;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::filling::{BatchBuffer, Part, Parts};
use crate::image::{Decoder, Random, raw_pixels};
use crate::layout::Extent;
use crate::plan::{Lead, LoadPlan, Place, follow};
use crate::reader::Reader;

/// How long the consumer waits before it asks again whether it was interrupted.
const SLICE: Duration = Duration::from_millis(100);
/// How long who drops a loader waits for its threads. One that takes longer is in a huge image or a slow read; it has all
/// that it needs to end by itself after that.
const PATIENCE: Duration = Duration::from_millis(500);
/// Payloads of up to so many bytes leave their memory to the next one.
const KEEP: usize = 16 << 20;
/// How pixels that are stored as they are begin.
const RAW: &[u8] = b"P6";

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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

fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
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
struct Job {
    seed: u64,
    epoch: u64,
    rows: Vec<u64>,
    positions: Vec<u64>,
    ahead: Vec<u64>,
    /// None where the record has no image to read, which is among the failures.
    places: OnceLock<Vec<Option<Place>>>,
    parts: Parts,
    outcome: Mutex<Outcome>,
    finished: Condvar,
}

#[derive(Debug, Default)]
struct Outcome {
    failures: Vec<Failure>,
    panic: Option<Box<dyn Any + Send>>,
}

impl Job {
    fn fail(&self, place: usize, error: Error, counters: &LoadCounters) {
        add(&counters.failures, 1);
        lock(&self.outcome).failures.push(Failure { place, error });
    }

    fn announce(&self) {
        drop(lock(&self.outcome)); // so that a consumer between its check and its wait is not missed
        self.finished.notify_all();
    }
}

#[derive(Debug, Default)]
struct Queue {
    /// Not yet looked up, in the order of their numbers.
    fresh: VecDeque<(u64, Arc<Job>)>,
    /// Looked up and asked for, in the order of their numbers.
    ready: VecDeque<(u64, Arc<Job>)>,
    next: u64,
    /// Threads that have not ended.
    alive: usize,
}

#[derive(Debug)]
struct Shared {
    plan: Arc<LoadPlan>,
    counters: Arc<LoadCounters>,
    queue: Mutex<Queue>,
    work: Condvar,
    ended: Condvar,
    closed: Arc<AtomicBool>,
    /// Batches wait to be asked for: that goes before decoding, as it keeps the disk busy meanwhile.
    fresh: AtomicBool,
    /// Some payload was pixels as they are: it is worth to look for more of them in the mapping.
    raw: AtomicBool,
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

/// One thread: its decoder, and memory for one encoded image.
struct Worker<'a> {
    shared: &'a Shared,
    decoder: Decoder,
    payload: Vec<u8>,
}

impl<'a> Worker<'a> {
    fn new(shared: &'a Shared) -> Self {
        Self { shared, decoder: Decoder::new(shared.plan.decode), payload: Vec::new() }
    }

    fn closed(&self) -> bool {
        self.shared.closed.load(Ordering::Relaxed)
    }

    fn serve(mut self) {
        let mut queue = lock(&self.shared.queue);
        while !self.closed() {
            if let Some((number, job)) = queue.fresh.pop_front() {
                self.shared.fresh.store(!queue.fresh.is_empty(), Ordering::Relaxed);
                drop(queue);
                self.look_up(&job);
                queue = lock(&self.shared.queue);
                let at = queue.ready.partition_point(|(other, _)| *other < number);
                queue.ready.insert(at, (number, Arc::clone(&job)));
                self.shared.work.notify_all();
                if !job.ahead.is_empty() {
                    drop(queue);
                    self.shared.plan.ask_ahead(&job.ahead, || self.closed());
                    drop(job);
                    queue = lock(&self.shared.queue);
                }
                continue;
            }
            while queue.ready.front().is_some_and(|(_, job)| job.parts.all_claimed()) {
                queue.ready.pop_front();
            }
            if let Some((_, job)) = queue.ready.front() {
                let job = Arc::clone(job);
                drop(queue);
                self.work(&job);
                drop(job);
                queue = lock(&self.shared.queue);
            } else {
                queue = self.shared.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn look_up(&self, job: &Job) {
        let found = catch_unwind(AssertUnwindSafe(|| self.shared.plan.places(&job.rows)));
        let places = found.unwrap_or_else(|panic| {
            lock(&job.outcome).panic.get_or_insert(panic);
            Vec::new()
        });
        let places = places.into_iter().enumerate().map(|(i, place)| match place {
            Ok(place) => Some(place),
            Err(error) => {
                job.fail(i, error, &self.shared.counters);
                None
            }
        });
        let _ = job.places.set(places.collect());
    }

    /// Makes images of a batch until all are taken, or something more urgent is to do.
    fn work(&mut self, job: &Job) {
        while !self.closed() && !self.shared.fresh.load(Ordering::Relaxed) {
            let Some(mut part) = job.parts.claim() else { return };
            let number = part.number;
            let place = job.places.get().and_then(|places| places.get(number)).and_then(Option::as_ref);
            let made = match place {
                Some(place) => catch_unwind(AssertUnwindSafe(|| self.make(job, place, &mut part))),
                None => Ok(Ok(())),
            };
            if place.is_none() || !matches!(made, Ok(Ok(()))) {
                part.bytes.iter_mut().for_each(|bytes| bytes.fill(0));
            }
            match made {
                Ok(Ok(())) => {}
                Ok(Err(error)) => job.fail(number, error, &self.shared.counters),
                Err(panic) => {
                    self.decoder = Decoder::new(self.shared.plan.decode); // it may be in any state
                    lock(&job.outcome).panic.get_or_insert(panic);
                }
            }
            drop(part);
            if job.parts.all_filled() {
                job.announce();
            }
        }
    }

    /// Reads, checks, decodes, crops and resizes the images of one record, each into its part.
    fn make(&mut self, job: &Job, place: &Place, part: &mut Part<'_>) -> Result<()> {
        let shared = self.shared;
        let plan = &*shared.plan;
        let source = plan.source(place);
        let random = Random::new(job.seed, job.epoch, job.positions[part.number]);
        let mut lead: Option<Lead> = None;
        let others = (0..plan.outputs.len()).filter(|&output| output != plan.leader);
        for output in std::iter::once(plan.leader).chain(others) {
            let geometry = &plan.outputs[output];
            let mut unfit = None;
            let mut draw = |width, height| {
                let drawn = match &lead {
                    None => geometry.draw(width, height, plan.flip, random.clone()),
                    Some(lead) => {
                        follow(lead, &plan.outputs[plan.leader], (width, height), geometry).unwrap_or_else(|error| {
                            unfit = Some(error);
                            geometry.draw(width, height, false, random.clone())
                        })
                    }
                };
                if lead.is_none() {
                    lead = Some(((width, height), drawn.0, drawn.1));
                }
                drawn
            };
            let stored = read(shared, &mut self.payload, place, output)?;
            let (data, side) = stored.split_at(place.extents[output].length() as usize);
            let out = &mut *part.bytes[output];
            let made = match raw_pixels(data) {
                Some(image) => {
                    let (crop, flip) = draw(image.width, image.height);
                    self.decoder.crop_resize_pixels(image, &crop, flip, geometry.size(), out)
                }
                None => self.decoder.crop_resize_side(data, side, geometry.size(), out, draw),
            };
            let timings = match (made, unfit) {
                (Ok(timings), None) => timings,
                (Err(cause), None) | (_, Some(cause)) => {
                    let (path, field) = (source.reader.path().to_owned(), source.reader.name_of(source.fields[output]));
                    return Err(Error::Decode { path, record: place.record, field, source: cause });
                }
            };
            add(&shared.counters.decode_nanos, nanos(timings.decode));
            add(&shared.counters.resize_nanos, nanos(timings.resize));
        }
        add(&shared.counters.images, 1);
        Ok(())
    }
}

/// Reads and checks a payload. By a system call, to the thread's memory: 20 us beside some 1000 us of decoding, without
/// page faults, and a file that was cut short is an error and no signal. Pixels that need no decoding are taken from the
/// mapping, if there is one: copied twice, they would take half as long again.
fn read<'a>(shared: &'a Shared, memory: &'a mut Vec<u8>, place: &Place, output: usize) -> Result<&'a [u8]> {
    let start = Instant::now();
    let source = shared.plan.source(place);
    let (reader, field, extent) = (&source.reader, source.fields[output], &place.extents[output]);
    let length = extent.stored as usize;
    let mapped = shared.raw.load(Ordering::Relaxed).then(|| mapped_pixels(reader, extent)).flatten();
    let bytes = if let Some(bytes) = mapped {
        bytes
    } else {
        if memory.len() < length || memory.len() > KEEP {
            *memory = Vec::new();
            memory.try_reserve_exact(length).map_err(|_| Error::Memory { bytes: extent.stored })?;
            memory.resize(length, 0);
        }
        let bytes = &mut memory[..length];
        reader.inner.file.read_exact_at(bytes, extent.offset).map_err(|e| Error::io(reader.path(), e))?;
        if bytes.starts_with(RAW) {
            shared.raw.store(true, Ordering::Relaxed);
        }
        bytes
    };
    if shared.plan.verify {
        reader.check_crc(field, place.record, extent, bytes)?;
    }
    add(&shared.counters.reads, 1);
    add(&shared.counters.bytes, extent.stored);
    add(&shared.counters.read_nanos, nanos(start.elapsed()));
    Ok(bytes)
}

fn mapped_pixels<'a>(reader: &'a Reader, extent: &Extent) -> Option<&'a [u8]> {
    let start = extent.offset as usize;
    let bytes = reader.random_mapping()?.bytes().get(start..start + extent.stored as usize)?;
    bytes.starts_with(RAW).then_some(bytes)
}
