//! `ImageOutput`: what becomes of the images or arrays of one field, as `fastrecord.transforms` describes
//! it in JSON.

use serde::Deserialize;

use crate::augment::{Interpolation, Recipe, Sample, ToFloat};
use crate::format::dtype::DType;
use crate::format::field_type::FieldType;
use crate::image::{Filter, Geometry, Native, check_size};

/// The description, as it is read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    stream: String,
    count: u64,
    geometry: Option<Geometry>,
    like: Option<usize>,
    size: (u32, u32),
    filter: Filter,
    nearest: bool,
    may_be_mask: bool,
    fill: Vec<u8>,
    form: Form,
    recipe: Recipe,
}

/// What the pixels of an output are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Form {
    /// Red, green and blue, of 8 bits.
    Rgb,
    /// One channel of 8 bits. All operations treat it as three equal channels.
    Grey,
    /// One number of 1 or 2 bytes: a mask.
    Index(usize),
    /// Red, green, blue and alpha, of 8 bits.
    Rgba,
    /// One channel or three, of 16 bits.
    Deep(usize),
    /// The values of an array (height, width, ...): the bytes of a pixel.
    Array(usize),
}

/// An output of images, or of arrays that are cropped as images.
#[derive(Debug, Clone)]
pub struct ImageOutput {
    /// What decides its crop; none for an output that follows another.
    pub(super) geometry: Option<Geometry>,
    /// The number of the output, among those of images, that it follows.
    pub(super) like: Option<usize>,
    /// Width and height.
    pub(super) size: (u32, u32),
    pub(super) filter: Filter,
    /// Whether pixels are copied from the nearest one, not blended.
    pub(super) nearest: bool,
    /// Whether an image that may be a mask is accepted.
    pub(super) may_be_mask: bool,
    /// The pixel where there is nothing of the image.
    pub(super) fill: Vec<u8>,
    pub(super) form: Form,
    /// What is done to the pixels, for each view.
    pub(super) views: Vec<Recipe>,
}

impl ImageOutput {
    /// Reads a description.
    ///
    /// # Errors
    /// What is wrong.
    pub fn new(json: &str) -> Result<Self, String> {
        let Described { stream, count, geometry, like, size, filter, nearest, may_be_mask, fill, form, recipe } =
            serde_json::from_str(json).map_err(|error| error.to_string())?;
        if geometry.is_some() == like.is_some() {
            return Err("an output has a crop of its own, or follows another".to_owned());
        }
        if !(1..=4096).contains(&count) {
            return Err(format!("{count} views of an image"));
        }
        recipe.check()?;
        let views = (0..count).map(|view| recipe.clone().keyed(&stream, view)).collect();
        let made = Self { geometry, like, size, filter, nearest, may_be_mask, fill, form, views };
        let Some(to_float) = made.to_float() else { return made.checked() };
        let channels = to_float.mean.len();
        let fits = match made.form.channels() {
            Some(wanted) => channels == wanted,
            None => (1..=4096).contains(&channels),
        };
        if !fits || to_float.std.len() != channels {
            return Err(format!("ToFloat has statistics of {channels} channels"));
        }
        made.checked()
    }

    fn checked(self) -> Result<Self, String> {
        check_size(self.size)?;
        if self.fill.len() != self.form.pixel() {
            return Err(format!("a fill of {} bytes for pixels of {}", self.fill.len(), self.form.pixel()));
        }
        let Some(geometry) = &self.geometry else { return Ok(self) };
        geometry.check()?;
        if geometry.size() == self.size { Ok(self) } else { Err("a crop of another size".to_owned()) }
    }

    pub(super) fn to_float(&self) -> Option<&ToFloat> {
        self.views.first().and_then(|recipe| recipe.to_float.as_ref())
    }

