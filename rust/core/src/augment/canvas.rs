//! `Canvas`: the pixels of one image that operations change, one after the other.

/// RGB pixels, row by row, and memory for operations that cannot work in place.
#[derive(Debug, Default)]
pub struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
    spare: Vec<u8>,
}

impl Canvas {
    /// Makes room for an image of that size and returns its pixels, whose values are arbitrary. The
    /// memory of earlier images is reused.
    pub fn begin(&mut self, width: usize, height: usize) -> &mut [u8] {
        (self.width, self.height) = (width, height);
        self.pixels.resize(3 * width * height, 0);
        &mut self.pixels
    }

    /// Returns width and height.
    pub fn size(&self) -> (usize, usize) {
        (self.width, self.height)
    }

    /// Returns the pixels.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    pub(super) fn pixels_mut(&mut self) -> &mut [u8] {
        &mut self.pixels
    }

    /// Calls `work` with the pixels and with memory of the same size for the result, which replaces
    /// the pixels. `work` writes all of it.
    pub(super) fn replace(&mut self, work: impl FnOnce(&[u8], &mut [u8])) {
        self.spare.resize(self.pixels.len(), 0);
        work(&self.pixels, &mut self.spare);
        std::mem::swap(&mut self.pixels, &mut self.spare);
    }
}
