//! `BatchBuffer` and `BufferPool`: batch memory, which is filled in parts by many threads and reused by
//! later batches. It does not know what the bytes mean.
#![allow(unsafe_code)]

use std::alloc::{Layout, dealloc};
use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;

use crate::error::{Error, Result};
use crate::memory;
use crate::parallel::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::parallel::sync::{Arc, Mutex, lock};

/// A cache line; also suits the widest vector instructions.
const ALIGN: usize = 64;

/// Memory of one batch, used exclusively while this value lives. `drop` returns it to its owner.
pub struct BatchBuffer {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

enum Owner {
    /// The pool, and where its allocation begins.
    Pool(Arc<BufferPool>, NonNull<u8>),
    /// Foreign memory, which lives at least as long as this value.
    Lent { _owner: Box<dyn Any + Send + Sync> },
}

// SAFETY: the memory belongs to this value alone. Only `PartQueue`, and the owner that took the buffer
// from it, write to it.
unsafe impl Send for BatchBuffer {}
// SAFETY: a shared buffer exposes its address and length, never a reference to its bytes.
unsafe impl Sync for BatchBuffer {}

impl BatchBuffer {
    /// Wraps memory of another allocator, such as pinned memory.
    ///
    /// # Safety
    /// `start` points to `len` bytes that stay in place as long as `owner` lives. No other code
    /// reads or writes them in that time.
    pub unsafe fn lent(start: NonNull<u8>, len: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        Self { start, len, owner: Owner::Lent { _owner: owner } }
    }

    /// Returns the start of the memory.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the bytes, as long as the buffer has not been given away.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `start` points to `len` bytes, which were zeroed at allocation or came from a
        // lender. No other code uses them while this value lives, and the slice borrows this value.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Reports whether the size is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl std::fmt::Debug for BatchBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchBuffer").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Drop for BatchBuffer {
    fn drop(&mut self) {
        if let Owner::Pool(pool, base) = &self.owner {
            pool.put(Block { base: *base, start: self.start, len: self.len });
        }
    }
}

/// Memory of finished batches, kept for reuse. Fresh memory costs a page fault for every 4 KiB.
#[derive(Debug)]
pub struct BufferPool {
    process: u32,
    keep: usize,
    blocks: Mutex<Vec<Block>>,
}

#[derive(Debug)]
struct Block {
    /// The allocation, which is not aligned: an allocator that must align memory writes zeros into
    /// all of it.
    base: NonNull<u8>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a block is memory with one owner.
unsafe impl Send for Block {}

impl Block {
    fn layout(len: usize) -> Option<Layout> {
        Layout::array::<u8>(len.checked_add(ALIGN)?).ok()
    }

    fn new(len: usize) -> Option<Self> {
        let base = memory::zeroed(Self::layout(len)?)?;
        // SAFETY: less than `ALIGN` bytes are skipped, and the layout has so many more than `len`.
        let start = unsafe { base.add(base.align_offset(ALIGN)) };
        Some(Self { base, start, len })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.len) {
            // SAFETY: `new` allocated it with this layout, and nothing else uses it.
            unsafe { dealloc(self.base.as_ptr(), layout) };
        }
    }
}

impl BufferPool {
    /// Creates a pool that keeps at most `keep` blocks.
    pub fn new(keep: usize) -> Arc<Self> {
        Arc::new(Self { process: std::process::id(), keep, blocks: Mutex::default() })
    }

    /// Reports whether this process created the pool: a forked child must not use its parent's.
    pub fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Returns memory for a batch of `len` bytes. Its contents are arbitrary.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn take(self: &Arc<Self>, len: usize) -> Result<BatchBuffer> {
        let spare = {
            let mut blocks = lock(&self.blocks);
            blocks.iter().rposition(|block| block.len == len).map(|at| blocks.swap_remove(at))
        };
        let block = if let Some(block) = spare {
            block
        } else {
            let block = Block::new(len).ok_or(Error::Memory { bytes: len as u64 })?;
            memory::check_rest(len)?;
            block
        };
        let buffer = BatchBuffer { start: block.start, len, owner: Owner::Pool(Arc::clone(self), block.base) };
        std::mem::forget(block);
        Ok(buffer)
    }

