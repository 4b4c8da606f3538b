//! `Step`: what is done to one image, with every number decided.

use serde::{Deserialize, Serialize};

use super::canvas::Canvas;
use super::matrix::{IDENTITY, Matrix};
use super::warp::{Interpolation, Warp, inverse_affine};
use super::{blur, flip, grey, hue, mix, sharpness, tone};

/// A change of an image. A record's steps are a pure function of its position, so that they can be
/// computed again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
#[allow(missing_docs)] // torchvision's names
pub enum Step {
    HorizontalFlip,
    VerticalFlip,
    Brightness {
        factor: f64,
    },
    Contrast {
        factor: f64,
    },
    Saturation {
        factor: f64,
    },
    Hue {
        factor: f64,
    },
    Sharpness {
        factor: f64,
    },
    Grayscale,
    Posterize {
        bits: u32,
    },
    Solarize {
        threshold: f64,
    },
    Invert,
    Autocontrast,
    Equalize,
    /// Sizes in pixels, x first.
    Blur {
        kernel: (usize, usize),
        sigma: (f64, f64),
    },
    /// Degrees and pixels, x first. Without a centre it turns around the middle.
    Affine {
        angle: f64,
        translate: (f64, f64),
        scale: f64,
        shear: (f64, f64),
        center: Option<(f64, f64)>,
        interpolation: Interpolation,
        fill: Option<[u8; 3]>,
    },
    Perspective {
        coefficients: [f64; 8],
        interpolation: Interpolation,
        fill: Option<[u8; 3]>,
    },
    /// The sum of the image and of what each chain makes of it, weighted.
    Mix {
        own: f64,
        chains: Vec<(f64, Vec<Step>)>,
    },
    /// A part gets one colour: in bytes, or in floats after their conversion.
    Erase {
        x: usize,
        y: usize,
        width: usize,
        height: usize,
        value: [f64; 3],
    },
}

impl Step {
    /// Applies steps one after the other. Neighbours that change each value on its own do it in one pass.
    pub fn apply_all(steps: &[Self], canvas: &mut Canvas) {
        for run in steps.chunk_by(|one, next| one.is_map() && next.is_map()) {
            match run {
                [step] => step.apply(canvas),
                run => tone::map(canvas.pixels_mut(), |values| run.iter().for_each(|step| step.map(values))),
            }
        }
    }

    /// Reports whether what becomes of a value depends on nothing else.
    fn is_map(&self) -> bool {
        matches!(self, Self::Brightness { .. } | Self::Posterize { .. } | Self::Solarize { .. } | Self::Invert)
    }

    /// Changes values, if what becomes of them depends on nothing else.
    fn map(&self, values: &mut [u8]) {
        match *self {
            Self::Brightness { factor } => tone::brightness(values, factor),
            Self::Posterize { bits } => tone::posterize(values, bits),
            Self::Solarize { threshold } => tone::solarize(values, threshold),
            Self::Invert => tone::invert(values),
            _ => {}
        }
    }

    /// Changes the image.
    pub fn apply(&self, canvas: &mut Canvas) {
        match *self {
            // What has one channel has no colour.
            Self::Saturation { .. } | Self::Hue { .. } | Self::Grayscale if canvas.is_single() => {}
            Self::HorizontalFlip => flip::horizontal(canvas),
            Self::VerticalFlip => flip::vertical(canvas),
            Self::Contrast { factor } => tone::contrast(canvas, factor),
            Self::Saturation { factor } => grey::saturation(canvas, factor),
            Self::Hue { factor } => hue::hue(canvas, factor),
            Self::Sharpness { factor } => sharpness::sharpness(canvas, factor),
            Self::Grayscale => grey::grayscale(canvas),
            Self::Brightness { .. } | Self::Posterize { .. } | Self::Solarize { .. } | Self::Invert => {
                tone::map(canvas.pixels_mut(), |values| self.map(values));
            }
            Self::Autocontrast => tone::autocontrast(canvas),
            Self::Equalize => tone::equalize(canvas),
            Self::Blur { kernel, sigma } => blur::blur(canvas, kernel, sigma),
            Self::Affine { .. } | Self::Perspective { .. } => {
                if let Some(warp) = self.warp(canvas.size()) {
                    warp.apply(canvas);
                }
            }
            Self::Mix { own, ref chains } => {
                let weights = chains.iter().map(|&(weight, _)| weight);
                mix::mix(canvas, own, weights, |number, canvas| Self::apply_all(&chains[number].1, canvas));
            }
            Self::Erase { x, y, width, height, value } => {
                let (pitch, value) = (canvas.size().0, value.map(|value| grey::byte(value as f32)));
                for row in canvas.pixels_mut().as_chunks_mut::<3>().0.chunks_mut(pitch).skip(y).take(height) {
                    row[x..x + width].fill(value);
                }
            }
        }
    }

