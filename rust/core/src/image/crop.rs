//! `Crop` and `Geometry`: the part of an image that becomes the output, as pure functions with
//! torchvision's geometry. It reads no pixels.

use serde::Deserialize;

use super::{DecodeError, Orientation, Random};

/// Attempts at a random crop before the central one is used, as in torchvision.
const TRIES: usize = 10;

/// A rectangle of whole pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the usual names
pub struct Rect {
    pub x: u32,
    pub y: u32,
    pub width: u32,
    pub height: u32,
}

impl Rect {
    /// Returns the rectangle of a whole image.
    pub const fn whole(width: u32, height: u32) -> Self {
        Self { x: 0, y: 0, width, height }
    }

    pub(super) const fn is_empty(self) -> bool {
        self.width == 0 || self.height == 0
    }

    /// Returns the first column and row after the rectangle.
    pub(super) fn end(self) -> (u64, u64) {
        (u64::from(self.x) + u64::from(self.width), u64::from(self.y) + u64::from(self.height))
    }

    /// Returns the smallest rectangle that contains both.
    pub(super) fn around(self, other: Self) -> Self {
        let (x, y) = (self.x.min(other.x), self.y.min(other.y));
        let (end, inner) = (self.end(), other.end());
        Self { x, y, width: (end.0.max(inner.0)) as u32 - x, height: (end.1.max(inner.1)) as u32 - y }
    }

    pub(super) fn contains(self, other: Self) -> bool {
        let (end, inner) = (self.end(), other.end());
        self.x <= other.x && self.y <= other.y && inner.0 <= end.0 && inner.1 <= end.1
    }
}

/// A part of an image, and its place in the output. Pixel `(0, 0)` covers `[0, 1)` in both
/// directions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Crop {
    /// Left edge of the part that fills the target.
    pub x: f64,
    /// Top edge of the part.
    pub y: f64,
    /// Width of the part.
    pub width: f64,
    /// Height of the part.
    pub height: f64,
    /// The pixels that the resizing filter may read. This is the part itself if the image is
    /// cropped and then resized, and the whole image if it is resized and then cropped.
    pub bounds: Rect,
    /// The target area in the output. The rest of the output is black.
    pub target: Rect,
}

impl Crop {
    /// Crops whole pixels, and resizes them to `size` (width, height).
    pub fn exact(part: Rect, size: (u32, u32)) -> Self {
        Self {
            x: part.x.into(),
            y: part.y.into(),
            width: part.width.into(),
            height: part.height.into(),
            bounds: part,
            target: Rect::whole(size.0, size.1),
        }
    }

    /// Returns left, top, right and bottom of the part that the whole output of `size` (width, height)
    /// shows. Where that reaches beyond the image, the output is black.
    pub fn reach(&self, size: (u32, u32)) -> [f64; 4] {
        // An output that shows nothing of the image is not scaled.
        let target = if self.target.is_empty() { Rect::whole(size.0, size.1) } else { self.target };
        let axis = |at: f64, length: f64, to: u32, shown: u32, whole: u32| {
            let scale = length / f64::from(shown);
            let from = at - f64::from(to) * scale;
            (from, if shown == whole { from + length } else { from + f64::from(whole) * scale })
        };
        let (left, right) = axis(self.x, self.width, target.x, target.width, size.0);
        let (top, bottom) = axis(self.y, self.height, target.y, target.height, size.1);
        [left, top, right, bottom]
    }

