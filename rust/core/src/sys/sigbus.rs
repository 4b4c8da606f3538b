//! The SIGBUS handler, which turns a fault in one of our mappings into an error.
//!
//! A SIGBUS means that the kernel cannot provide a page of a mapping. The file was truncated below
//! it, its disk failed, or its network mount went away.
//!
//! A thread reads our mappings only inside [`guarded`]. If it faults there, the handler replaces
//! the whole mapping with zero pages, records that in the mapping's `lost`, and resumes the thread.
//! The caller must check `lost` before using any byte it read. Every other SIGBUS goes to the
//! previous handler. By default the process then ends, as it would without this handler.
//!
//! The handler may run between any two instructions of its thread, so it takes no lock and
//! allocates nothing. Mappings are listed in a fixed table, and a thread's reads in a list on its
//! own stack.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence};

use libc::{c_int, c_void, siginfo_t};

/// Mappings that the handler can look up.
const SLOTS: usize = 4096;
/// A start address that no mapping has.
const CLAIMED: usize = usize::MAX;
/// Number of foreign handlers that are remembered.
const OTHERS: usize = 32;
/// Number of foreign handlers that are tried in turn; as many as [`ORDER`] has bytes.
const DEPTH: u32 = 8;
/// Number of calls to a foreign handler that does not remove a fault's cause, before the process
/// ends.
const PATIENCE: u32 = 100;
/// A memory error that the kernel reports early, to processes that request it. No thread has
/// touched the page.
const BUS_MCEERR_AO: c_int = 5;

struct Slot {
    /// 0 if the slot is free.
    start: AtomicUsize,
    end: AtomicUsize,
    /// The message to print if a fault in the mapping is about to end the process.
    words: AtomicPtr<u8>,
    length: AtomicUsize,
}

static MAPPINGS: [Slot; SLOTS] = [const {
    Slot {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        words: AtomicPtr::new(ptr::null_mut()),
        length: AtomicUsize::new(0),
    }
}; SLOTS];
/// Number of mappings that found no slot. While it is above 0, each fault is looked up in its
/// thread's list.
static UNLISTED: AtomicUsize = AtomicUsize::new(0);

/// The entry of a mapping in the handler's table. Drop it before the memory is unmapped.
#[derive(Debug)]
pub(crate) struct Listed {
    slot: Option<usize>,
    _words: Box<[u8]>,
}

impl Listed {
    /// Lists a mapping, and installs the handler if it is missing. `words` is written to standard
    /// error if a fault in the mapping is about to end the process.
    pub(crate) fn new(bytes: &[u8], words: &str) -> Self {
        arm();
        let (start, end) = (bytes.as_ptr() as usize, bytes.as_ptr() as usize + bytes.len());
        let words: Box<[u8]> = words.as_bytes().into();
        let free = |slot: &Slot| slot.start.compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        let found = MAPPINGS.iter().position(free);
        match found {
            Some(number) => {
                let slot = &MAPPINGS[number];
                slot.end.store(end, Ordering::Relaxed);
                slot.length.store(words.len(), Ordering::Relaxed);
                slot.words.store(words.as_ptr().cast_mut(), Ordering::Relaxed);
                slot.start.store(start, Ordering::Release);
            }
            None => drop(UNLISTED.fetch_add(1, Ordering::Relaxed)),
        }
        Self { slot: found, _words: words }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        match self.slot {
            Some(number) => MAPPINGS[number].start.store(0, Ordering::Release),
            None => drop(UNLISTED.fetch_sub(1, Ordering::Relaxed)),
        }
    }
}

/// One mapping that a thread is reading. `next` is the read that encloses this one.
struct Frame {
    start: usize,
    end: usize,
    lost: *const AtomicU64,
    next: *const Frame,
}

thread_local! {
    // No destructor and no lazy initialization: the handler may read it at any time.
    static READING: Cell<*const Frame> = const { Cell::new(ptr::null()) };
}

/// Runs `work`, which may read `bytes` of a mapping.
///
/// If a page cannot be read, `lost` becomes 1 + its offset, and `work` has seen zeros. Its result
/// is then meaningless. `bytes` is (start, length).
///
/// # Safety
/// The range is a whole mapping that stays mapped during the call. Only callers of this function
/// read it, because all of its pages may become zeros. The mapping is listed.
#[inline]
pub(crate) unsafe fn guarded<T>(bytes: (usize, usize), lost: &AtomicU64, work: impl FnOnce() -> T) -> T {
    struct Leave<'a>(&'a Cell<*const Frame>, *const Frame);
    impl Drop for Leave<'_> {
        fn drop(&mut self) {
            compiler_fence(Ordering::SeqCst); // all reads are done
            self.0.set(self.1);
        }
    }
    READING.with(|reading| {
        let frame = Frame { start: bytes.0, end: bytes.0 + bytes.1, lost, next: reading.get() };
        let leave = Leave(reading, frame.next); // also if `work` panics
        reading.set(&raw const frame);
        compiler_fence(Ordering::SeqCst); // no read before the frame is visible to the handler
        let value = work();
        drop(leave);
        value
    })
}

