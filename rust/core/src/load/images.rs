//! `Images`: the images of each record, and arrays that are treated as images. It reads, checks, decodes,
//! crops and resizes them, and applies their recipes, one record after the other.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::augment::{Canvas, Cut, Drawn, Matrix, Mixing, Pixels, Plane, Sample, Step, ToFloat, product};
use crate::error::damage::Damage;
use crate::error::decode::DecodeError;
use crate::error::{Error, Result};
use crate::format::extent::Extent;
use crate::format::schema::FieldIndex;
use crate::image::{
    Channels, Crop, DecodeOptions, Decoder, Image, Native, Opened, Random, Rect, Timings, Wish, raw_pixels,
};
use crate::load::batch::{Batch, LoadCounters, Task, add, nanos};
use crate::load::output::{ArrayPixels, Form, ImageOutput};
use crate::load::paired::{Lead, follow};
use crate::load::sources::{LoadSource, Located};
use crate::read::payload::resized;
use crate::read::seen::Verify;
use crate::read::source::Source;

/// Payload buffers up to this size are kept for the next image.
const KEEP: usize = 16 << 20;
/// The first bytes of images stored as raw pixels.
const RAW: &[u8] = b"P6";

/// An output, and its number among all outputs.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) at: usize,
    pub(super) output: ImageOutput,
    /// The number of its source.
    pub(super) source: usize,
}

/// A field that outputs are made from; it is read and decoded once for all of them.
#[derive(Debug)]
pub(super) struct ImageSource {
    /// The number of its first output, among all outputs.
    pub(super) at: usize,
    /// Where its payloads are located.
    pub(super) place: usize,
    /// What its arrays are; none for encoded images.
    pub(super) array: Option<ArrayPixels>,
}

/// An image that the caller supplies: the number of an output among those of images, the data, and the
/// channels of its source if its headers no longer show them.
pub type Supplied<'a> = (usize, &'a [u8], Option<Channels>);

/// The images of a record.
#[derive(Debug)]
pub(super) struct Images {
    outputs: Vec<Placed>,
    /// In processing order: what others follow comes first.
    sources: Vec<ImageSource>,
    decode: DecodeOptions,
    verify: Verify,
    /// Some payload holds raw pixels, so it is worth looking for more of them in the mapping.
    raw: AtomicBool,
}

impl Images {
    /// # Errors
    /// An output follows one that follows it, or has other views.
    pub(super) fn new(
        mut outputs: Vec<Placed>,
        sources: Vec<ImageSource>,
        decode: DecodeOptions,
        verify: Verify,
    ) -> Result<Self> {
        let plan = |detail: &str| Error::Plan(detail.to_owned());
        for placed in &outputs {
            let Some(like) = placed.output.like else { continue };
            let lead = outputs.get(like).filter(|lead| lead.output.geometry.is_some());
            let lead = lead.ok_or_else(|| plan("an output follows one that has no crop of its own"))?;
            if lead.output.views.len() != placed.output.views.len() {
                return Err(plan("an output follows one with another number of views"));
            }
        }
        // A source waits for those that its outputs follow.
        let mut order: Vec<usize> = Vec::new();
        while order.len() < sources.len() {
            let ready = |source: usize| {
                let waits = |placed: &Placed| {
                    let lead = placed.output.like.map_or(source, |like| outputs[like].source);
                    placed.source == source && lead != source && !order.contains(&lead)
                };
                !order.contains(&source) && !outputs.iter().any(waits)
            };
            let next = (0..sources.len()).find(|&source| ready(source));
            order.push(next.ok_or_else(|| plan("images of two fields follow each other"))?);
        }
        for placed in &mut outputs {
            placed.source = order.iter().position(|&source| source == placed.source).unwrap_or_default();
        }
        let mut sources: Vec<Option<ImageSource>> = sources.into_iter().map(Some).collect();
        let sources = order.into_iter().filter_map(|source| sources[source].take()).collect();
        Ok(Self { outputs, sources, decode, verify, raw: AtomicBool::new(false) })
    }

