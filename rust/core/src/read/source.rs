//! `Source`: a mapping or a file that the bytes of a snapshot are read from.

use crate::error::Result;
use crate::read::mapping::Guarded;
use std::fs::File;
use std::sync::Arc;

/// Where the bytes of a snapshot are read from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// A mapping of the whole snapshot.
    Mapped(Arc<Guarded>),
    /// System calls; a chunk is read whole when it is first used.
    File(Arc<File>),
}

impl Source {
    /// Calls `work` with all bytes if they are mapped. Returns its result if all bytes that it read
    /// were there.
    #[allow(clippy::inline_always)] // around the loop over a batch's records
    #[inline(always)]
    pub(crate) fn with<T>(&self, work: impl FnOnce(Option<&[u8]>) -> Result<T>) -> Result<T> {
        match self {
            Self::Mapped(map) => map.read(|bytes| work(Some(bytes)))?,
            Self::File(_) => work(None),
        }
    }
}
