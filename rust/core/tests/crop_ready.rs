//! Crop-ready JPEGs: rewritten without loss, decoded in parts, and stored with their side bytes.

use fastrecord_core::image::{
    DecodeOptions, Decoder, JpegOptions, Markers, Random, Subsampling, encode_jpeg, jpeg_info, rewrite,
};

const SUBSAMPLINGS: [Subsampling; 7] = [
    Subsampling::S444,
    Subsampling::S422,
    Subsampling::S420,
    Subsampling::S440,
    Subsampling::S411,
    Subsampling::S441,
    Subsampling::Grey,
];

/// Gradients with coloured noise on them: every block differs from its neighbours, in brightness and in colour.
fn picture(width: u32, height: u32, channels: u32) -> Vec<u8> {
    let mut random = Random::new(7, width.into(), height.into());
    let mut pixels = Vec::new();
    for y in 0..height {
        for x in 0..width {
            let noise = random.bits();
            for channel in 0..channels {
                let slope = x * (channel + 1) / 2 + y * (3 - channel % 3) / 2;
                pixels.push((slope % 200) as u8 + ((noise >> (8 * channel)) & 31) as u8);
            }
        }
    }
    pixels
}

fn jpeg(width: u32, height: u32, options: JpegOptions) -> Vec<u8> {
    encode_jpeg(&picture(width, height, 3), width, height, &options).unwrap()
}

fn full(data: &[u8]) -> (u32, u32, Vec<u8>) {
    let mut decoder = Decoder::new(DecodeOptions::default());
    let image = decoder.decode(data).unwrap();
    (image.width, image.height, image.pixels.to_vec())
}

#[test]
fn a_rewritten_jpeg_decodes_to_the_same_pixels_and_its_rows_begin_where_its_side_bytes_say() {
    for (width, height) in [(96, 96), (255, 129), (100, 333), (500, 97), (101, 99)] {
        for subsampling in SUBSAMPLINGS {
            for progressive in [false, true] {
                let data = jpeg(width, height, JpegOptions { subsampling, progressive, ..JpegOptions::default() });
                let ready = rewrite(&data, Markers::default()).unwrap().unwrap();
                assert_eq!(full(&ready.bytes), full(&data), "{width} x {height}, {subsampling:?}");
                let info = jpeg_info(&ready.bytes).unwrap();
                let (columns, rows) = (width.div_ceil(info.mcu().0), height.div_ceil(info.mcu().1));
                let interval = u32::from(info.restart_interval);
                assert!(!info.progressive && interval >= 2.min(columns) && columns.is_multiple_of(interval));
                assert_eq!(ready.side.len(), 8 + 4 * rows as usize);
                assert_eq!(ready.side[..4], [1, 0, interval as u8, 0]);
                let starts =
                    ready.side[8..].chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap()) as usize);
                for (row, start) in (0..).zip(starts).skip(1) {
                    let number = (row * (columns / interval) + 7) % 8;
                    assert_eq!(ready.bytes[start - 2..start], [0xFF, 0xD0 + number as u8], "row {row}");
                }
            }
        }
    }
}