    /// Returns the number of fields that are read.
    pub(super) fn len(&self) -> usize {
        self.sources.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    /// Returns the number of each output, and the bytes of its rows.
    pub(super) fn row_bytes(&self) -> impl Iterator<Item = (usize, usize)> {
        self.outputs.iter().map(|placed| (placed.at, placed.output.bytes()))
    }

    pub(super) fn scratch(&self) -> Scratch {
        Scratch {
            decoder: Decoder::new(self.decode),
            payload: Vec::new(),
            value: Vec::new(),
            side: Vec::new(),
            pixels: PixelMemory::default(),
        }
    }

    fn record<'a>(&'a self, batch: &'a Batch, row: usize) -> Record<'a> {
        let position = batch.positions.get(row).copied().unwrap_or_default();
        let shown = self.outputs.iter().map(|_| Vec::new()).collect();
        Record { images: self, batch, row, base: Random::new(batch.seed, batch.epoch, position), shown }
    }

    /// See [`LoadPlan::views`](crate::LoadPlan::views).
    pub(super) fn views(&self, batch: &Batch) -> Vec<Option<Vec<Vec<View>>>> {
        let views = |row| {
            let mut record = self.record(batch, row);
            for source in 0..self.sources.len() {
                let image = batch.image(row, source);
                (image != (0, 0)).then_some(())?;
                record.plan(source, image).ok()?;
            }
            Some((0..self.outputs.len()).map(|number| record.views(number)).collect())
        };
        (0..batch.rows.len()).map(views).collect()
    }

    /// Returns the number of views of each output.
    pub(super) fn counts(&self) -> Vec<usize> {
        self.outputs.iter().map(|placed| placed.output.views.len()).collect()
    }

    /// Reads, checks, decodes, crops and resizes the images of one record, each into its one-row
    /// part of `out`.
    pub(super) fn make(
        &self,
        scratch: &mut Scratch,
        source: &LoadSource,
        (batch, located, counters): (&Batch, &Located, &LoadCounters),
        (record, row): (u64, usize),
        supplied: &[Supplied<'_>],
        out: &mut [&mut [u8]],
    ) -> Result<()> {
        let mut shown = self.record(batch, row);
        for (number, &ImageSource { at, place, array }) in self.sources.iter().enumerate() {
            let field = source.fields[at];
            let Scratch { decoder, payload, value, side, pixels } = &mut *scratch;
            let image_error = |error| source.reader.damaged(field, record, Damage::Image(error));
            let given = supplied.iter().find(|given| self.outputs[given.0].source == number);
            let timings = if let Some(&(_, data, channels)) = given {
                shown
                    .make(decoder, pixels, number, Data::Encoded { data, side: &[], channels }, out)
                    .map_err(image_error)?
            } else {
                let (extent, beside) = (&located.extents[place][row], &located.sides[place][row]);
                if beside.stored > 0 {
                    self.read_side(counters, (source, field, record), beside, side)?;
                }
                let shape = match array {
                    Some(_) => source.reader.shapes(field, &source.reader.records(&[record])?)?,
                    None => Vec::new(),
                };
                let decode = |stored: &[u8]| {
                    let (mut data, mut after) = (stored, &[][..]); // decompressed, or packed
                    if extent.is_plain() {
                        (data, after) = stored.split_at(extent.length() as usize);
                    }
                    if beside.stored > 0 {
                        after = side;
                    }
                    let data = match array {
                        Some(array) => Data::Array { data, array, shape: &shape },
                        None => Data::Encoded { data, side: after, channels: None },
                    };
                    shown.make(decoder, pixels, number, data, out)
                };
                let made = self.with_payload(counters, (payload, value), (source, field, record), extent, decode)?;
                made.map_err(image_error)?
            };
            add(&counters.decode_nanos, nanos(timings.decode));
            add(&counters.resize_nanos, nanos(timings.resize));
        }
        Ok(())
    }

    /// Returns the output that is mixed with those of other records, if it can be.
    pub(super) fn mixed(&self) -> Option<(&Placed, &ToFloat)> {
        let placed = self.outputs.first().filter(|placed| placed.output.views.len() == 1)?;
        Some((placed, placed.output.to_float()?))
    }

    /// Mixes the images of a record with those of its pair, if that is complete.
    pub(super) fn mix(&self, mixing: &Mixing, task: &mut Task<'_>) {
        let (batch, Some((placed, to_float))) = (task.batch, self.mixed()) else { return };
        let (size, first) = (placed.output.size(), batch.positions.first().copied().unwrap_or_default());
        task.part.give(placed.at, |one, two| {
            let (blend, _) = mixing.draw(batch.seed, batch.epoch, first, size);
            blend.apply(to_float.dtype, to_float.planar, size, one, two);
        });
    }

    /// Records the error of a row, which is a part of its own, and fills its images with zeros.
    pub(super) fn fail(&self, task: &mut Task<'_>, row: usize, error: Error) {
        self.outputs.iter().for_each(|placed| task.part.bytes[placed.at].fill(0));
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
        // A packed JPEG is decoded as it is.
        let (reader, length, plain) = (&source.reader, extent.stored as usize, !extent.is_compressed());
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

/// One thread's decoder, and its buffers for an encoded image.
pub(super) struct Scratch {
    decoder: Decoder,
    payload: Vec<u8>,
    /// The decompressed value, if the payload is compressed.
    value: Vec<u8>,
    /// Side bytes that lie elsewhere than after the value.
    side: Vec<u8>,
    pixels: PixelMemory,
}

/// Pixels of an image whose recipe is applied.
#[derive(Default)]
struct PixelMemory {
    canvas: Canvas,
    plane: Plane,
    /// A whole image as it is stored.
    native: Vec<u8>,
}

/// The part of its image that an output shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct View {
    /// Width and height of the image in pixels, after it was turned upright if that was requested.
    pub image: (u32, u32),
    /// Left, top, right and bottom of the part that the crop shows. Beyond the image, the output is black.
    pub part: [f64; 4],
    /// Maps a point of the image to a point of the output.
    pub matrix: Matrix,
}

/// A value that outputs are made from.
#[derive(Clone, Copy)]
enum Data<'a> {
    /// An encoded image, its side bytes, and the channels of its source if its headers do not show them.
    Encoded {
        data: &'a [u8],
        side: &'a [u8],
        channels: Option<Channels>,
    },
    Array {
        data: &'a [u8],
        array: ArrayPixels,
        shape: &'a [u64],
    },
}

/// What one view of an output shows.
struct Shown {
    image: (u32, u32),
    crop: Crop,
    /// Width and height.
    size: (usize, usize),
    drawn: Drawn,
    /// Whether the first flip is done while the image is cropped.
    flip: bool,
}

/// The work on one record. What others follow is kept meanwhile.
struct Record<'a> {
    images: &'a Images,
    batch: &'a Batch,
    row: usize,
    base: Random,
    /// The views of each output that are decided.
    shown: Vec<Vec<Shown>>,
}

type Decoding<T> = std::result::Result<T, DecodeError>;

impl Record<'_> {
    /// Decides the views of all outputs of a source, whose image has that width and height. Call it in the order of the
    /// sources.
    ///
    /// # Errors
    /// The image does not fit the one that it follows.
    fn plan(&mut self, source: usize, image: (u32, u32)) -> Decoding<()> {
        let outputs = self.images.outputs.iter().enumerate().filter(|(_, placed)| placed.source == source);
        // What outputs of the same field follow comes first.
        let (leads, followers): (Vec<_>, Vec<_>) = outputs.partition(|(_, placed)| placed.output.like.is_none());
        for (number, placed) in leads.into_iter().chain(followers) {
            let output = &placed.output;
            for (view, recipe) in output.views.iter().enumerate() {
                let crop = if let Some(geometry) = &output.geometry {
                    geometry.crop(image.0, image.1, view, &mut recipe.crop(&self.base, geometry.name()))
                } else {
                    self.follow(output, view, image)?
                };
                let size = output.size();
                let drawn = recipe.draw(&self.base, size);
                let first = self.lead(output, view).map_or(&drawn, |lead| &lead.drawn).steps.first();
                let flip = first == Some(&Step::HorizontalFlip) && output.form.is_plain();
                self.shown[number].push(Shown { image, crop, size, drawn, flip });
            }
        }
        Ok(())
    }

