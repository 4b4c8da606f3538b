//! `Cursor`: a place in the packed blocks of a piece, a few MCUs of a row.

use super::Packed;
use super::block::{AHEAD, skip};

/// Reads block after block. Its reader looks a little further than the block.
pub(super) struct Cursor<'a> {
    data: &'a [u8],
    at: usize,
    end: usize,
    /// The last first coefficient of each component.
    predictions: [i16; 4],
    /// The last bytes of the data with zeros after them, once they are reached.
    last: Option<Box<[u8; 2 * AHEAD]>>,
}

impl<'a> Cursor<'a> {
    /// Begins a piece of a row of MCUs.
    pub(super) fn new(packed: &Packed<'a>, row: u32, piece: u32) -> Option<Self> {
        let (at, end) = packed.piece(row, piece)?;
        Some(Self { data: packed.data, at, end, predictions: [0; 4], last: None })
    }

    /// Reads a block of a component by `unpack`, which gets its bytes and the prediction, and returns its
    /// length.
    #[inline]
    pub(super) fn next(
        &mut self,
        component: u8,
        unpack: impl FnOnce(&[u8; AHEAD], &mut i16) -> Option<usize>,
    ) -> Option<()> {
        if self.at >= self.end {
            return None;
        }
        let prediction = &mut self.predictions[usize::from(component & 3)];
        let length = match self.data[self.at..].first_chunk() {
            Some(bytes) => unpack(bytes, prediction)?,
            None => unpack(ahead(self.data, self.at, &mut self.last)?, prediction)?,
        };
        self.at += length;
        Some(())
    }

    /// Moves over the blocks of MCUs.
    pub(super) fn skip(&mut self, mcus: u32, components: &[u8]) -> Option<()> {
        for _ in 0..mcus {
            components.iter().try_for_each(|component| self.next(*component, skip))?;
        }
        Some(())
    }

    /// Returns `None` if the piece does not end here.
    pub(super) fn finish(&self) -> Option<()> {
        (self.at == self.end).then_some(())
    }
}

/// Returns the last bytes of the data from a place on, and zeros after them.
#[cold]
fn ahead<'a>(data: &[u8], at: usize, last: &'a mut Option<Box<[u8; 2 * AHEAD]>>) -> Option<&'a [u8; AHEAD]> {
    let start = data.len().saturating_sub(AHEAD);
    let last = last.get_or_insert_with(|| {
        let mut last = Box::new([0; 2 * AHEAD]);
        last[..data.len() - start].copy_from_slice(&data[start..]);
        last
    });
    last.get(at - start..)?.first_chunk()
}
