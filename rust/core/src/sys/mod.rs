//! System calls without a safe wrapper in the standard library. They may not know the .frec format.
#![allow(unsafe_code)]

pub(crate) mod files;
pub(crate) mod page_cache;
pub(crate) mod sigbus;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU64, Ordering};

/// Opens a file with a descriptor above 2. In a process that closed the standard streams, a new
/// file gets one of their numbers. Output printed by any library would then be written
/// into the file.
pub(crate) fn open(options: &OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.open(path)?;
    // The standard library numbers duplicates from 3.
    if file.as_raw_fd() > libc::STDERR_FILENO { Ok(file) } else { file.try_clone() }
}

/// Takes the exclusive lock of a file without waiting; returns false if another open file holds it.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: flock takes a descriptor and flags, and no memory. The descriptor is open as long as
    // `file` lives.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::WouldBlock { Ok(false) } else { Err(error) }
}

/// Releases the lock of a file, also if other processes hold copies of the descriptor.
pub(crate) fn unlock(fd: RawFd) {
    // SAFETY: as in `try_lock`. A descriptor that is not open returns an error and changes nothing.
    unsafe { libc::flock(fd, libc::LOCK_UN) };
}

/// Describes the process that holds the lock of a file, if known: ` (pid 123: python train.py)` or
/// an empty string.
pub(crate) fn lock_holder(file: &File) -> String {
    let Ok(meta) = file.metadata() else { return String::new() };
    // A line looks like `1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF`. The last number of the
    // triple is the inode.
    let inode = format!(":{}", meta.ino());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let pid = locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find_map(|words| {
        let mine = words.get(1) == Some(&"FLOCK") && words.get(5).is_some_and(|place| place.ends_with(&inode));
        mine.then(|| words.get(4).map(|pid| (*pid).to_owned())).flatten()
    });
    let Some(pid) = pid else { return String::new() };
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command).replace('\0', " ");
    let command: String = command.trim().chars().take(100).collect();
    if command.is_empty() { format!(" (pid {pid})") } else { format!(" (pid {pid}: {command})") }
}

/// Returns the maximum bytes for one [`will_need`] call. The kernel silently cuts longer requests
/// to the larger of the disk's read-ahead and its largest request. The default is 128 KiB, the
/// smallest setting in use, if the system does not report it.
///
/// The disk of the last file is remembered: asking it takes longer than opening a file.
pub(crate) fn largest_advice(file: &File) -> u64 {
    // A device in the upper half, its bytes in the lower one: without a lock, for the sake of forks.
    static LAST: AtomicU64 = AtomicU64::new(0);
    let Ok(meta) = file.metadata() else { return SURE_ADVICE };
    let last = LAST.load(Ordering::Relaxed);
    if last != 0 && last >> 32 == meta.dev() {
        return last & u64::from(u32::MAX);
    }
    let bytes = largest_advice_of(meta.dev());
    if u32::try_from(meta.dev()).is_ok() {
        LAST.store(meta.dev() << 32 | bytes, Ordering::Relaxed);
    }
    bytes
}

const SURE_ADVICE: u64 = 128 << 10;

fn largest_advice_of(device: u64) -> u64 {
    const ENOUGH: u64 = 4 << 20;
    let (major, minor) = (libc::major(device), libc::minor(device));
    // A partition has no queue of its own. Its disk, one level up, has one.
    let setting = |name: &str| {
        ["queue", "../queue"].iter().find_map(|queue| {
            let text = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{queue}/{name}")).ok()?;
            text.trim().parse::<u64>().ok()
        })
    };
    let kib = setting("read_ahead_kb").max(setting("max_sectors_kb")).unwrap_or(0);
    kib.saturating_mul(1 << 10).clamp(SURE_ADVICE, ENOUGH)
}

#[cfg(target_os = "linux")]
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Asks the kernel to read a byte range into the page cache, `step` bytes at a time, without
/// waiting.
pub(crate) fn will_need(file: &File, offset: u64, length: u64, step: u64) {
    #[cfg(target_os = "linux")]
    {
        let end = offset.saturating_add(length);
        let mut at = offset;
        while at < end {
            let step = step.min(end - at);
            // SAFETY: posix_fadvise takes a descriptor and numbers, and no memory.
            let refused = unsafe {
                libc::posix_fadvise(file.as_raw_fd(), at.cast_signed(), step.cast_signed(), libc::POSIX_FADV_WILLNEED)
            };
            // Advice may fail without harm, so log it only once.
            if refused != 0 && !REFUSED.swap(true, Ordering::Relaxed) {
                let error = io::Error::from_raw_os_error(refused);
                log::debug!(target: "fastrecord_core::sys", "the kernel does not take advice about what will be read: {error}");
            }
            at += step;
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, offset, length, step);
}

/// Whether the page cache holds the byte at an offset; false where the file system cannot tell.
pub(crate) fn is_cached(file: &File, offset: u64) -> bool {
    #[cfg(target_os = "linux")]
    {
        let mut byte = 0_u8;
        let part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        // SAFETY: preadv2 writes at most the one byte of `part`, which outlives the call. With
        // RWF_NOWAIT it fails instead of waiting for the disk.
        unsafe { libc::preadv2(file.as_raw_fd(), &raw const part, 1, offset.cast_signed(), libc::RWF_NOWAIT) == 1 }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (file, offset);
        false
    }
}

/// Declares that reads from this open file will be random, so that the kernel does not read ahead.
pub(crate) fn advise_random(file: &File) {
    #[cfg(target_os = "linux")]
    // SAFETY: as in `will_need`.
    unsafe {
        libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}

/// Returns the 512-byte blocks that this process has read from disks so far. Reads from the page
/// cache do not count.
fn blocks_read() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage fills the struct that it receives, which lives on this stack. All-zero
    // bytes are a valid rusage.
    unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init().ru_inblock
    }
}