    /// Returns what an output follows in a view.
    fn lead(&self, output: &ImageOutput, view: usize) -> Option<&Shown> {
        self.shown.get(output.like?)?.get(view)
    }

    /// Returns the crop that shows the same content as the one that it follows.
    fn follow(&self, output: &ImageOutput, view: usize, image: (u32, u32)) -> Decoding<Crop> {
        let unknown = || DecodeError::Internal { detail: "nothing to follow".to_owned() };
        let lead = self.lead(output, view).ok_or_else(unknown)?;
        let lead_output = output.like.map(|like| &self.images.outputs[like].output).ok_or_else(unknown)?;
        let scaled = lead_output.geometry.is_some_and(|geometry| geometry.resizes());
        let lead = Lead { image: lead.image, crop: lead.crop, size: lead_output.size, scaled };
        follow(&lead, image, output.size, output.nearest)
    }

    /// Returns what the views of an output show.
    #[allow(clippy::cast_precision_loss)] // sides are below 2^16
    fn views(&self, number: usize) -> Vec<View> {
        let output = &self.images.outputs[number].output;
        let view = |(view, shown): (usize, &Shown)| {
            let (width, height) = (shown.size.0 as f64, shown.size.1 as f64);
            let part = shown.crop.reach(output.size);
            let (x, y) = (width / (part[2] - part[0]), height / (part[3] - part[1]));
            let mut matrix = [[x, 0.0, -part[0] * x], [0.0, y, -part[1] * y], [0.0, 0.0, 1.0]];
            if let Some(lead) = self.lead(output, view) {
                let (x, y) = (width / lead.size.0 as f64, height / lead.size.1 as f64);
                let scale = |x: f64, y: f64| [[x, 0.0, 0.0], [0.0, y, 0.0], [0.0, 0.0, 1.0]];
                for step in &lead.drawn.steps {
                    let step = product(scale(x, y), product(step.matrix(lead.size), scale(1.0 / x, 1.0 / y)));
                    matrix = product(step, matrix);
                }
            }
            for step in &shown.drawn.steps {
                matrix = product(step.matrix(shown.size), matrix);
            }
            View { image: shown.image, part, matrix }
        };
        self.shown[number].iter().enumerate().map(view).collect()
    }

