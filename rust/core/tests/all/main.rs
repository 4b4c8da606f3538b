//! Tests of whole files, in one program: linking thirty takes longer than running them. Tests that
//! count allocations are in `forged`, which has an allocator of its own.

#[path = "../common/mod.rs"]
mod common;
#[path = "../pictures/mod.rs"]
mod pictures;

mod add_field;
mod bits;
mod compression;
mod concurrent;
mod copy;
mod corrupt;
mod crash;
mod crash_states;
mod crop_ready;
mod deep;
mod faults;
mod golden;
mod hostile;
mod image;
mod ingest;
mod limits;
mod loader;
mod mapping;
mod repair;
mod roundtrip;
mod side_bytes;
mod stacking;
mod types;
