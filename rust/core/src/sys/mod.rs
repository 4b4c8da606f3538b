//! The system calls that the standard library has no safe name for.
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
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Opens a file under a descriptor above those of the standard streams. In a process without these a new file gets one of their
/// numbers, and what any library prints would be written into it.
pub(crate) fn open(options: &OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.open(path)?;
    // The standard library gives copies numbers from 3 on.
    if file.as_raw_fd() > libc::STDERR_FILENO { Ok(file) } else { file.try_clone() }
}

/// Takes the exclusive lock of a file without waiting; false if another open file holds it.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: flock takes a descriptor and flags, no memory; the descriptor is open as long as `file` lives.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::WouldBlock { Ok(false) } else { Err(error) }
}

/// Gives back the lock of a file, whoever else has a copy of the descriptor.
pub(crate) fn unlock(fd: RawFd) {
    // SAFETY: as in `try_lock`; a descriptor that is not open is an error that changes nothing.
    unsafe { libc::flock(fd, libc::LOCK_UN) };
}

/// Says who holds the lock of a file, as far as the system tells: ` (pid 123: python train.py)` or nothing.
pub(crate) fn lock_holder(file: &File) -> String {
    let Ok(meta) = file.metadata() else { return String::new() };
    // A line reads: `1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF`, the last number of the triple is the inode.
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

/// The most bytes that one [`will_need`] call may ask for: the kernel silently cuts longer ones to the larger of the disk's
/// read-ahead and its largest request. 128 KiB, the smallest setting in use, where the system does not tell.
pub(crate) fn largest_advice(file: &File) -> u64 {
    const SURE: u64 = 128 << 10;
    const ENOUGH: u64 = 4 << 20;
    let Ok(meta) = file.metadata() else { return SURE };
    let (major, minor) = (libc::major(meta.dev()), libc::minor(meta.dev()));
    // A partition has no queue of its own, its disk one level up has.
    let setting = |name: &str| {
        ["queue", "../queue"].iter().find_map(|queue| {
            let text = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{queue}/{name}")).ok()?;
            text.trim().parse::<u64>().ok()
        })
    };
    let kib = setting("read_ahead_kb").max(setting("max_sectors_kb")).unwrap_or(0);
    kib.saturating_mul(1 << 10).clamp(SURE, ENOUGH)
}

#[cfg(target_os = "linux")]
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Asks the kernel to read a byte range into the page cache, without waiting for it, `step` bytes at a time.
pub(crate) fn will_need(file: &File, offset: u64, length: u64, step: u64) {
    #[cfg(target_os = "linux")]
    {
        let end = offset.saturating_add(length);
        let mut at = offset;
        while at < end {
            let step = step.min(end - at);
            // SAFETY: posix_fadvise takes a descriptor and numbers, no memory.
            let refused = unsafe {
                libc::posix_fadvise(file.as_raw_fd(), at.cast_signed(), step.cast_signed(), libc::POSIX_FADV_WILLNEED)
            };
            // It is advice: nothing depends on it, and once is enough to say so.
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

/// Tells the kernel that reads from this open file will be random: it then reads what is asked for and no more.
pub(crate) fn advise_random(file: &File) {
    #[cfg(target_os = "linux")]
    // SAFETY: as in `will_need`.
    unsafe {
        libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}

/// 512-byte blocks that this process has had to read from disks so far; what was in the page cache does not count.
pub(crate) fn blocks_read() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage fills the struct that it is given, which lives on this stack; all-zero bytes are a valid rusage.
    unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init().ru_inblock
    }
}

/// Starts writing a byte range to the disk, without waiting for it, so that a later sync finds little left to do.
pub(crate) fn start_writeback(file: &File, offset: u64, length: u64) {
    #[cfg(target_os = "linux")]
    // SAFETY: sync_file_range takes a descriptor and numbers, no memory. It starts writeback only; errors show at the sync.
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

/// Has the kernel copy bytes from one file to another; returns how many it has copied.
///
/// # Errors
/// Those of the system; among them that it does not copy between these files at all.
pub(crate) fn copy_range(source: &File, from: u64, target: &File, to: u64, length: u64) -> io::Result<u64> {
    #[cfg(target_os = "linux")]
    loop {
        let (mut from, mut to) = (from.cast_signed(), to.cast_signed());
        // SAFETY: copy_file_range takes descriptors, which are open as long as the files live, and reads and writes the two
        // offsets, which live on this stack.
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

/// Makes the entry of a new or renamed file durable in its directory.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

// A lock lives as long as any copy of the descriptor, and fork copies descriptors: a worker process forked while a
// writer is open would keep the file locked after the writer's end. So children close these right after fork.
const SLOTS: usize = 1024;
static WRITER_FDS: [AtomicI32; SLOTS] = [const { AtomicI32::new(-1) }; SLOTS];
static AT_FORK: Once = Once::new();

extern "C" fn close_writers_in_child() {
    for slot in &WRITER_FDS {
        let fd = slot.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: close is async-signal-safe, and the descriptor is a writer's: its owner checks the process id
            // before every use and before dropping it, so that nothing in the child uses or closes it again.
            unsafe { libc::close(fd) };
        }
    }
}

/// Has a writer's descriptor closed in forked children, until it is [`forget_fd`]-ed.
pub(crate) fn close_in_children(fd: RawFd) {
    AT_FORK.call_once(|| {
        // SAFETY: the handler is a plain function that lives as long as the process and only does async-signal-safe things.
        unsafe { libc::pthread_atfork(None, None, Some(close_writers_in_child)) };
    });
    // Beyond so many writers at once a descriptor is merely inherited.
    let _ = WRITER_FDS.iter().find(|slot| slot.compare_exchange(-1, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok());
}

pub(crate) fn forget_fd(fd: RawFd) {
    for slot in &WRITER_FDS {
        let _ = slot.compare_exchange(fd, -1, Ordering::Relaxed, Ordering::Relaxed);
    }
}