    /// Makes all outputs of a source. Call it in the order of the sources.
    ///
    /// # Errors
    /// The image cannot be decoded, does not fit the image that it follows, or may be a mask that would
    /// change.
    fn make(
        &mut self,
        decoder: &mut Decoder,
        memory: &mut PixelMemory,
        source: usize,
        data: Data<'_>,
        out: &mut [&mut [u8]],
    ) -> Decoding<Timings> {
        let start = Instant::now();
        let outputs = self.images.outputs.iter().enumerate().filter(|(_, placed)| placed.source == source);
        let (colours, others): (Vec<usize>, Vec<usize>) =
            outputs.map(|(number, _)| number).partition(|&number| self.images.outputs[number].output.form.is_plain());
        let mut planned = false;
        let mut plan = |record: &mut Self, size: (u32, u32)| {
            if !std::mem::replace(&mut planned, true) {
                record.batch.note_image(record.row, source, size);
                record.plan(source, size)?;
            }
            Ok(())
        };
        let mut decode = std::time::Duration::ZERO;
        if !colours.is_empty() {
            let from = match data {
                Data::Encoded { data, side, channels } => {
                    self.refuse_mask(&colours, data, channels)?;
                    match raw_pixels(data) {
                        Some(image) => Origin::Pixels(image),
                        None => Origin::Encoded(decoder.open(data)?, (data, side)),
                    }
                }
                Data::Array { data, array, shape } => {
                    let (width, height) = size_of(shape, array)?;
                    Origin::Pixels(Image { width, height, pixels: data })
                }
            };
            let size = match &from {
                Origin::Pixels(image) => (image.width, image.height),
                Origin::Encoded(opened, _) => opened.size(),
            };
            plan(self, size)?;
            let wishes: Vec<Wish> = colours.iter().flat_map(|&number| self.wishes(number)).collect();
            // Decoded for all views; none if each is decoded on its own.
            let together = match &from {
                Origin::Encoded(opened, data) if !decoder.apart(opened, *data, &wishes) => {
                    Some(decoder.decode_for(opened, *data, &wishes)?)
                }
                _ => None,
            };
            decode = start.elapsed();
            let mut wishes = wishes.iter();
            for &number in &colours {
                let Placed { at, output, .. } = &self.images.outputs[number];
                let parts = out[*at].chunks_exact_mut(output.view_bytes());
                for ((view, wish), part) in wishes.by_ref().take(output.views.len()).enumerate().zip(parts) {
                    let mut cut = |pixels: &mut [u8]| match &from {
                        Origin::Pixels(image) => decoder.render_pixels(*image, wish, pixels),
                        Origin::Encoded(opened, data) => {
                            let found = match together {
                                Some(found) => found,
                                None => decoder.decode_for(opened, *data, std::slice::from_ref(wish))?,
                            };
                            decoder.render(opened, found, wish, pixels)
                        }
                    };
                    self.colour(&mut memory.canvas, number, view, &mut cut, part)?;
                }
            }
        }
        if memory.native.capacity() > KEEP {
            memory.native = Vec::new();
        }
        let mut last: Option<(Native, (usize, usize))> = None;
        for number in others {
            let form = self.images.outputs[number].output.form;
            let pixels = match data {
                Data::Array { data, array, shape } => {
                    let (width, height) = size_of(shape, array)?;
                    Pixels {
                        size: (width as usize, height as usize),
                        pixel: array.pixel,
                        sample: array.sample,
                        bytes: data,
                    }
                }
                Data::Encoded { data, .. } => {
                    let wrong = || DecodeError::Internal { detail: "an array of an encoded image".to_owned() };
                    let (native, sample) = form.native().ok_or_else(wrong)?;
                    let size = match last {
                        Some((kind, size)) if kind == native => size,
                        _ => {
                            let (width, height) = decoder.decode_native(data, native, &mut memory.native)?;
                            (width as usize, height as usize)
                        }
                    };
                    last = Some((native, size));
                    Pixels { size, pixel: native.bytes(), sample, bytes: &memory.native }
                }
            };
            decode = decode.max(start.elapsed());
            plan(self, (pixels.size.0 as u32, pixels.size.1 as u32))?;
            self.plane(&mut memory.plane, number, pixels, out[self.images.outputs[number].at])?;
        }
        Ok(Timings { decode, resize: start.elapsed().saturating_sub(decode) })
    }

