//! `FileInput`: files to append. Several threads read ahead, check and recode files, while the calling
//! thread appends them in order.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::mem;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::format::field_type::FieldType;
use crate::image::size::image_size;
use crate::image::{Decoder, foreign_kind};
use crate::limits::check_image;
use crate::memory;
use crate::pack::recode::{Recode, Recoded};
use crate::pack::tally::Tally;
use crate::parallel::ordered::{CloseOnDrop, OrderedQueue};
use crate::parallel::pool;
use crate::parallel::sync::{SLICE, lock, wait};
use crate::write::value::Value;
use crate::write::writer::Writer;

/// Maximum number of files, and of their bytes, that wait in memory to be appended.
const AHEAD: usize = 256;
const AHEAD_BYTES: usize = 32 << 20;
/// Files that a reader claims together, so that small files cost fewer lock operations.
const AT_ONCE: usize = 8;
/// Buffers are multiples of this, so that one fits most of the files of a folder.
const STEP: usize = 64 << 10;
/// A buffer this many times as large as a file is left for a smaller one.
const WASTE: usize = 16;
/// Reading waits for disks and file systems more than for CPUs, so there are more readers than
/// CPUs.
const MIN_READERS: usize = 4;

/// The handling of a file that cannot be read or is not an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// Stop with an error that names the file. That file and later ones are not appended.
    Raise,
    /// Leave the file out and report it.
    Skip,
}

struct Loaded {
    buffer: Vec<u8>,
    /// The bytes of the file, at the start of the buffer.
    length: usize,
    size: (u32, u32),
    /// The bytes to store instead of the data.
    recoded: Option<Recoded>,
    /// The kind of an image that is stored unchanged but is not decoded here.
    foreign: Option<String>,
    crc: u32,
}

impl Loaded {
    fn data(&self) -> &[u8] {
        &self.buffer[..self.length]
    }

    fn held(&self) -> usize {
        self.buffer.len() + self.recoded.as_ref().map_or(0, |r| r.bytes.as_ref().map_or(0, Vec::len) + r.side.len())
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
        let mut idle = lock(&self.idle);
        let mut decoder = loop {
            if let Some(decoder) = idle.pop() {
                break Returned { decoder, to: self };
            }
            idle = wait(&self.returned, idle);
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
        lock(&self.to.idle).push(decoder);
        self.to.returned.notify_one();
    }
}

/// Buffers for reading. The last one to be returned is the first to be used again: its pages exist,
/// and some of it is still in a cache.
struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    fn take(&self) -> Vec<u8> {
        lock(&self.0).pop().unwrap_or_default()
    }

    fn give_back(&self, buffer: Vec<u8>) {
        let mut spare = lock(&self.0);
        if spare.iter().map(Vec::len).sum::<usize>() + buffer.len() <= AHEAD_BYTES {
            spare.push(buffer);
        }
    }

    fn into_spare(self) -> Vec<Vec<u8>> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Files to append, one record for each, in order.
#[derive(Debug, Clone, Copy)]
pub struct FileInput<'a> {
    /// The position of the image or bytes field that takes the bytes of the files.
    pub field: usize,
    /// The files.
    pub paths: &'a [PathBuf],
    /// What to do with a file that cannot be appended.
    pub on_error: OnError,
    /// How images are stored; unchanged by default.
    pub recode: Option<&'a Recode>,
}

