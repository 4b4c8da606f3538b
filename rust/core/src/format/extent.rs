//! `Extent`: the location of a payload. See docs/format.md, section 2.

use crate::codec::{Codec, is_bomb};
use crate::format::layout::{PAGE, put, u16_at, u32_at, u64_at};
use crate::limits::{MAX_IMAGE_BYTES, MAX_SIDE_BYTES};

pub(crate) const EXTENT_LEN: usize = 32;

/// The location of a payload: a value, compressed or not, and after it the side bytes of some
/// images.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub offset: u64,
    /// Bytes in the file. The CRC covers all of them.
    pub stored: u64,
    /// Bytes of the value, decompressed and without side bytes.
    pub raw: u64,
    pub crc: u32,
    pub codec: Codec,
    pub missing: bool,
}

/// Flags of an extent.
const MISSING: u8 = 1;
const SIDE: u8 = 2;

impl Extent {
    /// Bytes of the value.
    pub(crate) fn length(&self) -> u64 {
        self.raw
    }

    /// The number of side bytes that end the stored bytes.
    pub(crate) fn side(&self) -> u64 {
        if self.codec == Codec::None { self.stored - self.raw } else { 0 }
    }

    /// Checks the extent of side bytes that lie elsewhere. Without a byte, it says that the image gets
    /// none.
    ///
    /// # Errors
    /// The reason, as text.
    pub(crate) fn check_side(&self) -> std::result::Result<(), String> {
        let plain = self.is_plain() && self.side() == 0;
        if plain && self.stored <= MAX_SIDE_BYTES {
            return Ok(());
        }
        Err(format!("{} bytes, {} raw, with the codec {}, for side bytes", self.stored, self.raw, self.codec as u8))
    }

    /// Whether the value is compressed by a codec for any bytes.
    pub(crate) fn is_compressed(&self) -> bool {
        matches!(self.codec, Codec::Lz4 | Codec::Zstd)
    }

    /// Whether the value is stored as it is.
    pub(crate) fn is_plain(&self) -> bool {
        self.codec == Codec::None
    }

    pub(crate) fn encode(&self) -> [u8; EXTENT_LEN] {
        let mut out = [0; EXTENT_LEN];
        put(&mut out, 0, &self.offset.to_le_bytes());
        put(&mut out, 8, &self.stored.to_le_bytes());
        put(&mut out, 16, &self.raw.to_le_bytes());
        put(&mut out, 24, &self.crc.to_le_bytes());
        out[28] = self.codec as u8;
        out[29] = if self.missing { MISSING } else { SIDE * u8::from(self.side() > 0) };
        out
    }

    /// The CRC in an encoded extent.
    pub(crate) fn crc_of(bytes: &[u8; EXTENT_LEN]) -> u32 {
        u32_at(bytes, 24)
    }

    /// Whether an encoded extent marks a missing value.
    pub(crate) fn is_missing(bytes: &[u8; EXTENT_LEN]) -> bool {
        bytes[29] & MISSING != 0
    }

    /// Decodes an extent and checks it against `limit`, the end of the readable data. `None` if it
    /// is missing or invalid; [`Extent::explain`] then finds out which.
    #[allow(clippy::inline_always)] // the loop over a batch's records; measured
    #[inline(always)]
    pub(crate) fn decode(bytes: &[u8; EXTENT_LEN], limit: u64) -> Option<Self> {
        const WITH_SIDE: u64 = (SIDE as u64) << 8;
        let (offset, stored, raw, tail) = (u64_at(bytes, 0), u64_at(bytes, 8), u64_at(bytes, 16), u64_at(bytes, 24));
        let mut codec = Codec::None;
        // Checks codec, flags and reserved bytes with one comparison.
        let known = match tail >> 32 {
            0 => raw == stored,
            WITH_SIDE => raw < stored && u32::try_from(stored - raw).is_ok(),
            compressed => {
                codec = Codec::from_byte(compressed)?;
                fits(codec, stored, raw) && !is_bomb(stored, raw)
            }
        };
        let inside = offset.checked_add(stored).is_some_and(|end| end <= limit);
        let good = known && inside && (offset >= PAGE || stored == 0);
        good.then_some(Self { offset, stored, raw, crc: tail as u32, codec, missing: false })
    }

    /// The rare cases after [`Extent::decode`] returns `None`: a missing value, or the error as
    /// text.
    #[cold]
    pub(crate) fn explain(bytes: &[u8; EXTENT_LEN], limit: u64) -> std::result::Result<Self, String> {
        let (offset, stored, raw) = (u64_at(bytes, 0), u64_at(bytes, 8), u64_at(bytes, 16));
        if bytes[28] != 0 && Codec::from_byte(bytes[28].into()).is_none() {
            return Err(format!("codec {} is not known to this fastrecord", bytes[28]));
        }
        if bytes[29] & !(MISSING | SIDE) != 0 || u16_at(bytes, 30) != 0 {
            return Err(format!("flags {:#04x} are not known to this fastrecord", bytes[29]));
        }
        if bytes[29] & MISSING != 0 {
            let zero = bytes.iter().enumerate().all(|(i, &b)| b == if i == 29 { MISSING } else { 0 });
            let missing = Self { missing: true, ..Self::default() };
            return if zero { Ok(missing) } else { Err("a missing value with an extent".to_owned()) };
        }
        if bytes[28] != 0 && bytes[29] != 0 {
            return Err("a compressed value with side bytes".to_owned());
        }
        if Codec::from_byte(bytes[28].into()).is_some_and(|codec| !fits(codec, stored, raw)) {
            return Err(format!("{stored} bytes stored, {raw} raw, compressed"));
        }
        if bytes[28] != 0 && is_bomb(stored, raw) {
            return Err(format!("{stored} bytes stored would expand to {raw}, more than any codec can"));
        }
        if bytes[29] == SIDE && (raw >= stored || stored - raw > MAX_SIDE_BYTES) {
            return Err(format!("{stored} bytes stored, {raw} of them the value's, with side bytes"));
        }
        if bytes[28] == 0 && bytes[29] == 0 && raw != stored {
            return Err(format!("{stored} bytes stored, {raw} raw, no codec"));
        }
        Err(format!("{stored} bytes at {offset}, the data end at {limit}"))
    }
}

