//! Packing files: several threads read ahead and check, while the calling thread appends in order.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::pool;
use crate::probe::image_size;
use crate::writer::{Value, Writer};

/// Files that may wait in memory for their turn, and the bytes that they may have.
const AHEAD: usize = 128;
const AHEAD_BYTES: u64 = 48 << 20;
/// Reading waits for disks and file systems more than for CPUs, so there are more readers than CPUs.
const MIN_READERS: usize = 4;
const SLICE: Duration = Duration::from_millis(100);

/// What to do with a file that is no image or cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// Stop with its name; nothing of it or after it is appended.
    Raise,
    /// Leave it out and say so.
    Skip,
}

struct Loaded {
    data: Vec<u8>,
    size: (u32, u32),
    crc: u32,
}

/// Files on their way from the readers to the appender.
struct Queue {
    slots: Vec<Option<Result<Loaded>>>,
    next_read: usize,
    next_append: usize,
    bytes: u64,
    stop: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next file to read, once there is room for it.
    fn claim(&self, files: usize, size_of: impl Fn(usize) -> u64) -> Option<(usize, u64)> {
        let mut queue = self.lock();
        loop {
            let file = queue.next_read;
            if queue.stop || file >= files {
                return None;
            }
            // The file whose turn it is may always be read, however large it is.
            if file == queue.next_append || (file - queue.next_append < AHEAD && queue.bytes < AHEAD_BYTES) {
                queue.next_read += 1;
                let size = size_of(file);
                queue.bytes += size;
                return Some((file, size));
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Stops the readers however the appender leaves, so that the scope that joins them can end.
struct StopOnDrop<'a>(&'a Shared);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.lock().stop = true;
        self.0.changed.notify_all();
    }
}

impl Writer {
    /// Appends a record for each file, in order; `field` is the position of the image or bytes field that holds its bytes.
    ///
    /// `values(i)` gives the values of the other fields, in schema order, without the one for `field`. Returns the files that
    /// were skipped, with the reason.
    ///
    /// # Errors
    /// With [`OnError::Raise`] the first bad file; failed writes; interrupts, between two records.
    pub fn append_files<'v>(
        &mut self,
        field: usize,
        paths: &[PathBuf],
        on_error: OnError,
        values: impl Fn(usize) -> Vec<Value<'v>>,
        mut interrupted: impl FnMut() -> bool,
    ) -> Result<Vec<(usize, String)>> {
        let is_image = self.columns_are_image(field)?;
        let shared = Shared {
            queue: Mutex::new(Queue {
                slots: paths.iter().map(|_| None).collect(),
                next_read: 0,
                next_append: 0,
                bytes: 0,
                stop: false,
            }),
            changed: Condvar::new(),
        };
        let size_of = |i: usize| paths.get(i).and_then(|p| p.metadata().ok()).map_or(0, |m| m.len());
        let serve = || {
            while let Some((i, size)) = shared.claim(paths.len(), size_of) {
                let loaded = load(&paths[i], size, is_image);
                let mut queue = shared.lock();
                // What was counted in advance may have been wrong: the file may have grown.
                queue.bytes = (queue.bytes - size) + loaded.as_ref().map_or(0, |l| l.data.len() as u64);
                queue.slots[i] = Some(loaded);
                drop(queue);
                shared.changed.notify_all();
            }
        };
        let readers = pool::default_threads().max(MIN_READERS).min(paths.len());
        thread::scope(|scope| {
            let stop = StopOnDrop(&shared);
            for number in 0..readers {
                let builder = thread::Builder::new().name(format!("fastrecord-read-{number}"));
                if let Err(error) = builder.spawn_scoped(scope, serve) {
                    if number == 0 {
                        return Err(Error::io(self.path(), error));
                    }
                    break;
                }
            }
            let mut skipped = Vec::new();
            let mut asked = Instant::now();
            for i in 0..paths.len() {
                let loaded = take(&shared, i, &mut interrupted)?;
                let appended = loaded.and_then(|loaded| {
                    let mut record = values(i);
                    record.insert(field, Value::Image { data: &loaded.data, size: loaded.size, crc: loaded.crc });
                    self.append(&record)
                });
                match appended {
                    Ok(_) => {}
                    Err(error @ (Error::NotAnImage { .. } | Error::Io { .. }))
                        if on_error == OnError::Skip && error_is_of(&error, &paths[i]) =>
                    {
                        skipped.push((i, error.to_string()));
                    }
                    Err(error) => return Err(error),
                }
                if asked.elapsed() >= SLICE {
                    asked = Instant::now();
                    if interrupted() {
                        return Err(Error::Interrupted);
                    }
                }
            }
            drop(stop);
            Ok(skipped)
        })
    }

    fn columns_are_image(&self, field: usize) -> Result<bool> {
        use crate::schema::FieldType::{Bytes, Image};
        match self.schema().fields().get(field).map(|f| f.kind) {
            Some(Image) => Ok(true),
            Some(Bytes) => Ok(false),
            _ => Err(Error::Schema("files go into a field of type image or bytes".to_owned())),
        }
    }
}

fn error_is_of(error: &Error, input: &Path) -> bool {
    match error {
        Error::NotAnImage { input: named, .. } | Error::Io { path: named, .. } => named == input,
        _ => false,
    }
}

fn take(shared: &Shared, i: usize, interrupted: &mut impl FnMut() -> bool) -> Result<Result<Loaded>> {
    let mut queue = shared.lock();
    loop {
        if let Some(loaded) = queue.slots[i].take() {
            queue.next_append = i + 1;
            queue.bytes -= loaded.as_ref().map_or(0, |l| l.data.len() as u64);
            drop(queue);
            shared.changed.notify_all();
            return Ok(loaded);
        }
        let (guard, timeout) = shared.changed.wait_timeout(queue, SLICE).unwrap_or_else(PoisonError::into_inner);
        drop(guard);
        if timeout.timed_out() && interrupted() {
            return Err(Error::Interrupted);
        }
        queue = shared.lock();
    }
}

fn not_an_image(path: &Path, detail: String) -> Error {
    Error::NotAnImage { input: path.to_owned(), detail }
}

fn load(path: &Path, size: u64, is_image: bool) -> Result<Loaded> {
    let io = |e| Error::io(path, e);
    // Looked at before it is opened: to open a pipe waits for its other end.
    let kind = path.metadata().map_err(io)?;
    if !kind.is_file() {
        let other = io::Error::from(io::ErrorKind::IsADirectory);
        return Err(if kind.is_dir() { io(other) } else { not_an_image(path, "not a regular file".to_owned()) });
    }
    let mut file = File::open(path).map_err(io)?;
    let mut data = Vec::new();
    // One byte more than expected, so that the read that finds the end needs no growth.
    data.try_reserve_exact(size as usize + 1).map_err(|e| io(io::Error::other(e.to_string())))?;
    file.read_to_end(&mut data).map_err(io)?;
    let size = if is_image { image_size(&data).map_err(|detail| not_an_image(path, detail))? } else { (0, 0) };
    let crc = crc32c::crc32c(&data);
    Ok(Loaded { data, size, crc })
}
