//! `ImagePlan`: which images of each record become which pixels. It reads, checks, decodes, crops
//! and resizes the images of one record after the other.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::control::Control;
use crate::error::damage::Damage;
use crate::error::decode::DecodeError;
use crate::error::{Error, Result};
use crate::format::extent::Extent;
use crate::format::schema::FieldIndex;
use crate::image::{Channels, Crop, DecodeOptions, Decoder, Geometry, Random, Timings, raw_pixels};
use crate::load::batch::{Batch, Fill, LoadCounters, Plan, Task, add, nanos};
use crate::load::loader::{Load, Loader};
use crate::load::paired::{Lead, follow};
use crate::load::sources::{LoadFile, LoadSource, Located, Sources};
use crate::load::values::Values;
use crate::read::payload::resized;
use crate::read::seen::Verify;
use crate::read::source::Source;

/// Payload buffers up to this size are kept for the next image.
const KEEP: usize = 16 << 20;
/// The first bytes of images stored as raw pixels.
const RAW: &[u8] = b"P6";

/// The plan for images: what the loader computes from each record.
#[derive(Debug)]
pub struct ImagePlan {
    sources: Sources,
    outputs: Vec<Geometry>,
    /// The output whose crop is drawn. The others follow it.
    leader: usize,
    /// The output that accepts any image. The other outputs accept colour images, or do not resize.
    main: Option<usize>,
    flip: bool,
    decode: DecodeOptions,
    verify: Verify,
    /// What the batch holds instead of bytes.
    values: Option<Values>,
    /// Some payload holds raw pixels, so it is worth looking for more of them in the mapping.
    raw: AtomicBool,
}

impl ImagePlan {
    /// Plans one image per record for each of `outputs`. Rows number the records of all files
    /// consecutively.
    ///
    /// # Errors
    /// The first file is not open, no output is given, a file lacks a field for an output, a field
    /// holds neither images nor bytes, or a geometry is invalid.
    pub fn new(
        files: Vec<LoadFile>,
        outputs: Vec<Geometry>,
        flip: bool,
        decode: DecodeOptions,
        verify: Verify,
    ) -> Result<Self> {
        let bad = |detail: String| Err(Error::Plan(detail));
        if outputs.is_empty() {
            return bad("a plan needs an image".to_owned());
        }
        for source in files.iter().filter_map(LoadFile::open) {
            if source.fields.len() != outputs.len() {
                return bad(format!("a file has {} fields for {} images", source.fields.len(), outputs.len()));
            }
            for &field in &source.fields {
                if !source.reader.kind(field).holds_bytes() {
                    return Err(source.reader.wrong_type(field, "images are in fields of type image or bytes"));
                }
            }
        }
        if let Some(detail) = outputs.iter().find_map(|geometry| geometry.check().err()) {
            return bad(detail);
        }
        // The smallest output leads: its whole pixels are whole pixels of the larger outputs.
        let area = |i: &usize| u64::from(outputs[*i].size().0) * u64::from(outputs[*i].size().1);
        let leader = (0..outputs.len()).min_by_key(area).unwrap_or(0);
        let located = (0..outputs.len()).collect();
        let (sources, raw) = (Sources::new(files, located)?, AtomicBool::new(false));
        Ok(Self { sources, outputs, leader, main: None, flip, decode, verify, values: None, raw })
    }

    /// Makes all outputs except `main` refuse images that may be masks and would change. These are
    /// images with a palette, and images of one channel that would be resized.
    #[must_use]
    pub fn refusing_masks(self, main: usize) -> Self {
        Self { main: Some(main), ..self }
    }

    /// Makes batches of values instead of bytes, by a table: the values of byte 0 for red, green and
    /// blue, then of byte 1, and so on. Only [`Self::make_of`] still returns bytes.
    ///
    /// # Errors
    /// The values are not of 1, 2, 4 or 8 bytes each.
    pub fn with_values(self, table: Vec<u8>) -> Result<Self> {
        Ok(Self { values: Some(Values::new(table)?), ..self })
    }