/// Reinstalls the handler if another library has replaced it, as torch does in the workers of a
/// `DataLoader`. It costs one system call, so it can run for every batch.
pub(crate) fn arm() {
    if cfg!(miri) {
        return; // miri supports neither signals nor mappings
    }
    let mut current: mem::MaybeUninit<libc::sigaction> = mem::MaybeUninit::zeroed();
    // SAFETY: without a new action, sigaction only fills the struct that it receives. All-zero
    // bytes are a valid struct.
    let current = unsafe {
        if libc::sigaction(libc::SIGBUS, ptr::null(), current.as_mut_ptr()) != 0 {
            return;
        }
        current.assume_init()
    };
    if current.sa_sigaction != handler_address() {
        put_on_top();
    }
    // A foreign handler that left by longjmp is no longer running.
    let _ = PASSING.compare_exchange(this_thread(), 0, Ordering::Relaxed, Ordering::Relaxed);
}

fn handler_address() -> usize {
    on_fault as *const () as usize
}

struct Other {
    action: AtomicUsize,
    flags: AtomicI32,
}

static OTHER: [Other; OTHERS] = [const { Other { action: AtomicUsize::new(0), flags: AtomicI32::new(0) } }; OTHERS];
/// The number of foreign handlers.
static KNOWN: AtomicUsize = AtomicUsize::new(0);
/// The order of calls: 1 + the index of each handler in `OTHER`, one byte each, the first in the
/// lowest byte; 0 ends the list.
static ORDER: AtomicU64 = AtomicU64::new(0);
/// The process that is changing these. (A forked child must not wait for a thread that it does not
/// have.)
static CHANGING: AtomicU32 = AtomicU32::new(0);

#[cold]
fn put_on_top() {
    let me = std::process::id();
    loop {
        let holder = CHANGING.load(Ordering::Relaxed);
        if holder != me && CHANGING.compare_exchange(holder, me, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            break;
        }
        std::thread::yield_now();
    }
    // SAFETY: sigaction reads one struct and fills the other. Both live on this stack, and all-zero
    // bytes are valid for both. The handler is a function of this module, which is never unloaded,
    // and does only async-signal-safe work.
    unsafe {
        let mut before: libc::sigaction = mem::zeroed();
        let known = libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before) == 0;
        // Remember it first: a fault may occur as soon as the handler is installed.
        if known && before.sa_sigaction != handler_address() && remember(before.sa_sigaction, before.sa_flags) {
            let mut ours: libc::sigaction = mem::zeroed();
            ours.sa_sigaction = handler_address();
            // Use the alternate stack, if the thread has one: the fault may be a full stack, which
            // other handlers treat. Do not defer the signal: handlers that raise it again must get
            // it at once.
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
            libc::sigemptyset(&raw mut ours.sa_mask);
            libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut());
        }
    }
    CHANGING.store(0, Ordering::Release);
}

/// Makes a foreign handler the first to be tried; returns false if the table is full.
fn remember(action: usize, flags: c_int) -> bool {
    let known = KNOWN.load(Ordering::Relaxed);
    let same =
        |other: &Other| other.action.load(Ordering::Relaxed) == action && other.flags.load(Ordering::Relaxed) == flags;
    let number = OTHER[..known].iter().position(same).unwrap_or(known);
    let Some(other) = OTHER.get(number) else { return false };
    if number == known {
        other.action.store(action, Ordering::Relaxed);
        other.flags.store(flags, Ordering::Relaxed);
        KNOWN.store(known + 1, Ordering::Relaxed);
    }
    let entry = number as u8 + 1;
    let rest = ORDER.load(Ordering::Relaxed).to_le_bytes().into_iter().filter(|&other| other != entry && other != 0);
    let mut order = [0; DEPTH as usize];
    for (to, from) in order.iter_mut().zip(std::iter::once(entry).chain(rest)) {
        *to = from;
    }
    ORDER.store(u64::from_le_bytes(order), Ordering::Release);
    true
}

fn this_thread() -> usize {
    // SAFETY: pthread_self takes no argument, and always succeeds.
    unsafe { libc::pthread_self() as usize }
}

fn errno() -> *mut c_int {
    #[cfg(not(any(target_os = "macos", target_os = "ios", target_os = "freebsd")))]
    use libc::__errno_location as address;
    #[cfg(any(target_os = "macos", target_os = "ios", target_os = "freebsd"))]
    use libc::__error as address;
    // SAFETY: it returns the address of the calling thread's errno, which is valid as long as the
    // thread lives.
    unsafe { address() }
}

/// The signal handler.
extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: `info` is valid during the call, whether the kernel calls us or a foreign handler
    // that forwards its own arguments.
    // errno belongs to this thread and is restored, so the interrupted code sees no change.
    unsafe {
        let before = *errno();
        // Only a fault of an instruction has a positive code and an address. Signals sent by
        // processes have neither.
        let fault = !info.is_null() && (*info).si_code > 0 && (*info).si_code != BUS_MCEERR_AO;
        let at = if fault { (*info).si_addr() as usize } else { 0 };
        let listed = if fault { find(at) } else { None };
        let ours = fault && (listed.is_some() || UNLISTED.load(Ordering::Relaxed) > 0) && give_zeros(at);
        if !ours {
            pass_on(signal, info, context, fault.then_some(at), listed);
        }
        *errno() = before;
    }
}

