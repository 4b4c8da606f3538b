//! `Writer::append_files`: several threads read ahead, check and recode files, while the calling
//! thread appends them in order.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::mem;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::control::Control;
use crate::error::{Error, Result};
use crate::image::size::image_size;
use crate::image::{Decoder, foreign_kind};
use crate::limits::check_image;
use crate::pack::recode::{Recode, Recoded, count};
use crate::parallel::pool;
use crate::write::value::Value;
use crate::write::writer::Writer;

/// Maximum number of files, and of their bytes, that wait in memory to be appended.
const AHEAD: usize = 256;
const AHEAD_BYTES: usize = 32 << 20;
/// Files that a reader takes at once, so that small files cost fewer lock operations.
const AT_ONCE: usize = 8;
/// Larger buffers are not kept for reuse.
const SPARE_BYTES: usize = 1 << 20;
/// Reading waits for disks and file systems more than for CPUs, so there are more readers than
/// CPUs.
const MIN_READERS: usize = 4;
const SLICE: Duration = Duration::from_millis(100);

/// The handling of a file that cannot be read or is not an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// Stop with an error that names the file. That file and later ones are not appended.
    Raise,
    /// Leave the file out and report it.
    Skip,
}

struct Loaded {
    data: Vec<u8>,
    size: (u32, u32),
    /// The bytes to store instead of the data.
    recoded: Option<Recoded>,
    /// The kind of an image that is stored unchanged but is not decoded here.
    foreign: Option<String>,
    crc: u32,
}

impl Loaded {
    fn held(&self) -> usize {
        self.data.len() + self.recoded.as_ref().map_or(0, |r| r.bytes.len() + r.side.len())
    }
}

/// One decoder per CPU: more threads than that may read at once, but not recode.
struct Decoders<'a> {
    recode: &'a Recode,
    idle: Mutex<Vec<Decoder>>,
    returned: Condvar,
}

impl<'a> Decoders<'a> {
    fn new(recode: &'a Recode, count: usize) -> Self {
        let idle = Mutex::new((0..count).map(|_| recode.decoder()).collect());
        Self { recode, idle, returned: Condvar::new() }
    }

    /// Calls `work` with a decoder, once one is idle.
    fn with<T>(&self, work: impl FnOnce(&mut Decoder) -> T) -> T {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let mut decoder = loop {
            if let Some(decoder) = idle.pop() {
                break Returned { decoder, to: self };
            }
            idle = self.returned.wait(idle).unwrap_or_else(PoisonError::into_inner);
        };
        drop(idle);
        work(&mut decoder.decoder)
    }
}

/// A borrowed decoder. It is returned however the work ends.
struct Returned<'a> {
    decoder: Decoder,
    to: &'a Decoders<'a>,
}

impl Drop for Returned<'_> {
    fn drop(&mut self) {
        let decoder = mem::replace(&mut self.decoder, self.to.recode.decoder());
        self.to.idle.lock().unwrap_or_else(PoisonError::into_inner).push(decoder);
        self.to.returned.notify_one();
    }
}

