//! Image decoding for `LoadPlan`: read, check, decode, crop and resize one record after the other.

use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::error::damage::Damage;
use crate::error::{Error, Result};
use crate::image::Decoder;
use crate::load::images::{LoadPlan, Place};
use crate::load::loader::{LoadCounters, Making, Recipe, add};
use crate::read::payload::resized;
use crate::read::seen::Verify;
use crate::read::source::Source;

/// Payload buffers up to this size are kept for the next image.
const KEEP: usize = 16 << 20;
/// The first bytes of images stored as raw pixels.
const RAW: &[u8] = b"P6";

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// One thread's decoder, and its buffers for an encoded image.
#[allow(missing_debug_implementations)] // only loader threads hold it
pub struct ImageTools {
    decoder: Decoder,
    payload: Vec<u8>,
    /// The decompressed value, if the payload is compressed.
    value: Vec<u8>,
}

impl Recipe for LoadPlan {
    /// `None` if the record has no image to read.
    type Found = Vec<Option<Place>>;
    type Tools = ImageTools;
    const RANDOM: bool = true;

    fn rows(&self) -> u64 {
        self.sources.rows()
    }

    fn no_row(&self, row: u64) -> Error {
        self.sources.no_row(row)
    }

    fn row_bytes(&self) -> Vec<usize> {
        self.image_bytes()
    }

    fn run(&self) -> usize {
        1
    }

    fn tools(&self) -> ImageTools {
        ImageTools { decoder: Decoder::new(self.decode), payload: Vec::new(), value: Vec::new() }
    }

    fn look_up(&self, rows: &[u64], fail: &mut dyn FnMut(usize, Error)) -> Self::Found {
        let place = |(i, place): (usize, Result<Place>)| place.map_err(|error| fail(i, error)).ok();
        self.places(rows).into_iter().enumerate().map(place).collect()
    }

    fn ask_ahead(&self, rows: &[u64], stop: &dyn Fn() -> bool) {
        self.sources.ask_ahead(rows, stop);
    }

    fn make(&self, tools: &mut ImageTools, making: &mut Making<'_, Self::Found>) {
        let found = making.found;
        for row in making.part.rows.clone() {
            match &found[row] {
                Some(place) => {
                    if let Err(error) = self.make_images(tools, making, place, row) {
                        making.fail(row, error);
                    }
                }
                None => making.part.clear(row),
            }
        }
    }
}

impl LoadPlan {
    /// Reads, checks, decodes, crops and resizes the images of one record, each into its one-row
    /// part.
    fn make_images(
        &self,
        tools: &mut ImageTools,
        making: &mut Making<'_, Vec<Option<Place>>>,
        place: &Place,
        row: usize,
    ) -> Result<()> {
        let (source, batch, counters) = (&self.sources[place.source], making.batch, making.counters);
        let mut crops = self.crops(batch.seed, batch.epoch, batch.positions[row]);
        for output in self.order() {
            let extent = &place.extents[output];
            let (decoder, out) = (&mut tools.decoder, &mut *making.part.bytes[output]);
            let decode = |stored: &[u8]| {
                let parts = if extent.is_plain() {
                    stored.split_at(extent.length() as usize)
                } else {
                    (stored, &[][..]) // decompressed
                };
                crops.make(decoder, output, parts, None, out)
            };
            let memory = (&mut tools.payload, &mut tools.value);
            let made = self.with_payload(counters, memory, place, output, decode)?;
            let timings =
                made.map_err(|error| source.reader.damaged(source.fields[output], place.record, Damage::Image(error)))?;
            add(&counters.decode_nanos, nanos(timings.decode));
            add(&counters.resize_nanos, nanos(timings.resize));
        }
        add(&counters.records, 1);
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
        place: &Place,
        output: usize,
        work: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        let start = Instant::now();
        let source = &self.sources[place.source];
        let (reader, field, extent) = (&source.reader, source.fields[output], &place.extents[output]);
        let (record, length, plain) = (place.record, extent.stored as usize, extent.is_plain());
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
