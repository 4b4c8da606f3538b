//! `OrderedQueue`: values that several threads make ahead, and one thread takes in order.

use std::collections::VecDeque;
use std::ops::Range;

use crate::control::Control;
use crate::error::Result;
use crate::parallel::sync::{Condvar, Mutex, SLICE, lock, wait, wait_at_most};

/// Values `0..count`. Makers claim numbers and put the values; the taker takes them in order. What
/// waits to be taken is limited in number and in bytes.
#[derive(Debug)]
pub(crate) struct OrderedQueue<T> {
    count: usize,
    ahead: usize,
    ahead_bytes: usize,
    /// A maker claims up to this many values together.
    at_once: usize,
    state: Mutex<State<T>>,
    /// The next value was put.
    ready: Condvar,
    /// Makers may continue.
    room: Condvar,
}

#[derive(Debug)]
struct State<T> {
    /// The values from `next_taken` on that were put, with their bytes.
    waiting: VecDeque<Option<(T, usize)>>,
    bytes: usize,
    next_claimed: usize,
    next_taken: usize,
    /// Makers may be waiting for room.
    full: bool,
    closed: bool,
}

impl<T> OrderedQueue<T> {
    /// Creates a queue of `count` values. At most `ahead` values, and about `ahead_bytes` bytes,
    /// wait to be taken. A maker claims up to `at_once` values together.
    pub(crate) fn new(count: usize, ahead: usize, ahead_bytes: usize, at_once: usize) -> Self {
        let state =
            State { waiting: VecDeque::new(), bytes: 0, next_claimed: 0, next_taken: 0, full: false, closed: false };
        let (ready, room) = (Condvar::new(), Condvar::new());
        Self { count, ahead, ahead_bytes, at_once, state: Mutex::new(state), ready, room }
    }

    /// Waits for room, then claims the next values to make. Returns `None` when none is left or the
    /// queue is closed.
    pub(crate) fn claim(&self) -> Option<Range<usize>> {
        let mut state = lock(&self.state);
        loop {
            let first = state.next_claimed;
            if state.closed || first >= self.count {
                return None;
            }
            // The next value to take may always be made, however large the values after it are.
            let ahead = first - state.next_taken;
            if ahead == 0 || (ahead < self.ahead && state.bytes < self.ahead_bytes) {
                state.next_claimed = self.count.min(first + self.at_once);
                return Some(first..state.next_claimed);
            }
            state.full = true;
            state = wait(&self.room, state);
        }
    }

    /// Waits until the waiting values leave room, or this value is the next to take. A maker that
    /// claimed several values calls it before each.
    pub(crate) fn wait_for_room(&self, number: usize) {
        let mut state = lock(&self.state);
        while !state.closed && number != state.next_taken && state.bytes >= self.ahead_bytes {
            state.full = true;
            state = wait(&self.room, state);
        }
    }

    /// Passes a claimed value of `bytes` bytes to the taker.
    pub(crate) fn put(&self, number: usize, value: T, bytes: usize) {
        let mut state = lock(&self.state);
        let at = number - state.next_taken;
        if state.waiting.len() <= at {
            state.waiting.resize_with(at + 1, || None);
        }
        state.waiting[at] = Some((value, bytes));
        state.bytes += bytes;
        if at == 0 {
            self.ready.notify_one();
        }
    }

    /// Waits for the next value, and takes it.
    ///
    /// # Errors
    /// [`Error::Interrupted`](crate::error::Error::Interrupted); the value may then be taken later.
    pub(crate) fn take(&self, control: &dyn Control) -> Result<T> {
        let mut state = lock(&self.state);
        loop {
            if let Some((value, bytes)) = state.waiting.front_mut().and_then(Option::take) {
                state.waiting.pop_front();
                state.bytes -= bytes;
                state.next_taken += 1;
                // Waking makers for each value costs as much as a small file. So wake them when half
                // of what may wait has been taken.
                let ahead = state.next_claimed - state.next_taken;
                if state.full && ahead <= self.ahead / 2 && state.bytes <= self.ahead_bytes / 2 {
                    state.full = false;
                    self.room.notify_all();
                }
                return Ok(value);
            }
            // The wanted value may be made now, whatever the makers wait for.
            self.room.notify_all();
            let (guard, timed_out) = wait_at_most(&self.ready, state, SLICE);
            drop(guard);
            if timed_out {
                control.check()?;
            }
            state = lock(&self.state);
        }
    }

    /// Ends the makers after the values that they are making.
    pub(crate) fn close(&self) {
        lock(&self.state).closed = true;
        self.room.notify_all();
    }
}

/// Closes a queue however its taker ends, so that the scope that joins the makers can end.
#[derive(Debug)]
pub(crate) struct CloseOnDrop<'a, T>(pub &'a OrderedQueue<T>);

impl<T> Drop for CloseOnDrop<'_, T> {
    fn drop(&mut self) {
        self.0.close();
    }
}