impl FileInput<'_> {
    /// Appends the files and counts their images. Returns the skipped files, with reasons.
    ///
    /// `values(i)` returns the values of the other fields for file `i`, in schema order.
    ///
    /// # Errors
    /// With [`OnError::Raise`], the first bad file. Failed writes; interrupts, between two records;
    /// contradictory settings of `recode`, or `recode` for a bytes field. Files before the error
    /// are appended and counted.
    pub fn append_to<'v>(
        &self,
        writer: &mut Writer,
        tally: &mut Tally,
        values: impl Fn(usize) -> Vec<Value<'v>>,
        control: &dyn Control,
    ) -> Result<Vec<(usize, String)>> {
        let Self { field, paths, on_error, recode } = *self;
        writer.check_usable()?;
        let is_image = takes_images(writer, field)?;
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
        let (queue, buffers) = (
            OrderedQueue::new(paths.len(), AHEAD, AHEAD_BYTES, at_once),
            Buffers(Mutex::new(mem::take(&mut writer.spare))),
        );
        let serve = || {
            while let Some(files) = queue.claim() {
                for file in files {
                    queue.wait_for_room(file);
                    let path = &paths[file];
                    let load = || load(path, buffers.take(), is_image, change.as_ref());
                    // A panic is about this file: a decoder met what it was not made for.
                    let loaded = catch_unwind(AssertUnwindSafe(load))
                        .unwrap_or_else(|_| Err(not_an_image(path, "its decoder panicked".to_owned())));
                    let held = loaded.as_ref().map_or(0, Loaded::held);
                    queue.put(file, loaded, held);
                }
            }
        };
        let readers = if recode.is_some() { cpus + MIN_READERS } else { cpus.max(MIN_READERS) }.min(paths.len());
        let skipped = thread::scope(|scope| {
            let close = CloseOnDrop(&queue);
            for number in 0..readers {
                let builder = thread::Builder::new().name(format!("fastrecord-read-{number}"));
                if let Err(error) = builder.spawn_scoped(scope, serve) {
                    if number == 0 {
                        return Err(Error::io(writer.path(), error));
                    }
                    break;
                }
            }
            let mut skipped = Vec::new();
            let mut asked = Instant::now();
            for (i, path) in paths.iter().enumerate() {
                let loaded = queue.take(control)?;
                let appended = loaded.and_then(|loaded| {
                    let mut record = values(i);
                    let crc = loaded.crc;
                    let value = match &loaded.recoded {
                        Some(recoded) => {
                            let Recoded { side, size, .. } = recoded;
                            Value::Image { data: recoded.stored(loaded.data()), side, size: *size, crc }
                        }
                        None => Value::Image { data: loaded.data(), side: &[], size: loaded.size, crc },
                    };
                    record.insert(field, value);
                    let appended = writer.append(&record);
                    drop(record);
                    if is_image && appended.is_ok() {
                        tally.count(loaded.length, loaded.recoded.as_ref(), loaded.foreign);
                    }
                    buffers.give_back(loaded.buffer);
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
            drop(close);
            Ok(skipped)
        });
        writer.spare = buffers.into_spare();
        skipped
    }
}

/// Whether the files are images, from the type of their field.
fn takes_images(writer: &Writer, field: usize) -> Result<bool> {
    match writer.schema().fields().get(field).map(|field| &field.kind) {
        Some(FieldType::Image) => Ok(true),
        Some(FieldType::Bytes) => Ok(false),
        _ => Err(Error::Schema("files go into a field of type image or bytes".to_owned())),
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

fn load(path: &Path, mut buffer: Vec<u8>, is_image: bool, change: Option<&Decoders<'_>>) -> Result<Loaded> {
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
    let length = read_to_end(&mut file, meta.len(), &mut buffer).map_err(io)?;
    let data = &buffer[..length];
    let size = if is_image { image_size(data).map_err(|detail| not_an_image(path, detail))? } else { (0, 0) };
    let recoded = match change {
        Some(decoders) => decoders
            .with(|decoder| decoders.recode.apply(decoder, data, size))
            .map_err(|error| not_an_image(path, error.to_string()))?,
        None => None,
    };
    let crc = match &recoded {
        Some(recoded) => {
            crate::format::crc::crc32c_append(crate::format::crc::crc32c(recoded.stored(data)), &recoded.side)
        }
        None => crate::format::crc::crc32c(data),
    };
    let foreign = if is_image && recoded.is_none() { foreign_kind(data) } else { None };
    Ok(Loaded { buffer, length, size, recoded, foreign, crc })
}

/// Reads a file to its end. Returns the number of bytes, which are at the start of the buffer.
fn read_to_end(file: &mut File, expected: u64, buffer: &mut Vec<u8>) -> io::Result<usize> {
    // One byte more than the file has: a read that does not fill the buffer has found the end.
    let wanted = (expected as usize + 1).next_multiple_of(STEP);
    if buffer.len() < wanted || buffer.len() / WASTE > wanted {
        *buffer = Vec::new(); // growing it would copy its old bytes
        *buffer = memory::zeros(wanted).map_err(|e| io::Error::other(e.to_string()))?;
    }
    let mut length = 0;
    loop {
        let read = match file.read(&mut buffer[length..]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        length += read;
        if read == 0 || length as u64 == expected {
            return Ok(length);
        }
        // The file grows, or its size is unknown.
        if length == buffer.len() {
            memory::reserve(buffer, length).map_err(|e| io::Error::other(e.to_string()))?;
            buffer.resize(2 * length, 0);
        }
    }
}
