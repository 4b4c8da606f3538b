//! Decodes and restores arbitrary bytes as packed JPEGs, and packs arbitrary JPEGs.

use std::hint::black_box;

use fastrecord_core::image::{DecodeOptions, Decoder, pack_jpeg, unpack_jpeg};

use super::bytes::Input;
use super::decode::{any_crop, bound, options, other_decoder};
use super::guard;

/// The input: options, a crop, the length of a restored JPEG, and bytes that are a JPEG or a packed one.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (options, crop) = (options(input.u8()), [0; 4].map(|_| u32::from(input.u8())));
    let (length, image) = (usize::from(input.u16()), input.0);
    guard::within(bound(data.len()), || {
        if let Some(packed) = pack_jpeg(image) {
            let mut restored = vec![0; image.len()];
            unpack_jpeg(&packed, &mut restored).expect("an image that was just packed");
            assert_eq!(restored, image);
            same(image, &packed, options, crop);
        }
        // Whatever comes out is bounded by what was asked for.
        let _ = black_box(unpack_jpeg(image, &mut vec![0; length]));
        let _ = black_box(cropped(image, options, crop));
        let _ = black_box(cropped(image, other_decoder(options), crop));
    });
}

fn cropped(image: &[u8], options: DecodeOptions, crop: [u32; 4]) -> Option<Vec<u8>> {
    let mut out = vec![0; 3 * 24 * 16];
    let plan = |width, height| (any_crop(crop, width, height), false);
    Decoder::new(options).crop_resize_side(image, &[], (24, 16), &mut out, plan).ok()?;
    Some(out)
}

/// A packed image has the pixels of the original.
fn same(image: &[u8], packed: &[u8], options: DecodeOptions, crop: [u32; 4]) {
    let expected = cropped(image, options, crop);
    assert_eq!(cropped(packed, options, crop), expected, "from coefficients");
    assert_eq!(cropped(packed, other_decoder(options), crop), expected, "by the other decoder");
}
