//! `Source`: where the bytes of a snapshot are read from.

use crate::error::Result;
use crate::read::mapping::Guarded;
use std::fs::File;
use std::sync::Arc;

/// Where the bytes of a snapshot are read from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// A mapping of all of it.
    Mapped(Arc<Guarded>),
    /// System calls; chunks are read whole at first touch.
    File(Arc<File>),
}

impl Source {
    /// Calls `work` with all bytes, if they are mapped, and returns what it does if what it read was there.
    #[allow(clippy::inline_always)] // around the loop over a batch's records
    #[inline(always)]
    pub(crate) fn with<T>(&self, work: impl FnOnce(Option<&[u8]>) -> Result<T>) -> Result<T> {
        match self {
            Self::Mapped(map) => map.read(|bytes| work(Some(bytes)))?,
            Self::File(_) => work(None),
        }
    }
}
