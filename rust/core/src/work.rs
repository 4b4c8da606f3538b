//! What a thread of a loader does: look batches up and ask the kernel for them, then make one image after the other.

use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::filling::Part;
use crate::image::{Decoder, Random, raw_pixels};
use crate::layout::Extent;
use crate::loader::{Job, Shared, add, lock};
use crate::plan::{Lead, Place, follow};
use crate::reader::Reader;

/// Payloads of up to so many bytes leave their memory to the next one.
const KEEP: usize = 16 << 20;
/// How pixels that are stored as they are begin.
const RAW: &[u8] = b"P6";

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// One thread: its decoder, and memory for one encoded image.
pub(crate) struct Worker<'a> {
    shared: &'a Shared,
    decoder: Decoder,
    payload: Vec<u8>,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Self {
        Self { shared, decoder: Decoder::new(shared.plan.decode), payload: Vec::new() }
    }

    fn closed(&self) -> bool {
        self.shared.closed.load(Ordering::Relaxed)
    }

    pub(crate) fn serve(mut self) {
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
