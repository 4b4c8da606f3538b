//! The bodies of the fuzz targets, which feed hostile bytes to the core and need no fuzzer to run.
//!
//! `fuzz_targets/` passes them the inputs of libFuzzer. The core's test `hostile` includes this
//! file and passes them the committed corpus. A body reports an error by a panic. It assembles
//! files, checksums and bytes from docs/format.md, and may not use the core's code for that.

pub mod append;
pub mod augment;
pub mod bytes;
pub mod crop_index;
pub mod decode;
pub mod forge;
pub mod guard;
pub mod index;
pub mod open;
pub mod packed;
pub mod patch;
pub mod payload;
pub mod place;
pub mod quiet;
pub mod read;
pub mod schema;
pub mod seal;
pub mod walk;

/// One target, with its name and its body.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name of the fuzz target and of its folder in `corpus/`.
    pub name: &'static str,
    /// Runs one input.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 10] = [
    Target { name: "open", run: open::run },
    Target { name: "read", run: read::run },
    Target { name: "index", run: index::run },
    Target { name: "schema", run: schema::run },
    Target { name: "payload", run: payload::run },
    Target { name: "decode", run: decode::run },
    Target { name: "crop_index", run: crop_index::run },
    Target { name: "packed", run: packed::run },
    Target { name: "append", run: append::run },
    Target { name: "augment", run: augment::run },
];
