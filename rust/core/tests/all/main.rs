//! Tests of whole files, in one program: linking thirty takes longer than running them. Tests that
//! count allocations are in `forged`, which has an allocator of its own.

#[path = "../common/mod.rs"]
mod common;
#[path = "../pictures/mod.rs"]
mod pictures;

mod add_field;
mod compression;
mod copy;
mod crop_index;
mod decoders;
mod golden;
mod image;
mod ingest;
mod loader;
mod packed;
mod parts;
mod roundtrip;
mod safety;
mod shards;
mod side_bytes;
mod stacking;
mod twins;
mod types;
