//! Uses of the pool and the loader, which a model checker runs.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::control::Control;
use crate::error::Error;
use crate::load::batch::{Fill, LoadCounters, Plan, Workload};
use crate::load::loader::{Load, Loader};
use crate::load::sources::Located;
use crate::parallel::buffers::{BufferPool, PartQueue};
use crate::parallel::ordered::OrderedQueue;
use crate::parallel::pool::Pool;
use crate::parallel::sync::{Arc, thread};
use crate::tracked::Tracked;

fn cells(count: usize) -> Arc<Vec<Tracked>> {
    Arc::new((0..count).map(|_| Tracked::new()).collect())
}

/// Threads claim parts and fill them. A thread that sees all parts filled sees all writes, and no
/// part is written twice.
///
/// # Panics
/// Panics if that does not hold.
pub fn parts(threads: usize, rows: usize) {
    let parts = Arc::new(PartQueue::new(vec![BufferPool::new(1).take(rows).expect("a few bytes")], rows, 1));
    let cells = cells(rows);
    let fill = |parts: &PartQueue, cells: &[Tracked]| {
        while let Some(part) = parts.claim() {
            let cell = &cells[part.rows.start];
            assert_eq!(cell.read(), 0, "claimed twice");
            cell.write(1);
        }
    };
    let others: Vec<_> = (1..threads)
        .map(|_| {
            let (parts, cells) = (Arc::clone(&parts), Arc::clone(&cells));
            thread::spawn(move || fill(&parts, &cells))
        })
        .collect();
    fill(&parts, &cells);
    while !parts.all_filled() {
        thread::yield_now();
    }
    assert!(cells.iter().all(|cell| cell.read() == 1));
    assert_eq!(parts.take().len(), 1);
    assert!(parts.take().is_empty(), "given away once");
    for other in others {
        other.join().expect("it did not panic");
    }
}

/// How an item of a pool call ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Well.
    Good,
    /// With an error.
    Failed,
    /// With a panic.
    Panicked,
}

/// Calls of a pool: each waits for all its items, however they end, and sees their writes; then the
/// pool ends its threads.
///
/// # Panics
/// Panics if that does not hold.
pub fn pool(threads: usize, calls: &[&[Ending]]) {
    let pool = Pool::new(threads);
    for call in calls {
        one_call(&pool, threads, call);
    }
}

/// The same, with concurrent calls.
///
/// # Panics
/// Panics if that does not hold.
pub fn pool_of_several_callers(threads: usize, calls: &[&'static [Ending]]) {
    let pool = Arc::new(Pool::new(threads));
    let callers: Vec<_> = calls
        .iter()
        .map(|&call| {
            let pool = Arc::clone(&pool);
            thread::spawn(move || one_call(&pool, threads, call))
        })
        .collect();
    for caller in callers {
        caller.join().expect("it did not panic");
    }
}

fn one_call(pool: &Pool, threads: usize, endings: &[Ending]) {
    let cells = cells(endings.len());
    let (written, items) = (Arc::clone(&cells), endings.to_vec());
    let body = move |item: usize| {
        assert_eq!(written[item].read(), 0, "done twice");
        written[item].write(1);
        match items[item] {
            Ending::Good => Ok(()),
            Ending::Failed => Err(Error::Schema(item.to_string())),
            Ending::Panicked => std::panic::resume_unwind(Box::new(item)),
        }
    };
    let run = catch_unwind(AssertUnwindSafe(|| pool.run(endings.len(), threads, &|| false, body)));
    let begun = cells.iter().filter(|cell| cell.read() == 1).count();
    let expected = endings.iter().find(|ending| **ending != Ending::Good);
    match (run, expected) {
        (Ok(Ok(())), None) => assert_eq!(begun, endings.len()),
        (Ok(Err(Error::Schema(item))), Some(_)) => {
            let item: usize = item.parse().expect("its own number");
            assert_eq!((endings[item], cells[item].read()), (Ending::Failed, 1));
        }
        (Err(panic), Some(_)) => {
            let item = *panic.downcast::<usize>().expect("its own number");
            assert_eq!((endings[item], cells[item].read()), (Ending::Panicked, 1));
        }
        (other, _) => panic!("{endings:?} ended with {other:?}"),
    }
}

/// Threads make the values of a queue, and the scenario takes the first `taken` of them. They come
/// in order, with the writes of their makers, and closing the queue ends the threads.
///
/// # Panics
/// Panics if that does not hold.
pub fn ordered(makers: usize, count: usize, ahead: usize, at_once: usize, taken: usize) {
    let queue = Arc::new(OrderedQueue::new(count, ahead, 2, at_once));
    let cells = cells(count);
    let threads: Vec<_> = (0..makers)
        .map(|_| {
            let (queue, cells) = (Arc::clone(&queue), Arc::clone(&cells));
            thread::spawn(move || {
                while let Some(numbers) = queue.claim() {
                    for number in numbers {
                        queue.wait_for_room(number);
                        assert_eq!(cells[number].read(), 0, "made twice");
                        cells[number].write(1);
                        queue.put(number, number, 1);
                    }
                }
            })
        })
        .collect();
    for number in 0..taken {
        assert_eq!(queue.take(&|| false).expect("not stopped"), number);
        assert_eq!(cells[number].read(), 1);
    }
    queue.close();
    for thread in threads {
        thread.join().expect("it did not panic");
    }
}

/// Each row is one byte, its number. Rows from 200 on fail and rows from 240 on panic, while
/// they are located or filled.
#[derive(Debug)]
struct Numbers;

const FAILS: u64 = 200;
const PANICS: u64 = 240;
const PANICS_LOCATED: u64 = 250;

impl Plan for Numbers {
    fn images(&self) -> usize {
        0
    }

    fn mixes(&self) -> bool {
        false
    }

    fn rows(&self) -> u64 {
        256
    }

    fn no_row(&self, row: u64) -> Error {
        Error::Plan(row.to_string())
    }

    fn row_bytes(&self) -> &[usize] {
        &[1]
    }

    fn granularity(&self) -> usize {
        1
    }

    fn locate(&self, rows: &[u64], _fail: &mut dyn FnMut(usize, Error)) -> Located {
        if rows.contains(&PANICS_LOCATED) {
            std::panic::resume_unwind(Box::new("locate"));
        }
        Located(rows.to_vec())
    }

    fn prefetch(&self, _rows: &[u64], control: &dyn Control) {
        control.is_stopped();
    }

    fn fill(&self) -> Fill<'_> {
        Box::new(|located, task| {
            let slot = task.part.rows.start;
            let row = located.0[slot];
            if row >= PANICS {
                std::panic::resume_unwind(Box::new("fill"));
            }
            if row >= FAILS {
                task.fail(slot, Error::Plan(row.to_string()));
            } else {
                task.part.bytes[0][0] = u8::try_from(row).expect("below 200");
            }
        })
    }
}

