//! The crop index of an unchanged JPEG: places where decoding can begin. It lets a decoder skip most
//! of what a crop does not need.

use super::entropy::Index;
use crate::image::decode::with_decoder;
use crate::image::probe::{Format, jpeg_info};
use crate::image::{DecodeError, DecodeOptions, Decoder};
use crate::limits::MAX_CROP_INDEX_PIXELS;

/// MCUs between two entries of a row, at first: the MCUs that are decoded for nothing.
const INTERVAL: u32 = 4;
/// The most MCUs between two entries.
const MAX_INTERVAL: u32 = 64;
/// An index has at most the JPEG's length divided by this.
const SHARE: usize = 64;
/// Images with fewer pixels have no index: decoding them whole is as fast.
const MIN_PIXELS: u64 = 96 * 96;

/// Returns the crop index of a JPEG: side bytes for
/// [`Decoder::crop_resize_side`](crate::image::Decoder::crop_resize_side). docs/format.md specifies the
/// bytes.
///
/// Returns `None` if the image gains nothing by it, or cannot have one: it is not a JPEG with one
/// scan of Huffman codes, is damaged or incomplete, small, or so simple that the index would take
/// more than 1/64 of its size.
pub fn crop_index(data: &[u8]) -> Option<Vec<u8>> {
    with_decoder(DecodeOptions::default(), |decoder| decoder.crop_index(data))
}

/// Checks that side bytes are a crop index of a JPEG, and that each entry is right.
///
/// # Errors
/// [`DecodeError::Damaged`], which says what is wrong.
pub fn check_crop_index(data: &[u8], side: &[u8]) -> Result<(), DecodeError> {
    let right = with_decoder(DecodeOptions::default(), |decoder| {
        let interval = side.get(1).copied().unwrap_or(0).into();
        (interval > 0).then(|| decoder.index_of(data, interval)?.write()).flatten()
    });
    if right.as_deref() == Some(side) {
        return Ok(());
    }
    Err(DecodeError::Damaged { format: "JPEG", detail: "its crop index does not belong to it".to_owned() })
}

impl Decoder {
    fn crop_index(&mut self, data: &[u8]) -> Option<Vec<u8>> {
        let mut index = self.index_of(data, INTERVAL)?;
        while index.interval() <= MAX_INTERVAL {
            let side = index.write()?;
            if side.len() <= data.len() / SHARE {
                return Some(side);
            }
            index.thin();
        }
        None
    }

    fn index_of(&mut self, data: &[u8], interval: u32) -> Option<Index> {
        if Format::sniff(data) != Some(Format::Jpeg) {
            return None;
        }
        let info = jpeg_info(data).ok()?;
        let size = u64::from(info.width) * u64::from(info.height);
        if !info.usual_sampling() || !(MIN_PIXELS..=MAX_CROP_INDEX_PIXELS).contains(&size) {
            return None;
        }
        self.trim();
        self.sequential.index(data, &info, interval)
    }
}