    /// Returns the outputs in processing order: first the one whose crop is drawn.
    fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let leader = self.leader;
        std::iter::once(leader).chain((0..self.outputs.len()).filter(move |&output| output != leader))
    }

    /// Returns the crops of a record.
    fn crops<'a>(&'a self, batch: &'a Batch, row: usize) -> Crops<'a> {
        let position = batch.positions.get(row).copied().unwrap_or_default();
        Crops { plan: self, batch, row, random: Random::new(batch.seed, batch.epoch, position), lead: None }
    }

    /// Returns the part of its image that each output of a loaded batch shows, row by row: `None` for a
    /// row without images. They are computed here, from what decides them.
    pub fn views(&self, load: &Load) -> Vec<Option<Vec<View>>> {
        let batch = load.batch();
        let views = |row| {
            let mut crops = self.crops(batch, row);
            let mut views = vec![View::default(); self.outputs.len()];
            for output in self.order() {
                let image = batch.image(row, output);
                let (crop, flip) = (image != (0, 0)).then(|| crops.of(output, image))?.ok()?;
                views[output] = View { image, part: crop.reach(self.outputs[output].size()), flip };
            }
            Some(views)
        };
        (0..batch.rows.len()).map(views).collect()
    }

    /// Makes the pixels of a row as the threads do, from images that the caller supplies: one for each
    /// output. Each has the channels of its source, if its headers no longer show them.
    ///
    /// # Errors
    /// The output, and why its image cannot be processed.
    pub fn make_of(
        &self,
        load: &Load,
        row: usize,
        images: &[(&[u8], Option<Channels>)],
        counters: &LoadCounters,
    ) -> std::result::Result<Vec<Vec<u8>>, (usize, DecodeError)> {
        let mut made: Vec<Vec<u8>> = self.image_bytes().into_iter().map(|bytes| vec![0; bytes]).collect();
        let (mut decoder, mut crops) = (Decoder::new(self.decode), self.crops(load.batch(), row));
        for output in self.order() {
            let Some(&(data, channels)) = images.get(output) else {
                let detail = format!("{} images for {} outputs", images.len(), self.outputs.len());
                return Err((output, DecodeError::Internal { detail }));
            };
            let timings = crops.make(&mut decoder, output, (data, &[]), channels, &mut made[output]);
            let timings = timings.map_err(|error| (output, error))?;
            add(&counters.resize_nanos, nanos(timings.resize));
        }
        // The threads have counted it as a failure.
        add(&counters.records, 1);
        counters.failures.fetch_sub(1, Ordering::Relaxed);
        Ok(made)
    }

    /// Returns width and height of each output.
    pub fn sizes(&self) -> Vec<(u32, u32)> {
        self.outputs.iter().map(Geometry::size).collect()
    }

    /// Returns the number of bytes of one image of each output, before they become values.
    pub fn image_bytes(&self) -> Vec<usize> {
        let bytes = |geometry: &Geometry| 3 * geometry.size().0 as usize * geometry.size().1 as usize;
        self.outputs.iter().map(bytes).collect()
    }

    /// Starts `threads` threads.
    ///
    /// # Errors
    /// [`Error::Threads`] if the system allows not even one thread.
    pub fn start(self: &Arc<Self>, counters: Arc<LoadCounters>, threads: usize) -> Result<Loader> {
        Loader::start(Arc::clone(self) as Arc<dyn Plan>, counters, threads)
    }

    /// Reads, checks, decodes, crops and resizes the images of one record, each into its one-row
    /// part.
    fn make_images(
        &self,
        scratch: &mut Scratch,
        located: &Located,
        task: &mut Task<'_>,
        (file, record): (usize, u64),
        row: usize,
    ) -> Result<()> {
        let source = self.sources.source(file)?;
        let (source, batch, counters) = (&*source, task.batch, task.counters);
        let mut crops = self.crops(batch, row);
        for output in self.order() {
            let extent = &located.extents[output][row];
            let (decoder, part) = (&mut scratch.decoder, &mut *task.part.bytes[output]);
            let out = match &self.values {
                None => &mut *part,
                Some(values) => {
                    scratch.pixels.resize(part.len() / values.size(), 0);
                    &mut scratch.pixels
                }
            };
            let (field, side) = (source.fields[output], &located.sides[output][row]);
            let elsewhere = if side.stored == 0 {
                None
            } else {
                self.read_side(counters, (source, field, record), side, &mut scratch.side)?;
                Some(&scratch.side[..])
            };
            let decode = |stored: &[u8]| {
                let mut parts = if extent.is_plain() {
                    stored.split_at(extent.length() as usize)
                } else {
                    (stored, &[][..]) // decompressed
                };
                if let Some(side) = elsewhere {
                    parts.1 = side;
                }
                crops.make(decoder, output, parts, None, out)
            };
            let memory = (&mut scratch.payload, &mut scratch.value);
            let made = self.with_payload(counters, memory, (source, field, record), extent, decode)?;
            let timings = made.map_err(|error| source.reader.damaged(field, record, Damage::Image(error)))?;
            add(&counters.decode_nanos, nanos(timings.decode));
            add(&counters.resize_nanos, nanos(timings.resize));
            if let Some(values) = &self.values {
                let start = Instant::now();
                values.write(&scratch.pixels, part);
                add(&counters.resize_nanos, nanos(start.elapsed()));
            }
        }
        add(&counters.records, 1);
        Ok(())
    }

    /// Reads and checks side bytes that lie elsewhere than after their value.
    fn read_side(
        &self,
        counters: &LoadCounters,
        (source, field, record): (&LoadSource, FieldIndex, u64),
        extent: &Extent,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let start = Instant::now();
        if out.capacity() > KEEP {
            *out = Vec::new();
        }
        source.reader.read_side(field, record, extent, self.verify != Verify::Never, out)?;
        add(&counters.reads, 1);
        add(&counters.bytes, extent.stored);
        add(&counters.read_nanos, nanos(start.elapsed()));
        Ok(())
    }

    /// Reads and checks a payload, and calls `work` with it.
    ///
    /// A system call reads into the thread's buffer. That takes 20 us, next to some 1000 us of
    /// decoding. It causes no page faults, and a truncated file is an error instead of a signal.
    /// Raw pixels need no decoding and come from the mapping, if there is one: a second copy would
    /// take half as long again.
    fn with_payload<T>(
        &self,
        counters: &LoadCounters,
        (memory, value): (&mut Vec<u8>, &mut Vec<u8>),
        (source, field, record): (&LoadSource, FieldIndex, u64),
        extent: &Extent,
        work: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        let start = Instant::now();
        let (reader, length, plain) = (&source.reader, extent.stored as usize, extent.is_plain());
        let check = |bytes: &[u8], due: bool| {
            if plain && due {
                reader.check_crc(field, record, extent, bytes)?;
            }
            add(&counters.reads, 1);
            add(&counters.bytes, extent.stored);
            add(&counters.read_nanos, nanos(start.elapsed()));
            Ok(())
        };
        let mut work = Some(work);
        if plain && self.raw.load(Ordering::Relaxed) && matches!(reader.source(), Source::Mapped(_)) {
            let made = reader.with_mapped(field, &[record], std::slice::from_ref(extent), |mapped| {
                let stored = reader.stored_in(extent, mapped.unwrap_or_default())?;
                if !stored.starts_with(RAW) {
                    return Ok(None);
                }
                check(stored, reader.is_due(field, record, self.verify))?;
                reader.remember(field, record, self.verify);
                Ok(work.take().map(|work| work(stored)))
            })?;
            if let Some(made) = made {
                return Ok(made);
            }
        }
        if memory.len() < length || memory.len() > KEEP {
            *memory = Vec::new();
            resized(memory, extent.stored)?;
        }
        let bytes = &mut memory[..length];
        let read = reader.file().read_exact_at(bytes, extent.offset);
        read.map_err(|e| reader.failed_read(field, record, e))?;
        if plain && bytes.starts_with(RAW) {
            self.raw.store(true, Ordering::Relaxed);
        }
        check(bytes, self.verify != Verify::Never)?;
        if plain && self.verify == Verify::Never {
            reader.check_after_read()?;
        }
        let bytes = if plain {
            &*bytes
        } else {
            if value.capacity() > KEEP {
                *value = Vec::new();
            }
            resized(value, extent.length())?;
            reader.decompress(field, record, extent, bytes, value)?;
            value
        };
        let Some(work) = work else { return Err(reader.missing(field, record)) };
        Ok(work(bytes))
    }
}

