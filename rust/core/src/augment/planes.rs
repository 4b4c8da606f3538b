//! Pixels channel by channel: operations on several channels are vectors only then.

use super::vector::vectorized;

/// Pixels that are split together; their channels fit in the first cache.
const PART: usize = 2048;

vectorized! {
    /// Splits RGB pixels into channels.
    pub(super) fn split(pixels: &[u8], red: &mut [u8], green: &mut [u8], blue: &mut [u8]) {
        let count = (pixels.len() / 3).min(red.len()).min(green.len()).min(blue.len());
        let (red, green, blue) = (&mut red[..count], &mut green[..count], &mut blue[..count]);
        let pixels = &pixels[..3 * count];
        for at in 0..count {
            red[at] = pixels[3 * at];
            green[at] = pixels[3 * at + 1];
            blue[at] = pixels[3 * at + 2];
        }
    }

    /// Joins channels to RGB pixels.
    pub(super) fn join(red: &[u8], green: &[u8], blue: &[u8], pixels: &mut [u8]) {
        let count = (pixels.len() / 3).min(red.len()).min(green.len()).min(blue.len());
        let (pixels, red, green, blue) = (&mut pixels[..3 * count], &red[..count], &green[..count], &blue[..count]);
        for at in 0..count {
            pixels[3 * at] = red[at];
            pixels[3 * at + 1] = green[at];
            pixels[3 * at + 2] = blue[at];
        }
    }
}

/// Calls `work` with the channels of some pixels after the others, and joins what it makes of them.
pub(super) fn by_channels(pixels: &mut [u8], mut work: impl FnMut(&mut [u8], &mut [u8], &mut [u8])) {
    let mut planes = [[0; PART]; 3];
    for part in pixels.chunks_mut(3 * PART) {
        let count = part.len() / 3;
        let [red, green, blue] = planes.each_mut().map(|plane| &mut plane[..count]);
        split(part, red, green, blue);
        work(red, green, blue);
        join(red, green, blue, part);
    }
}

/// Calls `work` with the channels of some pixels after the others.
pub(super) fn read_by_channels(pixels: &[u8], mut work: impl FnMut(&[u8], &[u8], &[u8])) {
    let mut planes = [[0; PART]; 3];
    for part in pixels.chunks(3 * PART) {
        let [red, green, blue] = planes.each_mut().map(|plane| &mut plane[..part.len() / 3]);
        split(part, red, green, blue);
        work(red, green, blue);
    }
}
