//! What becomes of a SIGBUS: a page of a mapping that the kernel cannot give, as the file was cut short below it, its disk
//! failed, or its network mount went away.
//!
//! A thread that reads a mapping of ours does so inside of [`guarded`]. If it faults there, the handler puts zero pages in the place
//! of the whole mapping, says so in the mapping's `lost`, and lets the thread go on; who called looks at `lost` before it uses
//! anything that was read. Every other SIGBUS goes to the handler that was there before: by default the process ends, as it
//! would without us.
//!
//! The handler runs between any two instructions of its thread, so it takes no lock and allocates nothing: mappings are listed in a
//! fixed table, and what a thread reads is a list on its own stack.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence};

use libc::{c_int, c_void, siginfo_t};

/// Mappings that the handler can look up.
const SLOTS: usize = 4096;
/// No mapping begins here.
const CLAIMED: usize = usize::MAX;
/// Handlers of others that are remembered.
const OTHERS: usize = 32;
/// So many of them are tried, one after the other; as many as [`ORDER`] has bytes.
const DEPTH: u32 = 8;
/// A handler of others that leaves the cause of a fault as it was is called so often before the process ends.
const PATIENCE: u32 = 100;
/// A memory error of which the kernel tells early, to those that asked for it: nobody has touched the page.
const BUS_MCEERR_AO: c_int = 5;

struct Slot {
    /// 0 if the slot is free.
    start: AtomicUsize,
    end: AtomicUsize,
    /// What is said if the process is about to end by a fault in it.
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
/// Mappings that found no slot: as long as there are any, each fault is looked up in its thread's list.
static UNLISTED: AtomicUsize = AtomicUsize::new(0);

/// The entry of a mapping in the handler's table. To be dropped before the memory is unmapped.
#[derive(Debug)]
pub(crate) struct Listed {
    slot: Option<usize>,
    _words: Box<[u8]>,
}

impl Listed {
    /// Lists a mapping, and makes sure that the handler is there. `words` are written to standard error if a fault in it is about to
    /// end the process.
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

/// What a thread is reading; the next one is what it was already reading then.
struct Frame {
    start: usize,
    end: usize,
    lost: *const AtomicU64,
    next: *const Frame,
}

thread_local! {
    // No destructor and nothing to compute: the handler may look at any time.
    static READING: Cell<*const Frame> = const { Cell::new(ptr::null()) };
}

/// Runs `work`, which may read `bytes` of a mapping. If a page of it cannot be read, `lost` becomes 1 + its offset, and `work` has
/// seen zeros: what it returns is then of no use.
///
/// `bytes` is (start, length).
///
/// # Safety
/// The range is a whole mapping that stays during the call, and of which nobody but callers of this reads anything: all of its pages
/// may become zeros. It is listed.
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
        compiler_fence(Ordering::SeqCst); // no read before the handler can know
        let value = work();
        drop(leave);
        value
    })
}

/// Makes sure that faults come to the handler: others may have put theirs in its place, as torch does in the workers of a
/// `DataLoader`. One system call, so that it can be made for every batch.
pub(crate) fn arm() {
    if cfg!(miri) {
        return; // it knows no signals, and no mappings
    }
    let mut current: mem::MaybeUninit<libc::sigaction> = mem::MaybeUninit::zeroed();
    // SAFETY: without a new action sigaction only fills the struct that it is given; all-zero bytes are a valid one.
    let current = unsafe {
        if libc::sigaction(libc::SIGBUS, ptr::null(), current.as_mut_ptr()) != 0 {
            return;
        }
        current.assume_init()
    };
    if current.sa_sigaction != handler_address() {
        put_on_top();
    }
    // A handler of others that has left by longjmp is not at work any more.
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
/// How many of them there are.
static KNOWN: AtomicUsize = AtomicUsize::new(0);
/// In which order they are tried: 1 + the number of each in `OTHER`, a byte each, the first one lowest; 0 ends it.
static ORDER: AtomicU64 = AtomicU64::new(0);
/// The process that is changing these. (A forked child must not wait for a thread that it does not have.)
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
    // SAFETY: sigaction reads one struct and fills the other, both of which live on this stack; all-zero bytes are valid ones. The
    // handler is a function that lives as long as the module, which is never unloaded, and does async-signal-safe things only.
    unsafe {
        let mut before: libc::sigaction = mem::zeroed();
        let known = libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before) == 0;
        // Remembered first: a fault may come as soon as the handler is there.
        if known && before.sa_sigaction != handler_address() && remember(before.sa_sigaction, before.sa_flags) {
            let mut ours: libc::sigaction = mem::zeroed();
            ours.sa_sigaction = handler_address();
            // On the alternate stack, if the thread has one: the fault may be one that others handle, of a stack that is full. Not
            // deferred: what others raise again in their handlers is theirs to see at once.
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
            libc::sigemptyset(&raw mut ours.sa_mask);
            libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut());
        }
    }
    CHANGING.store(0, Ordering::Release);
}