/// Notices when this process reads from a disk. Then it is worth requesting bytes ahead.
#[derive(Debug)]
pub(crate) struct DiskWatch(AtomicI64);

impl Default for DiskWatch {
    fn default() -> Self {
        Self(AtomicI64::new(-1))
    }
}

impl DiskWatch {
    /// Reports whether the process has read from a disk since the last call; always true at the
    /// first call.
    pub(crate) fn was_read(&self) -> bool {
        let blocks = blocks_read();
        self.0.swap(blocks, Ordering::Relaxed) != blocks
    }
}

/// Starts writing a byte range to the disk, without waiting, so that a later sync has little left
/// to do.
pub(crate) fn start_writeback(file: &File, offset: u64, length: u64) {
    #[cfg(target_os = "linux")]
    // SAFETY: sync_file_range takes a descriptor and numbers, and no memory. It only starts
    // writeback; errors appear at the sync.
    unsafe {
        libc::sync_file_range(
            file.as_raw_fd(),
            offset.cast_signed(),
            length.cast_signed(),
            libc::SYNC_FILE_RANGE_WRITE,
        );
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, offset, length);
}

/// Gives the space of a byte range back to the file system; the range then reads as zeros, and the
/// file keeps its length.
///
/// # Errors
/// System errors; for example, the file system has no holes.
pub fn punch_hole(fd: RawFd, offset: u64, length: u64) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    return fallocate(fd, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, length);
    #[cfg(not(target_os = "linux"))]
    unsupported(fd, offset, length)
}

/// Has the file system find space for a byte range that is written next, which it would else do page
/// by page; the file keeps its length.
///
/// # Errors
/// System errors; for example, the file system cannot, or is full.
pub fn allocate(fd: RawFd, offset: u64, length: u64) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    return fallocate(fd, libc::FALLOC_FL_KEEP_SIZE, offset, length);
    #[cfg(not(target_os = "linux"))]
    unsupported(fd, offset, length)
}

#[cfg(target_os = "linux")]
fn fallocate(fd: RawFd, mode: libc::c_int, offset: u64, length: u64) -> io::Result<()> {
    // SAFETY: fallocate takes a descriptor and numbers, and no memory. A descriptor that is not open
    // returns an error. Mappings of a range that is punched read zeros, never fault.
    if unsafe { libc::fallocate(fd, mode, offset.cast_signed(), length.cast_signed()) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

#[cfg(not(target_os = "linux"))]
fn unsupported(_: RawFd, _: u64, _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Copies bytes from one file to another in the kernel; returns the number of bytes copied.
///
/// # Errors
/// System errors; for example, the kernel cannot copy between these files.
pub(crate) fn copy_range(source: &File, from: u64, target: &File, to: u64, length: u64) -> io::Result<u64> {
    #[cfg(target_os = "linux")]
    loop {
        let (mut from, mut to) = (from.cast_signed(), to.cast_signed());
        // SAFETY: copy_file_range takes descriptors, which are open as long as the files live. It
        // reads and writes the two offsets, which live on this stack.
        let copied = unsafe {
            libc::copy_file_range(
                source.as_raw_fd(),
                &raw mut from,
                target.as_raw_fd(),
                &raw mut to,
                length as usize,
                0,
            )
        };
        if let Ok(copied) = u64::try_from(copied) {
            return Ok(copied);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (source, from, target, to, length);
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Makes the directory entry of a new or renamed file durable.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

// A lock lives as long as any copy of the descriptor, and fork copies descriptors. A worker process
// forked while a writer is open would keep the file locked after the writer closes. So children
// close these descriptors right after fork.
const SLOTS: usize = 1024;
static WRITER_FDS: [AtomicI32; SLOTS] = [const { AtomicI32::new(-1) }; SLOTS];
static AT_FORK: Once = Once::new();

extern "C" fn close_writers_in_child() {
    for slot in &WRITER_FDS {
        let fd = slot.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: close is async-signal-safe. The descriptor belongs to a writer, which checks
            // the process id before every use and before dropping it. So nothing in the child uses
            // or closes it again.
            unsafe { libc::close(fd) };
        }
    }
}

/// Closes a writer's descriptor in forked children, until [`forget_fd`] is called.
pub(crate) fn close_in_children(fd: RawFd) {
    AT_FORK.call_once(|| {
        // SAFETY: the handler is a plain function that lives as long as the process. It only does
        // async-signal-safe work.
        unsafe { libc::pthread_atfork(None, None, Some(close_writers_in_child)) };
    });
    // When all slots are taken, children merely inherit the descriptor.
    let _ = WRITER_FDS.iter().find(|slot| slot.compare_exchange(-1, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok());
}

pub(crate) fn forget_fd(fd: RawFd) {
    for slot in &WRITER_FDS {
        let _ = slot.compare_exchange(fd, -1, Ordering::Relaxed, Ordering::Relaxed);
    }
}
