//! `Tracked` is a value in plain memory; a model checker detects its unordered reads and writes.
#![allow(unsafe_code)]

#[cfg(feature = "loom")]
use loom::cell::UnsafeCell;

/// Starts at 0; represents the data that threads write into a batch.
#[derive(Debug)]
pub(crate) struct Tracked {
    #[cfg(feature = "loom")]
    cell: UnsafeCell<u32>,
    #[cfg(not(feature = "loom"))]
    cell: std::sync::atomic::AtomicU32,
}

// SAFETY: loom stops the model at an access that races with another one, before the access happens.
unsafe impl Sync for Tracked {}

#[cfg(feature = "loom")]
impl Tracked {
    pub(crate) fn new() -> Self {
        Self { cell: UnsafeCell::new(0) }
    }

    pub(crate) fn write(&self, value: u32) {
        // SAFETY: the pointer comes from the cell, which is alive; see `Sync` for races.
        self.cell.with_mut(|at| unsafe { *at = value });
    }

    pub(crate) fn read(&self) -> u32 {
        // SAFETY: as in `write`.
        self.cell.with(|at| unsafe { *at })
    }
}

#[cfg(not(feature = "loom"))]
impl Tracked {
    pub(crate) fn new() -> Self {
        Self { cell: std::sync::atomic::AtomicU32::new(0) }
    }

    pub(crate) fn write(&self, value: u32) {
        self.cell.store(value, std::sync::atomic::Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> u32 {
        self.cell.load(std::sync::atomic::Ordering::Relaxed)
    }
}
