//! Passes the core's log events to Python's `logging`.
//!
//! Any thread can log: it queues the event and continues. It never waits for the GIL or for a
//! handler. The calling thread delivers the queued events at the end of its call into the core.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwapOption;
use log::{Level, LevelFilter, Log, Metadata, Record};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Queue capacity. When it is full, further events are counted and dropped.
const MOST: usize = 1024;
/// The `log` target prefix of the core's modules.
const CORE: &str = "fastrecord_core";

static QUEUE: ArcSwapOption<Queue> = ArcSwapOption::const_empty();
/// Whether the queue may hold events. A call checks only this flag when the queue is empty.
static WAITING: AtomicBool = AtomicBool::new(false);
/// Whether the interpreter is exiting.
static CLOSED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether a handler runs on this thread. Events that it causes are delivered later.
    static DELIVERING: Cell<bool> = const { Cell::new(false) };
}

struct Event {
    level: Level,
    /// For example `fastrecord_core::writer`.
    target: String,
    message: String,
    file: Option<&'static str>,
    line: Option<u32>,
    created: SystemTime,
    thread: ThreadId,
    thread_name: Option<String>,
}

/// The queue of one process. A forked child gets its own: a thread that does not exist there may
/// have locked its parent's.
struct Queue {
    process: u32,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    events: VecDeque<Event>,
    dropped: u64,
}

impl Queue {
    fn current() -> Arc<Self> {
        let process = std::process::id();
        loop {
            let before = QUEUE.load_full();
            if let Some(queue) = before.as_ref().filter(|queue| queue.process == process) {
                return Arc::clone(queue);
            }
            let made = Arc::new(Self { process, held: Mutex::default() });
            // Never drop the parent's queue after a fork: its lock may never be released.
            std::mem::forget(before.clone());
            drop(QUEUE.compare_and_swap(&before, Some(made)));
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event: Event) {
        let mut held = self.held();
        if held.events.len() < MOST {
            held.events.push_back(event);
        } else {
            held.dropped += 1;
        }
        WAITING.store(true, Ordering::Release);
    }
}

/// The core's logger. `log` checks its own level first, before any formatting.
struct Sender;

impl Log for Sender {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level() && metadata.target().starts_with(CORE)
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) || CLOSED.load(Ordering::Relaxed) {
            return;
        }
        let thread = thread::current();
        Queue::current().push(Event {
            level: record.level(),
            target: record.target().to_owned(),
            message: record.args().to_string(),
            file: record.file_static(),
            line: record.line(),
            created: SystemTime::now(),
            thread: thread.id(),
            thread_name: thread.name().map(str::to_owned),
        });
    }

    fn flush(&self) {}
}

/// Installs the core's logger. It logs nothing before [`follow`] sets the level.
pub(crate) fn install() {
    // Only this library uses this copy of `log`. In a process that loads the module twice, an
    // earlier logger is this one.
    let _ = log::set_logger(&Sender);
}

/// Copies the current level of Python's loggers. Only calls that open, start or end something do
/// so: it is too slow for every call.
pub(crate) fn follow(py: Python<'_>) -> PyResult<()> {
    static THRESHOLD: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if CLOSED.load(Ordering::Relaxed) {
        return Ok(());
    }
    let threshold: i64 = THRESHOLD.import(py, "fastrecord.logs", "threshold")?.call0()?.extract()?;
    log::set_max_level(match threshold {
        ..10 => LevelFilter::Trace,
        10 => LevelFilter::Debug,
        11..=20 => LevelFilter::Info,
        21..=30 => LevelFilter::Warn,
        31..=40 => LevelFilter::Error,
        41.. => LevelFilter::Off,
    });
    Ok(())
}

/// Delivers the queued events. The caller must hold no lock: handlers are Python code.
///
/// # Errors
/// `KeyboardInterrupt` and the like from a handler. Other exceptions of handlers are reported by
/// `logging`, and do not affect the call.
pub(crate) fn deliver(py: Python<'_>) -> PyResult<()> {
    if !WAITING.load(Ordering::Acquire) || CLOSED.load(Ordering::Relaxed) || DELIVERING.replace(true) {
        return Ok(());
    }
    WAITING.store(false, Ordering::Relaxed);
    let queue = Queue::current();
    let (mut count, mut dropped) = {
        let mut held = queue.held();
        (held.events.len(), std::mem::take(&mut held.dropped))
    };
    let mut outcome = Ok(());
    // If a handler forks, the parent delivers the rest.
    while count > 0 && outcome.is_ok() && queue.process == std::process::id() {
        let Some(event) = queue.held().events.pop_front() else { break };
        outcome = pass_on(py, &event);
        count -= 1;
        if count == 0 && dropped > 0 {
            log::warn!(target: CORE, "{dropped} events were dropped: {MOST} were waiting");
            (count, dropped) = (1, 0);
        }
    }
    DELIVERING.set(false);
    if outcome.is_err() {
        WAITING.store(true, Ordering::Release); // a later call delivers the rest
    }
    outcome
}

/// Delivers the queued events, whatever the outcome of the call.
pub(crate) fn delivered<T>(py: Python<'_>, outcome: PyResult<T>) -> PyResult<T> {
    deliver(py).and(outcome)
}

fn pass_on(py: Python<'_>, event: &Event) -> PyResult<()> {
    static EMIT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let level = match event.level {
        Level::Error => 40,
        Level::Warn => 30,
        Level::Info => 20,
        Level::Debug | Level::Trace => 10,
    };
    let name = event.target.replacen(CORE, "fastrecord.core", 1).replace("::", ".");
    let created = event.created.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let other = event.thread != thread::current().id();
    let thread = other.then(|| event.thread_name.as_deref().unwrap_or("?"));
    let place = (event.file.unwrap_or("?"), event.line.unwrap_or_default());
    let emit = EMIT.import(py, "fastrecord.logs", "emit")?;
    match emit.call1((name, level, &event.message, created, thread, place)) {
        Ok(_) => Ok(()),
        Err(error) if error.is_instance_of::<PyException>(py) => {
            if py.import("logging")?.getattr("raiseExceptions")?.is_truthy()? {
                error.write_unraisable(py, Some(emit));
            }
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Whether the interpreter is exiting. Nothing is delivered any more.
pub(crate) fn is_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}

/// Delivers the last events, at interpreter exit.
///
/// # Errors
/// As [`deliver`].
pub(crate) fn close(py: Python<'_>) -> PyResult<()> {
    let outcome = deliver(py);
    CLOSED.store(true, Ordering::Relaxed);
    log::set_max_level(LevelFilter::Off);
    outcome
}