    /// Checks that the crop lies within the image and fits the output; sizes are width, height.
    pub(crate) fn check(&self, image: (u32, u32), size: (u32, u32)) -> Result<(), DecodeError> {
        let whole = Rect::whole(image.0, image.1);
        let numbers = [self.x, self.y, self.width, self.height].into_iter().all(f64::is_finite);
        // A sum of fractions may exceed the edge by one unit in the last place.
        let inside = |at: f64, length: f64, low: u32, extent: u32| {
            let (low, extent) = (f64::from(low), f64::from(extent));
            length > 0.0 && at >= low - 1e-6 && at + length <= low + extent + 1e-6
        };
        let part = inside(self.x, self.width, self.bounds.x, self.bounds.width)
            && inside(self.y, self.height, self.bounds.y, self.bounds.height);
        if whole.contains(self.bounds)
            && Rect::whole(size.0, size.1).contains(self.target)
            && (self.target.is_empty() || numbers && part && !self.bounds.is_empty())
        {
            return Ok(());
        }
        Err(DecodeError::Crop { detail: format!("{self:?}"), width: image.0, height: image.1 })
    }

    /// Returns the same crop in the coordinates of the stored image, and its target in the output
    /// before it is turned. The given sizes belong to the shown image and to the output.
    pub(super) fn stored(&self, orientation: Orientation, image: (u32, u32), size: (u32, u32)) -> Self {
        let Orientation { transpose, mirror_x, mirror_y } = orientation;
        let mirrored = |rect: Rect, (width, height): (u32, u32)| Rect {
            x: if mirror_x { width - rect.x - rect.width } else { rect.x },
            y: if mirror_y { height - rect.y - rect.height } else { rect.y },
            ..rect
        };
        let turned = |rect: Rect| {
            let Rect { x, y, width, height } = rect;
            if transpose { Rect { x: y, y: x, width: height, height: width } } else { rect }
        };
        let bounds = turned(mirrored(self.bounds, image));
        let target = turned(mirrored(self.target, size));
        let x = if mirror_x { f64::from(image.0) - self.x - self.width } else { self.x };
        let y = if mirror_y { f64::from(image.1) - self.y - self.height } else { self.y };
        if transpose {
            Self { x: y, y: x, width: self.height, height: self.width, bounds, target }
        } else {
            Self { x, y, width: self.width, height: self.height, bounds, target }
        }
    }
}

/// Which part of an image becomes the output, and at which size; sizes are width, height in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Geometry {
    /// A random part, of random area and aspect ratio, resized to `size`.
    RandomResizedCrop {
        /// Size of the output.
        size: (u32, u32),
        /// Share of the image's area: minimum, maximum.
        scale: (f64, f64),
        /// Width over height: minimum, maximum.
        ratio: (f64, f64),
    },
    /// The whole image, resized to any aspect ratio.
    Resize {
        /// Size of the output.
        size: (u32, u32),
    },
    /// The whole image, as large as fits into the middle of the output.
    Letterbox {
        /// Size of the output.
        size: (u32, u32),
    },
    /// A part of exactly the output's size, after resizing the image in proportion, if asked, and then
    /// adding a border.
    Window {
        /// Size of the output.
        size: (u32, u32),
        /// How the image is resized first.
        resize: Option<Scaling>,
        /// Border on the left, at the top, on the right and at the bottom, in pixels.
        padding: [u32; 4],
        /// Where the part lies.
        place: Place,
    },
}

/// The size of a whole image that is resized before it is cropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scaling {
    /// Length of the shorter side, and the most for the longer one.
    Short(u32, Option<u32>),
    /// Width and height.
    Exact(u32, u32),
}

/// Where a part of an image lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// In the middle.
    Center,
    /// Anywhere.
    Random,
    /// In a corner, one for each view: left or right at the top, left or right at the bottom; then in the
    /// middle.
    Corners,
}

impl Geometry {
    /// The central part, after resizing the shorter side to `resize` pixels, if given.
    pub const fn center(size: (u32, u32), resize: Option<u32>) -> Self {
        let resize = match resize {
            Some(short) => Some(Scaling::Short(short, None)),
            None => None,
        };
        Self::Window { size, resize, padding: [0; 4], place: Place::Center }
    }

    /// A part at a random place, after adding a border of `padding` pixels on all sides.
    pub const fn random(size: (u32, u32), padding: u32) -> Self {
        Self::Window { size, resize: None, padding: [padding; 4], place: Place::Random }
    }

