//! `Images`: the images of each record. It reads, checks, decodes, crops and resizes them, one
//! record after the other.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::augment::{Canvas, Drawn, Recipe, Step};
use crate::error::damage::Damage;
use crate::error::decode::DecodeError;
use crate::error::{Error, Result};
use crate::format::extent::Extent;
use crate::format::schema::FieldIndex;
use crate::image::{Channels, Crop, DecodeOptions, Decoder, Geometry, Random, Timings, raw_pixels};
use crate::load::batch::{Batch, LoadCounters, Task, add, nanos};
use crate::load::paired::{Lead, follow};
use crate::load::sources::{LoadSource, Located};
use crate::read::payload::resized;
use crate::read::seen::Verify;
use crate::read::source::Source;

/// Payload buffers up to this size are kept for the next image.
const KEEP: usize = 16 << 20;
/// The first bytes of images stored as raw pixels.
const RAW: &[u8] = b"P6";

/// How images are made.
#[derive(Debug, Default)]
pub struct ImageOptions {
    /// Whether half of the records are mirrored.
    pub flip: bool,
    /// How images are decoded.
    pub decode: DecodeOptions,
    /// The number of the image that may be a mask. The others refuse images that may be masks and
    /// would change: images with a palette, and images of one channel that would be resized. `None`:
    /// no image is refused.
    pub main: Option<usize>,
}

/// An output of images.
#[derive(Debug)]
pub(super) struct ImageOutput {
    pub(super) geometry: Geometry,
    /// What is done to its pixels.
    pub(super) recipe: Option<Recipe>,
    /// Its number among the outputs.
    pub(super) at: usize,
    /// Where its payloads are located.
    pub(super) place: usize,
}

/// The images of a record.
#[derive(Debug)]
pub(super) struct Images {
    outputs: Vec<ImageOutput>,
    /// The image whose crop is drawn. The others follow it.
    leader: usize,
    main: Option<usize>,
    flip: bool,
    decode: DecodeOptions,
    verify: Verify,
    /// Some payload holds raw pixels, so it is worth looking for more of them in the mapping.
    raw: AtomicBool,
}

impl Images {
    /// # Errors
    /// A geometry or the values are invalid.
    pub(super) fn new(outputs: Vec<ImageOutput>, options: ImageOptions, verify: Verify) -> Result<Self> {
        if let Some(detail) = outputs.iter().find_map(|output| output.geometry.check().err()) {
            return Err(Error::Plan(detail));
        }
        // The smallest output leads: its whole pixels are whole pixels of the larger outputs.
        let area = |&i: &usize| {
            let (width, height) = outputs[i].geometry.size();
            u64::from(width) * u64::from(height)
        };
        let leader = (0..outputs.len()).min_by_key(area).unwrap_or(0);
        let ImageOptions { flip, decode, main } = options;
        Ok(Self { outputs, leader, main, flip, decode, verify, raw: AtomicBool::new(false) })
    }

    pub(super) fn len(&self) -> usize {
        self.outputs.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    /// Returns the number of each output, and the bytes of its rows.
    pub(super) fn row_bytes(&self) -> impl Iterator<Item = (usize, usize)> {
        self.outputs.iter().map(|output| (output.at, output.bytes()))
    }

    pub(super) fn scratch(&self) -> Scratch {
        let (payload, value, side, canvas) = Default::default();
        Scratch { decoder: Decoder::new(self.decode), payload, value, side, canvas }
    }

    /// Returns the images in processing order: first the one whose crop is drawn.
    fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let leader = self.leader;
        std::iter::once(leader)
            .chain((0..self.outputs.len()).filter(move |&other| other != leader))
            .take(self.outputs.len())
    }

    /// Returns the crops of a record.
    fn crops<'a>(&'a self, batch: &'a Batch, row: usize) -> Crops<'a> {
        let position = batch.positions.get(row).copied().unwrap_or_default();
        Crops { plan: self, batch, row, random: Random::new(batch.seed, batch.epoch, position), lead: None }
    }

