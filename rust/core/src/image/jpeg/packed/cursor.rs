//! `Cursor`: a place in the packed blocks of a piece.

use std::borrow::Cow;

use super::Packed;
use super::block::{AHEAD, AT_ONCE, Piece, Places, skip};
use super::way::Way;
use crate::image::jpeg::zigzag::Coefficients;

/// Reads the blocks of a piece, MCU by MCU.
pub(super) struct Cursor<'a> {
    /// At least [`AHEAD`] bytes follow the piece.
    data: Cow<'a, [u8]>,
    piece: Piece,
    at: Places,
    /// The last first coefficient of each component.
    predictions: [i16; 4],
}

impl<'a> Cursor<'a> {
    /// Begins a piece of so many blocks.
    pub(super) fn new(packed: &Packed<'a>, row: u32, piece: u32, blocks: usize) -> Option<Self> {
        let (start, end) = packed.piece(row, piece)?;
        let (data, start, end) = if packed.data.len() - end >= AHEAD {
            (Cow::Borrowed(packed.data), start, end)
        } else {
            let mut copy = Vec::with_capacity(end - start + AHEAD);
            copy.extend_from_slice(&packed.data[start..end]);
            copy.resize(end - start + AHEAD, 0);
            (Cow::Owned(copy), 0, end - start)
        };
        let piece = Piece::read(&data, start, end, blocks)?;
        Some(Self { data, piece, at: piece.starts, predictions: [0; 4] })
    }

    /// Reads up to `AT_ONCE` blocks of MCUs. The component of each is given.
    #[inline]
    pub(super) fn next<B: Coefficients>(
        &mut self,
        way: Way,
        components: &[u8; AT_ONCE],
        blocks: &mut [B],
    ) -> Option<()> {
        let Self { data, piece: Piece { gap, .. }, at, predictions } = self;
        match way {
            // SAFETY: the processor has the instructions: `Way::all` has asked it.
            #[cfg(target_arch = "x86_64")]
            #[allow(unsafe_code)]
            Way::Vbmi2 => unsafe { super::x86::unpack_vbmi2(data, *gap, at, predictions, components, blocks) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            #[allow(unsafe_code)]
            Way::Avx2 => unsafe { super::x86::unpack_avx2(data, *gap, at, predictions, components, blocks) },
            Way::Portable => super::block::unpack(data, *gap, at, predictions, components, blocks),
        }?;
        self.at.within(&self.piece.ends).then_some(())
    }

    /// Moves over blocks of these components.
    pub(super) fn skip(&mut self, components: impl Iterator<Item = u8>) -> Option<()> {
        skip(&self.data, self.piece.gap, &mut self.at, &mut self.predictions, components)?;
        self.at.within(&self.piece.ends).then_some(())
    }

    /// Returns `None` if the piece does not end here.
    pub(super) fn finish(&self) -> Option<()> {
        (self.at == self.piece.ends).then_some(())
    }
}
