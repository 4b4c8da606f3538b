//! `McuSource`: the coefficients of MCUs, for those who make pixels of them. `Blocks`: the sources there are.

use super::entropy::Window;
use super::packed::PackedWindow;

/// The MCUs of a rectangle, row by row.
pub(super) trait McuSource {
    /// Fills the blocks of the next MCUs, with `each` blocks in an MCU and values in natural order. All
    /// are in one row of the rectangle. Returns `None` if the data are irregular.
    fn next(&mut self, blocks: &mut [[i16; 64]], each: usize) -> Option<()>;
}

impl McuSource for Window<'_> {
    fn next(&mut self, blocks: &mut [[i16; 64]], each: usize) -> Option<()> {
        for blocks in blocks.chunks_exact_mut(each) {
            blocks.fill([0; 64]);
            Window::next(self, blocks)?;
        }
        Some(())
    }
}

impl McuSource for PackedWindow<'_> {
    fn next(&mut self, blocks: &mut [[i16; 64]], _: usize) -> Option<()> {
        PackedWindow::next(self, blocks)
    }
}

/// The blocks of the MCUs, from Huffman codes or packed.
pub(super) enum Blocks<'a> {
    Coded(Window<'a>),
    Packed(PackedWindow<'a>),
}

impl McuSource for Blocks<'_> {
    fn next(&mut self, blocks: &mut [[i16; 64]], each: usize) -> Option<()> {
        match self {
            Self::Coded(window) => McuSource::next(window, blocks, each),
            Self::Packed(window) => McuSource::next(window, blocks, each),
        }
    }
}
