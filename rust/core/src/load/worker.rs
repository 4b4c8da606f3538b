//! `Worker`: one thread of a loader. It locates and prefetches batches, then fills one part after
//! the other.

use crate::load::batch::{Batch, Fill, Shared, Task};
use crate::parallel::sync::atomic::Ordering;
use crate::parallel::sync::{Arc, lock, wait};

/// One thread and its scratch memory.
pub(crate) struct Worker<'a> {
    shared: &'a Shared,
    fill: Fill<'a>,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Self {
        Self { shared, fill: shared.plan.fill() }
    }

    fn closed(&self) -> bool {
        self.shared.closed.load(Ordering::Relaxed)
    }

    pub(crate) fn serve(mut self) {
        let mut queue = lock(&self.shared.queue);
        while !self.closed() {
            if let Some((number, batch)) = queue.fresh.pop_front() {
                self.shared.fresh.store(!queue.fresh.is_empty(), Ordering::Relaxed);
                drop(queue);
                self.locate(&batch);
                queue = lock(&self.shared.queue);
                let at = queue.ready.partition_point(|(other, _)| *other < number);
                queue.ready.insert(at, (number, Arc::clone(&batch)));
                self.shared.work.notify_all();
                if !batch.ahead.is_empty() {
                    drop(queue);
                    self.shared.plan.prefetch(&batch.ahead, &|| self.closed());
                    drop(batch);
                    queue = lock(&self.shared.queue);
                }
                continue;
            }
            while queue.ready.front().is_some_and(|(_, batch)| batch.parts.all_claimed()) {
                queue.ready.pop_front();
            }
            if let Some((_, batch)) = queue.ready.front() {
                let batch = Arc::clone(batch);
                drop(queue);
                self.work(&batch);
                drop(batch);
                queue = lock(&self.shared.queue);
            } else {
                queue = wait(&self.shared.work, queue);
            }
        }
    }

    fn locate(&self, batch: &Batch) {
        let mut fail = |slot, error| batch.fail(slot, error, &self.shared.counters);
        if let Some(located) = batch.panic.catch(|| self.shared.plan.locate(&batch.rows, &mut fail)) {
            let _ = batch.located.set(located); // each batch is located once
        }
    }

    /// Fills parts of a batch until all are taken, or until a new batch must be located.
    fn work(&mut self, batch: &Batch) {
        let shared = self.shared;
        while !self.closed() && !shared.fresh.load(Ordering::Relaxed) {
            let Some(part) = batch.parts.claim() else { return };
            if let Some(located) = batch.located.get() {
                let mut task = Task { batch, part, counters: &shared.counters };
                if batch.panic.catch(|| (self.fill)(located, &mut task)).is_none() {
                    self.fill = shared.plan.fill(); // the old scratch memory may be in any state
                }
            } else {
                drop(part); // locating the batch panicked; `wait` continues the panic
            }
            if batch.parts.all_filled() {
                batch.announce();
            }
        }
    }
}
