//! `Values`: what each byte of a pixel becomes in a batch, such as a normalised float. It does not
//! know the type of the values.

use crate::error::{Error, Result};

/// Values of three channels.
const VALUES: usize = 3 * 256;

/// A value of a fixed size for each byte of each channel.
#[derive(Debug)]
pub(crate) struct Values {
    table: Vec<u8>,
    size: usize,
}

impl Values {
    /// Takes the values of byte 0 for red, green and blue, then of byte 1, and so on.
    ///
    /// # Errors
    /// The values are not of 1, 2, 4 or 8 bytes each.
    pub(crate) fn new(table: Vec<u8>) -> Result<Self> {
        let size = table.len() / VALUES;
        if !table.len().is_multiple_of(VALUES) || !matches!(size, 1 | 2 | 4 | 8) {
            return Err(Error::Plan(format!("{} bytes are not {VALUES} values of 1, 2, 4 or 8 bytes", table.len())));
        }
        Ok(Self { table, size })
    }

    /// Returns the bytes of a value.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Writes the values of RGB pixels.
    pub(crate) fn write(&self, pixels: &[u8], out: &mut [u8]) {
        match self.size {
            1 => self.write_sized::<1>(pixels, out),
            2 => self.write_sized::<2>(pixels, out),
            4 => self.write_sized::<4>(pixels, out),
            _ => self.write_sized::<8>(pixels, out),
        }
    }

    fn write_sized<const SIZE: usize>(&self, pixels: &[u8], out: &mut [u8]) {
        // An array of known length: no index is checked.
        let Ok(table) = <&[[u8; SIZE]; VALUES]>::try_from(self.table.as_chunks().0) else { return };
        let outputs = out.as_chunks_mut::<SIZE>().0.as_chunks_mut::<3>().0;
        for (values, pixel) in outputs.iter_mut().zip(pixels.as_chunks::<3>().0) {
            for channel in 0..3 {
                values[channel] = table[3 * usize::from(pixel[channel]) + channel];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{VALUES, Values};

    #[test]
    fn each_byte_becomes_the_value_of_its_channel() {
        let pixels: Vec<u8> = (0..=255).flat_map(|byte: u8| [byte, byte.wrapping_add(1), 255 - byte]).collect();
        for size in [1, 2, 4, 8] {
            let value = |byte: u8, channel: usize| (usize::from(byte) * 3 + channel).to_le_bytes()[..size].to_vec();
            let table = (0..=255).flat_map(|byte| (0..3).flat_map(move |channel| value(byte, channel))).collect();
            let values = Values::new(table).unwrap();
            let mut out = vec![7; pixels.len() * size];
            values.write(&pixels, &mut out);
            let wanted = pixels.iter().enumerate().flat_map(|(at, &byte)| value(byte, at % 3));
            assert_eq!(out, wanted.collect::<Vec<u8>>());
        }
    }

    #[test]
    fn tables_of_other_sizes_are_refused() {
        for length in [0, 3, VALUES - 1, 3 * VALUES, 5 * VALUES, 16 * VALUES] {
            assert!(Values::new(vec![0; length]).is_err());
        }
    }
}