    /// See [`LoadPlan::views`](crate::LoadPlan::views).
    pub(super) fn views(&self, batch: &Batch) -> Vec<Option<Vec<View>>> {
        let views = |row| {
            let mut crops = self.crops(batch, row);
            let mut views = vec![View::default(); self.outputs.len()];
            for number in self.order() {
                let image = batch.image(row, number);
                let (crop, flip) = (image != (0, 0)).then(|| crops.of(number, image))?.ok()?;
                views[number] = View { image, part: crop.reach(self.outputs[number].geometry.size()), flip };
            }
            Some(views)
        };
        (0..batch.rows.len()).map(views).collect()
    }

    /// See [`LoadPlan::make_of`](crate::LoadPlan::make_of).
    pub(super) fn make_of(
        &self,
        batch: &Batch,
        row: usize,
        images: &[(&[u8], Option<Channels>)],
        counters: &LoadCounters,
    ) -> std::result::Result<Vec<Vec<u8>>, (usize, DecodeError)> {
        let mut made: Vec<Vec<u8>> = self.outputs.iter().map(|output| vec![0; output.bytes()]).collect();
        let (mut decoder, mut crops, mut canvas) = (Decoder::new(self.decode), self.crops(batch, row), Canvas::default());
        for number in self.order() {
            let Some(&(data, channels)) = images.get(number) else {
                let detail = format!("{} images for {} outputs", images.len(), self.outputs.len());
                return Err((number, DecodeError::Internal { detail }));
            };
            let timings = crops.make(&mut decoder, &mut canvas, number, (data, &[]), channels, &mut made[number]);
            let timings = timings.map_err(|error| (number, error))?;
            add(&counters.resize_nanos, nanos(timings.resize));
        }
        // The threads have counted it as a failure.
        add(&counters.records, 1);
        counters.failures.fetch_sub(1, Ordering::Relaxed);
        Ok(made)
    }

    /// Returns width and height of each image.
    pub(super) fn sizes(&self) -> Vec<(u32, u32)> {
        self.outputs.iter().map(|output| output.geometry.size()).collect()
    }