    fn put(&self, block: Block) {
        if !self.is_ours() {
            // A thread that fork did not copy may hold the lock forever: leak this copy of the
            // parent's memory.
            std::mem::forget(block);
            return;
        }
        let mut blocks = lock(&self.blocks);
        if blocks.len() >= self.keep && !blocks.is_empty() {
            // Drop the oldest block: its size may belong to another iteration.
            blocks.remove(0);
        }
        if self.keep > 0 {
            blocks.push(block);
        }
    }
}

/// Buffers with the same number of rows, split into parts. A part is a run of the same rows in
/// every buffer. Threads claim and fill parts.
#[derive(Debug)]
pub(crate) struct PartQueue {
    rows: usize,
    /// Rows per part; the last part may have fewer.
    run: usize,
    count: usize,
    /// For each buffer, its start and its bytes per row.
    starts: Vec<(Address, usize)>,
    next: AtomicUsize,
    done: AtomicUsize,
    /// Whether one row of a pair was given away; see [`Part::give`].
    given: Vec<AtomicBool>,
    /// The owner of the memory; empty once it was taken.
    buffers: Mutex<Vec<BatchBuffer>>,
}

#[derive(Debug, Clone, Copy)]
struct Address(*mut u8);

// SAFETY: an address alone does nothing. `PartQueue::claim` and `Part::give` explain why its use is sound.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// One part of each buffer, claimed by one thread. `drop` marks it as filled.
pub(crate) struct Part<'a> {
    parts: &'a PartQueue,
    /// Slots in the batch.
    pub(crate) rows: Range<usize>,
    /// The bytes of these rows in each buffer.
    pub(crate) bytes: Vec<&'a mut [u8]>,
}

impl PartQueue {
    /// Splits buffers of `rows` rows each into parts of `run` rows.
    ///
    /// # Panics
    /// If a buffer's length is not a multiple of `rows`, or if `rows` or `run` is 0.
    pub(crate) fn new(buffers: Vec<BatchBuffer>, rows: usize, run: usize) -> Self {
        assert!(rows > 0 && run > 0 && buffers.iter().all(|b| b.len().is_multiple_of(rows)), "buffers of {rows} rows");
        let starts = buffers.iter().map(|b| (Address(b.as_ptr()), b.len() / rows)).collect();
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let given = Vec::new();
        Self { rows, run, count: rows.div_ceil(run), starts, next, done, given, buffers: Mutex::new(buffers) }
    }

    /// Allows [`Part::give`].
    #[must_use]
    pub(crate) fn in_pairs(self) -> Self {
        let given = (0..self.rows / 2).map(|_| AtomicBool::new(false)).collect();
        Self { given, ..self }
    }

    /// Claims the next part.
    pub(crate) fn claim(&self) -> Option<Part<'_>> {
        if self.all_claimed() {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if number >= self.count {
            return None;
        }
        let first = number * self.run;
        let rows = first..self.rows.min(first + self.run);
        let slice = |&(start, len): &(Address, usize)| {
            // SAFETY: the rows lie within the buffer, which has `rows * len` bytes (see `new`). No
            // two claims get the same number, and parts do not overlap. The buffer stays here until
            // all parts are dropped (see `take`), and lives as long as `self` until then.
            unsafe { std::slice::from_raw_parts_mut(start.0.add(first * len), rows.len() * len) }
        };
        let bytes = self.starts.iter().map(slice).collect();
        Some(Part { parts: self, rows, bytes })
    }

    pub(crate) fn all_claimed(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.count
    }

    pub(crate) fn all_filled(&self) -> bool {
        // Acquire: a thread that sees the last part done also sees its bytes.
        self.done.load(Ordering::Acquire) == self.count
    }

    /// Returns the buffers once all parts are filled. A second call returns nothing.
    pub(crate) fn take(&self) -> Vec<BatchBuffer> {
        if self.all_filled() { std::mem::take(&mut *lock(&self.buffers)) } else { Vec::new() }
    }
}

