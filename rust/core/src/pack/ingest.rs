//! `Ingest`: files, or images in memory, to append. Several threads read ahead, check and recode
//! them, while the calling thread appends them in order.

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
use crate::format::crc::{crc32c, crc32c_append};
use crate::format::field_type::FieldType;
use crate::image::size::image_size;
use crate::image::{Decoder, foreign_kind};
use crate::limits::check_image;
use crate::memory;
use crate::pack::counts::ImageCounts;
use crate::pack::recode::{Recode, Recoded};
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

/// The inputs of an [`Ingest`].
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// Files. Several threads read them ahead.
    Files(&'a [PathBuf]),
    /// Bytes in memory. Errors call the input at position `i` `images[i]`.
    Memory(&'a [&'a [u8]]),
}

impl Source<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Files(paths) => paths.len(),
            Self::Memory(images) => images.len(),
        }
    }
}

/// The handling of an input that cannot be read or is not an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// Stop with an error that names the input. That input and later ones are not appended.
    Raise,
    /// Leave the input out and report it.
    Skip,
}

/// Why one input is not appended.
enum Refused {
    Io(io::Error),
    Image(String),
}

impl Refused {
    fn error(self, source: Source<'_>, i: usize) -> Error {
        let input = match source {
            Source::Files(paths) => paths[i].clone(),
            Source::Memory(_) => format!("images[{i}]").into(),
        };
        match self {
            Self::Io(source) => Error::Io { path: input, source },
            Self::Image(detail) => Error::NotAnImage { input, detail },
        }
    }
}

enum Data<'a> {
    /// A buffer, and the number of bytes at its start that were read.
    Read(Vec<u8>, usize),
    Given(&'a [u8]),
}

impl Data<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Read(buffer, length) => &buffer[..*length],
            Self::Given(bytes) => bytes,
        }
    }
}

struct Loaded<'a> {
    data: Data<'a>,
    size: (u32, u32),
    /// The bytes to store instead of the data.
    recoded: Option<Recoded>,
    /// The kind of an image that is stored unchanged but is not decoded here.
    foreign: Option<String>,
    crc: u32,
}

impl Loaded<'_> {
    /// The memory that it holds until it is appended.
    fn held(&self) -> usize {
        let read = match &self.data {
            Data::Read(buffer, _) => buffer.len(),
            Data::Given(_) => 0,
        };
        read + self.recoded.as_ref().map_or(0, Recoded::held)
    }

    /// The value to append.
    fn value(&self) -> Value<'_> {
        let (data, crc) = (self.data.bytes(), self.crc);
        match &self.recoded {
            Some(Recoded { packed: Some(packed), size, bytes, .. }) => {
                let length = bytes.as_ref().map_or(data.len(), Vec::len) as u64;
                Value::PackedJpeg { packed, length, size: *size, crc }
            }
            Some(recoded) => Value::Image { data: recoded.stored(data), side: &recoded.side, size: recoded.size, crc },
            None => Value::Image { data, side: &[], size: self.size, crc },
        }
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
        let decoder = loop {
            match idle.pop() {
                Some(decoder) => break decoder,
                None => idle = wait(&self.returned, idle),
            }
        };
        drop(idle);
        work(Returned { decoder: None, to: self }.decoder.insert(decoder))
    }
}

/// A borrowed decoder. It is returned however the work ends.
struct Returned<'a> {
    decoder: Option<Decoder>,
    to: &'a Decoders<'a>,
}

impl Drop for Returned<'_> {
    fn drop(&mut self) {
        lock(&self.to.idle).extend(self.decoder.take());
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

/// Inputs to append, one record for each, in order.
#[derive(Debug, Clone, Copy)]
pub struct Ingest<'a> {
    /// The position of the image or bytes field that takes the inputs.
    pub field: usize,
    /// The inputs.
    pub source: Source<'a>,
    /// What to do with an input that cannot be appended.
    pub on_error: OnError,
    /// How images are stored; unchanged by default.
    pub recode: Option<&'a Recode>,
}