    /// Reads, checks, decodes, crops and resizes the images of one record, each into its one-row
    /// part.
    pub(super) fn make(
        &self,
        scratch: &mut Scratch,
        source: &LoadSource,
        located: &Located,
        task: &mut Task<'_>,
        (record, row): (u64, usize),
    ) -> Result<()> {
        let (batch, counters) = (task.batch, task.counters);
        let mut crops = self.crops(batch, row);
        for number in self.order() {
            let &ImageOutput { at, place, .. } = &self.outputs[number];
            let extent = &located.extents[place][row];
            let (decoder, canvas, part) = (&mut scratch.decoder, &mut scratch.canvas, &mut *task.part.bytes[at]);
            let (field, side) = (source.fields[at], &located.sides[place][row]);
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
                crops.make(decoder, canvas, number, parts, None, part)
            };
            let memory = (&mut scratch.payload, &mut scratch.value);
            let made = self.with_payload(counters, memory, (source, field, record), extent, decode)?;
            let timings = made.map_err(|error| source.reader.damaged(field, record, Damage::Image(error)))?;
            add(&counters.decode_nanos, nanos(timings.decode));
            add(&counters.resize_nanos, nanos(timings.resize));
        }
        Ok(())
    }

    /// Records the error of a row, which is a part of its own, and fills its images with zeros.
    pub(super) fn fail(&self, task: &mut Task<'_>, row: usize, error: Error) {
        self.outputs.iter().for_each(|output| task.part.bytes[output.at].fill(0));
        task.batch.fail(row, error, task.counters);
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

impl ImageOutput {
    /// Returns width and height.
    fn size(&self) -> (usize, usize) {
        let (width, height) = self.geometry.size();
        (width as usize, height as usize)
    }

    /// Returns the bytes of a row of the batch.
    fn bytes(&self) -> usize {
        let to_float = self.recipe.as_ref().and_then(|recipe| recipe.to_float.as_ref());
        3 * self.size().0 * self.size().1 * to_float.map_or(1, |to_float| to_float.dtype.size())
    }
}

/// One thread's decoder, and its buffers for an encoded image.
pub(super) struct Scratch {
    decoder: Decoder,
    payload: Vec<u8>,
    /// The decompressed value, if the payload is compressed.
    value: Vec<u8>,
    /// Side bytes that lie elsewhere than after the value.
    side: Vec<u8>,
    /// The pixels of an image whose recipe is applied.
    canvas: Canvas,
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
    plan: &'a Images,
    batch: &'a Batch,
    row: usize,
    random: Random,
    lead: Option<Lead>,
}

impl Crops<'_> {
    /// Returns the crop of an image of that size (width, height), and whether it is
    /// mirrored. Call it in the sequence of [`Images::order`].
    ///
    /// # Errors
    /// The image does not fit the leading image.
    fn of(&mut self, number: usize, image: (u32, u32)) -> std::result::Result<(Crop, bool), DecodeError> {
        let Self { plan, random, lead, .. } = self;
        let geometry = &plan.outputs[number].geometry;
        let drawn = match lead {
            None => geometry.draw(image.0, image.1, plan.flip, random.clone()),
            Some(lead) => follow(lead, &plan.outputs[plan.leader].geometry, image, geometry)?,
        };
        lead.get_or_insert((image, drawn.0, drawn.1));
        Ok(drawn)
    }

    /// Makes one image from its data and side bytes, and applies its recipe. Call it in the sequence of
    /// [`Images::order`].
    ///
    /// # Errors
    /// The image cannot be decoded, does not fit the leading image, or may be a mask that would
    /// change.
    fn make(
        &mut self,
        decoder: &mut Decoder,
        canvas: &mut Canvas,
        number: usize,
        data: (&[u8], &[u8]),
        channels: Option<Channels>,
        out: &mut [u8],
    ) -> std::result::Result<Timings, DecodeError> {
        let output = &self.plan.outputs[number];
        let Some(recipe) = &output.recipe else { return self.decode(decoder, number, data, channels, false, out) };
        let (batch, size) = (self.batch, output.size());
        let position = batch.positions.get(self.row).copied().unwrap_or_default();
        let Drawn { steps, after } = recipe.draw(batch.seed, batch.epoch, position, size);
        // A flip that comes first costs nothing while the image is cropped.
        let flip = steps.first() == Some(&Step::HorizontalFlip);
        let mut timings = self.decode(decoder, number, data, channels, flip, canvas.begin(size.0, size.1))?;
        let start = Instant::now();
        steps.iter().skip(usize::from(flip)).for_each(|step| step.apply(canvas));
        if let Some(to_float) = &recipe.to_float {
            to_float.write(canvas.pixels(), out);
            after.iter().for_each(|step| to_float.apply(step, size, out));
        } else {
            out.copy_from_slice(canvas.pixels());
        }
        timings.resize += start.elapsed();
        Ok(timings)
    }

    /// Decodes, crops and resizes one image; `flip` mirrors it once more.
    fn decode(
        &mut self,
        decoder: &mut Decoder,
        number: usize,
        (data, side): (&[u8], &[u8]),
        channels: Option<Channels>,
        flip: bool,
        out: &mut [u8],
    ) -> std::result::Result<Timings, DecodeError> {
        let (plan, batch, row) = (self.plan, self.batch, self.row);
        let geometry = &plan.outputs[number].geometry;
        if plan.main.is_some_and(|main| main != number) {
            let channels = channels.unwrap_or_else(|| Channels::of(data));
            if channels == Channels::Palette || channels == Channels::One && geometry.resizes() {
                return Err(DecodeError::Mask { channels: channels.to_string() });
            }
        }
        let mut unfit = None;
        let mut draw = |width, height| {
            batch.note_image(row, number, (width, height));
            let (crop, drawn) = self.of(number, (width, height)).unwrap_or_else(|error| {
                unfit = Some(error);
                geometry.draw(width, height, false, self.random.clone())
            });
            (crop, drawn != flip)
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
