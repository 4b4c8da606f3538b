//! Decodes images of all formats.

use std::hint::black_box;

use fastrecord_core::image::{
    Channels, Crop, DecodeOptions, Decoder, Filter, Format, Geometry, Random, Rect, SixteenBit, Truncated,
    foreign_kind, raw_pixels,
};
use fastrecord_core::{decode_image, image_size};

use super::bytes::Input;
use super::guard;

/// Larger images are refused.
pub const PIXELS: u64 = 1 << 16;
/// The memory that a decoder may use besides the pixels (the core's limit for formats other than
/// JPEG), plus tables.
const WORKSPACE: usize = 80 << 20;

/// The memory that an image of the given size may use: the pixels as RGB, with up to 8 bytes per
/// value, and the output.
pub fn bound(bytes: usize) -> usize {
    WORKSPACE + 40 * PIXELS as usize + 64 * bytes
}

/// Inspects the bytes, decodes them whole, and crops and resizes them; the first bytes select the
/// options.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (options, crop) = (options(input.u8()), [0; 4].map(|_| u32::from(input.u8())));
    let (seed, image) = (input.u8(), input.0);
    guard::within(bound(data.len()), || {
        let _ = black_box((image_size(image), foreign_kind(image), Channels::of(image)));
        let _ = black_box((Format::sniff(image), raw_pixels(image), Decoder::orientation_of(image)));
        let mut decoder = Decoder::new(options);
        let size = decoder.size(image);
        let whole = decode_image(image, options);
        assert_eq!(whole, decode_image(image, other_decoder(options)), "our Huffman decoder and libjpeg-turbo's");
        if let (Ok(size), Ok(whole)) = (&size, &whole) {
            assert_eq!(*size, (whole.width, whole.height));
            assert_eq!(whole.pixels.len() as u64, 3 * u64::from(whole.width) * u64::from(whole.height));
        }
        let mut out = vec![0; 3 * 24 * 16];
        let plan = |width, height| (any_crop(crop, width, height), seed & 1 == 1);
        let done = decoder.crop_resize_with(image, (24, 16), &mut out, plan).map(drop);
        let mut other = vec![0; out.len()];
        let again = Decoder::new(other_decoder(options)).crop_resize_with(image, (24, 16), &mut other, plan).map(drop);
        assert_eq!(done, again, "our Huffman decoder and libjpeg-turbo's, of a part");
        assert!(done.is_err() || out == other, "our Huffman decoder and libjpeg-turbo's, of a part");
        let geometry = geometry(seed >> 1);
        let random = Random::new(seed.into(), 0, 0);
        let (width, height) = geometry.size();
        let mut out = vec![0; 3 * width as usize * height as usize];
        let drawn = |w, h| (geometry.crop(w, h, 0, &mut random.clone()), true);
        let _ = black_box(decoder.crop_resize_with(image, (width, height), &mut out, drawn));
    });
}

/// Every combination of the options.
pub fn options(bits: u8) -> DecodeOptions {
    DecodeOptions {
        truncated: if bits & 1 == 0 { Truncated::Reject } else { Truncated::Accept },
        sixteen_bit: [SixteenBit::Reject, SixteenBit::Scale, SixteenBit::Clip, SixteenBit::Clip]
            [usize::from(bits >> 6)],
        orientation: bits & 2 != 0,
        max_pixels: PIXELS,
        filter: [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos, Filter::Box][usize::from(bits >> 2 & 3)],
        min_reduced: if bits & 16 == 0 { 1.0 } else { 2.5 },
        stock_jpeg: bits & 32 != 0,
    }
}

/// The same options, with the other decoder for JPEGs.
pub fn other_decoder(options: DecodeOptions) -> DecodeOptions {
    DecodeOptions { stock_jpeg: !options.stock_jpeg, ..options }
}

/// A region of the image, or occasionally one that does not fit.
pub fn any_crop(bytes: [u32; 4], width: u32, height: u32) -> Crop {
    let [x, y, w, h] = bytes;
    let (x, y) = (x * width / 256, y * height / 256);
    Crop::exact(Rect { x, y, width: (w * width / 256).max(1), height: (h * height / 256).max(1) }, (24, 16))
}

fn geometry(number: u8) -> Geometry {
    match number % 4 {
        0 => Geometry::RandomResizedCrop { size: (20, 30), scale: (0.08, 1.0), ratio: (0.75, 1.33) },
        1 => Geometry::center((20, 10), Some(24)),
        2 => Geometry::Resize { size: (7, 40) },
        _ => Geometry::random((32, 32), 4),
    }
}