    /// Returns the map of a step that moves pixels of an image of that size, but for flips.
    pub fn warp(&self, (width, height): (usize, usize)) -> Option<Warp> {
        match *self {
            Self::Affine { angle, translate, scale, shear, center, interpolation, fill } => {
                let center = center.map_or((0.0, 0.0), |(x, y)| (x - width as f64 * 0.5, y - height as f64 * 0.5));
                let matrix = inverse_affine(center, angle, translate, scale, shear);
                Some(Warp { matrix, centered: true, interpolation, fill })
            }
            Self::Perspective { coefficients: matrix, interpolation, fill } => {
                Some(Warp { matrix, centered: false, interpolation, fill })
            }
            _ => None,
        }
    }

    /// Returns where points of an image of that size come to lie.
    pub fn matrix(&self, size: (usize, usize)) -> Matrix {
        match self {
            Self::HorizontalFlip => [[-1.0, 0.0, size.0 as f64], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
            Self::VerticalFlip => [[1.0, 0.0, 0.0], [0.0, -1.0, size.1 as f64], [0.0, 0.0, 1.0]],
            _ => self.warp(size).and_then(|warp| warp.forward(size)).unwrap_or(IDENTITY),
        }
    }

    /// Applies a step to an image of the same scene of another size: only moves have an effect.
    pub fn follow(&self, canvas: &mut Canvas, lead: (usize, usize), interpolation: Interpolation, fill: [u8; 3]) {
        let size = canvas.size();
        let scale = (size.0 as f64 / lead.0 as f64, size.1 as f64 / lead.1 as f64);
        match self {
            Self::HorizontalFlip | Self::VerticalFlip => self.apply(canvas),
            _ => {
                if let Some(warp) = self.warp(lead) {
                    Warp { interpolation, fill: Some(fill), ..warp.scaled(scale) }.apply(canvas);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_in_one_pass_make_what_they_make_one_by_one() {
        let maps = [
            Step::Brightness { factor: 0.3 },
            Step::Posterize { bits: 5 },
            Step::Solarize { threshold: 40.5 },
            Step::Invert,
            Step::Brightness { factor: 1.7 },
            Step::Posterize { bits: 0 },
        ];
        let size = (17, 16);
        for start in 0..maps.len() {
            for end in start..maps.len() {
                let mut steps = maps[start..=end].to_vec();
                steps.insert(steps.len() / 2, Step::HorizontalFlip);
                steps.extend(maps[end..].iter().cloned());
                let [mut together, mut apart] = [Canvas::default(), Canvas::default()];
                for canvas in [&mut together, &mut apart] {
                    canvas.begin(size.0, size.1).iter_mut().enumerate().for_each(|(at, value)| *value = at as u8);
                }
                Step::apply_all(&steps, &mut together);
                for step in &steps {
                    // The functions themselves, without a table.
                    if step.is_map() { step.map(apart.pixels_mut()) } else { step.apply(&mut apart) }
                }
                assert_eq!(together.pixels(), apart.pixels(), "{steps:?}");
            }
        }
    }
}
