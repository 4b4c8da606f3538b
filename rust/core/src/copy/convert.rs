//! `Conversion`: images that change their form while they are copied. Several threads convert ahead,
//! while the calling thread writes in order. No pixel is decoded.

use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use crate::codec::Codec;
use crate::control::Control;
use crate::copy::pieces::Piece;
use crate::error::{Error, Result};
use crate::format::crc::crc32c;
use crate::format::extent::{EXTENT_LEN, Extent};
use crate::format::schema::FieldIndex;
use crate::image::pack_jpeg;
use crate::parallel::ordered::{CloseOnDrop, OrderedQueue};
use crate::parallel::pool;
use crate::read::payload::resized;
use crate::read::reader::Reader;
use crate::write::output::Output;

/// Maximum number of images, and of their bytes, that wait in memory to be written.
const AHEAD: usize = 256;
const AHEAD_BYTES: usize = 32 << 20;
/// Bytes between two reports.
const REPORT: u64 = 8 << 20;

/// The form that images get in a copy. Their values stay the same, byte for byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conversion {
    /// JPEGs are stored as packed coefficients, without a crop index. Other images, and JPEGs that
    /// would not come back the same, stay as they are.
    Pack,
    /// Packed JPEGs are stored as the files that they were.
    Restore,
}

/// Counts of images that a conversion was about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConversionCounts {
    /// Images that changed their form.
    pub converted: u64,
    /// Images that were to be packed, and stay as they are.
    pub unchanged: u64,
}

impl Conversion {
    /// Reports whether an image that is stored so is to be converted.
    pub(super) fn concerns(self, extent: &Extent) -> bool {
        !extent.missing && extent.is_plain() == (self == Self::Pack)
    }
}

/// An image as it is stored from now on. Its place is not known yet.
struct Made {
    bytes: Vec<u8>,
    extent: Extent,
    converted: bool,
}

/// The images of a window.
pub(super) struct Convert<'a> {
    pub source: &'a Reader,
    pub output: &'a mut Output,
    pub conversion: Conversion,
    /// The alignment of each column's payloads.
    pub alignments: &'a [u64],
    /// Whether a damaged image is an error. Otherwise it is copied as it is stored.
    pub verify: bool,
    /// The field and record of a piece.
    pub name: &'a (dyn Fn(&Piece) -> (FieldIndex, u64) + Sync),
    pub control: &'a dyn Control,
    /// The offset at which the copy began.
    pub start: u64,
}

impl Convert<'_> {
    /// Converts images in the given order and writes their new extents into `entries`, one buffer per
    /// column. Returns for each piece whether it changed.
    pub(super) fn run(
        self,
        pieces: &[Piece],
        entries: &mut [Vec<u8>],
        counts: &mut ConversionCounts,
    ) -> Result<Vec<bool>> {
        // Several records may share an image.
        let images: Vec<&[Piece]> = pieces.chunk_by(|a, b| (a.offset, a.stored) == (b.offset, b.stored)).collect();
        let extents: Vec<Extent> =
            images.iter().map(|same| extent_of(&same[0], entries, self.source)).collect::<Result<_>>()?;
        let queue = OrderedQueue::new(images.len(), AHEAD, AHEAD_BYTES, 1);
        let Self { source, output, conversion, alignments, verify, name, control, start } = self;
        let one = |number: usize| {
            let (field, record) = name(&images[number][0]);
            convert(source, field, record, &extents[number], conversion, verify)
        };
        let serve = || {
            while let Some(numbers) = queue.claim() {
                for number in numbers {
                    let made = catch_unwind(AssertUnwindSafe(|| one(number)));
                    let made = made.unwrap_or(Err(Error::Internal("converting an image panicked")));
                    let bytes = made.as_ref().map_or(0, |made| made.bytes.len());
                    queue.put(number, made, bytes);
                }
            }
        };
        thread::scope(|scope| {
            let _close = CloseOnDrop(&queue);
            for number in 0..pool::default_threads().min(images.len()) {
                let builder = thread::Builder::new().name(format!("fastrecord-convert-{number}"));
                if let Err(error) = builder.spawn_scoped(scope, serve) {
                    if number == 0 {
                        return Err(Error::Threads(error));
                    }
                    break;
                }
            }
            let (mut changed, mut reported) = (Vec::with_capacity(pieces.len()), output.position());
            for same in &images {
                let Made { bytes, mut extent, converted } = queue.take(control)??;
                let alignment = alignments.get(same[0].column as usize).copied().unwrap_or(1);
                output.pad(if extent.is_plain() { alignment } else { 1 })?;
                extent.offset = output.position();
                output.put(&bytes)?;
                for piece in *same {
                    entry_of(piece, entries)?.copy_from_slice(&extent.encode());
                    changed.push(converted);
                }
                *(if converted { &mut counts.converted } else { &mut counts.unchanged }) += same.len() as u64;
                if output.position() - reported >= REPORT {
                    reported = output.position();
                    control.report_and_check(reported - start)?;
                }
            }
            Ok(changed)
        })
    }
}

fn entry_of<'a>(piece: &Piece, entries: &'a mut [Vec<u8>]) -> Result<&'a mut [u8; EXTENT_LEN]> {
    let column = entries.get_mut(piece.column as usize);
    let entry = column.and_then(|column| column.as_chunks_mut().0.get_mut(piece.entry as usize));
    entry.ok_or(Error::Internal("a payload of a copy has no entry"))
}

/// The extent of an image, which was checked before.
fn extent_of(piece: &Piece, entries: &mut [Vec<u8>], source: &Reader) -> Result<Extent> {
    Extent::decode(entry_of(piece, entries)?, source.data_end()).ok_or(Error::Internal("an extent was good before"))
}

/// Reads an image and converts it.
fn convert(
    source: &Reader,
    field: FieldIndex,
    record: u64,
    extent: &Extent,
    to: Conversion,
    verify: bool,
) -> Result<Made> {
    let mut stored = Vec::new();
    resized(&mut stored, extent.stored)?;
    source.file().read_exact_at(&mut stored, extent.offset).map_err(|e| source.failed_read(field, record, e))?;
    let good = source.check_crc(field, record, extent, &stored);
    let made = good.and_then(|()| match to {
        Conversion::Pack => Ok(pack_jpeg(&stored[..extent.length() as usize])),
        Conversion::Restore => {
            let mut value = Vec::new();
            resized(&mut value, extent.length())?;
            source.decompress(field, record, extent, &stored, &mut value).map(|()| Some(value))
        }
    });
    let made = match made {
        Ok(made) => made,
        Err(error) if verify => return Err(error),
        // It stays as it is: `verify` finds it in the copy as well.
        Err(_) => None,
    };
    Ok(match made {
        Some(bytes) => {
            let codec = if to == Conversion::Pack { Codec::PackedJpeg } else { Codec::None };
            let (length, crc) = (bytes.len() as u64, crc32c(&bytes));
            Made {
                bytes,
                extent: Extent { offset: 0, stored: length, raw: extent.raw, crc, codec, missing: false },
                converted: true,
            }
        }
        None => Made { bytes: stored, extent: *extent, converted: false },
    })
}