/// Files on their way from the readers to the appender.
#[derive(Default)]
struct Queue {
    slots: Vec<Option<Result<Loaded>>>,
    next_read: usize,
    next_append: usize,
    bytes: usize,
    stop: bool,
    /// Buffers for reading: allocating fresh memory costs as much as reading.
    spare: Vec<Vec<u8>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// The next file to append has been read.
    ready: Condvar,
    /// Readers may continue.
    room: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for room, then claims the next files to read, and buffers for them.
    fn claim(&self, files: usize, at_once: usize) -> Option<(Range<usize>, Vec<Vec<u8>>)> {
        let mut queue = self.lock();
        loop {
            let first = queue.next_read;
            if queue.stop || first >= files {
                return None;
            }
            // The next file to append may always be read, however large the files after it are.
            if first == queue.next_append || (first - queue.next_append < AHEAD && queue.bytes < AHEAD_BYTES) {
                queue.next_read = files.min(first + at_once);
                let keep = queue.spare.len().saturating_sub(at_once);
                let buffers = queue.spare.split_off(keep);
                return Some((first..queue.next_read, buffers));
            }
            queue = self.room.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until the files waiting to be appended leave room, or this file is the next to append.
    fn wait_for_room(&self, file: usize) {
        let mut queue = self.lock();
        while !queue.stop && file != queue.next_append && queue.bytes >= AHEAD_BYTES {
            queue = self.room.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Passes a file to the appender.
    fn put(&self, file: usize, loaded: Result<Loaded>) {
        let mut queue = self.lock();
        queue.bytes += loaded.as_ref().map_or(0, Loaded::held);
        queue.slots[file] = Some(loaded);
        if file == queue.next_append {
            self.ready.notify_one();
        }
    }

    /// Waits for the next file to append.
    fn take(&self, file: usize, control: &dyn Control) -> Result<Result<Loaded>> {
        let mut queue = self.lock();
        loop {
            if let Some(loaded) = queue.slots[file].take() {
                queue.next_append = file + 1;
                queue.bytes -= loaded.as_ref().map_or(0, Loaded::held);
                if file.is_multiple_of(AT_ONCE) {
                    self.room.notify_all();
                }
                return Ok(loaded);
            }
            // The wanted file may be read now, whatever the readers wait for.
            queue.next_append = file;
            self.room.notify_all();
            let (guard, timeout) = self.ready.wait_timeout(queue, SLICE).unwrap_or_else(PoisonError::into_inner);
            drop(guard);
            if timeout.timed_out() {
                control.check()?;
            }
            queue = self.lock();
        }
    }

    fn give_back(&self, mut buffer: Vec<u8>) {
        if buffer.capacity() <= SPARE_BYTES {
            buffer.clear();
            self.lock().spare.push(buffer);
        }
    }
}

/// Stops the readers however the appender ends, so that the scope that joins them can end.
struct StopOnDrop<'a>(&'a Shared);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.lock().stop = true;
        self.0.room.notify_all();
    }
}

impl Writer {
    /// Appends a record for each file, in order. `field` is the position of the image or bytes
    /// field for the file's bytes.
    ///
    /// `values(i)` returns the values of the other fields, in schema order, without the one for
    /// `field`. With `recode`, images are stored as it specifies, and [`Writer::tally`] counts the
    /// results. Returns the skipped files, with reasons.
    ///
    /// # Errors
    /// With [`OnError::Raise`], the first bad file. Failed writes; interrupts, between two records;
    /// contradictory settings of `recode`, or `recode` for a bytes field.
    pub fn append_files<'v>(
        &mut self,
        field: usize,
        paths: &[PathBuf],
        on_error: OnError,
        recode: Option<&Recode>,
        values: impl Fn(usize) -> Vec<Value<'v>>,
        control: &dyn Control,
    ) -> Result<Vec<(usize, String)>> {
        self.check_usable()?;
        let is_image = self.columns_are_image(field)?;
        if let Some(recode) = recode {
            recode.check().map_err(Error::Schema)?;
            if !is_image {
                return Err(Error::Schema("only the images of a field of type image can be recoded".to_owned()));
            }
        }
        let cpus = pool::default_threads();
        let change = recode.map(|recode| Decoders::new(recode, cpus.min(paths.len())));
        // Recoding an image takes long, so hand out images one by one.
        let at_once = if recode.is_some() { 1 } else { AT_ONCE };
        let shared = Shared::default();
        shared.lock().slots = paths.iter().map(|_| None).collect();
        let serve = || {
            while let Some((files, mut buffers)) = shared.claim(paths.len(), at_once) {
                for file in files {
                    shared.wait_for_room(file);
                    let (path, buffer) = (&paths[file], buffers.pop().unwrap_or_default());
                    // Without this, a reader that panics would leave the appender waiting for this
                    // file.
                    let loaded = catch_unwind(AssertUnwindSafe(|| load(path, buffer, is_image, change.as_ref())))
                        .unwrap_or_else(|_| Err(not_an_image(path, "looking at it failed".to_owned())));
                    shared.put(file, loaded);
                }
            }
        };
        let readers = if recode.is_some() { cpus + MIN_READERS } else { cpus.max(MIN_READERS) }.min(paths.len());
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
            for (i, path) in paths.iter().enumerate() {
                let loaded = shared.take(i, control)?;
                let appended = loaded.and_then(|loaded| {
                    let mut record = values(i);
                    let crc = loaded.crc;
                    let value = match &loaded.recoded {
                        Some(Recoded { bytes, side, size, .. }) => Value::Image { data: bytes, side, size: *size, crc },
                        None => Value::Image { data: &loaded.data, side: &[], size: loaded.size, crc },
                    };
                    record.insert(field, value);
                    let appended = self.append(&record);
                    drop(record);
                    if is_image && appended.is_ok() {
                        count(&mut self.tally, loaded.data.len(), loaded.recoded.as_ref());
                        if let Some(kind) = loaded.foreign {
                            *self.foreign.entry(kind).or_default() += 1;
                        }
                    }
                    shared.give_back(loaded.data);
                    appended
                });
                match appended {
                    Ok(_) => {}
                    Err(error @ (Error::NotAnImage { .. } | Error::Io { .. }))
                        if on_error == OnError::Skip && error_is_of(&error, path) =>
                    {
                        skipped.push((i, error.to_string()));
                    }
                    Err(error) => return Err(error),
                }
                if asked.elapsed() >= SLICE {
                    asked = Instant::now();
                    control.check()?;
                }
            }
            drop(stop);
            Ok(skipped)
        })
    }

    fn columns_are_image(&self, field: usize) -> Result<bool> {
        use crate::format::field_type::FieldType::{Bytes, Image};
        match self.schema().fields().get(field).map(|f| &f.kind) {
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

fn not_an_image(path: &Path, detail: String) -> Error {
    Error::NotAnImage { input: path.to_owned(), detail }
}

fn load(path: &Path, mut data: Vec<u8>, is_image: bool, change: Option<&Decoders<'_>>) -> Result<Loaded> {
    let io = |e| Error::io(path, e);
    // Non-blocking, because opening a pipe would wait for its other end. It has no effect on
    // regular files.
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    if meta.is_dir() {
        return Err(io(io::Error::from_raw_os_error(libc::EISDIR)));
    }
    if !meta.is_file() {
        return Err(not_an_image(path, "not a regular file".to_owned()));
    }
    if is_image {
        check_image(meta.len()).map_err(|detail| not_an_image(path, detail))?;
    }
    // Allow one extra byte, so that the read that finds the end does not grow the buffer.
    let size = meta.len() as usize + 1;
    data.try_reserve_exact(size).map_err(|e| io(io::Error::other(e.to_string())))?;
    file.read_to_end(&mut data).map_err(io)?;
    let size = if is_image { image_size(&data).map_err(|detail| not_an_image(path, detail))? } else { (0, 0) };
    let recoded = match change {
        Some(decoders) => decoders
            .with(|decoder| decoders.recode.apply(decoder, &data, size))
            .map_err(|error| not_an_image(path, error.to_string()))?,
        None => None,
    };
    let crc = match &recoded {
        Some(recoded) => crate::format::crc::crc32c_append(crate::format::crc::crc32c(&recoded.bytes), &recoded.side),
        None => crate::format::crc::crc32c(&data),
    };
    let foreign = if is_image && recoded.is_none() { foreign_kind(&data) } else { None };
    Ok(Loaded { data, size, recoded, foreign, crc })
}
