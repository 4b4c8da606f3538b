//! Packed JPEGs have the pixels of the originals, and give them back.

use fastrecord_core::image::{
    Crop, DecodeOptions, Decoder, Geometry, JpegOptions, Random, Rect, Subsampling, encode_jpeg, pack_jpeg, unpack_jpeg,
};

use crate::common::Rng;
use crate::pictures::{SUBSAMPLINGS, picture};

#[test]
fn crops_of_packed_jpegs_are_those_of_the_originals() {
    let mut rng = Rng(3);
    let mut packed_images = 0;
    for number in 0..300 {
        let (width, height) = (1 + rng.below(330) as u32, 1 + rng.below(150) as u32);
        let options = JpegOptions {
            quality: 20 + rng.below(81) as u8,
            subsampling: SUBSAMPLINGS[number % SUBSAMPLINGS.len()],
            progressive: rng.below(3) == 0,
            restart_every: [0, 0, 1, 7][rng.below(4) as usize],
        };
        let channels = if options.subsampling != Subsampling::Grey && rng.below(5) == 0 { 4 } else { 3 };
        let data = picture(width, height, channels);
        let jpeg = encode_jpeg(&data, width, height, &options).unwrap();
        let Some(packed) = pack_jpeg(&jpeg) else { continue };
        packed_images += 1;
        let mut restored = vec![0; jpeg.len()];
        unpack_jpeg(&packed, &mut restored).unwrap();
        assert!(restored == jpeg);
        for decode in [
            DecodeOptions::default(),
            DecodeOptions { min_reduced: 1.0, ..DecodeOptions::default() },
            DecodeOptions { stock_jpeg: true, ..DecodeOptions::default() },
        ] {
            let [mut one, mut other] = [0; 2].map(|_| Decoder::new(decode));
            let context = format!("{options:?}, {channels} channels, {width} x {height}, {decode:?}");
            assert_eq!(one.size(&packed), other.size(&jpeg));
            assert!(one.decode(&packed).unwrap() == other.decode(&jpeg).unwrap(), "{context}");
            for position in 0..4 {
                let part = {
                    let (x, y) = (rng.below(width.into()) as u32, rng.below(height.into()) as u32);
                    let (across, down) = (1 + rng.below((width - x).into()), 1 + rng.below((height - y).into()));
                    Rect { x, y, width: across as u32, height: down as u32 }
                };
                let geometry = Geometry::random((24, 16), 3);
                let plan = |width, height| match position {
                    0 => (geometry.crop(width, height, 0, &mut Random::new(1, 2, number as u64)), true),
                    1 => (Crop::exact(Rect::whole(width, height), (24, 16)), false),
                    _ => (Crop::exact(part, (24, 16)), false),
                };
                let [mut a, mut b] = [0; 2].map(|_| vec![0; 3 * 24 * 16]);
                one.crop_resize_with(&packed, (24, 16), &mut a, plan).unwrap();
                other.crop_resize_with(&jpeg, (24, 16), &mut b, plan).unwrap();
                assert!(a == b, "{context}, {part:?}, {position}");
            }
        }
    }
    assert!(packed_images > 250, "{packed_images}");
}
