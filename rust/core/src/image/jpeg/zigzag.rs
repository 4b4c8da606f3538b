//! `ZigzagBlock`: the coefficients of a block in the order of their frequencies.

/// Where each coefficient in zigzag order stands in natural order (ITU-T T.81, figure A.6).
pub(in crate::image) const NATURAL: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21,
    28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54,
    47, 55, 62, 63,
];

/// Where each coefficient in natural order stands in zigzag order.
pub(in crate::image) const ZIGZAG: [u8; 64] = {
    let mut places = [0; 64];
    let mut k = 0;
    while k < 64 {
        places[NATURAL[k] as usize] = k as u8;
        k += 1;
    }
    places
};

/// The coefficients of a block, in zigzag order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::image) struct ZigzagBlock {
    /// Bit k: coefficient k is not zero. Bit 0 is never set.
    pub(in crate::image) mask: u64,
    /// The first one is the coefficient itself, not a difference.
    pub(in crate::image) values: [i16; 64],
}

impl ZigzagBlock {
    pub(in crate::image) const ZERO: Self = Self { mask: 0, values: [0; 64] };
}

/// Memory for the coefficients of a block, in either order.
pub(super) trait Coefficients {
    /// Whether it is zigzag order.
    const ZIGZAG: bool;

    fn values(&mut self) -> &mut [i16; 64];

    fn set_mask(&mut self, mask: u64);
}

impl Coefficients for ZigzagBlock {
    const ZIGZAG: bool = true;

    fn values(&mut self) -> &mut [i16; 64] {
        &mut self.values
    }

    fn set_mask(&mut self, mask: u64) {
        self.mask = mask;
    }
}

impl Coefficients for [i16; 64] {
    const ZIGZAG: bool = false;

    fn values(&mut self) -> &mut [i16; 64] {
        self
    }

    fn set_mask(&mut self, _: u64) {}
}
