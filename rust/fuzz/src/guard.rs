//! The memory limit: counts the allocations of Rust code, and fails a run that exceeds its limit.
//! (libFuzzer limits the allocations of the C libraries by `-malloc_limit_mb` and `-rss_limit_mb`.)
#![allow(unsafe_code)] // an allocator's methods are

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);
static MOST: AtomicUsize = AtomicUsize::new(0);
static ALONE: Mutex<()> = Mutex::new(());

/// The system's allocator, with a count of the allocated bytes.
#[derive(Debug)]
pub struct Counting;

fn asked(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed).wrapping_add(bytes);
    if live > LIMIT.load(Ordering::Relaxed) && live < usize::MAX / 2 {
        MOST.fetch_max(live, Ordering::Relaxed);
    }
}

fn given_back(bytes: usize) {
    LIVE.fetch_sub(bytes, Ordering::Relaxed);
}

// SAFETY: the system's allocator does all the work, with unchanged arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        asked(layout.size());
        // SAFETY: the caller keeps the trait's rules.
        let made = unsafe { System.alloc(layout) };
        if made.is_null() {
            given_back(layout.size());
        }
        made
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        asked(layout.size());
        // SAFETY: as above.
        let made = unsafe { System.alloc_zeroed(layout) };
        if made.is_null() {
            given_back(layout.size());
        }
        made
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both blocks may exist for a moment.
        asked(size);
        // SAFETY: as above.
        let made = unsafe { System.realloc(old, layout, size) };
        given_back(if made.is_null() { size } else { layout.size() });
        made
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        given_back(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(old, layout) };
    }
}

/// Runs `work`, which may allocate the given number of bytes in addition to the current ones; one
/// call at a time.
///
/// # Panics
/// Panics if `work` allocates more. Without [`Counting`] as the global allocator, nothing is
/// counted or detected.
pub fn within<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = LIVE.load(Ordering::Relaxed);
    MOST.store(0, Ordering::Relaxed);
    LIMIT.store(before.saturating_add(bytes), Ordering::Relaxed);
    let done = work();
    LIMIT.store(usize::MAX, Ordering::Relaxed);
    let most = MOST.load(Ordering::Relaxed);
    assert!(most == 0, "{} bytes were asked for, {bytes} are allowed", most.saturating_sub(before));
    done
}
