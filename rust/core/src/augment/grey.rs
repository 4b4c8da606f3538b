//! The luma of pixels as torchvision computes it, and the operations on it: `Grayscale`, `Saturation`.

use super::canvas::Canvas;
use super::planes::{by_channels, read_by_channels};
use super::vector::vectorized;

/// Returns the luma of a pixel in whole numbers, rounded down. torch fuses each multiplication with the
/// addition after it, here and in blends.
#[inline(always)]
fn luma(red: u8, green: u8, blue: u8) -> f32 {
    let two = f32::from(green).mul_add(0.587, f32::from(red) * 0.2989);
    f32::from(blue).mul_add(0.114, two).floor()
}

/// Returns `value` as a byte: bounded by 0 and 255, and rounded down.
#[inline(always)]
pub(super) fn byte(value: f32) -> u8 {
    let value = if value > 0.0 { value } else { 0.0 };
    let value = if value < 255.0 { value } else { 255.0 };
    // The last bits of the sum are the whole number: a cast would handle values that cannot occur.
    (value.floor() + 8_388_608.0).to_bits() as u8
}

vectorized! {
    fn grey(red: &mut [u8], green: &mut [u8], blue: &mut [u8]) {
        for ((red, green), blue) in red.iter_mut().zip(green).zip(blue) {
            let grey = byte(luma(*red, *green, *blue));
            (*red, *green, *blue) = (grey, grey, grey);
        }
    }

    fn blend_with_grey(red: &mut [u8], green: &mut [u8], blue: &mut [u8], ratio: f32, rest: f32) {
        for ((red, green), blue) in red.iter_mut().zip(green).zip(blue) {
            let grey = luma(*red, *green, *blue);
            *red = byte(grey.mul_add(rest, f32::from(*red) * ratio));
            *green = byte(grey.mul_add(rest, f32::from(*green) * ratio));
            *blue = byte(grey.mul_add(rest, f32::from(*blue) * ratio));
        }
    }

    /// Returns the sum of the luma of at most 2^24 pixels.
    fn grey_sum(red: &[u8], green: &[u8], blue: &[u8]) -> u32 {
        let mut sum = 0;
        for ((&red, &green), &blue) in red.iter().zip(green).zip(blue) {
            sum += u32::from(byte(luma(red, green, blue)));
        }
        sum
    }
}

/// Makes all pixels grey.
pub(super) fn grayscale(canvas: &mut Canvas) {
    by_channels(canvas.pixels_mut(), grey);
}

/// Blends each pixel with its grey.
#[allow(clippy::float_cmp)] // exactly 1 changes nothing
pub(super) fn saturation(canvas: &mut Canvas, factor: f64) {
    if factor != 1.0 {
        let (ratio, rest) = (factor as f32, (1.0 - factor) as f32);
        by_channels(canvas.pixels_mut(), |red, green, blue| blend_with_grey(red, green, blue, ratio, rest));
    }
}

/// Returns the mean luma.
pub(super) fn mean_luma(pixels: &[u8]) -> f32 {
    let mut sum = 0;
    let count = pixels.len() / 3;
    read_by_channels(pixels, |red, green, blue| sum += u64::from(grey_sum(red, green, blue)));
    (sum as f64 / count.max(1) as f64) as f32
}
