//! The number of cases of a test, and its seed (docs/reliability.md).

use std::env;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().and_then(|text| text.parse().ok())
}

/// The number of cases: `FASTRECORD_TORTURE`, or the default of a short run.
pub fn count(short: u64) -> u64 {
    number("FASTRECORD_TORTURE").unwrap_or(short)
}

/// The seed: `FASTRECORD_SEED`, or the fixed seed of short runs.
pub fn seed() -> u64 {
    number("FASTRECORD_SEED").unwrap_or(7)
}

/// Returns whether this is a long run.
pub fn is_long() -> bool {
    number("FASTRECORD_TORTURE").is_some()
}

/// Reports the completed cases to tests/torture.
#[allow(clippy::print_stdout)] // standard output is the report
pub fn report(count: u64, detail: &str) {
    println!("torture: {}", serde_json::json!({"count": count, "detail": detail}));
}
