//! `TrivialAugmentWide`, `RandAugment`, `AutoAugment` and `AugMix`: operations of a set, chosen at random.
//!
//! Sets, strengths and policies are torchvision's: <https://arxiv.org/abs/2103.10158>,
//! <https://arxiv.org/abs/1909.13719>, <https://arxiv.org/abs/1805.09501>, <https://arxiv.org/abs/1912.02781>.

use serde::Deserialize;

use super::gamma::dirichlet;
use super::step::Step;
use super::warp::Interpolation;
use crate::order::random::Random;

/// An operation of the sets, in torchvision's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
    Invert,
}

use Kind::{
    AutoContrast, Brightness, Color, Contrast, Equalize, Identity, Invert, Posterize, Rotate, Sharpness, ShearX,
    ShearY, Solarize, TranslateX, TranslateY,
};

const ALL: [Kind; 14] = [
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
];
const MIXED: [Kind; 13] = [
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
    Brightness,
    Color,
    Contrast,
    Sharpness,
];
/// Those of [`MIXED`] that come without `all_ops`.
const GEOMETRIC: usize = 9;

/// The largest strength of each operation, which the strengths of a set approach in equal steps.
#[derive(Debug, Clone, Copy)]
struct Strengths {
    shear: f64,
    translate: (f64, f64),
    rotate: f64,
    color: f64,
    /// Bits at the least and at the greatest strength.
    bits: (u32, u32),
}

impl Strengths {
    const WIDE: Self = Self { shear: 0.99, translate: (32.0, 32.0), rotate: 135.0, color: 0.99, bits: (8, 2) };

    fn of_size((width, height): (usize, usize), share: f64, bits: (u32, u32)) -> Self {
        let translate = (share * width as f64, share * height as f64);
        Self { shear: 0.3, translate, rotate: 30.0, color: 0.9, bits }
    }

    /// Returns the strength number `at` of `bins`, and whether half of the images get its negative.
    fn of(&self, kind: Kind, at: u32, bins: u32) -> (f64, bool) {
        let upto = |end: f64| (linspace(0.0, end, at, bins), true);
        match kind {
            ShearX | ShearY => upto(self.shear),
            TranslateX => upto(self.translate.0),
            TranslateY => upto(self.translate.1),
            Rotate => upto(self.rotate),
            Brightness | Color | Contrast | Sharpness => upto(self.color),
            Posterize => {
                let (most, least) = self.bits;
                let lost = at as f32 / (f64::from(bins - 1) / f64::from(most - least)) as f32;
                (f64::from((most as f32 - lost).round_ties_even()), false)
            }
            Solarize => (linspace(1.0, 0.0, at, bins), false),
            Identity | AutoContrast | Equalize | Invert => (0.0, false),
        }
    }
}

/// Returns number `at` of `count` numbers from `start` to `end`, as torch's `linspace` computes it.
fn linspace(start: f64, end: f64, at: u32, count: u32) -> f64 {
    let (start, end) = (start as f32, end as f32);
    let step = (end - start) / (count - 1).max(1) as f32;
    f64::from(if at < count / 2 { start + step * at as f32 } else { end - step * (count - 1 - at) as f32 })
}

/// How moved pixels are found, and what is outside.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[allow(missing_docs)] // torchvision's names
pub struct Border {
    pub interpolation: Interpolation,
    pub fill: Option<[u8; 3]>,
}

impl Border {
    /// Returns the step of an operation at a strength.
    fn step(self, kind: Kind, strength: f64) -> Option<Step> {
        let Self { interpolation, fill } = self;
        let affine = |angle, translate, shear, center| {
            Some(Step::Affine { angle, translate, scale: 1.0, shear, center, interpolation, fill })
        };
        let shear = strength.atan().to_degrees();
        let corner = Some((0.0, 0.0));
        match kind {
            Identity => None,
            ShearX => affine(0.0, (0.0, 0.0), (shear, 0.0), corner),
            ShearY => affine(0.0, (0.0, 0.0), (0.0, shear), corner),
            TranslateX => affine(0.0, (strength.trunc(), 0.0), (0.0, 0.0), None),
            TranslateY => affine(0.0, (0.0, strength.trunc()), (0.0, 0.0), None),
            // Rotations turn the other way than affine maps, as in torchvision.
            Rotate => affine(-strength, (0.0, 0.0), (0.0, 0.0), None),
            Brightness => Some(Step::Brightness { factor: 1.0 + strength }),
            Color => Some(Step::Saturation { factor: 1.0 + strength }),
            Contrast => Some(Step::Contrast { factor: 1.0 + strength }),
            Sharpness => Some(Step::Sharpness { factor: 1.0 + strength }),
            Posterize => Some(Step::Posterize { bits: strength as u32 }),
            Solarize => Some(Step::Solarize { threshold: 255.0 * strength }),
            AutoContrast => Some(Step::Autocontrast),
            Equalize => Some(Step::Equalize),
            Invert => Some(Step::Invert),
        }
    }

    /// Draws the sign of a strength, and returns the step.
    fn signed(self, kind: Kind, (strength, signed): (f64, bool), random: &mut Random) -> Option<Step> {
        let negative = signed && random.coin();
        self.step(kind, if negative { -strength } else { strength })
    }
}

/// One operation, of random strength.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[allow(missing_docs)] // torchvision's names
pub struct TrivialAugmentWide {
    pub num_magnitude_bins: u32,
    #[serde(flatten)]
    pub border: Border,
}