/// Reports whether a codec may store a value in so many bytes: fewer, or for an image about as many.
fn fits(codec: Codec, stored: u64, raw: u64) -> bool {
    match codec {
        Codec::PackedJpeg => {
            stored > 0 && raw > 0 && stored / 4 <= raw && stored <= MAX_IMAGE_BYTES && raw <= MAX_IMAGE_BYTES
        }
        _ => (1..raw).contains(&stored),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(bytes: &[u8; EXTENT_LEN], limit: u64) -> std::result::Result<Extent, String> {
        Extent::decode(bytes, limit).map_or_else(|| Extent::explain(bytes, limit), Ok)
    }

    fn refused(good: &Extent, changes: &[(usize, u8)]) {
        for &(at, value) in changes {
            let mut bytes = good.encode();
            bytes[at] = value;
            assert!(decode(&bytes, 5000).is_err(), "byte {at} = {value} of {good:?}");
        }
    }

    #[test]
    fn an_extent_with_any_unknown_bit_is_refused() {
        let good = Extent { offset: 4096, stored: 10, raw: 10, crc: 7, ..Extent::default() };
        assert_eq!(decode(&good.encode(), 5000), Ok(good));
        assert!(decode(&good.encode(), 4100).is_err());
        refused(&good, &[(28, 1), (28, 2), (28, 4), (29, 2), (29, 1), (30, 1), (31, 1), (16, 11)]);
        let missing = Extent { missing: true, ..Extent::default() };
        assert_eq!(decode(&missing.encode(), 5000), Ok(missing));
        refused(&missing, &[(28, 1), (0, 1), (8, 1), (16, 1), (24, 1), (29, 3)]);

        let side = Extent { raw: 7, ..good };
        assert_eq!((side.side(), decode(&side.encode(), 5000)), (3, Ok(side)));
        assert!(decode(&side.encode(), 4105).is_err());
        let changes = [(28, 1), (29, 0), (29, 1), (29, 3), (29, 4), (29, 6), (30, 1), (31, 1), (16, 10), (16, 11)];
        refused(&side, &changes);
        // More side bytes than fit in a u32.
        let long = Extent { stored: 7 << 32, raw: (7 << 32) - 1, ..side };
        let mut bytes = long.encode();
        assert!(decode(&bytes, 8 << 32).is_ok());
        bytes[16..24].copy_from_slice(&7_u64.to_le_bytes());
        assert!(decode(&bytes, 8 << 32).is_err());
    }

    #[test]
    fn a_compressed_extent_says_less_stored_than_raw_and_no_more_than_can_be_believed() {
        for codec in [Codec::Lz4, Codec::Zstd] {
            let good = Extent { offset: 4096, stored: 10, raw: 300, crc: 7, codec, missing: false };
            assert_eq!((good.side(), decode(&good.encode(), 5000)), (0, Ok(good)));
            assert!(decode(&good.encode(), 4105).is_err());
            refused(&good, &[(28, 0), (28, 4), (28, 255), (29, 1), (29, 2), (29, 4), (30, 1), (31, 1), (8, 0)]);
            for (stored, raw, fine) in [
                (10, 10, false),
                (10, 9, false),
                (10, 0, false),
                (1, 1 << 26, true),
                (1, (1 << 26) + 1, false),
                (10, u64::MAX, false),
            ] {
                let extent = Extent { stored, raw, ..good };
                assert_eq!(decode(&extent.encode(), 5000).is_ok(), fine, "{stored} -> {raw}");
            }
        }
    }

    #[test]
    fn a_packed_jpeg_has_about_as_many_bytes_as_the_jpeg() {
        let good = Extent { offset: 4096, stored: 120, raw: 100, crc: 7, codec: Codec::PackedJpeg, missing: false };
        assert_eq!((good.side(), decode(&good.encode(), 5000)), (0, Ok(good)));
        refused(&good, &[(28, 4), (29, 1), (29, 2), (30, 1), (31, 1), (8, 0), (16, 0)]);
        for (stored, raw, fine) in
            [(403, 100, true), (404, 100, false), (1, 1 << 26, true), (1, (1 << 26) + 1, false), (1, u64::MAX, false)]
        {
            assert_eq!(decode(&Extent { stored, raw, ..good }.encode(), 5000).is_ok(), fine, "{stored} of {raw}");
        }
        let long = Extent { stored: MAX_IMAGE_BYTES, raw: MAX_IMAGE_BYTES, ..good };
        assert!(decode(&long.encode(), 1 << 40).is_ok());
        assert!(decode(&Extent { raw: MAX_IMAGE_BYTES + 1, ..long }.encode(), 1 << 40).is_err());
    }
}
