//! `hue`: turns the hue of each pixel, as torchvision does by way of HSV, in one closed form.

use super::canvas::Canvas;
use super::grey::byte;
use super::planes::by_channels;
use super::vector::vectorized;

vectorized! {
    /// A channel is the largest value, less a part of the range that depends on the distance between the
    /// hue and the channel's own.
    fn turn(red: &mut [u8], green: &mut [u8], blue: &mut [u8], sixths: f32) {
        for ((to_red, to_green), to_blue) in red.iter_mut().zip(green).zip(blue) {
            let red = f32::from(*to_red) * (1.0 / 255.0);
            let green = f32::from(*to_green) * (1.0 / 255.0);
            let blue = f32::from(*to_blue) * (1.0 / 255.0);
            let most = max(max(red, green), blue);
            let range = most - min(min(red, green), blue);
            let divisor = 1.0 / if range > 0.0 { range } else { 1.0 };
            let of_red = (green - blue) * divisor;
            let of_green = (blue - red) * divisor + 2.0;
            let of_blue = (red - green) * divisor + 4.0;
            let other = if green >= most { of_green } else { of_blue };
            let hue = if red >= most { of_red } else { other } + sixths;
            *to_red = channel(hue + 5.0, most, range);
            *to_green = channel(hue + 3.0, most, range);
            *to_blue = channel(hue + 1.0, most, range);
        }
    }
}

// Those of the standard library treat NaN in a way that takes more instructions.
#[inline(always)]
fn max(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

#[inline(always)]
fn min(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

/// Returns the value of a channel whose distance from the hue is `turned`, in sixths of the circle.
#[inline(always)]
fn channel(turned: f32, most: f32, range: f32) -> u8 {
    let turned = turned - 6.0 * (turned * (1.0 / 6.0)).floor();
    let part = min(max(min(turned, 4.0 - turned), 0.0), 1.0);
    byte((most - range * part) * 255.999)
}

/// Turns the hue by `factor`, in [-0.5, 0.5], of the circle.
pub(super) fn hue(canvas: &mut Canvas, factor: f64) {
    let sixths = (6.0 * factor) as f32 + 6.0;
    by_channels(canvas.pixels_mut(), |red, green, blue| turn(red, green, blue, sixths));
}
