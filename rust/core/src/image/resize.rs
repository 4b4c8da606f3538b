//! Resizing with Pillow's method: antialiased, first across and then down, each rounded to 8 bits.

use fast_image_resize::images::{TypedCroppedImage, TypedCroppedImageMut, TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};

use super::{DecodeError, Rect};

/// The filter for resizing. Its support is in the larger of input and output pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Filter {
    /// A triangle, 1 pixel to each side: torchvision's default.
    #[default]
    Bilinear,
    /// The Catmull-Rom cubic, 2 pixels to each side.
    Bicubic,
    /// The Lanczos windowed sinc, 3 pixels to each side.
    Lanczos,
    /// The mean of the pixels that an output pixel covers.
    Box,
}

impl Filter {
    const fn kind(self) -> FilterType {
        match self {
            Self::Bilinear => FilterType::Bilinear,
            Self::Bicubic => FilterType::CatmullRom,
            Self::Lanczos => FilterType::Lanczos3,
            Self::Box => FilterType::Box,
        }
    }

    /// Returns the support in pixels to each side.
    pub(super) const fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
            Self::Box => 0.5,
        }
    }
}

/// Decoded pixels, and the part to resize.
pub(super) struct Source<'a> {
    pub(super) pixels: &'a [u8],
    pub(super) width: u32,
    pub(super) height: u32,
    /// The pixels that the filter may read.
    pub(super) bounds: Rect,
    /// The part that fills the target: left, top, width, height, in these pixels.
    pub(super) part: [f64; 4],
}

impl Source<'_> {
    /// Returns the part as whole pixels, if it needs no resizing.
    pub(super) fn unscaled(&self, target: Rect) -> Option<Rect> {
        let [left, top, width, height] = self.part;
        #[allow(clippy::float_cmp)] // whole numbers are exact
        let same = (width, height) == (f64::from(target.width), f64::from(target.height))
            && left.fract() == 0.0
            && top.fract() == 0.0;
        #[allow(clippy::cast_sign_loss)] // within the bounds, which are checked
        let part = Rect { x: left.max(0.0) as u32, y: top.max(0.0) as u32, width: target.width, height: target.height };
        (same && Rect::whole(self.width, self.height).contains(part)).then_some(part)
    }
}

/// Resizes the source's part into `target` of `out`, which has rows of `out_width` pixels.
pub(super) fn resize(
    resizer: &mut Resizer,
    filter: Filter,
    source: &Source<'_>,
    out: &mut [u8],
    out_width: u32,
    target: Rect,
) -> Result<(), DecodeError> {
    let Source { pixels, width, height, bounds, part: [left, top, part_width, part_height] } = *source;
    let internal = |e: &dyn std::fmt::Display| DecodeError::Internal { detail: format!("resize: {e}") };
    let image = TypedImageRef::<U8x3>::from_buffer(width, height, pixels).map_err(|e| internal(&e))?;
    let view = TypedCroppedImage::new(image, bounds.x, bounds.y, bounds.width, bounds.height);
    let view = view.map_err(|e| internal(&e))?;
    // A sum of fractions may exceed the edge by one unit in the last place.
    let axis = |start: f64, length: f64, offset: u32, limit: u32| {
        let limit = f64::from(limit);
        let start = (start - f64::from(offset)).clamp(0.0, limit);
        (start, length.min(limit - start))
    };
    let (x, w) = axis(left, part_width, bounds.x, bounds.width);
    let (y, h) = axis(top, part_height, bounds.y, bounds.height);
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter.kind())).crop(x, y, w, h);
    let rows = u32::try_from(out.len() / (3 * out_width.max(1) as usize)).unwrap_or(u32::MAX);
    let mut out = TypedImage::<U8x3>::from_buffer(out_width, rows, out).map_err(|e| internal(&e))?;
    if target == Rect::whole(out_width, rows) {
        return resizer.resize_typed(&view, &mut out, &options).map_err(|e| internal(&e));
    }
    let target = TypedCroppedImageMut::new(out, target.x, target.y, target.width, target.height);
    resizer.resize_typed(&view, &mut target.map_err(|e| internal(&e))?, &options).map_err(|e| internal(&e))
}
