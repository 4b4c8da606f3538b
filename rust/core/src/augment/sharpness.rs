//! `sharpness`: blends each pixel with the weighted mean of its neighbourhood of three by three.

use super::canvas::Canvas;
use super::grey::byte;
use super::vector::vectorized;

vectorized! {
    /// Blends the inner pixels of a row; `sums` has the sums of three rows.
    fn row(middle: &[u8], sums: &[u16], rest: f32, out: &mut [u8]) {
        let inner = out.len() - 6;
        let (left, centre, right) = (&sums[..inner], &sums[3..3 + inner], &sums[6..6 + inner]);
        let (out, middle) = (&mut out[3..3 + inner], &middle[3..3 + inner]);
        for at in 0..inner {
            let own = middle[at];
            let sum = left[at] + centre[at] + right[at] + 4 * u16::from(own);
            // (sum + 6) / 13: the mean, rounded. The product is exact for sums up to 13 * 255.
            let mean = (u32::from(sum + 6) * 40_330) >> 19;
            let own = f32::from(own);
            out[at] = byte((mean as i32 as f32 - own).mul_add(rest, own));
        }
    }

    fn add_rows(above: &[u8], middle: &[u8], below: &[u8], sums: &mut [u16]) {
        for (((sum, &a), &b), &c) in sums.iter_mut().zip(above).zip(middle).zip(below) {
            *sum = u16::from(a) + u16::from(b) + u16::from(c);
        }
    }
}

/// Sharpens with a factor above 1, blurs with one below. The outermost pixels stay as they are.
#[allow(clippy::float_cmp)] // exactly 1 changes nothing
pub(super) fn sharpness(canvas: &mut Canvas, factor: f64) {
    let (width, height) = canvas.size();
    if factor == 1.0 || width <= 2 || height <= 2 {
        return;
    }
    let (pitch, rest) = (3 * width, (1.0 - factor) as f32);
    let mut sums = vec![0; pitch];
    canvas.replace(|from, to| {
        let rows: Vec<&[u8]> = from.chunks_exact(pitch).collect();
        for (y, out) in to.chunks_exact_mut(pitch).enumerate() {
            out.copy_from_slice(rows[y]);
            if y > 0 && y + 1 < height {
                add_rows(rows[y - 1], rows[y], rows[y + 1], &mut sums);
                row(rows[y], &sums, rest, out);
            }
        }
    });
}