    /// Refuses an image that may be a mask, and would be resized as colours beside what it follows.
    fn refuse_mask(&self, colours: &[usize], data: &[u8], channels: Option<Channels>) -> Decoding<()> {
        let output = |&number: &usize| &self.images.outputs[number].output;
        let mut followers = colours.iter().map(output).filter(|output| !output.may_be_mask);
        let Some(output) = followers.next() else { return Ok(()) };
        let channels = channels.unwrap_or_else(|| Channels::of(data));
        let lead = output.like.map(|like| &self.images.outputs[like].output);
        let resizes = lead.and_then(|lead| lead.geometry).is_none_or(|geometry| geometry.resizes());
        if channels == Channels::Palette || channels == Channels::One && resizes {
            return Err(DecodeError::Mask { channels: channels.to_string() });
        }
        Ok(())
    }

    /// Returns what the views of an output need of the image.
    fn wishes(&self, number: usize) -> Vec<Wish> {
        let output = &self.images.outputs[number].output;
        let fill = match *output.fill {
            [grey] => [grey; 3],
            [red, green, blue] => [red, green, blue],
            _ => [0; 3],
        };
        let wish =
            |shown: &Shown| Wish { crop: shown.crop, flip: shown.flip, size: output.size, filter: output.filter, fill };
        self.shown[number].iter().map(wish).collect()
    }

