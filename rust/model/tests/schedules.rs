//! Random schedules of many threads: `FASTRECORD_TORTURE` of each scenario, with the seed
//! `FASTRECORD_SEED`.
#![cfg(not(feature = "loom"))]
#![allow(clippy::print_stdout)] // a report for long runs

use fastrecord_model::scenarios::Ending::{Failed, Good, Panicked};
use fastrecord_model::scenarios::{loader, ordered, parts, pool, pool_of_several_callers};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// Runs a scenario in many schedules: one half is random, the other has few preemptions at the
/// worst moments.
fn in_many(scenario: fn()) -> u64 {
    let (times, seed) = (number("FASTRECORD_TORTURE", 2_000), number("FASTRECORD_SEED", 1));
    let half = usize::try_from(times.div_ceil(2)).expect("64 bits");
    Runner::new(RandomScheduler::new_from_seed(seed, half), Config::new()).run(scenario);
    Runner::new(PctScheduler::new_from_seed(seed, 3, half), Config::new()).run(scenario);
    println!("torture: {{\"count\": {}, \"detail\": \"seed {seed}\"}}", 2 * half);
    times
}

#[test]
fn parts_are_filled_once_by_many_threads() {
    in_many(|| parts(4, 6));
}

#[test]
fn a_pool_waits_for_all_items_of_each_call() {
    in_many(|| pool(4, &[&[Good; 5], &[Good, Failed, Good, Panicked, Good, Failed], &[Good; 2]]));
}

#[test]
fn a_pool_serves_several_callers_at_once() {
    in_many(|| pool_of_several_callers(3, &[&[Good; 4], &[Good, Failed, Good], &[Panicked, Good, Good]]));
}

#[test]
fn a_queue_gives_every_value_in_order_and_ends_its_makers() {
    in_many(|| ordered(3, 9, 4, 2, 9));
    in_many(|| ordered(3, 9, 3, 1, 4));
}

#[test]
fn a_loader_gives_every_batch_in_order() {
    in_many(|| loader(3, &[&[1, 2, 3], &[4], &[5, 6], &[7, 8, 9, 10], &[11]], 3, 5));
}

#[test]
fn a_loader_passes_failures_and_panics_to_the_batch_they_belong_to() {
    in_many(|| loader(3, &[&[1, 200, 3], &[240, 2], &[5, 250], &[6, 7], &[210, 241], &[8]], 3, 6));
}

#[test]
fn a_loader_that_is_dropped_with_batches_under_way_ends_its_threads() {
    in_many(|| loader(3, &[&[1, 2, 3], &[4, 5, 6], &[7, 240], &[8, 9, 10]], 4, 1));
    in_many(|| loader(2, &[&[1, 2, 3], &[4, 5, 6]], 2, 0));
}