fn find(at: usize) -> Option<&'static Slot> {
    MAPPINGS.iter().find(|slot| {
        let start = slot.start.load(Ordering::Acquire);
        start != 0 && start <= at && at < slot.end.load(Ordering::Relaxed)
    })
}

/// If this thread is reading the mapping that contains the address, marks the mapping as lost and
/// makes it readable.
///
/// # Safety
/// Call it only from the handler.
unsafe fn give_zeros(at: usize) -> bool {
    let mut next = READING.with(Cell::get);
    // SAFETY: frames lie on this thread's stack, below this call, until they are removed from the
    // list. Their mappings live as long, and may be replaced (see `guarded`). mmap is a plain
    // system call.
    unsafe {
        while let Some(frame) = next.as_ref() {
            if frame.start <= at && at < frame.end {
                // Set it before any thread can see the zeros.
                let _ = (*frame.lost).compare_exchange(
                    0,
                    (at - frame.start) as u64 + 1,
                    Ordering::SeqCst,
                    Ordering::Relaxed,
                );
                // Replace the whole mapping at once: its other bytes are useless too.
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
                let length = frame.end - frame.start;
                return libc::mmap(frame.start as *mut c_void, length, libc::PROT_READ, flags, -1, 0)
                    != libc::MAP_FAILED;
            }
            next = frame.next;
        }
    }
    false
}

/// The thread that runs a foreign handler, and the handler's position in the order.
static PASSING: AtomicUsize = AtomicUsize::new(0);
static LEVEL: AtomicU32 = AtomicU32::new(0);
/// The last fault that was passed on, its thread, and the number of its repetitions.
static LAST: AtomicUsize = AtomicUsize::new(0);
static LAST_THREAD: AtomicUsize = AtomicUsize::new(0);
static AGAIN: AtomicU32 = AtomicU32::new(0);

/// Passes a foreign signal to the previous handler, called as the kernel would call it.
///
/// # Safety
/// Call it only from the handler, with the handler's arguments.
unsafe fn pass_on(
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
    fault: Option<usize>,
    listed: Option<&'static Slot>,
) {
    let me = this_thread();
    // A foreign handler passes the signal on to the handler that it replaced, which often is this
    // one.
    let nested = PASSING.load(Ordering::Relaxed) == me;
    let level = if nested { LEVEL.load(Ordering::Relaxed) + 1 } else { 0 };
    let mut stuck = false;
    if let (Some(at), false) = (fault, nested) {
        let same = LAST.swap(at, Ordering::Relaxed) == at && LAST_THREAD.swap(me, Ordering::Relaxed) == me;
        stuck = if same { AGAIN.fetch_add(1, Ordering::Relaxed) >= PATIENCE } else { false };
        if !same {
            LAST_THREAD.store(me, Ordering::Relaxed);
            AGAIN.store(0, Ordering::Relaxed);
            if let Some(slot) = listed {
                // SAFETY: the mapping is listed as long as it lives. It lives now, because this
                // thread is reading it. Also, write checks addresses.
                unsafe {
                    let words = slot.words.load(Ordering::Relaxed).cast::<c_void>();
                    libc::write(libc::STDERR_FILENO, words, slot.length.load(Ordering::Relaxed));
                }
            }
        }
    }
    let entry = if level < DEPTH { (ORDER.load(Ordering::Acquire) >> (8 * level)) as u8 } else { 0 };
    let other = if stuck { None } else { usize::from(entry).checked_sub(1).and_then(|number| OTHER.get(number)) };
    let action = other.map_or(libc::SIG_DFL, |other| other.action.load(Ordering::Relaxed));
    if action == libc::SIG_IGN && fault.is_none() {
        return;
    }
    // SAFETY: sigaction returned `action` as the handler of this signal, with these flags. It is a
    // function of that type, and it stays valid as it did for the kernel. sigaction and raise are
    // async-signal-safe.
    unsafe {
        if action == libc::SIG_DFL || action == libc::SIG_IGN {
            // A fault cannot be ignored. The instruction runs again and ends the process, with its
            // own status and core dump.
            let mut default: libc::sigaction = mem::zeroed();
            default.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, &raw const default, ptr::null_mut());
            if fault.is_none() {
                libc::raise(signal);
            }
            return;
        }
        PASSING.store(me, Ordering::Relaxed);
        LEVEL.store(level, Ordering::Relaxed);
        if other.is_some_and(|other| other.flags.load(Ordering::Relaxed) & libc::SA_SIGINFO != 0) {
            let call: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = mem::transmute(action);
            call(signal, info, context);
        } else {
            let call: extern "C" fn(c_int) = mem::transmute(action);
            call(signal);
        }
    }
    if nested {
        LEVEL.store(level - 1, Ordering::Relaxed);
    } else {
        PASSING.store(0, Ordering::Relaxed);
    }
}
