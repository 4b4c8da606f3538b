//! Memory whose size data decides: where there is too little of it, an error and not the end of the process.

use std::hint::black_box;

use crate::error::{Error, Result};

/// Left over beside what is asked for: small allocations end the process where they fail.
const HEADROOM: usize = 2 << 20;
/// What is smaller needs no check of what is left beside it.
const LARGE: usize = 64 << 10;

/// Checks that so many bytes could be allocated now, for work that allocates them itself and ends the process where it cannot.
///
/// # Errors
/// [`Error::Memory`].
pub(crate) fn check(bytes: usize) -> Result<()> {
    let mut probe = Vec::<u8>::new();
    let reserved = probe.try_reserve_exact(bytes.saturating_add(HEADROOM));
    // Else the compiler leaves out an allocation that nothing uses.
    black_box(&mut probe);
    reserved.map_err(|_| Error::Memory { bytes: bytes as u64 })
}

/// An empty vector with room for so many items.
///
/// # Errors
/// [`Error::Memory`].
pub fn room<T>(items: usize) -> Result<Vec<T>> {
    let mut made = Vec::new();
    reserve(&mut made, items)?;
    Ok(made)
}

/// Makes room for so many more items.
///
/// # Errors
/// [`Error::Memory`].
pub(crate) fn reserve<T>(buffer: &mut Vec<T>, more: usize) -> Result<()> {
    if buffer.capacity() - buffer.len() >= more {
        return Ok(());
    }
    let bytes = buffer.len().saturating_add(more).saturating_mul(size_of::<T>());
    buffer.try_reserve(more).map_err(|_| Error::Memory { bytes: bytes as u64 })?;
    if bytes >= LARGE { check(0).map_err(|_| Error::Memory { bytes: bytes as u64 }) } else { Ok(()) }
}

/// Zeros.
///
/// # Errors
/// [`Error::Memory`].
pub fn zeros(bytes: usize) -> Result<Vec<u8>> {
    let mut made = room(bytes)?;
    made.resize(bytes, 0);
    Ok(made)
}

/// A copy.
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