/// Makes a handler of others the first to be tried; false if there is no room for it.
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
    // SAFETY: pthread_self takes nothing, and always succeeds.
    unsafe { libc::pthread_self() as usize }
}

fn errno() -> *mut c_int {
    #[cfg(not(any(target_os = "macos", target_os = "ios", target_os = "freebsd")))]
    use libc::__errno_location as address;
    #[cfg(any(target_os = "macos", target_os = "ios", target_os = "freebsd"))]
    use libc::__error as address;
    // SAFETY: it returns the address of the calling thread's errno, which is there as long as the thread.
    unsafe { address() }
}

/// The handler.
extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives `info` for the time of the call, and whoever calls us as we call others does so too. errno is this
    // thread's, whose code goes on as if nothing had been.
    unsafe {
        let before = *errno();
        // A fault of an instruction has a positive code, and only then an address; what processes send has none.
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

/// If this thread is reading the mapping that the address lies in, notes that it is lost and makes it readable.
///
/// # Safety
/// Only from the handler.
unsafe fn give_zeros(at: usize) -> bool {
    let mut next = READING.with(Cell::get);
    // SAFETY: frames lie on this thread's stack, below this call, until they are taken from the list. Their mappings stay as long, and
    // are ours to replace (see `guarded`). mmap is a plain system call.
    unsafe {
        while let Some(frame) = next.as_ref() {
            if frame.start <= at && at < frame.end {
                // Before any thread can see the zeros.
                let _ = (*frame.lost).compare_exchange(
                    0,
                    (at - frame.start) as u64 + 1,
                    Ordering::SeqCst,
                    Ordering::Relaxed,
                );
                // All of it, at once: what else is read of it is of no use either.
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

/// The thread that is in a handler of others, and which one that is.
static PASSING: AtomicUsize = AtomicUsize::new(0);
static LEVEL: AtomicU32 = AtomicU32::new(0);
/// The last fault that was passed on, its thread, and how often it has come again since.
static LAST: AtomicUsize = AtomicUsize::new(0);
static LAST_THREAD: AtomicUsize = AtomicUsize::new(0);
static AGAIN: AtomicU32 = AtomicU32::new(0);

/// Gives a signal that is none of ours to who had it before, called as the kernel would.
///
/// # Safety
/// Only from the handler, with what it was called with.
unsafe fn pass_on(
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
    fault: Option<usize>,
    listed: Option<&'static Slot>,
) {
    let me = this_thread();
    // A handler of others that has done its work passes on to who it thinks was there before: often that is us.
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
                // SAFETY: the mapping is listed as long as it lives, and it lives, as this thread is reading it; and write checks
                // addresses.
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
    // SAFETY: `action` is what sigaction gave as the handler of this signal, with these flags: a function of that type, which stays, as
    // it did when the kernel called it. sigaction and raise are async-signal-safe.
    unsafe {
        if action == libc::SIG_DFL || action == libc::SIG_IGN {
            // Faults are not ignored. The instruction runs again, and the process ends there, with its status and its core dump.
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
