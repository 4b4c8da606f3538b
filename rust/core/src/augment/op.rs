//! `Op`: what a recipe asks for; and how its numbers are drawn for one record.

use serde::Deserialize;

use super::auto::{AugMix, AutoAugment, Border, RandAugment, TrivialAugmentWide};
use super::jitter::{ColorJitter, shuffle};
use super::step::Step;
use super::warp::perspective;
use crate::order::random::Random;

/// An operation, with torchvision's names and ranges.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "op")]
#[allow(missing_docs)] // torchvision's names
pub enum Op {
    RandomHorizontalFlip {
        p: f64,
    },
    RandomVerticalFlip {
        p: f64,
    },
    RandomRotation {
        degrees: (f64, f64),
        center: Option<(f64, f64)>,
        #[serde(flatten)]
        border: Border,
    },
    RandomAffine(RandomAffine),
    RandomPerspective {
        distortion_scale: f64,
        p: f64,
        #[serde(flatten)]
        border: Border,
    },
    ColorJitter(ColorJitter),
    RandomGrayscale {
        p: f64,
    },
    GaussianBlur {
        kernel_size: (usize, usize),
        sigma: (f64, f64),
    },
    RandomSolarize {
        threshold: f64,
        p: f64,
    },
    RandomPosterize {
        bits: u32,
        p: f64,
    },
    RandomInvert {
        p: f64,
    },
    RandomEqualize {
        p: f64,
    },
    RandomAutocontrast {
        p: f64,
    },
    RandomAdjustSharpness {
        sharpness_factor: f64,
        p: f64,
    },
    RandomErasing {
        p: f64,
        scale: (f64, f64),
        ratio: (f64, f64),
        value: [f64; 3],
    },
    TrivialAugmentWide(TrivialAugmentWide),
    RandAugment(RandAugment),
    AutoAugment(AutoAugment),
    AugMix(AugMix),
    RandomApply {
        transforms: Vec<Node>,
        p: f64,
    },
    RandomChoice {
        transforms: Vec<Node>,
        p: Vec<f64>,
    },
    RandomOrder {
        transforms: Vec<Node>,
    },
}

/// Ranges of an affine map: degrees, shares of the sides, factors.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[allow(missing_docs)] // torchvision's names
pub struct RandomAffine {
    pub degrees: (f64, f64),
    pub translate: Option<(f64, f64)>,
    pub scale: Option<(f64, f64)>,
    pub shear: Option<[(f64, f64); 2]>,
    pub center: Option<(f64, f64)>,
    #[serde(flatten)]
    pub border: Border,
}

/// An operation, and the key of its random numbers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Node {
    #[serde(skip)]
    key: u64,
    #[serde(flatten)]
    op: Op,
}

impl Op {
    /// Returns torchvision's name.
    fn name(&self) -> &'static str {
        match self {
            Self::RandomHorizontalFlip { .. } => "RandomHorizontalFlip",
            Self::RandomVerticalFlip { .. } => "RandomVerticalFlip",
            Self::RandomRotation { .. } => "RandomRotation",
            Self::RandomAffine(_) => "RandomAffine",
            Self::RandomPerspective { .. } => "RandomPerspective",
            Self::ColorJitter(_) => "ColorJitter",
            Self::RandomGrayscale { .. } => "RandomGrayscale",
            Self::GaussianBlur { .. } => "GaussianBlur",
            Self::RandomSolarize { .. } => "RandomSolarize",
            Self::RandomPosterize { .. } => "RandomPosterize",
            Self::RandomInvert { .. } => "RandomInvert",
            Self::RandomEqualize { .. } => "RandomEqualize",
            Self::RandomAutocontrast { .. } => "RandomAutocontrast",
            Self::RandomAdjustSharpness { .. } => "RandomAdjustSharpness",
            Self::RandomErasing { .. } => "RandomErasing",
            Self::TrivialAugmentWide(_) => "TrivialAugmentWide",
            Self::RandAugment(_) => "RandAugment",
            Self::AutoAugment(_) => "AutoAugment",
            Self::AugMix(_) => "AugMix",
            Self::RandomApply { .. } => "RandomApply",
            Self::RandomChoice { .. } => "RandomChoice",
            Self::RandomOrder { .. } => "RandomOrder",
        }
    }
}

/// Gives each operation its key: a function of the stream, its name, and how many operations of that
/// name come before it. So an inserted operation of another name changes no other's numbers.
pub(super) fn assign(nodes: &mut [Node], stream: u64, seen: &mut Vec<String>) {
    for node in nodes {
        let name = node.op.name();
        let occurrence = seen.iter().filter(|&other| other == name).count() as u64;
        seen.push(name.to_owned());
        node.key = Random::key(&[stream, hash(name), occurrence]);
        if let Op::RandomApply { transforms, .. }
        | Op::RandomChoice { transforms, .. }
        | Op::RandomOrder { transforms } = &mut node.op
        {
            assign(transforms, stream, seen);
        }
    }
}

