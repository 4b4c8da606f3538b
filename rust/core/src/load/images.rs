//! `LoadPlan`: which images of each record become which pixels. It does not decode.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::decode::DecodeError;
use crate::error::{Error, Result};
use crate::format::extent::Extent;
use crate::image::{Channels, Crop, DecodeOptions, Decoder, Geometry, Random, Rect, Timings, raw_pixels};
use crate::load::decoding::nanos;
use crate::load::loader::{LoadCounters, add};
use crate::load::sources::{LoadSource, Sources};
use crate::read::seen::Verify;

/// The plan for images: what the loader computes from each record.
#[derive(Debug)]
pub struct LoadPlan {
    pub(crate) sources: Sources,
    pub(crate) outputs: Vec<Geometry>,
    /// The output whose crop is drawn. The others follow it.
    pub(crate) leader: usize,
    /// The output that accepts any image. The other outputs accept colour images, or do not resize.
    main: Option<usize>,
    pub(crate) flip: bool,
    pub(crate) decode: DecodeOptions,
    pub(crate) verify: Verify,
    /// Some payload holds raw pixels, so it is worth looking for more of them in the mapping.
    pub(crate) raw: AtomicBool,
}

/// Where the images of one record lie.
#[derive(Debug)]
pub struct Place {
    pub(crate) source: usize,
    pub(crate) record: u64,
    pub(crate) extents: Vec<Extent>,
}

/// The crop of the leading image: image size, part, and whether it is mirrored.
pub(crate) type Lead = ((u32, u32), Crop, bool);

impl LoadPlan {
    /// Plans one image per record for each of `outputs`. Rows number the records of all files
    /// consecutively.
    ///
    /// # Errors
    /// There is no file or output, a file lacks a field for an output, a field holds neither images
    /// nor bytes, or a geometry is invalid.
    pub fn new(
        sources: Vec<LoadSource>,
        outputs: Vec<Geometry>,
        flip: bool,
        decode: DecodeOptions,
        verify: Verify,
    ) -> Result<Self> {
        let bad = |detail: String| Err(Error::Plan(detail));
        if sources.is_empty() || outputs.is_empty() {
            return bad("there must be a file and an image".to_owned());
        }
        for source in &sources {
            if source.fields.len() != outputs.len() {
                return bad(format!("{} fields for {} images", source.fields.len(), outputs.len()));
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
        let (sources, raw) = (Sources::new(sources), AtomicBool::new(false));
        Ok(Self { sources, outputs, leader, main: None, flip, decode, verify, raw })
    }

    /// Makes all outputs except `main` refuse images that may be masks and would change. These are
    /// images with a palette, and images of one channel that would be resized.
    #[must_use]
    pub fn refusing_masks(self, main: usize) -> Self {
        Self { main: Some(main), ..self }
    }

    /// Returns the outputs in processing order: first the one whose crop is drawn.
    pub(crate) fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let leader = self.leader;
        std::iter::once(leader).chain((0..self.outputs.len()).filter(move |&output| output != leader))
    }

    /// Starts a record.
    pub(crate) fn crops(&self, seed: u64, epoch: u64, position: u64) -> Crops<'_> {
        Crops { plan: self, random: Random::new(seed, epoch, position), lead: None }
    }

    /// Processes a record as the threads do, from images that the caller supplies: one for each
    /// output. Each has the channels of its source, if its headers no longer show them.
    ///
    /// # Errors
    /// The output, and why its image cannot be processed.
    pub fn make_of(
        &self,
        (seed, epoch, position): (u64, u64, u64),
        images: &[(&[u8], Option<Channels>)],
        counters: &LoadCounters,
    ) -> std::result::Result<Vec<Vec<u8>>, (usize, DecodeError)> {
        let mut made: Vec<Vec<u8>> = self.image_bytes().into_iter().map(|bytes| vec![0; bytes]).collect();
        let (mut decoder, mut crops) = (Decoder::new(self.decode), self.crops(seed, epoch, position));
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

    /// Returns the bytes of one image of each output.
    pub fn image_bytes(&self) -> Vec<usize> {
        let bytes = |geometry: &Geometry| 3 * geometry.size().0 as usize * geometry.size().1 as usize;
        self.outputs.iter().map(bytes).collect()
    }

    /// Locates the images of rows, and prefetches them.
    pub(crate) fn places(&self, rows: &[u64]) -> Vec<Result<Place>> {
        let mut places: Vec<Option<Result<Place>>> = rows.iter().map(|_| None).collect();
        for (number, mine, records) in self.sources.split(rows) {
            let source = &self.sources[number];
            let found = source.extents(&records).inspect(|all| source.ask(all));
            for (k, &i) in mine.iter().enumerate() {
                let record = records[k];
                let extents = match &found {
                    Ok(all) => source.present(record, all.iter().map(|extents| extents[k]).collect()),
                    // One damaged entry must not fail its neighbours: look up each record alone.
                    Err(_) => source.extents(&[record]).and_then(|all| {
                        source.ask(&all);
                        source.present(record, all.into_iter().flatten().collect())
                    }),
                };
                places[i] = Some(extents.map(|extents| Place { source: number, record, extents }));
            }
        }
        let no_row = |row| Err(self.sources.no_row(row));
        places.into_iter().zip(rows).map(|(place, &row)| place.unwrap_or_else(|| no_row(row))).collect()
    }
}

/// The crops of one record's images. The leading crop is drawn, and the others follow it.
pub(crate) struct Crops<'a> {
    plan: &'a LoadPlan,
    random: Random,
    lead: Option<Lead>,
}

