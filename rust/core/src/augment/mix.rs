//! `mix`: the weighted sum of several chains of steps over one image, as `AugMix` makes it.

use super::canvas::Canvas;
use super::vector::vectorized;

vectorized! {
    fn add(sums: &mut [f32], pixels: &[u8], weight: f32) {
        for (sum, &value) in sums.iter_mut().zip(pixels) {
            *sum += f32::from(value) * weight;
        }
    }

    fn round_down(sums: &[f32], pixels: &mut [u8]) {
        for (value, &sum) in pixels.iter_mut().zip(sums) {
            *value = super::grey::byte(sum);
        }
    }
}

/// Replaces the image by `own` times itself, and what `chain` makes of it, by number, times each weight.
pub(super) fn mix(
    canvas: &mut Canvas,
    own: f64,
    weights: impl Iterator<Item = f64>,
    mut chain: impl FnMut(usize, &mut Canvas),
) {
    let mut sums = vec![0.0; canvas.pixels().len()];
    add(&mut sums, canvas.pixels(), own as f32);
    let mut other = Canvas::default();
    for (number, weight) in weights.enumerate() {
        other.copy(canvas);
        chain(number, &mut other);
        add(&mut sums, other.pixels(), weight as f32);
    }
    round_down(&sums, canvas.pixels_mut());
}