/// Returns the FNV-1a hash of a text, of 64 bits.
pub(super) fn hash(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

impl Node {
    pub(super) fn is_erasing(&self) -> bool {
        matches!(self.op, Op::RandomErasing { .. })
    }

    /// Appends the steps for one record, whose random numbers `base` keys.
    pub(super) fn draw(&self, base: &Random, size: (usize, usize), steps: &mut Vec<Step>) {
        let random = &mut base.keyed_by(self.key);
        match &self.op {
            &Op::RandomHorizontalFlip { p } => maybe(p, Step::HorizontalFlip, random, steps),
            &Op::RandomVerticalFlip { p } => maybe(p, Step::VerticalFlip, random, steps),
            &Op::RandomRotation { degrees, center, border: Border { interpolation, fill } } => {
                let angle = -random.uniform(degrees.0, degrees.1);
                let (translate, shear, scale) = ((0.0, 0.0), (0.0, 0.0), 1.0);
                steps.push(Step::Affine { angle, translate, scale, shear, center, interpolation, fill });
            }
            Op::RandomAffine(affine) => steps.push(affine.draw(random, size)),
            &Op::RandomPerspective { distortion_scale, p, border: Border { interpolation, fill } } => {
                if random.uniform(0.0, 1.0) < p
                    && let Some(coefficients) = draw_perspective(distortion_scale, random, size)
                {
                    steps.push(Step::Perspective { coefficients, interpolation, fill });
                }
            }
            Op::ColorJitter(jitter) => jitter.draw(random, steps),
            &Op::RandomGrayscale { p } => maybe(p, Step::Grayscale, random, steps),
            &Op::GaussianBlur { kernel_size: kernel, sigma } => {
                let sigma = random.uniform(sigma.0, sigma.1);
                steps.push(Step::Blur { kernel, sigma: (sigma, sigma) });
            }
            &Op::RandomSolarize { threshold, p } => maybe(p, Step::Solarize { threshold }, random, steps),
            &Op::RandomPosterize { bits, p } => maybe(p, Step::Posterize { bits }, random, steps),
            &Op::RandomInvert { p } => maybe(p, Step::Invert, random, steps),
            &Op::RandomEqualize { p } => maybe(p, Step::Equalize, random, steps),
            &Op::RandomAutocontrast { p } => maybe(p, Step::Autocontrast, random, steps),
            &Op::RandomAdjustSharpness { sharpness_factor: factor, p } => {
                maybe(p, Step::Sharpness { factor }, random, steps);
            }
            &Op::RandomErasing { p, scale, ratio, value } => {
                if random.uniform(0.0, 1.0) < p {
                    steps.extend(draw_erasing(scale, ratio, value, random, size));
                }
            }
            Op::TrivialAugmentWide(auto) => auto.draw(random, steps),
            Op::RandAugment(auto) => auto.draw(random, size, steps),
            Op::AutoAugment(auto) => auto.draw(random, size, steps),
            Op::AugMix(auto) => auto.draw(random, size, steps),
            Op::RandomApply { transforms, p } => {
                if random.uniform(0.0, 1.0) < *p {
                    for node in transforms {
                        node.draw(base, size, steps);
                    }
                }
            }
            Op::RandomChoice { transforms, p } => {
                let mut rest = random.uniform(0.0, p.iter().sum());
                let chosen = p.iter().position(|&share| {
                    rest -= share;
                    rest < 0.0
                });
                if let Some(node) = chosen.and_then(|at| transforms.get(at)).or(transforms.last()) {
                    node.draw(base, size, steps);
                }
            }
            Op::RandomOrder { transforms } => {
                let mut order: Vec<&Node> = transforms.iter().collect();
                shuffle(&mut order, random);
                for node in order {
                    node.draw(base, size, steps);
                }
            }
        }
    }
}

fn maybe(p: f64, step: Step, random: &mut Random, steps: &mut Vec<Step>) {
    if random.uniform(0.0, 1.0) < p {
        steps.push(step);
    }
}

impl RandomAffine {
    fn draw(&self, random: &mut Random, (width, height): (usize, usize)) -> Step {
        let angle = random.uniform(self.degrees.0, self.degrees.1);
        let mut shift = |share: f64, side: usize| {
            let most = share * side as f64;
            random.uniform(-most, most).round_ties_even()
        };
        let translate = self.translate.map_or((0.0, 0.0), |(x, y)| (shift(x, width), shift(y, height)));
        let scale = self.scale.map_or(1.0, |(low, high)| random.uniform(low, high));
        let [x, y] = self.shear.unwrap_or_default();
        let shear = (random.uniform(x.0, x.1), random.uniform(y.0, y.1));
        let Border { interpolation, fill } = self.border;
        Step::Affine { angle, translate, scale, shear, center: self.center, interpolation, fill }
    }
}

/// Draws the corners of an image in perspective: each up to `distortion` of half a side away.
fn draw_perspective(distortion: f64, random: &mut Random, (width, height): (usize, usize)) -> Option<[f64; 8]> {
    let bound = |side: usize| (distortion * (side / 2) as f64) as u32 + 1;
    let (x, y) = (bound(width), bound(height));
    let mut corner = |right: bool, below: bool| {
        let mut place = |far: bool, bound: u32, side: usize| {
            f64::from(random.below(bound)) + if far { side as f64 - f64::from(bound) } else { 0.0 }
        };
        (place(right, x, width), place(below, y, height))
    };
    let to = [corner(false, false), corner(true, false), corner(true, true), corner(false, true)];
    let (right, below) = (width as f64 - 1.0, height as f64 - 1.0);
    perspective([(0.0, 0.0), (right, 0.0), (right, below), (0.0, below)], to)
}

/// Draws the part to erase, in ten attempts.
fn draw_erasing(
    scale: (f64, f64),
    ratio: (f64, f64),
    value: [f64; 3],
    random: &mut Random,
    size: (usize, usize),
) -> Option<Step> {
    let area = (size.0 * size.1) as f64;
    for _ in 0..10 {
        let area = area * random.uniform(scale.0, scale.1);
        let ratio = random.uniform(ratio.0.ln(), ratio.1.ln()).exp();
        let height = (area * ratio).sqrt().round_ties_even() as usize;
        let width = (area / ratio).sqrt().round_ties_even() as usize;
        if height < size.1 && width < size.0 {
            let y = random.below((size.1 - height + 1) as u32) as usize;
            let x = random.below((size.0 - width + 1) as u32) as usize;
            return Some(Step::Erase { x, y, width, height, value });
        }
    }
    None
}
