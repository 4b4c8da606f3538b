//! Runs every schedule of a few threads, with every value that the memory order allows a read to
//! see.
#![cfg(feature = "loom")]
#![allow(clippy::print_stdout)] // prints the number of schedules

use std::sync::atomic::{AtomicUsize, Ordering};

use fastrecord_model::scenarios::Ending::{Failed, Good, Panicked};
use fastrecord_model::scenarios::{loader, ordered, parts, pool};

static SCHEDULES: AtomicUsize = AtomicUsize::new(0);

/// Runs a scenario in every schedule with at most the given number of preemptions.
fn in_all(preemptions: Option<usize>, scenario: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 100_000;
    builder.check(move || {
        SCHEDULES.fetch_add(1, Ordering::Relaxed);
        scenario();
    });
}

#[test]
fn threads_are_right_in_every_schedule() {
    in_all(None, || parts(2, 2));
    in_all(Some(3), || parts(3, 3));
    in_all(Some(4), || pool(2, &[&[Good, Good]]));
    in_all(Some(3), || pool(2, &[&[Good, Failed], &[Panicked, Good]]));
    in_all(Some(2), || pool(3, &[&[Good, Good, Good]]));
    in_all(Some(3), || ordered(2, 3, 2, 1, 3));
    in_all(Some(2), || ordered(2, 4, 2, 2, 1));
    in_all(Some(3), || loader(1, &[&[1, 2], &[3]], 2, 2));
    in_all(Some(3), || loader(1, &[&[1], &[240]], 2, 1));
    in_all(Some(2), || loader(2, &[&[1, 200], &[3]], 2, 2));
    println!("torture: {{\"count\": {}, \"detail\": \"\"}}", SCHEDULES.load(Ordering::Relaxed));
}
