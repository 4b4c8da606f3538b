//! How many cases a test has, and by which seed: docs/reliability.md.

use std::env;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().and_then(|text| text.parse().ok())
}

/// How many cases: `FASTRECORD_TORTURE`, or the number of a short run.
pub fn count(short: u64) -> u64 {
    number("FASTRECORD_TORTURE").unwrap_or(short)
}

/// The seed: `FASTRECORD_SEED`, or that of every short run.
pub fn seed() -> u64 {
    number("FASTRECORD_SEED").unwrap_or(7)
}

/// Whether this is a long run.
pub fn is_long() -> bool {
    number("FASTRECORD_TORTURE").is_some()
}

/// Tells tests/torture what was done.
#[allow(clippy::print_stdout)] // that is how it is told
pub fn report(count: u64, detail: &str) {
    println!("torture: {}", serde_json::json!({"count": count, "detail": detail}));
}
