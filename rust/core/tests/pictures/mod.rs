//! Pictures that the image tests generate, and the regions of them that they check.

use fastrecord_core::image::{JpegOptions, Random, Rect, Subsampling, encode_jpeg};

pub const SUBSAMPLINGS: [Subsampling; 7] = [
    Subsampling::S444,
    Subsampling::S422,
    Subsampling::S420,
    Subsampling::S440,
    Subsampling::S411,
    Subsampling::S441,
    Subsampling::Grey,
];

/// Gradients with coloured noise: every block differs from its neighbours, in brightness and in
/// colour.
pub fn picture(width: u32, height: u32, channels: u32) -> Vec<u8> {
    let mut random = Random::new(u64::from(width), u64::from(height), u64::from(channels));
    let mut pixels = Vec::new();
    for y in 0..height {
        for x in 0..width {
            let noise = random.bits();
            for channel in 0..channels {
                let slope = x * (3 + channel) + y * (5 - channel);
                pixels.push((slope % 200) as u8 + ((noise >> (8 * channel)) & 31) as u8);
            }
        }
    }
    pixels
}

pub fn jpeg(width: u32, height: u32, options: JpegOptions) -> Vec<u8> {
    encode_jpeg(&picture(width, height, 3), width, height, &options).unwrap()
}

/// Every corner and edge, and random regions.
pub fn parts(width: u32, height: u32, random: &mut Random) -> Vec<Rect> {
    let rect = |x, y, width, height| Rect { x, y, width, height };
    let mut parts = vec![
        rect(0, 0, width, height),
        rect(0, 0, 1, 1),
        rect(width - 1, height - 1, 1, 1),
        rect(width - 1, 0, 1, height),
        rect(0, height - 1, width, 1),
        rect(width / 2, height / 2, width - width / 2, height - height / 2),
    ];
    for _ in 0..30 {
        let (w, h) = (1 + random.below(width), 1 + random.below(height));
        parts.push(rect(random.below(width - w + 1), random.below(height - h + 1), w, h));
    }
    parts
}
