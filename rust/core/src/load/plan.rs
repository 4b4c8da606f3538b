//! `LoadPlan`: what a loader's threads make of each record: images, and values stacked as they are.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::augment::{Mixing, Sample};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::image::DecodeOptions;
use crate::load::batch::{Fill, LoadCounters, Plan, Task, add};
use crate::load::images::{ImageSource, Images, Placed, Scratch, Supplied, View};
use crate::load::loader::{Load, Loader};
use crate::load::output::{ArrayPixels, Form, ImageOutput};
use crate::load::sources::{LoadFile, Located, Recent, Sources};
use crate::load::stacks::{StackOutput, Stacks};
use crate::read::seen::Verify;
use crate::sys::DiskWatch;

/// What becomes of one field of each record.
#[derive(Debug, Clone)]
pub enum Output {
    /// Images, or arrays that are treated as images: their pixels, and what is done to them.
    Image(Box<ImageOutput>),
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
    /// What is done to pairs of records.
    mixing: Option<Mixing>,
    disk: DiskWatch,
}

impl LoadPlan {
    /// Plans the outputs of each record; `decode` is how images are decoded. Each file has a field for each
    /// output, and two outputs may be of one field. Rows number the records of all files consecutively.
    ///
    /// # Errors
    /// The first file is not open, a file lacks a field for an output, an image is of a field that
    /// holds neither images nor bytes, stacked values differ in size, or an option is invalid.
    pub fn new(files: Vec<LoadFile>, outputs: &[Output], decode: DecodeOptions, verify: Verify) -> Result<Self> {
        let Some(first) = files.first().and_then(LoadFile::open) else {
            return Err(Error::Plan("a plan needs an open file".to_owned()));
        };
        let (mut images, mut sources, mut stacks, mut located) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (at, output) in outputs.iter().enumerate() {
            let field = first.field(at, outputs.len())?;
            let kind = &first.reader.schema()[field].kind;
            let mut place = || {
                located.push(at);
                located.len() - 1
            };
            match output {
                Output::Image(output) => {
                    let same = |source: &ImageSource| first.fields[source.at] == field;
                    let source = sources.iter().position(same).unwrap_or_else(|| {
                        sources.push(ImageSource { at, place: place(), array: ArrayPixels::of(kind) });
                        sources.len() - 1
                    });
                    images.push(Placed { at, output: (**output).clone(), source });
                }
                Output::Stack => {
                    let place = kind.has_payloads().then(place);
                    stacks.push(StackOutput { at, place, bytes: first.value_bytes(field)? });
                }
            }
        }
        for source in files.iter().filter_map(LoadFile::open) {
            for image in &images {
                let field = source.field(image.at, outputs.len())?;
                let kind = source.reader.kind(field);
                let fits = kind.has_payloads()
                    && match (ArrayPixels::of(kind), image.output.form) {
                        (Some(array), Form::Array(pixel)) => array.pixel == pixel,
                        (Some(array), Form::Rgb) => array.pixel == 3 && array.sample == Sample::Uint8,
                        (Some(_), _) => false,
                        (None, form) => kind.holds_bytes() && !matches!(form, Form::Array(_)),
                    };
                if !fits {
                    let expected = "images are in fields of type image or bytes, or arrays (height, width, channels)";
                    return Err(source.reader.wrong_type(field, expected));
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
        let images = Images::new(images, sources, decode, verify)?;
        let mut row_bytes = vec![0; outputs.len()];
        images.row_bytes().chain(stacks.iter().map(|stack| (stack.at, stack.bytes))).for_each(|(at, bytes)| {
            row_bytes[at] = bytes;
        });
        let (sources, stacks) = (Sources::new(files, located)?, Stacks::new(stacks, verify));
        Ok(Self { sources, images, stacks, row_bytes, mixing: None, disk: DiskWatch::default() })
    }

    /// Also mixes the images of pairs of records, of the first image output.
    ///
    /// # Errors
    /// It has no floats, or several views.
    pub fn mixed(self, mixing: Mixing) -> Result<Self> {
        if self.images.mixed().is_none() {
            return Err(Error::Plan("what is mixed is an output of floats, of one view".to_owned()));
        }
        Ok(Self { mixing: Some(mixing), ..self })
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

    /// Returns the number of views of each image output.
    pub fn image_views(&self) -> Vec<usize> {
        self.images.counts()
    }

    /// Returns the part of its source that each view of each image output of a loaded batch shows, row by row: `None`
    /// for a row without images. They are computed here, from what decides them.
    pub fn views(&self, load: &Load) -> Vec<Option<Vec<Vec<View>>>> {
        self.images.views(load.batch())
    }

    /// Makes the images of a row as the threads do, some of them from data that the caller supplies. Returns the row of
    /// each image output.
    ///
    /// # Errors
    /// A value cannot be read; an image cannot be processed.
    pub fn make_of(
        &self,
        load: &Load,
        row: usize,
        supplied: &[Supplied<'_>],
        counters: &LoadCounters,
    ) -> Result<Vec<Vec<u8>>> {
        let batch = load.batch();
        let place = batch.located.get().and_then(|located| Some((located, (*located.rows.get(row)?)?)));
        let Some((located, (file, record))) = place else {
            return Err(Error::Plan(format!("row {row} of the batch was not found")));
        };
        let mut made: Vec<Vec<u8>> = self.row_bytes.iter().map(|&bytes| vec![0; bytes]).collect();
        let mut out: Vec<&mut [u8]> = made.iter_mut().map(Vec::as_mut_slice).collect();
        let (mut scratch, mut recent) = (self.images.scratch(), Recent::new(&self.sources));
        let source = recent.source(file)?;
        let work = (batch, located, counters);
        self.images.make(&mut scratch, source, work, (record, row), supplied, &mut out)?;
        // The threads have counted it as a failure.
        add(&counters.records, 1);
        counters.failures.fetch_sub(1, Ordering::Relaxed);
        let images: Vec<usize> = self.images.row_bytes().map(|(at, _)| at).collect();
        Ok(images.into_iter().map(|at| std::mem::take(&mut made[at])).collect())
    }

    /// Fills a part.
    fn fill_part(&self, scratch: &mut Scratch, located: &Located, task: &mut Task<'_>) {
        let mut recent = Recent::new(&self.sources);
        let mut rows = self.stacks.fill(&mut recent, located, task);
        if !self.images.is_empty() {
            rows.retain(|&row| {
                let place = located.rows[row].unwrap_or_default();
                let made = recent.source(place.0).and_then(|source| {
                    let work = (task.batch, located, task.counters);
                    self.images.make(scratch, source, work, (place.1, row), &[], &mut task.part.bytes)
                });
                // Its stacked values stay, for a caller that makes the images in another way.
                made.map_err(|error| self.images.fail(task, row, error)).is_ok()
            });
        }
        add(&task.counters.records, rows.len() as u64);
        if let (Some(mixing), false) = (&self.mixing, rows.is_empty()) {
            self.images.mix(mixing, task);
        }
    }
}

impl Plan for LoadPlan {
    fn images(&self) -> usize {
        self.images.len()
    }

    fn mixes(&self) -> bool {
        self.mixing.is_some()
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
