//! `pack_jpeg` and `unpack_jpeg`: between a JPEG and its packed form, byte for byte.

use std::cell::RefCell;

use super::{Packed, pack};
use crate::image::jpeg::ffi::{Format as ColourFormat, Jpeg};
use crate::image::jpeg::restore::{Splitter, restore};
use crate::image::jpeg::rows::RowDecoder;
use crate::image::jpeg::zigzag::ZigzagBlock;
use crate::image::probe::Format;

/// A packed JPEG has at most the JPEG's length and this share of it more. JPEGs with few bits per pixel
/// would grow most, and gain least.
const GROWTH: usize = 2;
/// Memory up to this size, in bytes, is kept for the next image.
const KEEP: usize = 32 << 20;

/// The memory of a thread.
#[derive(Default)]
struct Memory {
    splitter: Splitter,
    blocks: Vec<ZigzagBlock>,
    restored: Vec<u8>,
    headers: Vec<u8>,
    rows: Option<RowDecoder>,
}

impl Memory {
    fn trim(&mut self) {
        let blocks = size_of::<ZigzagBlock>() * self.blocks.capacity();
        if self.splitter.memory() + blocks + self.restored.capacity() > KEEP {
            *self = Self::default();
        }
    }

    fn pack(&mut self, data: &[u8]) -> Option<Vec<u8>> {
        let split = self.splitter.split(data)?;
        let mut packed = Vec::new();
        packed.try_reserve_exact(data.len() + data.len() / 4).ok()?;
        pack(split.headers, split.ones, split.blocks, &mut packed)?;
        let fits = packed.len() <= data.len() + data.len() / GROWTH;
        // Every byte must come back from what will be stored.
        let good = fits && self.is_decoded(&packed) && self.restore(&packed, data.len()).is_some();
        (good && self.restored == data).then_some(packed)
    }

    /// Reports whether libjpeg-turbo takes the headers: what it refuses must not become readable, and what it
    /// warns of not unreadable.
    fn is_decoded(&mut self, packed: &[u8]) -> bool {
        let started = Packed::read(packed).and_then(|packed| {
            packed.write_headers(&mut self.headers)?;
            RowDecoder::kept(&mut self.rows)?.start(&self.headers, 1, ColourFormat::of(&packed.info)).map(drop)
        });
        started.is_some()
    }

    /// Makes the JPEG, of so many bytes, to `restored`.
    fn restore(&mut self, packed: &[u8], length: usize) -> Option<()> {
        let packed = Packed::read(packed)?;
        packed.blocks(&mut self.blocks)?;
        self.restored.clear();
        restore(packed.headers, packed.ones, &self.blocks, &mut self.restored, length)
    }
}

thread_local! {
    static MEMORY: RefCell<Memory> = RefCell::default();
}

/// Returns the packed form of a JPEG, from which each of its bytes can be restored. docs/format.md specifies
/// it.
///
/// Returns `None` if there is none, and the JPEG should be stored as it is: it is not a JPEG with Huffman codes
/// of 8 bits, is damaged or incomplete, would grow by more than half, or its encoder did not follow the usual
/// rules.
pub fn pack_jpeg(data: &[u8]) -> Option<Vec<u8>> {
    if Format::sniff(data) != Some(Format::Jpeg) {
        return None;
    }
    Jpeg::open(data).ok()?;
    MEMORY.with_borrow_mut(|memory| {
        let packed = memory.pack(data);
        memory.trim();
        packed
    })
}

/// Restores a JPEG from its packed form into memory of exactly its size.
///
/// # Errors
/// The packed form makes no sense, or is of another JPEG; as text.
pub fn unpack_jpeg(packed: &[u8], out: &mut [u8]) -> Result<(), String> {
    let made = MEMORY.with_borrow_mut(|memory| {
        let made = memory.restore(packed, out.len());
        if made.is_some() {
            out.copy_from_slice(&memory.restored); // as long as was asked for
        }
        memory.trim();
        made
    });
    if made.is_some() { Ok(()) } else { Err(format!("it is not a packed JPEG of {} bytes", out.len())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{JpegOptions, Subsampling, encode_jpeg};

    fn pixels(count: usize) -> Vec<u8> {
        (0..count as u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect()
    }

    #[test]
    fn all_kinds_of_jpegs_come_back_byte_for_byte() {
        let (mut images, mut bytes, mut stored) = (0, 0, 0);
        for (width, height) in [(1, 1), (16, 16), (17, 9), (100, 80), (640, 48)] {
            for subsampling in
                [Subsampling::S444, Subsampling::S422, Subsampling::S420, Subsampling::S440, Subsampling::S411]
            {
                for (progressive, restart_every, quality, channels) in
                    [(false, 0, 90, 3), (false, 3, 100, 3), (true, 0, 75, 3), (true, 5, 95, 3), (false, 0, 80, 4)]
                {
                    let options = JpegOptions { quality, subsampling, progressive, restart_every };
                    let data = pixels(channels * width * height);
                    let mut jpeg = encode_jpeg(&data, width as u32, height as u32, &options).unwrap();
                    jpeg.extend(b"after the end"); // cameras write further images there
                    let Some(packed) = pack_jpeg(&jpeg) else {
                        assert!(jpeg.len() < 2000, "{options:?} of {width} x {height}"); // grows too much
                        continue;
                    };
                    let mut out = vec![0; jpeg.len()];
                    unpack_jpeg(&packed, &mut out).unwrap();
                    assert!(out == jpeg, "{options:?} of {width} x {height}");
                    (images, bytes, stored) = (images + 1, bytes + jpeg.len(), stored + packed.len());
                    for wrong in [jpeg.len() - 1, jpeg.len() + 1] {
                        assert!(unpack_jpeg(&packed, &mut vec![0; wrong]).is_err());
                    }
                    for end in (0..packed.len()).step_by(packed.len() / 20 + 1) {
                        assert!(unpack_jpeg(&packed[..end], &mut out).is_err());
                    }
                }
            }
        }
        assert!(images > 100 && stored < bytes * 3 / 2, "{images} images, {stored} of {bytes} bytes");
    }

    #[test]
    fn what_cannot_be_restored_is_not_packed() {
        let jpeg = encode_jpeg(&pixels(3 * 100 * 80), 100, 80, &JpegOptions::default()).unwrap();
        assert!(pack_jpeg(&jpeg).is_some());
        assert_eq!(pack_jpeg(&jpeg[..jpeg.len() / 2]), None);
        assert_eq!(pack_jpeg(b"P6\n1 1\n255\nabc"), None);
        assert_eq!(pack_jpeg(b""), None);
        assert_eq!(pack_jpeg(&pack_jpeg(&jpeg).unwrap()), None);
    }
}
