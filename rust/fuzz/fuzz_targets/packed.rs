#![no_main]

use fastrecord_fuzz::{packed, guard, quiet};

#[global_allocator]
static COUNTING: guard::Counting = guard::Counting;

libfuzzer_sys::fuzz_target!(init: quiet::only_our_own_panics_end_it(), |data: &[u8]| packed::run(data));
