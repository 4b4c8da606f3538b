use super::*;
use crate::image::jpeg::entropy::{Entropy, Source};
use crate::image::jpeg::segments::{mcus, scan_data};
use crate::image::{DecodeOptions, Decoder, JpegOptions, Random, Subsampling, encode_jpeg, jpeg_info};

fn any(random: &mut Random) -> i16 {
    (random.bits() as u16).cast_signed()
}

/// A block with few or many values, small or of any size.
fn any_block(random: &mut Random) -> Block {
    let (wild, within) = (random.below(4) == 0, 1 + random.below(64));
    let (columns, odds) = (1 + random.below(8) as usize, 1 + random.below(6));
    let mut block = [0; 64];
    for (at, value) in block.iter_mut().enumerate().take(within as usize) {
        if at % 8 < columns && random.below(odds) == 0 {
            *value = if wild { any(random) } else { any(random) >> (6 + random.below(9)) };
        }
    }
    block
}

#[test]
fn all_kernels_make_the_same_samples() {
    let mut random = Random::new(1, 2, 3);
    for case in 0..20_000 {
        let mut blocks = [(); 4].map(|()| any_block(&mut random));
        if case % 3 == 0 {
            for block in &mut blocks {
                block[1..].fill(0);
            }
        }
        if case % 5 == 0 {
            blocks[1] = [0; 64];
            blocks[1][0] = 8191 + random.below(3) as i16;
        }
        let wild = random.below(4) == 0;
        let quantisation = [(); 64].map(|()| if wild { any(&mut random) } else { 1 + random.below(60) as i16 });
        let flip = if random.coin() { 0x80 } else { 0 };
        let stride = 32 + random.below(9) as usize;
        let made = Kernel::all().into_iter().map(|kernel| {
            let mut out = vec![7; 8 * stride];
            kernel.transform(&blocks.each_ref(), &quantisation, flip, &mut out, stride);
            out
        });
        let made: Vec<_> = made.collect();
        assert!(made.iter().all(|out| *out == made[0]), "case {case}");
    }
}

#[test]
fn colours_are_those_of_the_tables_of_libjpeg() {
    let bytes: Vec<u8> = (0..=255).collect();
    for cr in 0..=255_u8 {
        let red = [cr; 256];
        for luma in [0, 1, 90, 128, 254, 255] {
            let cb: Vec<u8> = bytes.iter().map(|value| value ^ 0x80).collect();
            let cr_samples = red.map(|value| value ^ 0x80);
            let luma_samples = [luma; 256];
            let rows =
                Rows { luma: &luma_samples, near: [&[]; 2], far: [&[]; 2], whole: [&cb, &cr_samples], bias: [0; 2] };
            for kernel in Kernel::all() {
                let mut out = vec![0; 3 * 256];
                kernel.row(&rows, &Chroma::NONE, &mut out);
                for (&cb, rgb) in bytes.iter().zip(out.as_chunks::<3>().0) {
                    // jdcolor.c, build_ycc_rgb_table
                    let (x, z) = (i32::from(cb) - 128, i32::from(cr) - 128);
                    let red = (91881 * z + 32768) >> 16;
                    let green = (-22554 * x - 46802 * z + 32768) >> 16;
                    let blue = (116_130 * x + 32768) >> 16;
                    let expected = [red, green, blue].map(|value| (i32::from(luma) + value).clamp(0, 255));
                    assert_eq!(rgb.map(i32::from), expected, "{kernel:?}: {luma}, {cb}, {cr}");
                }
            }
        }
    }
}

#[test]
fn all_kernels_make_the_pixels_of_libjpeg() {
    let mut random = Random::new(3, 1, 2);
    let mut entropy = Entropy::default();
    let mut stages: Vec<_> =
        Kernel::all().into_iter().map(|kernel| PixelStage { kernel, ..PixelStage::default() }).collect();
    let mut stock = Decoder::new(DecodeOptions { stock_jpeg: true, ..DecodeOptions::default() });
    for case in 0..400 {
        let most = if case % 8 == 0 { 400 } else { 70 };
        let (width, height) = (1 + random.below(most), 1 + random.below(most));
        let kinds = [Subsampling::S444, Subsampling::S422, Subsampling::S420, Subsampling::S440, Subsampling::Grey];
        let subsampling = kinds[case % 5];
        let options = JpegOptions { quality: 1 + random.below(100) as u8, subsampling, ..JpegOptions::default() };
        let noise = random.below(8);
        let pixels: Vec<u8> = (0..3 * width * height)
            .map(|n| ((n / 3 * 5) ^ (random.bits() as u32 & ((1 << noise) - 1))) as u8)
            .collect();
        let mut data = encode_jpeg(&pixels, width, height, &options).unwrap();
        if case % 3 == 0 {
            any_tables(&mut data, &mut random);
        }
        let expected = stock.decode(&data).unwrap();
        let info = jpeg_info(&data).unwrap();
        for _ in 0..3 {
            let (x, y) = (random.below(width), random.below(height));
            let need = Rect { x, y, width: 1 + random.below(width - x), height: 1 + random.below(height - y) };
            let mcus = around(&info, need);
            let header = Header::read(&data, &info).unwrap();
            let plan = Plan::new(&info, &header, mcus, need).unwrap();
            let layout = header.layout(&info).unwrap();
            for stage in &mut stages {
                let coded = &data[scan_data(&data, &info).unwrap()..];
                let mut window = entropy.window(&layout, mcus, Source::Scan(coded)).unwrap();
                let region = plan.region();
                let mut out = vec![0; 3 * region.width as usize * region.height as usize];
                stage.decode(&plan, &mut window, &mut out).unwrap();
                assert!(region.contains(need));
                let rows = out.chunks_exact(3 * region.width as usize).zip(region.y as usize..);
                for (row, y) in rows {
                    let from = 3 * (y * width as usize + region.x as usize);
                    assert!(row == &expected.pixels[from..][..row.len()], "case {case}: {need:?}, row {y}");
                }
            }
        }
    }
}

/// Returns the MCUs that hold some pixels and their neighbours.
fn around(info: &JpegInfo, need: Rect) -> Mcus {
    let ((width, height), (columns, rows)) = (info.mcu(), mcus(info));
    let axis = |from: u32, length: u32, mcu: u32, count: u32| {
        let first = (from / mcu).saturating_sub(1);
        (first, ((from + length).div_ceil(mcu) + 1).min(count) - first)
    };
    let ((x, columns), (y, rows)) = (axis(need.x, need.width, width, columns), axis(need.y, need.height, height, rows));
    Mcus { x, y, columns, rows }
}

/// Replaces factors of quantisation.
fn any_tables(data: &mut [u8], random: &mut Random) {
    let mut at = 0;
    while let Some(found) = data[at..].windows(4).position(|bytes| bytes == [0xFF, 0xDB, 0, 67]) {
        at += found + 5;
        data[at..at + 64].fill_with(|| (random.bits() as u8 >> random.below(8)).max(1));
    }
}