    /// Returns the name of its transform, which keys its random numbers.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::RandomResizedCrop { .. } => "RandomResizedCrop",
            Self::Window { place: Place::Random, .. } => "RandomCrop",
            Self::Window { place: Place::Center, .. } => "CenterCrop",
            Self::Window { place: Place::Corners, .. } => "FiveCrop",
            Self::Resize { .. } => "Resize",
            Self::Letterbox { .. } => "Letterbox",
        }
    }

    /// Returns the size of the output.
    pub const fn size(&self) -> (u32, u32) {
        match *self {
            Self::RandomResizedCrop { size, .. }
            | Self::Resize { size }
            | Self::Letterbox { size }
            | Self::Window { size, .. } => size,
        }
    }

    /// Reports whether the output may have another size than the part that it shows.
    pub const fn resizes(&self) -> bool {
        !matches!(self, Self::Window { resize: None, .. })
    }

    /// Checks that the geometry is valid.
    ///
    /// # Errors
    /// The reason as text: a side of 0, a scale or ratio that is not positive, finite and
    /// ascending, or a crop that is larger than its source.
    pub fn check(&self) -> Result<(), String> {
        check_size(self.size())?;
        let ordered = |name: &str, (low, high): (f64, f64)| {
            if low > 0.0 && low <= high && high.is_finite() {
                Ok(())
            } else {
                Err(format!("{name} from {low} to {high}: both must be above 0, the first not above the second"))
            }
        };
        match *self {
            Self::RandomResizedCrop { scale, ratio, .. } => {
                ordered("a scale", scale)?;
                ordered("a ratio", ratio)
            }
            Self::Resize { .. } | Self::Letterbox { .. } => Ok(()),
            Self::Window { resize, padding, .. } => {
                match resize {
                    Some(Scaling::Short(short, most))
                        if !(1..=65_535).contains(&short) || most.is_some_and(|most| most < short || most > 65_535) =>
                    {
                        return Err(format!("a shorter side of {short} pixels, at most {most:?} for the longer one"));
                    }
                    Some(Scaling::Exact(width, height)) => check_size((width, height))?,
                    _ => {}
                }
                if padding.iter().any(|&side| side > 65_535) {
                    return Err(format!("a border of {padding:?} pixels: each at most 65535"));
                }
                Ok(())
            }
        }
    }

    /// Draws the crop of an image of `width` times `height` pixels; `view` numbers the crops of one image.
    pub fn crop(&self, width: u32, height: u32, view: usize, random: &mut Random) -> Crop {
        let whole = Rect::whole(width, height);
        match *self {
            Self::RandomResizedCrop { size, scale, ratio } => {
                Crop::exact(random_resized(width, height, scale, ratio, random), size)
            }
            Self::Resize { size } => Crop::exact(whole, size),
            Self::Letterbox { size } => {
                let (width, height) = fitted(width, height, size);
                let target = Rect { x: (size.0 - width) / 2, y: (size.1 - height) / 2, width, height };
                Crop { target, ..Crop::exact(whole, size) }
            }
            Self::Window { size, resize, padding: [left, top, right, bottom], place } => {
                let scaled = match resize {
                    None => (width, height),
                    Some(Scaling::Short(short, most)) => resized(width, height, short, most),
                    Some(Scaling::Exact(width, height)) => (width, height),
                };
                let axis = |side: u32, wanted: u32, before: u32, after: u32, late: bool, random: &mut Random| {
                    let side = u64::from(side) + u64::from(before) + u64::from(after);
                    let room = side.saturating_sub(wanted.into());
                    let at = match place {
                        Place::Random => i64::from(random.below(u32::try_from(room + 1).unwrap_or(u32::MAX))),
                        Place::Corners if view < 4 => {
                            if late {
                                room.cast_signed()
                            } else {
                                0
                            }
                        }
                        Place::Center | Place::Corners => middle(side, wanted),
                    };
                    at - i64::from(before)
                };
                let y = axis(scaled.1, size.1, top, bottom, view / 2 % 2 == 1, random);
                let x = axis(scaled.0, size.0, left, right, view % 2 == 1, random);
                cut(whole, scaled, size, x, y)
            }
        }
    }
}

