//! Pixels as they are stored, for outputs that are not RGB of 8 bits: masks, 16 bits, alpha.

use std::io::Cursor;

use super::foreign::{Channels, sniff};
use super::formats::{guarded, raw};
use super::orientation::Orientation;
use super::probe::Format;
use super::{DecodeError, Decoder, check_memory, raw_pixels, reserve};
use ::image::ColorType;

/// What the pixels of an image become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Native {
    /// One number each, of 1 or 2 bytes: a mask. The indices of a PNG with a palette; else the values of an
    /// image of one channel.
    Index(usize),
    /// Red, green, blue and alpha, of 8 bits.
    Rgba,
    /// One channel or three, of 16 bits. 8 bits are multiplied by 257.
    Deep(usize),
}

impl Native {
    /// Returns the bytes of a pixel.
    pub fn bytes(self) -> usize {
        match self {
            Self::Index(bytes) => bytes,
            Self::Rgba => 4,
            Self::Deep(channels) => 2 * channels,
        }
    }
}

/// Pixels before their conversion.
struct Values<'a> {
    channels: usize,
    /// Bytes of a value.
    bytes: usize,
    /// Values from one pixel to the next.
    stride: usize,
    all: &'a [u8],
}

impl Decoder {
    /// Decodes the whole image to `out`, turned upright if that is requested. Returns width and height.
    ///
    /// # Errors
    /// As [`Decoder::decode`]; or its pixels are of another kind.
    pub fn decode_native(&mut self, data: &[u8], native: Native, out: &mut Vec<u8>) -> Result<(u32, u32), DecodeError> {
        self.trim();
        if let Some(image) = raw_pixels(data) {
            let values = Values { channels: 3, bytes: 1, stride: 3, all: image.pixels };
            convert("PPM", native, &values, out)?;
            return Ok((image.width, image.height));
        }
        let format = sniff(data)?;
        let palette = matches!(native, Native::Index(_)) && Channels::of(data) == Channels::Palette;
        let (width, height, orientation) = match format {
            Format::Jpeg => {
                let one = Channels::of(data) == Channels::One;
                let image = self.decode(data)?;
                let (width, height) = (image.width, image.height);
                let values = Values { channels: if one { 1 } else { 3 }, bytes: 1, stride: 3, all: image.pixels };
                convert("JPEG", native, &values, out)?;
                return Ok((width, height)); // upright
            }
            Format::Png if palette => {
                let (width, height) = guarded(format, || self.indices(data))?;
                let count = width as usize * height as usize;
                let values = Values { channels: 1, bytes: 1, stride: 1, all: &self.scratch[..count] };
                convert("PNG", native, &values, out)?;
                (width, height, Orientation::UPRIGHT)
            }
            _ if palette => {
                let detail = "with a palette, whose indices only a PNG gives".to_owned();
                return Err(DecodeError::Unsupported { format: format.name(), detail });
            }
            _ => {
                let (width, height, orientation, color) = raw(format, data, &self.options, &mut self.scratch)?;
                let (channels, bytes) = match color {
                    ColorType::L8 => (1, 1),
                    ColorType::La8 => (2, 1),
                    ColorType::Rgb8 => (3, 1),
                    ColorType::Rgba8 => (4, 1),
                    ColorType::L16 => (1, 2),
                    ColorType::La16 => (2, 2),
                    ColorType::Rgb16 => (3, 2),
                    ColorType::Rgba16 => (4, 2),
                    other => {
                        let detail = format!("pixels of {other:?}");
                        return Err(DecodeError::Unsupported { format: format.name(), detail });
                    }
                };
                let count = width as usize * height as usize * channels * bytes;
                let values = Values { channels, bytes, stride: channels, all: &self.scratch[..count] };
                convert(format.name(), native, &values, out)?;
                (width, height, orientation)
            }
        };
        if orientation != Orientation::UPRIGHT {
            *out = turned(out, (width as usize, height as usize), native.bytes(), orientation)?;
        }
        Ok(orientation.size(width, height))
    }

