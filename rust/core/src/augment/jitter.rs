//! `ColorJitter`: brightness, contrast, saturation and hue, in random order.

use serde::Deserialize;

use super::step::Step;
use crate::order::random::Random;

/// Ranges of factors, and of a part of the circle of hues; `None`: unchanged.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[allow(missing_docs)] // torchvision's names
pub struct ColorJitter {
    pub brightness: Option<(f64, f64)>,
    pub contrast: Option<(f64, f64)>,
    pub saturation: Option<(f64, f64)>,
    pub hue: Option<(f64, f64)>,
}

impl ColorJitter {
    pub(super) fn draw(&self, random: &mut Random, steps: &mut Vec<Step>) {
        let mut order = [0, 1, 2, 3];
        shuffle(&mut order, random);
        let mut factor = |range: Option<(f64, f64)>| range.map(|(low, high)| random.uniform(low, high));
        let mut drawn = [
            factor(self.brightness).map(|factor| Step::Brightness { factor }),
            factor(self.contrast).map(|factor| Step::Contrast { factor }),
            factor(self.saturation).map(|factor| Step::Saturation { factor }),
            factor(self.hue).map(|factor| Step::Hue { factor }),
        ];
        steps.extend(order.into_iter().filter_map(|at| drawn[at].take()));
    }
}

/// Shuffles places, each order equally often.
pub(super) fn shuffle<T>(items: &mut [T], random: &mut Random) {
    for last in (1..items.len()).rev() {
        items.swap(last, random.below(last as u32 + 1) as usize);
    }
}