/// Checks the width and height of an output.
///
/// # Errors
/// The reason as text.
pub(crate) fn check_size((width, height): (u32, u32)) -> Result<(), String> {
    if (1..=65_535).contains(&width) && (1..=65_535).contains(&height) {
        return Ok(());
    }
    Err(format!("a size of {width} x {height}: each side must be from 1 to 65535 pixels"))
}

/// Draws the part that torchvision's `RandomResizedCrop.get_params` would choose.
///
/// It draws an area, uniform in `scale`, and an aspect ratio, uniform in its logarithm, up to ten
/// times. The first that fits is placed uniformly. If none fits, the result is the largest central
/// part with an allowed ratio.
#[allow(clippy::cast_sign_loss)] // the numbers are not negative
fn random_resized(width: u32, height: u32, scale: (f64, f64), ratio: (f64, f64), random: &mut Random) -> Rect {
    let area = f64::from(width) * f64::from(height);
    let (low, high) = (ratio.0.ln(), ratio.1.ln());
    for _ in 0..TRIES {
        let target = area * random.uniform(scale.0, scale.1);
        let aspect = random.uniform(low, high).exp();
        let (w, h) = ((target * aspect).sqrt().round_ties_even(), (target / aspect).sqrt().round_ties_even());
        if w > 0.0 && w <= f64::from(width) && h > 0.0 && h <= f64::from(height) {
            let (w, h) = (w as u32, h as u32);
            let y = random.below(height - h + 1);
            let x = random.below(width - w + 1);
            return Rect { x, y, width: w, height: h };
        }
    }
    let shape = f64::from(width) / f64::from(height);
    let (w, h) = if shape < ratio.0 {
        (width, ((f64::from(width) / ratio.0).round_ties_even() as u32).clamp(1, height))
    } else if shape > ratio.1 {
        (((f64::from(height) * ratio.1).round_ties_even() as u32).clamp(1, width), height)
    } else {
        (width, height)
    };
    Rect { x: (width - w) / 2, y: (height - h) / 2, width: w, height: h }
}

/// Returns the size after resizing the shorter side to `short` pixels, or the longer one to `most` if it
/// would be longer. The other side is in proportion and rounded down, as in torchvision's `Resize`.
pub fn resized(width: u32, height: u32, short: u32, most: Option<u32>) -> (u32, u32) {
    let part = |side: u32, by: u32, of: u32| {
        u32::try_from(u64::from(side) * u64::from(by) / u64::from(of.max(1))).unwrap_or(u32::MAX)
    };
    let long = part(width.max(height), short, width.min(height));
    let (short, long) = match most {
        Some(most) if long > most => (part(short, most, long).max(1), most),
        _ => (short, long),
    };
    if width <= height { (short, long) } else { (long, short) }
}

/// Returns the largest size of the same aspect ratio that fits.
#[allow(clippy::cast_sign_loss)] // the numbers are not negative
fn fitted(width: u32, height: u32, size: (u32, u32)) -> (u32, u32) {
    let (width, height) = (f64::from(width), f64::from(height));
    let scale = (f64::from(size.0) / width).min(f64::from(size.1) / height);
    let fit = |length: f64, most: u32| ((length * scale).round_ties_even() as u32).clamp(1, most);
    (fit(width, size.0), fit(height, size.1))
}

/// Returns half of `side - wanted`, rounded half to even as Python's `round` does. If the side is shorter,
/// the larger half of the border lies after it.
fn middle(side: u64, wanted: u32) -> i64 {
    let rest = side.cast_signed() - i64::from(wanted);
    if rest < 0 {
        return -(-rest / 2);
    }
    let half = rest / 2;
    half + (rest % 2) * (half % 2)
}

