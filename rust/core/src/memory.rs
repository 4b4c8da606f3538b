//! Allocation of memory whose size comes from data. Too little memory is an error; it does not
//! abort the process.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed};
use std::hint::black_box;
use std::ptr::NonNull;
use std::sync::Once;

use crate::error::{Error, Result};

/// Memory that must stay free after an allocation: small allocations abort the process when they
/// fail.
const HEADROOM: usize = 2 << 20;
/// Smaller allocations skip the check of the remaining memory.
const LARGE: usize = 64 << 10;
/// The largest block whose release changes what glibc gives back, less what it adds to a block.
const LARGEST_KEPT: usize = (32 << 20) - (64 << 10);

/// Checks that `bytes` bytes could be allocated now. Call it before a library allocates memory by
/// itself and would abort the process on failure.
///
/// # Errors
/// [`Error::Memory`].
pub(crate) fn check(bytes: usize) -> Result<()> {
    let mut probe = Vec::<u8>::new();
    let reserved = probe.try_reserve_exact(bytes.saturating_add(HEADROOM));
    // Without this, the compiler removes an unused allocation.
    black_box(&mut probe);
    reserved.map_err(|_| Error::Memory { bytes: bytes as u64 })
}

/// Returns an empty vector with capacity for `items` items.
///
/// # Errors
/// [`Error::Memory`].
pub fn room<T>(items: usize) -> Result<Vec<T>> {
    let mut made = Vec::new();
    reserve(&mut made, items)?;
    Ok(made)
}

/// Reserves capacity for `more` more items.
///
/// # Errors
/// [`Error::Memory`].
pub(crate) fn reserve<T>(buffer: &mut Vec<T>, more: usize) -> Result<()> {
    if buffer.capacity() - buffer.len() >= more {
        return Ok(());
    }
    let bytes = buffer.len().saturating_add(more).saturating_mul(size_of::<T>());
    buffer.try_reserve(more).map_err(|_| Error::Memory { bytes: bytes as u64 })?;
    check_rest(bytes)
}

/// Checks that enough memory is left after an allocation of `bytes` bytes.
///
/// # Errors
/// [`Error::Memory`].
pub(crate) fn check_rest(bytes: usize) -> Result<()> {
    if bytes >= LARGE { check(0).map_err(|_| Error::Memory { bytes: bytes as u64 }) } else { Ok(()) }
}

/// Allocates zeroed memory. Large memory comes from the kernel as zeros: no byte is written, and the
/// threads that first use a page pay for it. Returns `None` if there is too little.
pub(crate) fn zeroed(layout: Layout) -> Option<NonNull<u8>> {
    debug_assert!(layout.size() > 0, "the allocator takes no empty layout");
    // SAFETY: the layout is not empty.
    NonNull::new(unsafe { alloc_zeroed(layout) })
}

/// Returns a vector of zeros.
///
/// # Errors
/// [`Error::Memory`].
pub fn zeros(bytes: usize) -> Result<Vec<u8>> {
    if bytes == 0 {
        return Ok(Vec::new());
    }
    let error = || Error::Memory { bytes: bytes as u64 };
    let start = zeroed(Layout::array::<u8>(bytes).map_err(|_| error())?).ok_or_else(error)?;
    let start = std::ptr::slice_from_raw_parts_mut(start.as_ptr(), bytes);
    // SAFETY: the allocator of boxes gave `bytes` bytes for this layout, and all are initialized.
    let made = unsafe { Box::from_raw(start) };
    check_rest(bytes)?;
    Ok(made.into_vec())
}

/// Has the process keep up to 64 MiB of freed memory for its next allocations. Call it before
/// allocating memory that each batch needs anew: what went back to the kernel costs a page fault for
/// every 4 KiB when it is needed again, which takes longer than a copy.
///
/// glibc gives freed memory back beyond a threshold, which starts at 128 KiB and grows to twice the
/// size of a large block that is freed (`M_MMAP_THRESHOLD` in mallopt(3)). No page of the block is
/// touched. Other allocators only allocate and free.
pub(crate) fn keep_freed() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut block = Vec::<u8>::new();
        // If there is too little memory, it is given back as before.
        let _ = block.try_reserve_exact(LARGEST_KEPT);
        black_box(&mut block);
    });
}

/// Collects items into a new vector.
///
/// # Errors
/// [`Error::Memory`].
pub fn collected<T>(items: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut made = room(items.len())?;
    made.extend(items);
    Ok(made)
}

/// Copies items into a new vector.
///
/// # Errors
/// [`Error::Memory`].
pub fn copied<T: Copy>(items: &[T]) -> Result<Vec<T>> {
    let mut made = room(items.len())?;
    made.extend_from_slice(items);
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_memory_holds_is_an_error_that_says_how_much() {
        let bytes = usize::MAX >> 2;
        assert!(matches!(zeros(bytes), Err(Error::Memory { bytes: found }) if found == bytes as u64));
        assert!(matches!(room::<u64>(bytes), Err(Error::Memory { .. })));
        assert!(check(bytes).is_err() && check(1 << 20).is_ok());
        assert_eq!((zeros(3).unwrap(), copied(&[1_u64, 2]).unwrap()), (vec![0; 3], vec![1, 2]));
    }
}
