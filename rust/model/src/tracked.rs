//! A value in plain memory, of which a model checker sees reads and writes that nothing orders.
#![allow(unsafe_code)]

#[cfg(feature = "loom")]
use loom::cell::UnsafeCell;

/// Starts at 0; stands for what threads write into a batch.
#[derive(Debug)]
pub(crate) struct Tracked {
    #[cfg(feature = "loom")]
    cell: UnsafeCell<u32>,
    #[cfg(not(feature = "loom"))]
    cell: std::sync::atomic::AtomicU32,
}

// SAFETY: loom stops the model at an access that races with another one, before it is made.
unsafe impl Sync for Tracked {}

#[cfg(feature = "loom")]
impl Tracked {
    pub(crate) fn new() -> Self {
        Self { cell: UnsafeCell::new(0) }
    }

    pub(crate) fn write(&self, value: u32) {
        // SAFETY: the pointer is that of the cell, which lives; see `Sync` for races.
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
