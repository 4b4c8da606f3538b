//! `follow`: the crop of an image that shows the same content as the crop of another image.

use crate::error::decode::DecodeError;
use crate::image::{Crop, Rect};

/// The crop of the leading image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lead {
    /// Width and height of the image.
    pub(crate) image: (u32, u32),
    pub(crate) crop: Crop,
    /// Width and height of its output.
    pub(crate) size: (u32, u32),
    /// Whether its output may have another size than the part that it shows.
    pub(crate) scaled: bool,
}

/// Returns the part of an image that shows the same content as the leading crop, for an output of that
/// size. `nearest`: its pixels are copied, not blended.
///
/// # Errors
/// Whole pixels of one image are not whole pixels of the other, and no resizing was requested.
pub(crate) fn follow(
    lead: &Lead,
    image: (u32, u32),
    size: (u32, u32),
    nearest: bool,
) -> std::result::Result<Crop, DecodeError> {
    let Lead { image: (lead_width, lead_height), crop, size: lead_size, scaled: resizes } = *lead;
    let x = (f64::from(image.0) / f64::from(lead_width), f64::from(size.0) / f64::from(lead_size.0));
    let y = (f64::from(image.1) / f64::from(lead_height), f64::from(size.1) / f64::from(lead_size.1));
    let unfit = |why: &str| {
        let detail = format!(
            "the images of the record do not match: {lead_width} x {lead_height} becomes {} x {}, but {} x {} becomes \
             {} x {}: {why}",
            lead_size.0, lead_size.1, image.0, image.1, size.0, size.1
        );
        Err(DecodeError::Pair { detail })
    };
    let differ = |(images, outputs): (f64, f64)| (images - outputs).abs() > 1e-9 * outputs;
    if !resizes && !nearest && (differ(x) || differ(y)) {
        return unfit("a crop that is not resized needs images in the same ratio as the outputs");
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
            return unfit("the black border is not a whole number of pixels wide");
        }
        target
    };
    let nothing = target.width == 0 || target.height == 0;
    let bounds = if nothing { Rect::whole(0, 0) } else { scaled(crop.bounds, x.0, y.0, image) };
    let crop =
        Crop { x: crop.x * x.0, y: crop.y * y.0, width: crop.width * x.0, height: crop.height * y.0, bounds, target };
    Ok(crop)
}