    /// Returns width and height.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.size.0 as usize, self.size.1 as usize)
    }

    /// Returns the bytes of one view.
    pub(super) fn view_bytes(&self) -> usize {
        let pixel = self.to_float().map_or(self.form.pixel(), |to| to.mean.len() * to.dtype.size());
        pixel * self.size().0 * self.size().1
    }

    /// Returns the bytes of a row of the batch: all views.
    pub(super) fn bytes(&self) -> usize {
        self.views.len() * self.view_bytes()
    }

    /// Returns how pixels between others are found when they are moved.
    pub(super) fn interpolation(&self) -> Interpolation {
        if self.nearest { Interpolation::Nearest } else { Interpolation::Bilinear }
    }
}

impl Form {
    /// Returns the bytes of a pixel.
    pub(super) fn pixel(self) -> usize {
        match self {
            Self::Rgb => 3,
            Self::Grey => 1,
            Self::Rgba => 4,
            Self::Index(bytes) | Self::Array(bytes) => bytes,
            Self::Deep(channels) => 2 * channels,
        }
    }

    /// Returns the number of channels; `None` for arrays.
    fn channels(self) -> Option<usize> {
        match self {
            Self::Rgb => Some(3),
            Self::Grey | Self::Index(_) => Some(1),
            Self::Rgba => Some(4),
            Self::Deep(channels) => Some(channels),
            Self::Array(_) => None,
        }
    }

    /// Reports whether its pixels are decoded to RGB of 8 bits, and all operations can follow.
    pub(super) fn is_plain(self) -> bool {
        matches!(self, Self::Rgb | Self::Grey)
    }

    /// Returns how such pixels are decoded, if not as RGB, and the type of their values.
    pub(super) fn native(self) -> Option<(Native, Sample)> {
        match self {
            Self::Rgb | Self::Grey | Self::Array(_) => None,
            Self::Index(bytes) => Some((Native::Index(bytes), if bytes == 1 { Sample::Uint8 } else { Sample::Uint16 })),
            Self::Rgba => Some((Native::Rgba, Sample::Uint8)),
            Self::Deep(channels) => Some((Native::Deep(channels), Sample::Uint16)),
        }
    }
}

/// The pixels of an array field: (height, width) of its shape, and what is one pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ArrayPixels {
    /// Bytes of a pixel.
    pub(super) pixel: usize,
    pub(super) sample: Sample,
}

impl ArrayPixels {
    /// Returns the pixels of a field's arrays, (H, W) or (H, W, C); `None` if they have none.
    pub(super) fn of(kind: &FieldType) -> Option<Self> {
        let FieldType::Array(array) = kind else { return None };
        let channels = match *array.shape() {
            [_, _] => 1,
            [_, _, Some(channels)] if channels > 0 => usize::try_from(channels).ok()?,
            _ => return None,
        };
        let sample = match array.dtype() {
            DType::UInt8 => Sample::Uint8,
            DType::UInt16 => Sample::Uint16,
            DType::Float32 => Sample::Float32,
            _ => Sample::Other,
        };
        Some(Self { pixel: channels * array.dtype().size(), sample })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_whose_parts_contradict_each_other_is_refused() {
        let read = |size: &str, count: u32, after: &str| {
            ImageOutput::new(&format!(
                r#"{{"stream": "mask", "count": {count}, "geometry": null, "like": 0, "size": {size}, "filter": "bilinear",
                "nearest": true, "may_be_mask": true, "fill": [0], "form": {{"index": 1}},
                "recipe": {{"operations": [], "to_float": null, "after": [{after}]}}}}"#
            ))
        };
        assert_eq!(read("[7, 5]", 2, "").unwrap().bytes(), 2 * 7 * 5);
        for (size, count, after, reason) in [
            ("[0, 5]", 1, "", "a size of 0 x 5"),
            ("[7, 65536]", 1, "", "a size of 7 x 65536"),
            ("[7, 5]", 0, "", "0 views"),
            ("[7, 5]", 1, r#"{"op": "RandomInvert", "p": 1.0}"#, "only RandomErasing"),
        ] {
            let error = read(size, count, after).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
