//! `Worker`: one thread of a loader. It locates and prefetches batches, then fills one part after
//! the other.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::load::loader::{Job, Making, Recipe, Shared, lock};
use crate::parallel::sync::atomic::Ordering;
use crate::parallel::sync::{Arc, PoisonError};

/// One thread and its tools.
pub(crate) struct Worker<'a, R: Recipe> {
    shared: &'a Shared<R>,
    tools: R::Tools,
}

impl<'a, R: Recipe> Worker<'a, R> {
    pub(crate) fn new(shared: &'a Shared<R>) -> Self {
        Self { shared, tools: shared.recipe.tools() }
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
                if !job.batch.ahead.is_empty() {
                    drop(queue);
                    self.shared.recipe.ask_ahead(&job.batch.ahead, &|| self.closed());
                    drop(job);
                    queue = lock(&self.shared.queue);
                }
                continue;
            }
            while queue.ready.front().is_some_and(|(_, job)| job.batch.parts.all_claimed()) {
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

    fn look_up(&self, job: &Job<R::Found>) {
        let batch = &job.batch;
        let mut fail = |place, error| batch.fail(place, error, &self.shared.counters);
        match catch_unwind(AssertUnwindSafe(|| self.shared.recipe.look_up(&batch.rows, &mut fail))) {
            Ok(found) => {
                let _ = job.found.set(found); // each job is located once
            }
            Err(panic) => {
                lock(&batch.outcome).panic.get_or_insert(panic);
            }
        }
    }

    /// Fills parts of a batch until all are taken, or until a new batch must be located.
    fn work(&mut self, job: &Job<R::Found>) {
        let (shared, batch) = (self.shared, &*job.batch);
        while !self.closed() && !shared.fresh.load(Ordering::Relaxed) {
            let Some(part) = batch.parts.claim() else { return };
            if let Some(found) = job.found.get() {
                let mut making = Making { batch, found, part, counters: &shared.counters };
                let made = catch_unwind(AssertUnwindSafe(|| shared.recipe.make(&mut self.tools, &mut making)));
                if let Err(panic) = made {
                    self.tools = shared.recipe.tools(); // the old tools may be in any state
                    lock(&batch.outcome).panic.get_or_insert(panic);
                }
            } else {
                drop(part); // the lookup panicked; `wait` reports it
            }
            if batch.parts.all_filled() {
                batch.announce();
            }
        }
    }
}
