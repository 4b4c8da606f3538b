//! `Orientation`: the EXIF orientation, and turning of pixels for display.

use super::row::copy_row;
use super::tiff::entries;

/// One of the eight ways to turn and mirror an image: an optional transposition, then an optional
/// reversal of each axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Orientation {
    /// Whether rows of the stored image are columns of the shown one.
    pub transpose: bool,
    /// Whether the shown image is mirrored left to right, after the transposition.
    pub mirror_x: bool,
    /// Whether the shown image is mirrored top to bottom, after the transposition.
    pub mirror_y: bool,
}

impl Orientation {
    /// Shown as stored.
    pub const UPRIGHT: Self = Self { transpose: false, mirror_x: false, mirror_y: false };

    /// Converts EXIF's number, 1 to 8; upright for any other number.
    pub const fn from_number(number: u16) -> Self {
        let (transpose, mirror_x, mirror_y) = match number {
            2 => (false, true, false),
            3 => (false, true, true),
            4 => (false, false, true),
            5 => (true, false, false),
            6 => (true, true, false),
            7 => (true, true, true),
            8 => (true, false, true),
            _ => (false, false, false),
        };
        Self { transpose, mirror_x, mirror_y }
    }

    /// Returns EXIF's number, 1 to 8.
    pub const fn number(self) -> u16 {
        match (self.transpose, self.mirror_x, self.mirror_y) {
            (false, false, false) => 1,
            (false, true, false) => 2,
            (false, true, true) => 3,
            (false, false, true) => 4,
            (true, false, false) => 5,
            (true, true, false) => 6,
            (true, true, true) => 7,
            (true, false, true) => 8,
        }
    }

    /// Reads EXIF data, which begins with a TIFF header. The default is upright, also for garbage.
    pub fn from_exif(tiff: &[u8]) -> Self {
        Self::from_number(exif_number(tiff).unwrap_or(1))
    }

    /// Adds a final left-to-right mirroring if `flip`.
    #[must_use]
    pub const fn flipped(self, flip: bool) -> Self {
        Self { mirror_x: self.mirror_x != flip, ..self }
    }

    /// Converts width and height between the stored image and the shown one, in either direction.
    pub fn size(self, width: u32, height: u32) -> (u32, u32) {
        if self.transpose { (height, width) } else { (width, height) }
    }

    /// Copies stored pixels (3 bytes each, rows of `width` pixels) to their shown places.
    pub(super) fn apply(self, stored: &[u8], width: usize, shown: &mut [u8]) {
        let height = stored.len() / (3 * width).max(1);
        let shown_width = if self.transpose { height } else { width };
        let shown_height = shown.len() / (3 * shown_width).max(1);
        for (y, row) in shown.chunks_exact_mut((3 * shown_width).max(1)).enumerate() {
            let y = if self.mirror_y { shown_height - 1 - y } else { y };
            if self.transpose {
                for (x, pixel) in row.chunks_exact_mut(3).enumerate() {
                    let x = if self.mirror_x { shown_width - 1 - x } else { x };
                    pixel.copy_from_slice(&stored[3 * (x * width + y)..][..3]);
                }
            } else {
                copy_row(&stored[3 * y * width..][..3 * width], row, self.mirror_x);
            }
        }
    }
}

/// Returns the value of tag 0x0112 in the first directory.
fn exif_number(tiff: &[u8]) -> Option<u16> {
    // The tag has type 3 (SHORT) and one value, which is stored in the entry itself.
    entries(tiff).find(|entry| entry.tag == 0x0112 && entry.kind == 3).map(|entry| entry.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exif(number: u16) -> Vec<u8> {
        let mut tiff = b"MM\0*\0\0\0\x08\0\x02".to_vec();
        tiff.extend(b"\x01\x0F\0\x02\0\0\0\x04abc\0");
        tiff.extend(b"\x01\x12\0\x03\0\0\0\x01");
        tiff.extend(number.to_be_bytes());
        tiff.extend(b"\0\0\0\0\0\0");
        tiff
    }

    #[test]
    fn the_eight_numbers_turn_as_exif_says() {
        // Stored:  1 2 3
        //          4 5 6
        let stored: Vec<u8> = (1..=6).flat_map(|n| [n; 3]).collect();
        for (number, rows) in [
            (1, vec![1, 2, 3, 4, 5, 6]),
            (2, vec![3, 2, 1, 6, 5, 4]),
            (3, vec![6, 5, 4, 3, 2, 1]),
            (4, vec![4, 5, 6, 1, 2, 3]),
            (5, vec![1, 4, 2, 5, 3, 6]),
            (6, vec![4, 1, 5, 2, 6, 3]),
            (7, vec![6, 3, 5, 2, 4, 1]),
            (8, vec![3, 6, 2, 5, 1, 4]),
            (9, vec![1, 2, 3, 4, 5, 6]),
        ] {
            let mut shown = [0; 18];
            let orientation = Orientation::from_exif(&exif(number));
            orientation.apply(&stored, 3, &mut shown);
            assert_eq!(shown.chunks_exact(3).map(|p| p[0]).collect::<Vec<u8>>(), rows, "{number}");
            let mut again = [0; 18];
            orientation.flipped(true).apply(&stored, 3, &mut again);
            let width = orientation.size(3, 2).0 as usize;
            for row in shown.chunks_exact_mut(3 * width) {
                let before = row.to_vec();
                copy_row(&before, row, true);
            }
            assert_eq!(again, shown, "{number}, flipped");
        }
    }

    #[test]
    fn garbage_and_cut_exif_leave_the_image_upright() {
        let good = exif(6);
        for end in 0..good.len() - 6 {
            assert_eq!(Orientation::from_exif(&good[..end]), Orientation::UPRIGHT, "{end}");
        }
        assert_eq!(Orientation::from_exif(b"II*\0\xFF\xFF\xFF\xFF\0\0"), Orientation::UPRIGHT);
        assert_eq!(Orientation::from_exif(&[0xFF; 64]), Orientation::UPRIGHT);
    }
}