impl Ingest<'_> {
    /// Appends the inputs and counts their images. Returns the positions of the skipped ones, with
    /// their errors.
    ///
    /// `values(i)` returns the values of the other fields for input `i`, in schema order.
    ///
    /// # Errors
    /// With [`OnError::Raise`], the first bad input. Failed writes; interrupts, between two records;
    /// contradictory settings of `recode`, or `recode` for a bytes field. Inputs before the error
    /// are appended and counted.
    pub fn append_to<'v>(
        &self,
        writer: &mut Writer,
        tally: &mut ImageCounts,
        values: impl Fn(usize) -> Vec<Value<'v>>,
        control: &dyn Control,
    ) -> Result<Vec<(usize, Error)>> {
        let Self { field, source, recode, .. } = *self;
        writer.check_usable()?;
        let is_image = takes_images(writer, field)?;
        if let Some(recode) = recode {
            recode.check().map_err(Error::Schema)?;
            if !is_image {
                return Err(Error::Schema("only the images of a field of type image can be recoded".to_owned()));
            }
        }
        let (cpus, count) = (pool::default_threads(), source.len());
        let change = recode.map(|recode| Decoders::new(recode, cpus.min(count)));
        let buffers = Buffers(Mutex::new(mem::take(&mut writer.spare)));
        let maker = Maker { source, is_image, change, buffers };
        let readers = match (source, recode) {
            // Probing and summing bytes in memory takes less time than waking a thread.
            (Source::Memory(_), None) => 0,
            (Source::Memory(_), Some(_)) => cpus,
            (Source::Files(_), None) => cpus.max(MIN_READERS),
            (Source::Files(_), Some(_)) => cpus + MIN_READERS,
        };
        let skipped = if readers == 0 {
            self.append_made(writer, tally, values, control, &maker, |i| Ok(maker.make(i)))
        } else {
            self.append_ahead(writer, tally, values, control, &maker, readers.min(count))
        };
        writer.spare = maker.buffers.into_spare();
        skipped
    }

    /// Appends what other threads make ahead.
    fn append_ahead<'v>(
        &self,
        writer: &mut Writer,
        tally: &mut ImageCounts,
        values: impl Fn(usize) -> Vec<Value<'v>>,
        control: &dyn Control,
        maker: &Maker<'_>,
        readers: usize,
    ) -> Result<Vec<(usize, Error)>> {
        // Recoding an image takes long, so hand out images one by one.
        let at_once = if self.recode.is_some() { 1 } else { AT_ONCE };
        let queue = OrderedQueue::new(self.source.len(), AHEAD, AHEAD_BYTES, at_once);
        let serve = || {
            while let Some(inputs) = queue.claim() {
                for input in inputs {
                    queue.wait_for_room(input);
                    let made = maker.make(input);
                    let held = made.as_ref().map_or(0, Loaded::held);
                    queue.put(input, made, held);
                }
            }
        };
        thread::scope(|scope| {
            let _close = CloseOnDrop(&queue);
            for number in 0..readers {
                let builder = thread::Builder::new().name(format!("fastrecord-read-{number}"));
                if let Err(error) = builder.spawn_scoped(scope, serve) {
                    if number == 0 {
                        return Err(Error::Threads(error));
                    }
                    break;
                }
            }
            self.append_made(writer, tally, values, control, maker, |_| queue.take(control))
        })
    }

    /// Appends what `next` returns for each input, in order.
    fn append_made<'a, 'v>(
        &self,
        writer: &mut Writer,
        tally: &mut ImageCounts,
        values: impl Fn(usize) -> Vec<Value<'v>>,
        control: &dyn Control,
        maker: &Maker<'_>,
        mut next: impl FnMut(usize) -> Result<Made<'a>>,
    ) -> Result<Vec<(usize, Error)>> {
        let Self { field, source, on_error, .. } = *self;
        let mut skipped = Vec::new();
        let mut asked = Instant::now();
        for i in 0..source.len() {
            match (next(i)?, on_error) {
                (Ok(loaded), _) => {
                    let mut record = values(i);
                    record.insert(field, loaded.value());
                    writer.append(&record)?;
                    if maker.is_image {
                        tally.count(loaded.data.bytes().len(), loaded.recoded.as_ref(), loaded.foreign);
                    }
                    if let Data::Read(buffer, _) = loaded.data {
                        maker.buffers.give_back(buffer);
                    }
                }
                (Err(refused), OnError::Skip) => skipped.push((i, refused.error(source, i))),
                (Err(refused), OnError::Raise) => return Err(refused.error(source, i)),
            }
            if asked.elapsed() >= SLICE {
                asked = Instant::now();
                control.check()?;
            }
        }
        Ok(skipped)
    }
}