impl TrivialAugmentWide {
    pub(super) fn draw(&self, random: &mut Random, steps: &mut Vec<Step>) {
        let kind = ALL[random.below(ALL.len() as u32) as usize];
        let at = random.below(self.num_magnitude_bins);
        let strength = Strengths::WIDE.of(kind, at, self.num_magnitude_bins);
        steps.extend(self.border.signed(kind, strength, random));
    }
}

/// Some operations of one strength.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[allow(missing_docs)] // torchvision's names
pub struct RandAugment {
    pub num_ops: u32,
    pub magnitude: u32,
    pub num_magnitude_bins: u32,
    #[serde(flatten)]
    pub border: Border,
}

impl RandAugment {
    pub(super) fn draw(&self, random: &mut Random, size: (usize, usize), steps: &mut Vec<Step>) {
        let strengths = Strengths::of_size(size, 150.0 / 331.0, (8, 4));
        for _ in 0..self.num_ops {
            let kind = ALL[random.below(ALL.len() as u32) as usize];
            let strength = strengths.of(kind, self.magnitude, self.num_magnitude_bins);
            steps.extend(self.border.signed(kind, strength, random));
        }
    }
}

/// One of 25 pairs of operations.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[allow(missing_docs)] // torchvision's names
pub struct AutoAugment {
    #[serde(flatten)]
    pub border: Border,
}

/// Operations, their probabilities and strengths of ten, in pairs: the policy learned on `ImageNet`.
#[rustfmt::skip]
const IMAGENET: [[(Kind, f64, u32); 2]; 25] = [
    [(Posterize, 0.4, 8), (Rotate, 0.6, 9)],
    [(Solarize, 0.6, 5), (AutoContrast, 0.6, 0)],
    [(Equalize, 0.8, 0), (Equalize, 0.6, 0)],
    [(Posterize, 0.6, 7), (Posterize, 0.6, 6)],
    [(Equalize, 0.4, 0), (Solarize, 0.2, 4)],
    [(Equalize, 0.4, 0), (Rotate, 0.8, 8)],
    [(Solarize, 0.6, 3), (Equalize, 0.6, 0)],
    [(Posterize, 0.8, 5), (Equalize, 1.0, 0)],
    [(Rotate, 0.2, 3), (Solarize, 0.6, 8)],
    [(Equalize, 0.6, 0), (Posterize, 0.4, 6)],
    [(Rotate, 0.8, 8), (Color, 0.4, 0)],
    [(Rotate, 0.4, 9), (Equalize, 0.6, 0)],
    [(Equalize, 0.0, 0), (Equalize, 0.8, 0)],
    [(Invert, 0.6, 0), (Equalize, 1.0, 0)],
    [(Color, 0.6, 4), (Contrast, 1.0, 8)],
    [(Rotate, 0.8, 8), (Color, 1.0, 2)],
    [(Color, 0.8, 8), (Solarize, 0.8, 7)],
    [(Sharpness, 0.4, 7), (Invert, 0.6, 0)],
    [(ShearX, 0.6, 5), (Equalize, 1.0, 0)],
    [(Color, 0.4, 0), (Equalize, 0.6, 0)],
    [(Equalize, 0.4, 0), (Solarize, 0.2, 4)],
    [(Solarize, 0.6, 5), (AutoContrast, 0.6, 0)],
    [(Invert, 0.6, 0), (Equalize, 1.0, 0)],
    [(Color, 0.6, 4), (Contrast, 1.0, 8)],
    [(Equalize, 0.8, 0), (Equalize, 0.6, 0)],
];

impl AutoAugment {
    pub(super) fn draw(&self, random: &mut Random, size: (usize, usize), steps: &mut Vec<Step>) {
        let strengths = Strengths::of_size(size, 150.0 / 331.0, (8, 4));
        for (kind, probability, at) in IMAGENET[random.below(IMAGENET.len() as u32) as usize] {
            // Both numbers are drawn in any case, so that each has its place.
            let (chosen, negative) = (random.uniform(0.0, 1.0) < probability, random.coin());
            let (strength, signed) = strengths.of(kind, at, 10);
            if chosen {
                steps.extend(self.border.step(kind, if signed && negative { -strength } else { strength }));
            }
        }
    }
}

/// A mixture of the image and of what some chains of operations make of it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[allow(missing_docs)] // torchvision's names
pub struct AugMix {
    pub severity: u32,
    pub mixture_width: u32,
    pub chain_depth: i32,
    pub alpha: f64,
    pub all_ops: bool,
    #[serde(flatten)]
    pub border: Border,
}

impl AugMix {
    pub(super) fn draw(&self, random: &mut Random, size: (usize, usize), steps: &mut Vec<Step>) {
        let strengths = Strengths::of_size(size, 1.0 / 3.0, (4, 0));
        let set = &MIXED[..if self.all_ops { MIXED.len() } else { GEOMETRIC }];
        let own = dirichlet(2, self.alpha, random);
        let weights = dirichlet(self.mixture_width as usize, self.alpha, random);
        let chains = weights.into_iter().map(|weight| {
            let depth = u32::try_from(self.chain_depth).ok().filter(|&depth| depth > 0);
            let depth = depth.unwrap_or_else(|| 1 + random.below(3));
            let steps = (0..depth).filter_map(|_| {
                let kind = set[random.below(set.len() as u32) as usize];
                let strength = strengths.of(kind, random.below(self.severity), 10);
                self.border.signed(kind, strength, random)
            });
            (weight * own[1], steps.collect())
        });
        let chains = chains.collect();
        steps.push(Step::Mix { own: own[0], chains });
    }
}