impl Crops<'_> {
    /// Processes the image of one output from its data and side bytes. Call it in the sequence of
    /// [`LoadPlan::order`].
    ///
    /// # Errors
    /// The image cannot be decoded, does not fit the leading image, or may be a mask that would
    /// change.
    pub(crate) fn make(
        &mut self,
        decoder: &mut Decoder,
        output: usize,
        (data, side): (&[u8], &[u8]),
        channels: Option<Channels>,
        out: &mut [u8],
    ) -> std::result::Result<Timings, DecodeError> {
        let Self { plan, random, lead } = self;
        let geometry = &plan.outputs[output];
        if plan.main.is_some_and(|main| main != output) {
            let channels = channels.unwrap_or_else(|| Channels::of(data));
            if channels == Channels::Palette || channels == Channels::One && geometry.resizes() {
                return Err(DecodeError::Mask { channels: channels.to_string() });
            }
        }
        let mut unfit = None;
        let mut draw = |width, height| {
            let drawn = match &*lead {
                None => geometry.draw(width, height, plan.flip, random.clone()),
                Some(lead) => {
                    follow(lead, &plan.outputs[plan.leader], (width, height), geometry).unwrap_or_else(|error| {
                        unfit = Some(error);
                        geometry.draw(width, height, false, random.clone())
                    })
                }
            };
            if lead.is_none() {
                *lead = Some(((width, height), drawn.0, drawn.1));
            }
            drawn
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

/// Returns the part of an image that shows the same content as the leading crop.
///
/// # Errors
/// Whole pixels of one image are not whole pixels of the other, and no resizing was requested.
pub(crate) fn follow(
    lead: &Lead,
    lead_geometry: &Geometry,
    image: (u32, u32),
    geometry: &Geometry,
) -> std::result::Result<(Crop, bool), DecodeError> {
    let ((lead_width, lead_height), crop, flip) = lead;
    let (size, lead_size) = (geometry.size(), lead_geometry.size());
    let x = (f64::from(image.0) / f64::from(*lead_width), f64::from(size.0) / f64::from(lead_size.0));
    let y = (f64::from(image.1) / f64::from(*lead_height), f64::from(size.1) / f64::from(lead_size.1));
    let unfit = |why: &str| {
        let detail = format!(
            "the images of the record do not fit each other: {lead_width} x {lead_height} becomes {} x {}, but {} x {} \
             is to become {} x {}: {why}",
            lead_size.0, lead_size.1, image.0, image.1, size.0, size.1
        );
        Err(DecodeError::Pair { detail })
    };
    let differ = |(images, outputs): (f64, f64)| (images - outputs).abs() > 1e-9 * outputs;
    if matches!(geometry, Geometry::RandomCrop { .. }) && (differ(x) || differ(y)) {
        return unfit("a crop that is not resized needs the same ratio between the images as between the outputs");
    }
    #[allow(clippy::cast_sign_loss)] // the numbers are not negative
    let outward = |from: u32, length: u32, scale: f64, limit: u32| {
        let (start, end) = (f64::from(from) * scale, f64::from(from + length) * scale);
        let start = ((start + 1e-6).floor() as u32).min(limit.saturating_sub(1));
        (start, ((end - 1e-6).ceil() as u32).clamp(start + 1, limit) - start)
    };
    let scaled = |rect: Rect, x: f64, y: f64, limit: (u32, u32)| {
        let (left, width) = outward(rect.x, rect.width, x, limit.0);
        let (top, height) = outward(rect.y, rect.height, y, limit.1);
        Rect { x: left, y: top, width, height }
    };
    let target = if crop.target == Rect::whole(lead_size.0, lead_size.1) {
        Rect::whole(size.0, size.1)
    } else if crop.target.width == 0 || crop.target.height == 0 {
        crop.target
    } else {
        let target = scaled(crop.target, x.1, y.1, size);
        let exact = |n: u32, scale: f64| (f64::from(n) * scale).fract() == 0.0;
        if ![(crop.target.x, x.1), (crop.target.width, x.1), (crop.target.y, y.1), (crop.target.height, y.1)]
            .into_iter()
            .all(|(n, scale)| exact(n, scale))
        {
            return unfit("the black border would not be of whole pixels");
        }
        target
    };
    let nothing = target.width == 0 || target.height == 0;
    let bounds = if nothing { Rect::whole(0, 0) } else { scaled(crop.bounds, x.0, y.0, image) };
    let crop =
        Crop { x: crop.x * x.0, y: crop.y * y.0, width: crop.width * x.0, height: crop.height * y.0, bounds, target };
    Ok((crop, *flip))
}
