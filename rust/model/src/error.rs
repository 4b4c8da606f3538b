//! The part of the core's errors that its threads use.

use std::io;

/// The result of every operation of the core.
pub type Result<T> = std::result::Result<T, Error>;

/// The errors, as in rust/core/src/error.rs.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages describe the fields
pub enum Error {
    #[error("{0}")]
    Schema(String),
    #[error("{0}")]
    Plan(String),
    #[error("no memory for a batch of {bytes} bytes")]
    Memory { bytes: u64 },
    #[error(
        "no thread can be started ({0}): raise the limit of processes (`ulimit -u`, `pids.max`) or of memory (`ulimit -v`)"
    )]
    Threads(io::Error),
    #[error("a loader's threads are in the process that began to iterate (pid {owner}), this is pid {here}")]
    ForkedLoader { owner: u32, here: u32 },
    #[error("the loader's threads were closed before the batch was whole")]
    LoaderClosed,
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    pub(crate) fn coded(&self) -> String {
        self.to_string() // error codes belong to the core
    }
}