/// Returns a part of exactly the output's size at `(x, y)` of the image resized to `scaled`. It may lie
/// partly outside the image, where the output has its border.
#[allow(clippy::cast_precision_loss)] // sides are below 2^18
fn cut(whole: Rect, scaled: (u32, u32), size: (u32, u32), x: i64, y: i64) -> Crop {
    let axis = |at: i64, side: u32, wanted: u32| {
        let (start, end) = (at.max(0), (at + i64::from(wanted)).min(side.into()));
        let length = u32::try_from(end - start).unwrap_or(0);
        let number = |n: i64| u32::try_from(n.max(0)).unwrap_or(0);
        if length == 0 { (0, 0, 0) } else { (number(start), number(start - at), length) }
    };
    let (from_x, to_x, width) = axis(x, scaled.0, size.0);
    let (from_y, to_y, height) = axis(y, scaled.1, size.1);
    let part = Rect { x: from_x, y: from_y, width, height };
    let target = Rect { x: to_x, y: to_y, width, height };
    let scale = (f64::from(whole.width) / f64::from(scaled.0), f64::from(whole.height) / f64::from(scaled.1));
    if part.is_empty() {
        // Nothing of the image is shown; `reach` says where the output is.
        let (x, y) = (x as f64 * scale.0, y as f64 * scale.1);
        let (width, height) = (f64::from(size.0) * scale.0, f64::from(size.1) * scale.1);
        return Crop { x, y, width, height, bounds: part, target: Rect::whole(0, 0) };
    }
    if scaled == (whole.width, whole.height) {
        return Crop { target, ..Crop::exact(part, size) };
    }
    Crop {
        x: f64::from(part.x) * scale.0,
        y: f64::from(part.y) * scale.1,
        width: f64::from(width) * scale.0,
        height: f64::from(height) * scale.1,
        bounds: whole,
        target,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGENET: Geometry =
        Geometry::RandomResizedCrop { size: (224, 224), scale: (0.08, 1.0), ratio: (3.0 / 4.0, 4.0 / 3.0) };

    fn part(geometry: &Geometry, width: u32, height: u32, position: u64) -> Rect {
        geometry.crop(width, height, 0, &mut Random::new(0, 0, position)).bounds
    }

    #[test]
    fn the_crops_of_a_seed_never_change() {
        let rect = |(x, y, width, height)| Rect { x, y, width, height };
        assert_eq!(part(&IMAGENET, 500, 375, 0), rect((73, 170, 175, 186)));
        assert_eq!(part(&IMAGENET, 500, 375, 1), rect((33, 8, 311, 359)));
        assert_eq!(part(&IMAGENET, 1, 1, 0), rect((0, 0, 1, 1)));
        assert_eq!(part(&Geometry::random((224, 224), 0), 256, 256, 5), rect((0, 8, 224, 224)));
    }

    #[test]
    fn random_crops_lie_inside_and_keep_scale_and_ratio() {
        for (width, height) in [(500, 375), (375, 500), (64, 64), (33, 700), (700, 33), (3, 2), (1, 1), (1, 9)] {
            for position in 0..2000 {
                let rect = part(&IMAGENET, width, height, position);
                assert!(Rect::whole(width, height).contains(rect) && !rect.is_empty(), "{rect:?}");
                if width.min(height) > 60 {
                    let share = f64::from(rect.width * rect.height) / f64::from(width * height);
                    assert!((0.07..=1.0).contains(&share), "{rect:?}");
                    let ratio = f64::from(rect.width) / f64::from(rect.height);
                    assert!((0.72..=1.39).contains(&ratio), "{rect:?}");
                }
            }
        }
    }

    #[test]
    fn an_image_that_no_try_fits_gives_its_largest_central_part() {
        // 1000 x 10: at least 8 % of the area with a ratio of at most 4/3 needs a height above 10.
        assert_eq!(part(&IMAGENET, 1000, 10, 0), Rect { x: 493, y: 0, width: 13, height: 10 });
        assert_eq!(part(&IMAGENET, 10, 1000, 0), Rect { x: 0, y: 493, width: 10, height: 13 });
    }

    #[test]
    fn center_crops_are_where_torchvision_has_them() {
        let crop = |geometry: Geometry, w, h| geometry.crop(w, h, 0, &mut Random::new(0, 0, 0));
        let center = Geometry::center((224, 224), Some(256));
        // 500 x 375 becomes 341 x 256; the crop begins at column round(58.5) = 58, row 16.
        let c = crop(center, 500, 375);
        let scale = 500.0 / 341.0;
        assert_eq!((c.x, c.width), (58.0 * scale, 224.0 * scale));
        assert_eq!((c.y, c.height), (16.0 * (375.0 / 256.0), 224.0 * (375.0 / 256.0)));
        assert_eq!(c.bounds, Rect::whole(500, 375));
        // The image is smaller than the crop: it is centred, with black around it.
        let c = crop(Geometry::center((10, 10), None), 5, 20);
        assert_eq!(c.bounds, Rect { x: 0, y: 5, width: 5, height: 10 });
        assert_eq!(c.target, Rect { x: 2, y: 0, width: 5, height: 10 });
    }

    #[test]
    fn a_padded_random_crop_reaches_every_place() {
        let geometry = Geometry::random((4, 4), 1);
        let mut seen = std::collections::HashSet::new();
        for position in 0..1000 {
            let crop = geometry.crop(4, 4, 0, &mut Random::new(3, 0, position));
            assert!(Rect::whole(4, 4).contains(crop.bounds) && Rect::whole(4, 4).contains(crop.target));
            assert_eq!((crop.bounds.width, crop.bounds.height), (crop.target.width, crop.target.height));
            seen.insert((crop.bounds.x, crop.bounds.y, crop.target.x, crop.target.y));
        }
        assert_eq!(seen.len(), 9);
    }

    #[test]
    fn the_reach_of_an_output_goes_beyond_the_image_by_its_black_border() {
        let reach = |geometry: Geometry, width, height| {
            geometry.crop(width, height, 0, &mut Random::new(0, 0, 7)).reach(geometry.size())
        };
        let whole = |part: [f64; 4]| part.map(|side| side as i64);
        assert_eq!(whole(reach(Geometry::Resize { size: (7, 9) }, 50, 40)), [0, 0, 50, 40]);
        assert_eq!(whole(reach(Geometry::center((10, 10), None), 5, 20)), [-2, 5, 8, 15]);
        // Far from a small image: nothing of it is shown, and the place is still known.
        let far = Geometry::random((2, 2), 40_000);
        let [left, top, right, bottom] = whole(reach(far, 3, 3));
        assert!((right - left, bottom - top) == (2, 2) && (left.abs() > 3 || top.abs() > 3), "{left} {top}");
    }

    #[test]
    fn geometry_that_makes_no_sense_is_refused() {
        for geometry in [
            Geometry::Resize { size: (0, 224) },
            Geometry::Resize { size: (224, 70_000) },
            Geometry::center((224, 224), Some(0)),
            Geometry::RandomResizedCrop { size: (224, 224), scale: (0.0, 1.0), ratio: (0.75, 1.33) },
            Geometry::RandomResizedCrop { size: (224, 224), scale: (0.08, 1.0), ratio: (1.5, 1.33) },
            Geometry::RandomResizedCrop { size: (224, 224), scale: (0.08, f64::INFINITY), ratio: (0.75, 1.33) },
            Geometry::RandomResizedCrop { size: (224, 224), scale: (f64::NAN, 1.0), ratio: (0.75, 1.33) },
        ] {
            assert!(geometry.check().is_err(), "{geometry:?}");
        }
        assert_eq!(IMAGENET.check(), Ok(()));
    }
}