    /// Writes the indices of a PNG with a palette to `scratch`.
    fn indices(&mut self, data: &[u8]) -> Result<(u32, u32), DecodeError> {
        let damaged = |error: png::DecodingError| DecodeError::Damaged { format: "PNG", detail: error.to_string() };
        let mut decoder = png::Decoder::new(Cursor::new(data));
        decoder.set_transformations(png::Transformations::IDENTITY);
        let mut reader = decoder.read_info().map_err(damaged)?;
        let (width, height) = (reader.info().width, reader.info().height);
        self.options.check_size(width, height)?;
        let bits = reader.info().bit_depth as usize;
        let packed = reader.output_buffer_size().unwrap_or(usize::MAX);
        check_memory(packed)?;
        let rows = reserve(&mut self.pixels, packed)?;
        // The crate `png` adds the bits of interlaced pixels to those that are there.
        rows.fill(0);
        let line = reader.next_frame(rows).map_err(damaged)?.line_size;
        let out = reserve(&mut self.scratch, width as usize * height as usize)?;
        let mask = u8::MAX >> (8 - bits);
        if bits == 8 {
            out.copy_from_slice(&self.pixels[..out.len()]);
            return Ok((width, height));
        }
        for (row, out) in self.pixels.chunks_exact(line).zip(out.chunks_exact_mut(width as usize)) {
            for (at, out) in out.iter_mut().enumerate() {
                let bit = at * bits;
                *out = row[bit / 8] >> (8 - bits - bit % 8) & mask;
            }
        }
        Ok((width, height))
    }
}

/// Converts values in the computer's byte order.
fn convert(
    format: &'static str,
    native: Native,
    &Values { channels, bytes, stride, all }: &Values<'_>,
    out: &mut Vec<u8>,
) -> Result<(), DecodeError> {
    let wrong = |detail: &str| Err(DecodeError::Unsupported { format, detail: detail.to_owned() });
    let count = all.len() / (stride * bytes);
    let total = count * native.bytes();
    if out.len() < total {
        *out = Vec::new();
    }
    out.truncate(total);
    let left = total - out.len();
    crate::memory::reserve(out, left).map_err(|_| DecodeError::Memory { bytes: total as u64 })?;
    out.resize(total, 0);
    let pixels = all.chunks_exact(stride * bytes).zip(out.chunks_exact_mut(native.bytes()));
    #[allow(clippy::host_endian_bytes)] // the crate `image` returns values in native order
    let wide = |value: &[u8]| match *value {
        [value] => u16::from(value) * 257,
        [a, b] => u16::from_ne_bytes([a, b]),
        _ => 0,
    };
    let same = match native {
        Native::Index(to) => channels == 1 && to == bytes,
        Native::Rgba => (channels, bytes) == (4, 1),
        Native::Deep(to) => (channels, bytes) == (to, 2),
    };
    if same && stride == channels {
        out.copy_from_slice(all);
        return Ok(());
    }
    match native {
        Native::Index(_) if channels > 2 => {
            wrong("of several channels, where a mask has one: PNGs with a palette give its indices")
        }
        Native::Index(to) if to < bytes => wrong("of 16 bits, where the mask has 8: write T.Decode(bits=16)"),
        Native::Index(_) => {
            pixels.for_each(|(from, out)| out[..bytes].copy_from_slice(&from[..bytes]));
            Ok(())
        }
        Native::Rgba => {
            let narrow = |value: &[u8]| if bytes == 1 { value[0] } else { (wide(value) >> 8) as u8 };
            pixels.for_each(|(from, out)| {
                let of = |channel: usize| narrow(&from[channel * bytes..][..bytes]);
                out.copy_from_slice(&match channels {
                    1 => [of(0), of(0), of(0), u8::MAX],
                    2 => [of(0), of(0), of(0), of(1)],
                    3 => [of(0), of(1), of(2), u8::MAX],
                    _ => [of(0), of(1), of(2), of(3)],
                });
            });
            Ok(())
        }
        Native::Deep(to) => {
            if to == 1 && channels > 2 {
                return wrong("of several channels, where T.Decode(channels=1, bits=16) asks for one");
            }
            pixels.for_each(|(from, out)| {
                for (at, out) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    let channel = if channels > 2 { at } else { 0 };
                    *out = wide(&from[channel * bytes..][..bytes]).to_le_bytes();
                }
            });
            Ok(())
        }
    }
}

/// Returns stored pixels at their shown places.
fn turned(
    stored: &[u8],
    (width, height): (usize, usize),
    bytes: usize,
    orientation: Orientation,
) -> Result<Vec<u8>, DecodeError> {
    let Orientation { transpose, mirror_x, mirror_y } = orientation;
    let (across, down) = if transpose { (height, width) } else { (width, height) };
    let error = |_| DecodeError::Memory { bytes: stored.len() as u64 };
    let mut shown = crate::memory::zeros(stored.len()).map_err(error)?;
    for (at, pixel) in shown.chunks_exact_mut(bytes).enumerate() {
        let (x, y) = (at % across, at / across);
        let x = if mirror_x { across - 1 - x } else { x };
        let y = if mirror_y { down - 1 - y } else { y };
        let (x, y) = if transpose { (y, x) } else { (x, y) };
        pixel.copy_from_slice(&stored[(y * width + x) * bytes..][..bytes]);
    }
    Ok(shown)
}