/// A loader makes batches in the requested order, `ahead` of them at a time; the scenario drops it
/// after `taken` batches.
///
/// # Panics
/// Panics if a batch is wrong, or if two batches receive the same memory.
pub fn loader(threads: usize, batches: &[&[u64]], ahead: usize, taken: usize) {
    let spares = BufferPool::new(2);
    let loader = Loader::start(Arc::new(Numbers), Arc::new(LoadCounters::default()), threads).expect("threads");
    let submit = |rows: &[u64]| {
        let buffers = vec![spares.take(rows.len()).expect("a few bytes")];
        let (rows, ahead) = (rows.to_vec(), vec![0]);
        loader
            .submit(Workload { seed: 0, epoch: 0, rows, positions: Vec::new(), ahead, buffers })
            .expect("a good batch")
    };
    let mut under_way: std::collections::VecDeque<Load> = batches.iter().take(ahead).map(|rows| submit(rows)).collect();
    for (number, rows) in batches.iter().enumerate().take(taken) {
        let load = under_way.pop_front().expect("it was asked for");
        check(rows, &load);
        if let Some(rows) = batches.get(number + ahead) {
            under_way.push_back(submit(rows));
        }
    }
    drop(loader);
    // A batch in progress when the loader is dropped is complete or an error; waiting for it always
    // ends.
    for (load, rows) in under_way.iter().zip(&batches[taken..]) {
        if load.is_ready() {
            check(rows, load);
        } else {
            assert!(matches!(load.wait(&|| false), Err(Error::LoaderClosed)));
        }
    }
}

fn check(rows: &[u64], load: &Load) {
    let waited = catch_unwind(AssertUnwindSafe(|| load.wait(&|| false)));
    if rows.iter().any(|&row| row >= PANICS) {
        assert!(waited.is_err(), "a panic is passed on");
        return;
    }
    let (mut buffers, failures) = waited.expect("no panic").expect("a batch");
    let failed: Vec<usize> = (0..rows.len()).filter(|&slot| rows[slot] >= FAILS).collect();
    assert_eq!(failures.iter().map(|failure| failure.slot).collect::<Vec<_>>(), failed);
    let expected: Vec<u64> = rows.iter().map(|&row| if row >= FAILS { 0 } else { row }).collect();
    let found: Vec<u64> = buffers[0].bytes_mut().iter().map(|&byte| u64::from(byte)).collect();
    assert_eq!(found, expected);
}
