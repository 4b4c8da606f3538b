//! Rewrites arbitrary bytes as crop-ready JPEGs, indexes them, and decodes JPEGs with arbitrary side
//! bytes.

use std::hint::black_box;

use fastrecord_core::decode_image;
use fastrecord_core::image::{
    DecodeOptions, Decoder, Geometry, Markers, Random, check_crop_index, crop_index, rewrite,
};

use super::bytes::Input;
use super::decode::{any_crop, bound, options};
use super::guard;

/// The input: options, a crop, the number of side bytes, the side bytes, and a JPEG.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (options, crop) = (options(input.u8()), [0; 4].map(|_| u32::from(input.u8())));
    let (how, length) = (input.u8(), input.u16());
    let (side, image) = (input.take(length.into()), input.0);
    guard::within(bound(data.len()), || {
        cropped(image, side, options, crop);
        let _ = black_box(check_crop_index(image, side));
        // Rewriting decodes an image of any size, so this target only rewrites small ones.
        if how & 1 == 0 && Decoder::new(options).size(image).is_ok() {
            let keep = Markers { exif: how & 2 == 0, icc: how & 4 == 0, other: how & 8 == 0 };
            if let Ok(Some(made)) = rewrite(image, keep) {
                rewritten(image, &made.bytes, &made.side, options, crop);
            }
            if let Some(index) = crop_index(image) {
                check_crop_index(image, &index).expect("an index that was just made");
                assert_eq!(cropped(image, &index, options, crop), cropped(image, &[], options, crop), "with an index");
            }
        }
    });
}

fn cropped(image: &[u8], side: &[u8], options: DecodeOptions, crop: [u32; 4]) -> Option<Vec<u8>> {
    let mut decoder = Decoder::new(options);
    let mut out = vec![0; 3 * 24 * 16];
    let plan = |width, height| (any_crop(crop, width, height), false);
    let done = decoder.crop_resize_side(image, side, (24, 16), &mut out, plan).is_ok();
    let mut other = vec![0; 3 * 32 * 32];
    let geometry = Geometry::RandomCrop { size: (32, 32), padding: 4 };
    let plan = |width, height| geometry.draw(width, height, true, Random::new(crop[0].into(), 0, 0));
    let _ = black_box(decoder.crop_resize_side(image, side, (32, 32), &mut other, plan));
    done.then_some(out)
}

/// A rewritten image has the pixels of the original, whole and in parts.
fn rewritten(image: &[u8], made: &[u8], side: &[u8], options: DecodeOptions, crop: [u32; 4]) {
    let plain = DecodeOptions { orientation: false, ..options };
    let (before, after) = (decode_image(image, plain), decode_image(made, plain));
    assert_eq!(before, after, "the rewritten JPEG");
    assert_eq!(cropped(made, side, plain, crop), cropped(made, &[], plain, crop), "a part of the rewritten JPEG");
}
