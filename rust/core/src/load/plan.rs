//! `LoadPlan`: what a loader's threads make of each record: images, and values stacked as they are.

use std::sync::Arc;

use crate::augment::Recipe;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::image::{Channels, Geometry};
use crate::load::batch::{Fill, LoadCounters, Plan, Task, add};
use crate::load::images::{ImageOptions, ImageOutput, Images, Scratch, View};
use crate::load::loader::{Load, Loader};
use crate::load::sources::{LoadFile, Located, Recent, Sources};
use crate::load::stacks::{StackOutput, Stacks};
use crate::read::seen::Verify;
use crate::sys::DiskWatch;

/// What becomes of one field of each record.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// An image, decoded, cropped and resized to RGB pixels, and what is done to them.
    Image(Geometry, Option<Recipe>),
    /// The value itself, which has a fixed size.
    Stack,
}

/// What a loader makes: one buffer for each output, with a row for each record.
#[derive(Debug)]
pub struct LoadPlan {
    sources: Sources,
    images: Images,
    stacks: Stacks,
    row_bytes: Vec<usize>,
    disk: DiskWatch,
}

impl LoadPlan {
    /// Plans the outputs of each record. Each file has a field for each output, and two outputs may be
    /// of one field. Rows number the records of all files consecutively.
    ///
    /// # Errors
    /// The first file is not open, a file lacks a field for an output, an image is of a field that
    /// holds neither images nor bytes, stacked values differ in size, or an option is invalid.
    pub fn new(files: Vec<LoadFile>, outputs: &[Output], options: ImageOptions, verify: Verify) -> Result<Self> {
        let Some(first) = files.first().and_then(LoadFile::open) else {
            return Err(Error::Plan("a plan needs an open file".to_owned()));
        };
        let (mut images, mut stacks, mut located) = (Vec::new(), Vec::new(), Vec::new());
        for (at, output) in outputs.iter().enumerate() {
            let mut place = || {
                located.push(at);
                located.len() - 1
            };
            match output {
                Output::Image(geometry, recipe) => {
                    images.push(ImageOutput { geometry: *geometry, recipe: recipe.clone(), at, place: place() });
                }
                Output::Stack => {
                    let field = first.field(at, outputs.len())?;
                    let place = first.reader.schema()[field].kind.has_payloads().then(place);
                    stacks.push(StackOutput { at, place, bytes: first.value_bytes(field)? });
                }
            }
        }
        for source in files.iter().filter_map(LoadFile::open) {
            for image in &images {
                let field = source.field(image.at, outputs.len())?;
                if !source.reader.kind(field).holds_bytes() {
                    return Err(source.reader.wrong_type(field, "images are in fields of type image or bytes"));
                }
            }
            for stack in &stacks {
                let field = source.field(stack.at, outputs.len())?;
                if source.value_bytes(field)? != stack.bytes {
                    let expected = format!("in the first file its values have {} bytes each", stack.bytes);
                    return Err(source.reader.wrong_type(field, &expected));
                }
            }
        }
        let images = Images::new(images, options, verify)?;
        let mut row_bytes = vec![0; outputs.len()];
        images.row_bytes().chain(stacks.iter().map(|stack| (stack.at, stack.bytes))).for_each(|(at, bytes)| {
            row_bytes[at] = bytes;
        });
        let (sources, stacks) = (Sources::new(files, located)?, Stacks::new(stacks, verify));
        Ok(Self { sources, images, stacks, row_bytes, disk: DiskWatch::default() })
    }

    /// Starts `threads` threads.
    ///
    /// # Errors
    /// [`Error::Threads`] if the system allows not even one thread.
    pub fn start(self: &Arc<Self>, counters: Arc<LoadCounters>, threads: usize) -> Result<Loader> {
        Loader::start(Arc::clone(self) as Arc<dyn Plan>, counters, threads)
    }

    /// Returns the bytes per row of each output.
    pub fn row_bytes(&self) -> &[usize] {
        &self.row_bytes
    }

    /// Returns width and height of each image.
    pub fn image_sizes(&self) -> Vec<(u32, u32)> {
        self.images.sizes()
    }

    /// Returns the part of its source that each image of a loaded batch shows, row by row: `None` for a
    /// row without images. They are computed here, from what decides them.
    pub fn views(&self, load: &Load) -> Vec<Option<Vec<View>>> {
        self.images.views(load.batch())
    }

    /// Makes the images of a row as the threads do, from data that the caller supplies: one for each
    /// image. Each has the channels of its source, if its headers no longer show them.
    ///
    /// # Errors
    /// The number of the image, and why it cannot be processed.
    pub fn make_of(
        &self,
        load: &Load,
        row: usize,
        data: &[(&[u8], Option<Channels>)],
        counters: &LoadCounters,
    ) -> std::result::Result<Vec<Vec<u8>>, (usize, crate::image::DecodeError)> {
        self.images.make_of(load.batch(), row, data, counters)
    }

    /// Fills a part.
    fn fill_part(&self, scratch: &mut Scratch, located: &Located, task: &mut Task<'_>) {
        let mut recent = Recent::new(&self.sources);
        let mut rows = self.stacks.fill(&mut recent, located, task);
        if !self.images.is_empty() {
            rows.retain(|&row| {
                let place = located.rows[row].unwrap_or_default();
                let made = recent
                    .source(place.0)
                    .and_then(|source| self.images.make(scratch, source, located, task, (place.1, row)));
                // Its stacked values stay, for a caller that makes the images in another way.
                made.map_err(|error| self.images.fail(task, row, error)).is_ok()
            });
        }
        add(&task.counters.records, rows.len() as u64);
    }
}

impl Plan for LoadPlan {
    fn images(&self) -> usize {
        self.images.len()
    }

    fn rows(&self) -> u64 {
        self.sources.rows()
    }

    fn no_row(&self, row: u64) -> Error {
        self.sources.no_row(row)
    }

    fn row_bytes(&self) -> &[usize] {
        &self.row_bytes
    }

    fn granularity(&self) -> usize {
        if self.images.is_empty() { self.stacks.granularity() } else { 1 }
    }

    fn locate(&self, rows: &[u64], fail: &mut dyn FnMut(usize, Error)) -> Located {
        let cold = !self.images.is_empty() || self.stacks.have_payloads() && self.disk.was_read();
        self.sources.locate(rows, cold, fail)
    }

    fn prefetch(&self, rows: &[u64], control: &dyn Control) {
        self.sources.prefetch(rows, control);
    }

    fn fill(&self) -> Fill<'_> {
        let mut scratch = self.images.scratch();
        Box::new(move |located, task| self.fill_part(&mut scratch, located, task))
    }
}
