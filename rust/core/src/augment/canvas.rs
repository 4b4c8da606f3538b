//! `Canvas`: the pixels of one image that operations change, one after the other.

/// RGB pixels, row by row, and memory for operations that cannot work in place.
#[derive(Debug, Default)]
pub struct Canvas {
    width: usize,
    height: usize,
    /// Whether the three channels of each pixel are equal, and stand for one.
    single: bool,
    pixels: Vec<u8>,
    spare: Vec<u8>,
}

impl Canvas {
    /// Makes room for an image of that size and returns its pixels, whose values are arbitrary. The
    /// memory of earlier images is reused.
    pub fn begin(&mut self, width: usize, height: usize) -> &mut [u8] {
        (self.width, self.height, self.single) = (width, height, false);
        self.pixels.resize(3 * width * height, 0);
        &mut self.pixels
    }

    /// Becomes the same image as another.
    pub(super) fn copy(&mut self, other: &Self) {
        self.begin(other.width, other.height).copy_from_slice(&other.pixels);
        self.single = other.single;
    }

    /// Returns width and height.
    pub fn size(&self) -> (usize, usize) {
        (self.width, self.height)
    }

    /// Returns the pixels.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// Makes each pixel grey, as Pillow's mode "L": from now on the image has one channel.
    pub fn make_single(&mut self) {
        self.single = true;
        for pixel in self.pixels.as_chunks_mut::<3>().0 {
            let [red, green, blue] = pixel.map(u32::from);
            *pixel = [((19_595 * red + 38_470 * green + 7471 * blue + 0x8000) >> 16) as u8; 3];
        }
    }

    /// Reports whether the image has one channel, three times.
    pub(super) fn is_single(&self) -> bool {
        self.single
    }

    /// Returns the only channel.
    pub fn channel(&mut self) -> &[u8] {
        self.spare.resize(self.pixels.len() / 3, 0);
        let pixels = self.pixels.as_chunks::<3>().0;
        self.spare.iter_mut().zip(pixels).for_each(|(out, &[value, _, _])| *out = value);
        &self.spare
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