/// Whether the inputs are images, from the type of their field.
fn takes_images(writer: &Writer, field: usize) -> Result<bool> {
    match writer.schema().fields().get(field).map(|field| &field.kind) {
        Some(FieldType::Image) => Ok(true),
        Some(FieldType::Bytes) => Ok(false),
        _ => Err(Error::Schema("files and images go into a field of type image or bytes".to_owned())),
    }
}

/// An input that is ready to be appended, or why it cannot be.
type Made<'a> = std::result::Result<Loaded<'a>, Refused>;

/// Reads, checks and recodes inputs, on any thread.
struct Maker<'a> {
    source: Source<'a>,
    is_image: bool,
    change: Option<Decoders<'a>>,
    buffers: Buffers,
}

impl<'a> Maker<'a> {
    fn make(&self, input: usize) -> Made<'a> {
        // A panic is about this input: a decoder met what it was not made for.
        catch_unwind(AssertUnwindSafe(|| self.load(input)))
            .unwrap_or_else(|_| Err(Refused::Image("its decoder panicked".to_owned())))
    }

    fn load(&self, input: usize) -> Made<'a> {
        let data = match self.source {
            Source::Files(paths) => self.read(&paths[input])?,
            Source::Memory(images) => Data::Given(images[input]),
        };
        let bytes = data.bytes();
        let mut size = (0, 0);
        if self.is_image {
            self.check_length(bytes.len() as u64)?;
            size = image_size(bytes).map_err(Refused::Image)?;
        }
        let recoded = match &self.change {
            Some(decoders) => decoders
                .with(|decoder| decoders.recode.apply(decoder, bytes, size))
                .map_err(|error| Refused::Image(error.to_string()))?,
            None => None,
        };
        let crc = match &recoded {
            Some(Recoded { packed: Some(packed), .. }) => crc32c(packed),
            Some(recoded) => crc32c_append(crc32c(recoded.stored(bytes)), &recoded.side),
            None => crc32c(bytes),
        };
        let foreign = if self.is_image && recoded.is_none() { foreign_kind(bytes) } else { None };
        Ok(Loaded { data, size, recoded, foreign, crc })
    }

    fn check_length(&self, length: u64) -> std::result::Result<(), Refused> {
        if self.is_image { check_image(length).map_err(Refused::Image) } else { Ok(()) }
    }

    fn read(&self, path: &Path) -> std::result::Result<Data<'a>, Refused> {
        // Non-blocking, because opening a pipe would wait for its other end. It has no effect on
        // regular files.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let mut file = file.map_err(Refused::Io)?;
        let meta = file.metadata().map_err(Refused::Io)?;
        if meta.is_dir() {
            return Err(Refused::Io(io::Error::from_raw_os_error(libc::EISDIR)));
        }
        if !meta.is_file() {
            return Err(Refused::Image("not a regular file".to_owned()));
        }
        self.check_length(meta.len())?;
        let mut buffer = self.buffers.take();
        let length = read_to_end(&mut file, meta.len(), &mut buffer).map_err(Refused::Io)?;
        Ok(Data::Read(buffer, length))
    }
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