impl Plan for ImagePlan {
    fn is_random(&self) -> bool {
        true
    }

    fn rows(&self) -> u64 {
        self.sources.rows()
    }

    fn no_row(&self, row: u64) -> Error {
        self.sources.no_row(row)
    }

    fn row_bytes(&self) -> Vec<usize> {
        let size = self.values.as_ref().map_or(1, Values::size);
        self.image_bytes().into_iter().map(|bytes| bytes * size).collect()
    }

    fn granularity(&self) -> usize {
        1
    }

    fn locate(&self, rows: &[u64], fail: &mut dyn FnMut(usize, Error)) -> Located {
        self.sources.locate(rows, true, fail)
    }

    fn prefetch(&self, rows: &[u64], control: &dyn Control) {
        self.sources.prefetch(rows, control);
    }

    fn fill(&self) -> Fill<'_> {
        let decoder = Decoder::new(self.decode);
        let (payload, value, side, pixels) = Default::default();
        let mut scratch = Scratch { decoder, payload, value, side, pixels };
        Box::new(move |located, task| {
            for row in task.part.rows.clone() {
                match located.rows[row] {
                    Some(place) => {
                        if let Err(error) = self.make_images(&mut scratch, located, task, place, row) {
                            task.fail(row, error);
                        }
                    }
                    None => task.part.clear(row),
                }
            }
        })
    }
}

