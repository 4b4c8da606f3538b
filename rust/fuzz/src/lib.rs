//! What anybody could hand us, thrown at the core: the bodies of the fuzz targets, which need no fuzzer to run.
//!
//! `fuzz_targets/` hands them what libFuzzer makes; the core's test `hostile` includes this very file and hands them the
//! committed corpus. A body says that something is wrong by a panic. Files, their checksums and their bytes are put together
//! here from docs/format.md, and not by the core's own code.

pub mod append;
pub mod bytes;
pub mod crop_ready;
pub mod decode;
pub mod forge;
pub mod guard;
pub mod index;
pub mod open;
pub mod patch;
pub mod payload;
pub mod place;
pub mod quiet;
pub mod read;
pub mod schema;
pub mod seal;
pub mod walk;

/// One way in for hostile bytes.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// That of the fuzz target and of its folder in `corpus/`.
    pub name: &'static str,
    /// Runs one input.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: [Target; 8] = [
    Target { name: "open", run: open::run },
    Target { name: "read", run: read::run },
    Target { name: "index", run: index::run },
    Target { name: "schema", run: schema::run },
    Target { name: "payload", run: payload::run },
    Target { name: "decode", run: decode::run },
    Target { name: "crop_ready", run: crop_ready::run },
    Target { name: "append", run: append::run },
];