impl Part<'_> {
    /// Gives the only row of this part away, which is complete. Its pair is the row at the same distance from
    /// the other end. The call for the second row of a pair calls `work` with both rows of that buffer; a
    /// further call for the same part does nothing.
    ///
    /// # Panics
    /// If the part has several rows.
    pub(crate) fn give(&mut self, buffer: usize, work: impl FnOnce(&mut [u8], &mut [u8])) {
        assert_eq!(self.rows.len(), 1, "a part of one row");
        let (row, other) = (self.rows.start, self.parts.rows - 1 - self.rows.start);
        if std::mem::take(&mut self.bytes).is_empty() {
            return;
        }
        let Some(given) = self.parts.given.get(row.min(other)).filter(|_| row != other) else { return };
        // Release: our row is complete. Acquire: the other one is.
        if given.swap(true, Ordering::AcqRel) {
            let (start, len) = self.parts.starts[buffer];
            // SAFETY: these are two different rows of one buffer. Each was claimed by one part, which swaps at
            // most once, after the end of its slices. So both slices have ended, and no third swap comes. The
            // buffer stays until this part is dropped.
            let [one, two] =
                [row, other].map(|row| unsafe { std::slice::from_raw_parts_mut(start.0.add(row * len), len) });
            work(one, two);
        }
    }

    /// Fills a row with zeros, in each buffer.
    pub(crate) fn clear(&mut self, row: usize) {
        let at = row - self.rows.start;
        for (bytes, (_, len)) in self.bytes.iter_mut().zip(&self.parts.starts) {
            bytes[at * len..][..*len].fill(0);
        }
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        self.bytes.clear();
        self.parts.done.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_claimed_once_and_the_buffer_is_whole_in_the_end() {
        let spares = BufferPool::new(2);
        let parts = PartQueue::new(vec![spares.take(7 * 100).unwrap(), spares.take(100).unwrap()], 100, 1);
        assert!(parts.take().is_empty(), "nothing is filled yet");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Some(mut part) = parts.claim() {
                        let number = u8::try_from(part.rows.start).unwrap();
                        part.bytes[0].fill(number);
                        part.bytes[1][0] = number;
                    }
                });
            }
        });
        let buffers = parts.take();
        assert_eq!(buffers.len(), 2);
        assert!(parts.take().is_empty() && parts.claim().is_none());
        // SAFETY: nothing else uses the buffer, and all of it was written.
        let bytes = unsafe { std::slice::from_raw_parts(buffers[0].as_ptr(), buffers[0].len()) };
        assert!(bytes.chunks(7).enumerate().all(|(i, part)| part.iter().all(|&b| usize::from(b) == i)));
    }

    #[test]
    fn each_pair_of_rows_is_handed_out_once_when_both_are_complete() {
        let spares = BufferPool::new(1);
        for rows in [1, 2, 7, 64] {
            let parts = PartQueue::new(vec![spares.take(3 * rows).unwrap()], rows, 1).in_pairs();
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        while let Some(mut part) = parts.claim() {
                            let row = u8::try_from(part.rows.start).unwrap();
                            part.bytes[0].fill(row);
                            for _ in 0..2 {
                                part.give(0, |one, two| one.swap_with_slice(two));
                            }
                        }
                    });
                }
            });
            let mut buffers = parts.take();
            let bytes = buffers[0].bytes_mut();
            assert!(bytes.chunks(3).rev().enumerate().all(|(row, bytes)| bytes == [row as u8; 3]), "{bytes:?}");
        }
    }

    #[test]
    fn parts_of_several_rows_are_neighbours_and_the_last_one_has_the_rest() {
        let spares = BufferPool::new(2);
        let parts = PartQueue::new(vec![spares.take(3 * 10).unwrap(), spares.take(0).unwrap()], 10, 4);
        let mut claimed = Vec::new();
        while let Some(mut part) = parts.claim() {
            assert_eq!((part.bytes[0].len(), part.bytes[1].len()), (3 * part.rows.len(), 0));
            part.bytes[0].fill(9);
            part.clear(part.rows.end - 1);
            assert!(part.bytes[0].iter().rev().take(3).all(|&byte| byte == 0));
            assert!(part.bytes[0].iter().rev().skip(3).all(|&byte| byte == 9));
            assert!(!parts.all_filled());
            claimed.push(part.rows.clone());
        }
        assert_eq!(claimed, [0..4, 4..8, 8..10]);
        assert_eq!((parts.all_filled(), parts.take().len()), (true, 2));
    }

    #[test]
    fn memory_comes_back_and_no_more_than_asked_is_kept() {
        let spares = BufferPool::new(2);
        let four: Vec<_> = (0..4).map(|_| spares.take(1000).unwrap()).collect();
        let addresses: Vec<_> = four.iter().map(BatchBuffer::as_ptr).collect();
        assert!(addresses.iter().all(|a| a.align_offset(ALIGN) == 0));
        drop(four);
        assert_eq!(lock(&spares.blocks).len(), 2);
        assert!(addresses.contains(&spares.take(1000).unwrap().as_ptr()));
        let other = spares.take(2000).unwrap();
        assert_eq!((other.len(), lock(&spares.blocks).len()), (2000, 2));
        assert!(matches!(spares.take(usize::MAX / 2), Err(Error::Memory { .. })));
    }

    #[test]
    fn taking_memory_touches_none_of_it() {
        let resident =
            || std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').nth(1).unwrap().parse::<u64>();
        let before = resident().unwrap();
        let buffer = BufferPool::new(1).take(1 << 30).unwrap();
        let pages = resident().unwrap() - before;
        assert!(pages < 1 << 14, "{pages} pages of {}", buffer.len() / 4096);
    }

    #[test]
    fn lent_memory_keeps_its_owner_until_the_end() {
        let owner = Arc::new(());
        let mut memory = [0_u8; 8];
        let start = NonNull::new(memory.as_mut_ptr()).unwrap();
        // SAFETY: the array outlives the buffer, and is not used meanwhile.
        let buffer = unsafe { BatchBuffer::lent(start, 8, Box::new(Arc::clone(&owner))) };
        let parts = PartQueue::new(vec![buffer], 2, 1);
        parts.claim().unwrap().bytes[0].fill(1);
        parts.claim().unwrap().bytes[0].fill(2);
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(parts);
        assert_eq!((Arc::strong_count(&owner), memory), (1, [1, 1, 1, 1, 2, 2, 2, 2]));
    }
}