/// One thread's decoder, and its buffers for an encoded image.
struct Scratch {
    decoder: Decoder,
    payload: Vec<u8>,
    /// The decompressed value, if the payload is compressed.
    value: Vec<u8>,
    /// Side bytes that lie elsewhere than after the value.
    side: Vec<u8>,
    /// The pixels of an image before they become values.
    pixels: Vec<u8>,
}

/// The part of its image that an output shows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct View {
    /// Width and height of the image in pixels, after it was turned upright if that was requested.
    pub image: (u32, u32),
    /// Left, top, right and bottom of the part that the whole output shows. Beyond the image, the output
    /// is black.
    pub part: [f64; 4],
    /// Whether the output is mirrored left to right.
    pub flip: bool,
}

/// The crops of one record's images. The leading crop is drawn, and the others follow it.
struct Crops<'a> {
    plan: &'a ImagePlan,
    batch: &'a Batch,
    row: usize,
    random: Random,
    lead: Option<Lead>,
}

impl Crops<'_> {
    /// Returns the crop of an output of an image of that size (width, height), and whether it is
    /// mirrored. Call it in the sequence of [`ImagePlan::order`].
    ///
    /// # Errors
    /// The image does not fit the leading image.
    fn of(&mut self, output: usize, image: (u32, u32)) -> std::result::Result<(Crop, bool), DecodeError> {
        let Self { plan, random, lead, .. } = self;
        let geometry = &plan.outputs[output];
        let drawn = match lead {
            None => geometry.draw(image.0, image.1, plan.flip, random.clone()),
            Some(lead) => follow(lead, &plan.outputs[plan.leader], image, geometry)?,
        };
        lead.get_or_insert((image, drawn.0, drawn.1));
        Ok(drawn)
    }

    /// Processes the image of one output from its data and side bytes. Call it in the sequence of
    /// [`ImagePlan::order`].
    ///
    /// # Errors
    /// The image cannot be decoded, does not fit the leading image, or may be a mask that would
    /// change.
    fn make(
        &mut self,
        decoder: &mut Decoder,
        output: usize,
        (data, side): (&[u8], &[u8]),
        channels: Option<Channels>,
        out: &mut [u8],
    ) -> std::result::Result<Timings, DecodeError> {
        let (plan, batch, row) = (self.plan, self.batch, self.row);
        let geometry = &plan.outputs[output];
        if plan.main.is_some_and(|main| main != output) {
            let channels = channels.unwrap_or_else(|| Channels::of(data));
            if channels == Channels::Palette || channels == Channels::One && geometry.resizes() {
                return Err(DecodeError::Mask { channels: channels.to_string() });
            }
        }
        let mut unfit = None;
        let mut draw = |width, height| {
            batch.note_image(row, output, (width, height));
            self.of(output, (width, height)).unwrap_or_else(|error| {
                unfit = Some(error);
                geometry.draw(width, height, false, self.random.clone())
            })
        };
        let made = match raw_pixels(data) {
            Some(image) => {
                let (crop, flip) = draw(image.width, image.height);
                decoder.crop_resize_pixels(image, &crop, flip, geometry.size(), out)
            }
            None => decoder.crop_resize_side(data, side, geometry.size(), out, draw),
        };
        unfit.map_or(made, Err)
    }
}
