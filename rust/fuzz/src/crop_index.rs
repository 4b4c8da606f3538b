//! Indexes arbitrary bytes as JPEGs, and decodes JPEGs with arbitrary side bytes.

use std::hint::black_box;

use fastrecord_core::image::{DecodeOptions, Decoder, Geometry, Random, check_crop_index, crop_index};

use super::bytes::{Input, put};
use super::decode::{any_crop, bound, options, other_decoder};
use super::guard;

/// The first of a crop index's side bytes, and the place of its checksum.
const INDEX: u8 = 2;
const CRC: usize = 8;

/// The input: options, a crop, what to do, the number of side bytes, the side bytes, and a JPEG.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (options, crop) = (options(input.u8()), [0; 4].map(|_| u32::from(input.u8())));
    let (how, length) = (input.u8(), input.u16());
    let (mut side, image) = (input.take(length.into()).to_vec(), input.0);
    if how & 16 == 0 {
        seal(&mut side);
    }
    guard::within(bound(data.len()), || {
        let _ = black_box(cropped(image, &side, options, crop));
        let _ = black_box(check_crop_index(image, &side));
        // An index takes the decoding of an image of any size, so this target only indexes small ones.
        if how & 1 == 0 && Decoder::new(options).size(image).is_ok() {
            indexed(image, usize::from(how >> 5), options, crop);
        }
    });
}

/// Makes the checksum of a crop index right, so that its entries are read.
fn seal(side: &mut [u8]) {
    if let (Some(&INDEX), Some(entries)) = (side.first(), side.get(CRC + 4..)) {
        let crc = crc32c::crc32c_append(crc32c::crc32c(&side[..CRC]), entries);
        put(side, CRC, &crc.to_le_bytes());
    }
}

fn cropped(image: &[u8], side: &[u8], options: DecodeOptions, crop: [u32; 4]) -> [Option<Vec<u8>>; 2] {
    let mut decoder = Decoder::new(options);
    let mut out = vec![0; 3 * 24 * 16];
    let plan = |width, height| (any_crop(crop, width, height), false);
    let done = decoder.crop_resize_side(image, side, (24, 16), &mut out, plan).is_ok();
    let mut other = vec![0; 3 * 32 * 32];
    let geometry = Geometry::random((32, 32), 4);
    let plan =
        |width, height| (geometry.crop(width, height, 0, &mut Random::new(crop[0].into(), 0, 0)), crop[0] & 1 == 1);
    let other_done = decoder.crop_resize_side(image, side, (32, 32), &mut other, plan).is_ok();
    [done.then_some(out), other_done.then_some(other)]
}

/// An index does not change the pixels. Bytes after the image leave room for more entries.
fn indexed(image: &[u8], room: usize, options: DecodeOptions, crop: [u32; 4]) {
    let image = [image, &vec![0; room << 11]].concat();
    if let Some(index) = crop_index(&image) {
        check_crop_index(&image, &index).expect("an index that was just made");
        let without = cropped(&image, &[], options, crop);
        assert_eq!(cropped(&image, &index, options, crop), without, "with an index");
        assert_eq!(cropped(&image, &index, other_decoder(options), crop), without, "by the other decoder");
    }
}