    /// Makes one view of an output of bytes in RGB or grey; `cut` writes its crop.
    fn colour(
        &self,
        canvas: &mut Canvas,
        number: usize,
        view: usize,
        cut: &mut dyn FnMut(&mut [u8]) -> Decoding<()>,
        out: &mut [u8],
    ) -> Decoding<()> {
        let (output, shown) = (&self.images.outputs[number].output, &self.shown[number][view]);
        let lead = self.lead(output, view);
        let moves = lead.map_or(&[][..], |lead| &lead.drawn.steps);
        if output.form == Form::Rgb && output.to_float().is_none() && shown.drawn.steps.is_empty() && moves.is_empty() {
            return cut(out);
        }
        cut(canvas.begin(shown.size.0, shown.size.1))?;
        if output.form == Form::Grey {
            canvas.make_single();
        }
        let skip = usize::from(shown.flip);
        if let Some(lead) = lead {
            let fill = output.fill.first_chunk().copied().unwrap_or([0; 3]);
            let moves = moves.iter().skip(skip);
            moves.for_each(|step| step.follow(canvas, lead.size, output.interpolation(), fill));
        }
        Step::apply_all(&shown.drawn.steps[if lead.is_some() { 0 } else { skip }..], canvas);
        match output.to_float() {
            None if output.form == Form::Grey => out.copy_from_slice(canvas.channel()),
            None => out.copy_from_slice(canvas.pixels()),
            Some(to_float) => {
                if output.form == Form::Grey {
                    to_float.write_grey(canvas.channel(), out);
                } else {
                    to_float.write(canvas.pixels(), out);
                }
                shown.drawn.after.iter().for_each(|step| to_float.apply(step, shown.size, out));
            }
        }
        Ok(())
    }

    /// Makes the views of an output whose pixels only move.
    fn plane(&self, plane: &mut Plane, number: usize, pixels: Pixels<'_>, out: &mut [u8]) -> Decoding<()> {
        let output = &self.images.outputs[number].output;
        // Values of other types are never blended.
        let nearest = output.nearest || pixels.sample == Sample::Other;
        let views = self.shown[number].iter().enumerate();
        for ((view, shown), out) in views.zip(out.chunks_exact_mut(output.view_bytes())) {
            let Crop { x, y, width, height, bounds, target } = shown.crop;
            let image = (pixels.size.0 as u32, pixels.size.1 as u32);
            shown.crop.check(image, output.size)?;
            if output.form.pixel() != pixels.pixel {
                return Err(DecodeError::Pair {
                    detail: format!("a pixel has {} bytes, not {}", pixels.pixel, output.form.pixel()),
                });
            }
            let whole = |Rect { x, y, width, height }: Rect| [x, y, width, height].map(|side| side as usize);
            let cut = Cut { part: [x, y, width, height], bounds: whole(bounds), target: whole(target) };
            plane.cut(pixels, &cut, shown.size, nearest, &output.fill);
            if let Some(lead) = self.lead(output, view) {
                lead.drawn.steps.iter().for_each(|step| plane.follow(step, lead.size, nearest, &output.fill));
            }
            shown.drawn.steps.iter().for_each(|step| plane.follow(step, shown.size, nearest, &output.fill));
            match output.to_float() {
                None => out.copy_from_slice(plane.pixels().bytes),
                Some(to_float) => {
                    to_float.write_plane(&plane.pixels(), out);
                    shown.drawn.after.iter().for_each(|step| to_float.apply(step, shown.size, out));
                }
            }
        }
        Ok(())
    }
}

/// Where the pixels of outputs in RGB or grey come from.
enum Origin<'a> {
    Pixels(Image<'a>),
    /// An open image, its data and side bytes.
    Encoded(Opened, (&'a [u8], &'a [u8])),
}

/// Returns width and height of an array's pixels.
fn size_of(shape: &[u64], array: ArrayPixels) -> Decoding<(u32, u32)> {
    let side = |at: usize| {
        shape.get(at).and_then(|&side| u32::try_from(side).ok()).filter(|side| (1..=1 << 24).contains(side))
    };
    match (side(1), side(0)) {
        (Some(width), Some(height)) if array.pixel > 0 => Ok((width, height)),
        _ => Err(DecodeError::Pair { detail: format!("an array of shape {shape:?} has no pixels to crop") }),
    }
}
