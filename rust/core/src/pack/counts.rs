//! `ImageCounts`: counts of the images that were appended from files.

use std::collections::BTreeMap;

use crate::image::{CROP_INDEX, raw_pixels};
use crate::pack::recode::Recoded;

/// Counts of appended images.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageCounts {
    /// Images appended.
    pub images: u64,
    /// Images kept byte for byte.
    pub kept: u64,
    /// Images scaled down.
    pub smaller: u64,
    /// Images stored with a crop index, including scaled ones.
    pub crop_index: u64,
    /// JPEGs stored as packed coefficients, including scaled ones.
    pub packed: u64,
    /// Images stored as pixels, including scaled ones.
    pub raw: u64,
    /// Bytes of the input.
    pub bytes_in: u64,
    /// Bytes stored, including side bytes.
    pub bytes_out: u64,
    /// The formats that this build does not decode, with the number of images of each.
    pub foreign: BTreeMap<String, u64>,
}

impl ImageCounts {
    /// Adds the counts of further images.
    pub fn add(&mut self, other: Self) {
        self.images += other.images;
        self.kept += other.kept;
        self.smaller += other.smaller;
        self.crop_index += other.crop_index;
        self.packed += other.packed;
        self.raw += other.raw;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        for (format, images) in other.foreign {
            *self.foreign.entry(format).or_default() += images;
        }
    }

    /// Counts one image.
    pub(super) fn count(&mut self, bytes_in: usize, recoded: Option<&Recoded>, foreign: Option<String>) {
        self.images += 1;
        self.bytes_in += bytes_in as u64;
        if let Some(format) = foreign {
            *self.foreign.entry(format).or_default() += 1;
        }
        let Some(Recoded { bytes, side, smaller, packed, .. }) = recoded else {
            self.kept += 1;
            self.bytes_out += bytes_in as u64;
            return;
        };
        let length = packed.as_ref().or(bytes.as_ref()).map_or(bytes_in, Vec::len);
        self.bytes_out += (length + side.len()) as u64;
        self.packed += u64::from(packed.is_some());
        self.kept += u64::from(bytes.is_none());
        self.smaller += u64::from(*smaller);
        self.crop_index += u64::from(side.first() == Some(&CROP_INDEX));
        self.raw += u64::from(bytes.as_ref().is_some_and(|bytes| raw_pixels(bytes).is_some()));
    }
}
