//! Decoding, cropping and resizing of images that the tests generate.

use std::io::Cursor;

use fastrecord_core::image::{
    Crop, DecodeError, DecodeOptions, Decoder, Filter, Format, Geometry, JpegOptions, Orientation, Random, Rect,
    SixteenBit, Subsampling, Truncated, encode_jpeg, jpeg_info,
};
use image::{ColorType, ImageFormat};
use proptest::prelude::*;

use crate::pictures::{SUBSAMPLINGS, jpeg, parts, picture};

/// Draws a crop and a flip.
pub fn drawn(geometry: &Geometry, width: u32, height: u32, mut random: Random) -> (Crop, bool) {
    (geometry.crop(width, height, 0, &mut random), random.coin())
}

fn decoder() -> Decoder {
    Decoder::new(DecodeOptions::default())
}

fn accepting() -> Decoder {
    Decoder::new(DecodeOptions { truncated: Truncated::Accept, ..DecodeOptions::default() })
}

fn full(decoder: &mut Decoder, data: &[u8]) -> (u32, u32, Vec<u8>) {
    let image = decoder.decode(data).unwrap();
    (image.width, image.height, image.pixels.to_vec())
}

fn part_of(pixels: &[u8], width: u32, part: Rect) -> Vec<u8> {
    let row = |y: u32| 3 * (y * width + part.x) as usize;
    (part.y..part.y + part.height).flat_map(|y| &pixels[row(y)..row(y) + 3 * part.width as usize]).copied().collect()
}

/// The crop in its own size, without resizing.
fn cropped(decoder: &mut Decoder, data: &[u8], part: Rect) -> Vec<u8> {
    let size = (part.width, part.height);
    let mut out = vec![0xAA; 3 * (size.0 * size.1) as usize];
    decoder.crop_resize(data, &Crop::exact(part, size), false, size, &mut out).unwrap();
    out
}

fn resized(decoder: &mut Decoder, data: &[u8], crop: &Crop, size: (u32, u32)) -> Vec<u8> {
    let mut out = vec![0xAA; 3 * (size.0 * size.1) as usize];
    decoder.crop_resize(data, crop, false, size, &mut out).unwrap();
    out
}

fn mean_difference(a: &[u8], b: &[u8]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(&a, &b)| f64::from(a.abs_diff(b))).sum::<f64>() / f64::from(u32::try_from(a.len()).unwrap())
}

#[test]
fn a_region_is_the_crop_of_the_whole_bit_for_bit() {
    let (mut one, mut other, mut random) = (decoder(), decoder(), Random::new(1, 2, 3));
    for subsampling in SUBSAMPLINGS {
        for (progressive, restart_every) in [(false, 0), (true, 0), (false, 3), (true, 2)] {
            for (width, height) in [(97, 61), (64, 48), (33, 130), (17, 5), (2, 40), (40, 1), (1, 1)] {
                let options = JpegOptions { quality: 85, subsampling, progressive, restart_every };
                let data = jpeg(width, height, options);
                let (w, h, whole) = full(&mut one, &data);
                assert_eq!((w, h), (width, height));
                for part in parts(width, height, &mut random) {
                    let region = cropped(&mut other, &data, part);
                    assert!(region == part_of(&whole, width, part), "{part:?} of {width} x {height}, {options:?}");
                }
            }
        }
    }
}

#[test]
fn a_region_of_a_cut_file_is_the_crop_of_what_is_left_of_the_whole() {
    let (mut one, mut other, mut random) = (accepting(), accepting(), Random::new(1, 2, 4));
    for subsampling in [Subsampling::S444, Subsampling::S420, Subsampling::S422] {
        for progressive in [false, true] {
            let data = jpeg(150, 90, JpegOptions { subsampling, progressive, ..JpegOptions::default() });
            for share in [30, 55, 80, 99] {
                let data = &data[..data.len() * share / 100];
                let (_, _, whole) = full(&mut one, data);
                for part in parts(150, 90, &mut random) {
                    let region = cropped(&mut other, data, part);
                    assert!(region == part_of(&whole, 150, part), "{part:?} {subsampling:?} {progressive} {share}");
                }
            }
        }
    }
}

#[test]
fn a_progressive_file_without_its_finer_scans_gives_the_same_regions_too() {
    let (mut one, mut other, mut random) = (decoder(), decoder(), Random::new(1, 2, 5));
    for subsampling in [Subsampling::S444, Subsampling::S420, Subsampling::S411] {
        let data = jpeg(170, 90, JpegOptions { subsampling, progressive: true, ..JpegOptions::default() });
        let scans: Vec<usize> = data.windows(2).enumerate().filter(|(_, m)| *m == [0xFF, 0xDA]).map(|m| m.0).collect();
        assert!(scans.len() > 4);
        for &end in &scans[1..4] {
            // Tables before the next scan may stay; the file ends properly, so the decoder does not
            // warn.
            let data = [&data[..end], &[0xFF, 0xD9]].concat();
            let (_, _, whole) = full(&mut one, &data);
            for part in parts(170, 90, &mut random) {
                let region = cropped(&mut other, &data, part);
                assert!(region == part_of(&whole, 170, part), "{part:?} {subsampling:?} {end}");
            }
        }
    }
}

#[test]
fn a_reduced_decode_differs_little_from_a_full_one() {
    let plain = DecodeOptions { min_reduced: f64::INFINITY, ..DecodeOptions::default() };
    let reduced = DecodeOptions { min_reduced: 2.0, ..plain };
    let (mut reduced, mut plain) = (Decoder::new(reduced), Decoder::new(plain));
    // Smooth, as photographs are at this scale; the size is not a multiple of 8.
    let (width, height) = (643, 485);
    let wave = |x: u32, period: f64| 120.0 + 100.0 * (f64::from(x) / period).sin();
    #[allow(clippy::cast_sign_loss)]
    let pixels: Vec<u8> = (0..width * height)
        .flat_map(|n| {
            [wave(n % width, 40.0) as u8, wave(n / width, 30.0) as u8, wave(n % width + n / width, 60.0) as u8]
        })
        .collect();
    for subsampling in SUBSAMPLINGS {
        for progressive in [false, true] {
            let options = JpegOptions { subsampling, progressive, ..JpegOptions::default() };
            let data = encode_jpeg(&pixels, width, height, &options).unwrap();
            for part in [(0, 0, width, height), (3, 5, 501, 403), (201, 101, 442, 384), (57, 33, 161, 129)] {
                let part = Rect { x: part.0, y: part.1, width: part.2, height: part.3 };
                for size in [(80, 60), (40, 32), (21, 23), (7, 5)] {
                    let crop = Crop::exact(part, size);
                    let difference = mean_difference(
                        &resized(&mut reduced, &data, &crop, size),
                        &resized(&mut plain, &data, &crop, size),
                    );
                    assert!(difference < 2.0, "{difference} {part:?} {size:?} {options:?}");
                }
            }
        }
    }
}

#[test]
fn a_crop_that_sees_its_surroundings_is_the_crop_of_the_resized_whole() {
    let plain = DecodeOptions { min_reduced: f64::INFINITY, ..DecodeOptions::default() };
    let data = jpeg(501, 377, JpegOptions::default());
    for filter in [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos, Filter::Box] {
        let mut decoder_of = Decoder::new(DecodeOptions { filter, ..plain });
        let center = Geometry::center((64, 48), Some(96));
        let crop = center.crop(501, 377, 0, &mut Random::new(0, 0, 0));
        // Shorter side 96: 127 x 96; the crop begins at (32, 24).
        let whole = resized(&mut decoder_of, &data, &Crop::exact(Rect::whole(501, 377), (127, 96)), (127, 96));
        let expected = part_of(&whole, 127, Rect { x: 32, y: 24, width: 64, height: 48 });
        let found = resized(&mut decoder_of, &data, &crop, (64, 48));
        assert!(found.iter().zip(&expected).all(|(a, b)| a.abs_diff(*b) <= 1), "{filter:?}");
    }
}

#[test]
fn flipping_mirrors_each_row() {
    let (mut decoder, size) = (decoder(), (31, 17));
    let data = jpeg(120, 80, JpegOptions::default());
    let crop = Crop::exact(Rect { x: 9, y: 7, width: 90, height: 70 }, size);
    let (mut straight, mut flipped) = (vec![0; 3 * 31 * 17], vec![0; 3 * 31 * 17]);
    decoder.crop_resize(&data, &crop, false, size, &mut straight).unwrap();
    decoder.crop_resize(&data, &crop, true, size, &mut flipped).unwrap();
    assert_ne!(straight, flipped);
    let flipped: Vec<u8> = flipped.chunks(3 * 31).flat_map(|row| row.rchunks(3).flatten()).copied().collect();
    assert_eq!(straight, flipped);
}

#[test]
fn what_lies_outside_of_the_image_is_black() {
    let mut decoder = decoder();
    let data = jpeg(20, 10, JpegOptions::default());
    let (_, _, whole) = full(&mut decoder, &data);
    let geometry = Geometry::center((24, 30), None);
    let crop = geometry.crop(20, 10, 0, &mut Random::new(0, 0, 0));
    let out = resized(&mut decoder, &data, &crop, (24, 30));
    assert_eq!(part_of(&out, 24, Rect { x: 2, y: 10, width: 20, height: 10 }), whole);
    assert_eq!(part_of(&out, 24, Rect::whole(24, 10)), vec![0; 3 * 24 * 10]);
    assert_eq!(part_of(&out, 24, Rect { x: 22, y: 0, width: 2, height: 30 }), vec![0; 3 * 2 * 30]);
    // The crop contains no part of the image.
    let nothing = Crop { bounds: Rect::whole(0, 0), target: Rect::whole(0, 0), ..crop };
    assert_eq!(resized(&mut decoder, &data, &nothing, (24, 30)), vec![0; 3 * 24 * 30]);
}

#[test]
fn grey_jpegs_give_three_equal_channels() {
    let data = jpeg(50, 40, JpegOptions { subsampling: Subsampling::Grey, ..JpegOptions::default() });
    assert_eq!(jpeg_info(&data).unwrap().components, 1);
    let (_, _, pixels) = full(&mut decoder(), &data);
    assert!(pixels.chunks(3).all(|p| p[0] == p[1] && p[1] == p[2]));
}

#[test]
fn ycck_jpegs_are_taken_for_inverted_cmyk_as_pillow_does() {
    // Adobe stores inverted ink: 255 means no ink. Cyan 51 of 255, magenta 102, yellow 153, black 55.
    let stored = [255 - 51, 255 - 102, 255 - 153, 255 - 55];
    let data = encode_jpeg(&stored.repeat(64 * 48), 64, 48, &JpegOptions { quality: 100, ..JpegOptions::default() });
    let data = data.unwrap();
    let info = jpeg_info(&data).unwrap();
    assert_eq!((info.components, info.adobe), (4, Some(2)));
    let expected = [160_u8, 120, 80]; // (255 - ink) * (255 - black) / 255
    let mut decoder = decoder();
    let (_, _, whole) = full(&mut decoder, &data);
    assert!(whole.chunks(3).all(|p| p.iter().zip(expected).all(|(&p, e)| p.abs_diff(e) <= 2)));
    let part = Rect { x: 19, y: 7, width: 21, height: 13 };
    assert_eq!(cropped(&mut decoder, &data, part), part_of(&whole, 64, part));
}

#[test]
fn exif_orientation_is_applied_only_when_asked() {
    let plain = jpeg(40, 24, JpegOptions::default());
    let (mut ignoring, options) = (decoder(), DecodeOptions { orientation: true, ..DecodeOptions::default() });
    let mut applying = Decoder::new(options);
    let (_, _, stored) = full(&mut ignoring, &plain);
    for number in 1..=8_u16 {
        let mut exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01".to_vec();
        exif.extend(number.to_be_bytes());
        exif.extend(b"\0\0\0\0\0\0");
        let length = u16::try_from(exif.len() + 2).unwrap().to_be_bytes();
        let data = [&plain[..2], &[0xFF, 0xE1], &length, &exif, &plain[2..]].concat();
        assert_eq!(full(&mut ignoring, &data), (40, 24, stored.clone()));

        let (width, height, shown) = full(&mut applying, &data);
        assert_eq!((width, height), if number > 4 { (24, 40) } else { (40, 24) });
        assert_eq!(applying.size(&data).unwrap(), (width, height));
        assert_eq!(number == 1, shown == stored);
        // Regions refer to the image as shown.
        let part = Rect { x: 3, y: 5, width: 17, height: 11 };
        assert_eq!(cropped(&mut applying, &data, part), part_of(&shown, width, part), "{number}");
        let crop = Crop::exact(part, (9, 7));
        let mut expected = vec![0; 3 * 9 * 7];
        let image = fastrecord_core::image::Image { width, height, pixels: &shown };
        ignoring.crop_resize_pixels(image, &crop, false, (9, 7), &mut expected).unwrap();
        let found = resized(&mut applying, &data, &crop, (9, 7));
        assert!(found.iter().zip(&expected).all(|(a, b)| a.abs_diff(*b) <= 2), "{number}");
    }
}

#[test]
fn garbage_in_exif_changes_nothing() {
    let plain = jpeg(40, 24, JpegOptions::default());
    let options = DecodeOptions { orientation: true, ..DecodeOptions::default() };
    let mut applying = Decoder::new(options);
    let expected = full(&mut applying, &plain);
    for garbage in
        [&b"Exif\0\0"[..], b"Exif\0\0II*\0\xFF\xFF\xFF\xFF", b"Exif\0\0MM\0*\0\0\0\x08\xFF\xFF\x01\x12", &[0xFF; 99]]
    {
        let length = u16::try_from(garbage.len() + 2).unwrap().to_be_bytes();
        let data = [&plain[..2], &[0xFF, 0xE1], &length, garbage, &plain[2..]].concat();
        assert_eq!(full(&mut applying, &data), expected);
    }
}

/// A picture in a lossless format.
fn encoded(pixels: &[u8], width: u32, height: u32, color: ColorType, format: ImageFormat) -> Vec<u8> {
    let mut data = Cursor::new(Vec::new());
    image::write_buffer_with_format(&mut data, pixels, width, height, color, format).unwrap();
    data.into_inner()
}

#[test]
fn lossless_formats_give_their_pixels_whatever_the_name() {
    let mut decoder = decoder();
    let pixels = picture(37, 21, 3);
    for (format, sniffed) in [
        (ImageFormat::Png, Format::Png),
        (ImageFormat::WebP, Format::WebP),
        (ImageFormat::Bmp, Format::Bmp),
        (ImageFormat::Tiff, Format::Tiff),
        (ImageFormat::Pnm, Format::Pnm),
    ] {
        let data = encoded(&pixels, 37, 21, ColorType::Rgb8, format);
        assert_eq!(Format::sniff(&data), Some(sniffed));
        assert_eq!(decoder.size(&data), Ok((37, 21)));
        assert_eq!(full(&mut decoder, &data), (37, 21, pixels.clone()), "{format:?}");
        let part = Rect { x: 5, y: 3, width: 20, height: 11 };
        assert_eq!(cropped(&mut decoder, &data, part), part_of(&pixels, 37, part), "{format:?}");
    }
    let grey = [[0; 3], [255; 3]].concat().repeat(8);
    let gif = encoded(&grey, 4, 4, ColorType::Rgb8, ImageFormat::Gif);
    assert_eq!((Format::sniff(&gif), full(&mut decoder, &gif)), (Some(Format::Gif), (4, 4, grey)));
}

#[test]
fn alpha_is_dropped_and_sixteen_bits_are_narrowed_as_pillow_does_but_grey_only_if_asked() {
    let grey = encoded(&[0xFF, 0xFF], 1, 1, ColorType::L16, ImageFormat::Png);
    assert_eq!(decoder().decode(&grey).unwrap_err(), DecodeError::SixteenBit { format: "PNG" });
    let of = |sixteen_bit| Decoder::new(DecodeOptions { sixteen_bit, ..DecodeOptions::default() });
    let middle = encoded(&[0x80, 0x80], 1, 1, ColorType::L16, ImageFormat::Png);
    assert_eq!(full(&mut of(SixteenBit::Scale), &middle).2, [0x80; 3]);
    let mut decoder = of(SixteenBit::Clip);
    let mut png = |pixels: &[u8], color| full(&mut decoder, &encoded(pixels, 2, 1, color, ImageFormat::Png)).2;
    assert_eq!(png(&[1, 2, 3, 0, 4, 5, 6, 128], ColorType::Rgba8), [1, 2, 3, 4, 5, 6]);
    assert_eq!(png(&[7, 0, 8, 9], ColorType::La8), [7, 7, 7, 8, 8, 8]);
    let wide = |values: &[u16]| values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>();
    assert_eq!(png(&wide(&[254, 256]), ColorType::L16), [254, 254, 254, 255, 255, 255]);
    let values = [0x01FF, 0x0200, 0xFFFF, 0x7FFF, 0x8000, 0x00FF];
    assert_eq!(png(&wide(&values), ColorType::Rgb16), [1, 2, 255, 127, 128, 0]);
    let values = [0x01FF, 0x0200, 0xFFFF, 0, 0x7FFF, 0x8000, 0x00FF, 9];
    assert_eq!(png(&wide(&values), ColorType::Rgba16), [1, 2, 255, 127, 128, 0]);
    assert_eq!(png(&wide(&[0x1234, 0, 0xFFFE, 9]), ColorType::La16), [0x12, 0x12, 0x12, 255, 255, 255]);
}

#[test]
fn a_cut_jpeg_is_an_error_and_keeps_its_top_when_accepted() {
    for progressive in [false, true] {
        let data =
            jpeg(160, 120, JpegOptions { progressive, subsampling: Subsampling::S444, ..JpegOptions::default() });
        let (_, _, whole) = full(&mut decoder(), &data);
        let start = jpeg_info(&data).unwrap().scan_start;
        for end in [1, 2, 3, 20, 200, start - 1, start + 20, data.len() / 2, data.len() - 100, data.len() - 6] {
            let cut = &data[..end];
            let error = decoder().decode(cut).unwrap_err();
            assert!(
                matches!(error, DecodeError::Truncated { .. })
                    || end < 4 && matches!(error, DecodeError::Unknown { .. }),
                "{end}: {error}"
            );
            let part = Crop::exact(Rect { x: 0, y: 0, width: 8, height: 8 }, (8, 8));
            // The requested region does not affect whether a truncated file is an error.
            assert_eq!(decoder().crop_resize(cut, &part, false, (8, 8), &mut [0; 192]).unwrap_err(), error, "{end}");
        }
        let (width, height, half) = full(&mut accepting(), &data[..data.len() / 2 + start / 2]);
        assert_eq!((width, height), (160, 120));
        if !progressive {
            let top = 3 * 160 * 32;
            assert_eq!(half[..top], whole[..top]);
            assert_ne!(half, whole);
        }
        // All data is present, but the end marker is missing.
        for mut decoder in [decoder(), accepting()] {
            assert_eq!(full(&mut decoder, &data[..data.len() - 2]).2, whole);
        }
    }
}

#[test]
fn cut_files_of_other_formats_are_errors_and_pngs_keep_their_top_when_accepted() {
    let pixels = picture(64, 64, 3);
    for format in [ImageFormat::Png, ImageFormat::WebP, ImageFormat::Bmp, ImageFormat::Tiff, ImageFormat::Pnm] {
        let data = encoded(&pixels, 64, 64, ColorType::Rgb8, format);
        assert!(decoder().decode(&data[..data.len() / 2]).is_err(), "{format:?}");
        if matches!(format, ImageFormat::Png | ImageFormat::Pnm) {
            let error = decoder().decode(&data[..data.len() / 2]).unwrap_err();
            assert!(matches!(error, DecodeError::Truncated { .. }), "{format:?} {error}");
        }
    }
    let data = encoded(&pixels, 64, 64, ColorType::Rgb8, ImageFormat::Png);
    let (_, _, top) = full(&mut accepting(), &data[..data.len() / 2]);
    assert_eq!(top[..3 * 64 * 16], pixels[..3 * 64 * 16]);
    assert_eq!(top[3 * 64 * 60..], vec![0; 3 * 64 * 4]);
}

#[test]
fn bytes_after_the_end_and_between_segments_change_nothing() {
    let data = jpeg(40, 30, JpegOptions::default());
    let (mut one, mut other) = (decoder(), decoder());
    let expected = full(&mut one, &data);
    assert_eq!(full(&mut one, &[&data[..], &[0; 500]].concat()), expected);
    assert_eq!(full(&mut one, &[&data[..], b"trailer"].concat()), expected);
    let stray = [&data[..20], &[1, 2, 3], &data[20..]].concat();
    assert_eq!(full(&mut one, &stray), expected);
    let part = Rect { x: 3, y: 9, width: 11, height: 13 };
    assert_eq!(cropped(&mut other, &stray, part), part_of(&expected.2, 40, part));
}

#[test]
fn a_damaged_image_leaves_nothing_behind_for_the_next_one() {
    let good = jpeg(120, 90, JpegOptions::default());
    let (mut fresh, mut used) = (decoder(), decoder());
    let expected = full(&mut fresh, &good);
    let mut random = Random::new(9, 9, 9);
    for _ in 0..200 {
        let mut bad = jpeg(130, 70, JpegOptions { progressive: random.coin(), ..JpegOptions::default() });
        for _ in 0..5 {
            let at = random.below(u32::try_from(bad.len()).unwrap()) as usize;
            bad[at] = random.bits() as u8;
        }
        let (mut first, mut second) = (vec![0; 3 * 400], vec![1; 3 * 400]);
        let crop = Crop::exact(Rect { x: 30, y: 20, width: 50, height: 40 }, (20, 20));
        let one = used.crop_resize(&bad, &crop, false, (20, 20), &mut first).map(drop);
        assert_eq!(full(&mut used, &good), expected);
        let other = used.crop_resize(&bad, &crop, false, (20, 20), &mut second).map(drop);
        assert_eq!(one, other);
        assert!(one.is_err() || first == second, "the same bytes gave two images");
    }
}

#[test]
fn images_above_the_limit_are_refused_before_anything_is_allocated() {
    let options = DecodeOptions { max_pixels: 100 * 100, ..DecodeOptions::default() };
    let mut decoder = Decoder::new(options);
    assert!(decoder.decode(&jpeg(100, 100, JpegOptions::default())).is_ok());
    let error = DecodeError::TooLarge { width: 101, height: 100, limit: 10_000 };
    assert_eq!(decoder.decode(&jpeg(101, 100, JpegOptions::default())).unwrap_err(), error);
    for format in [ImageFormat::Png, ImageFormat::WebP, ImageFormat::Bmp, ImageFormat::Tiff, ImageFormat::Pnm] {
        let data = encoded(&picture(101, 100, 3), 101, 100, ColorType::Rgb8, format);
        assert_eq!(decoder.decode(&data).unwrap_err(), error, "{format:?}");
        assert_eq!(decoder.size(&data).unwrap_err(), error, "{format:?}");
    }
}

#[test]
fn a_tiff_tag_of_more_values_than_there_are_bytes_is_refused() {
    let data = encoded(&picture(30, 20, 3), 30, 20, ColorType::Rgb8, ImageFormat::Tiff);
    decoder().decode(&data).unwrap();
    let u32_of = |at: usize| u32::from_le_bytes(data[at..at + 4].try_into().unwrap()) as usize;
    let directory = u32_of(4);
    let mut bad = data.clone();
    bad[directory + 6..directory + 10].copy_from_slice(&0x003B_0001_u32.to_le_bytes());
    let error = decoder().decode(&bad).unwrap_err();
    assert!(error.to_string().contains("3866625 values, in"), "{error}");
    assert_eq!(decoder().size(&bad).unwrap_err(), error);
}

#[test]
fn a_small_file_that_claims_to_be_large_is_refused_by_its_length() {
    let mut data = jpeg(40, 30, JpegOptions::default());
    let frame = jpeg_info(&data).unwrap().frame_start;
    data[frame + 5..frame + 9].copy_from_slice(&[0x30, 0, 0x30, 0]);
    let error = Decoder::new(DecodeOptions::default()).decode(&data).unwrap_err();
    assert!(matches!(&error, DecodeError::Truncated { detail, .. } if detail.contains("too few")), "{error}");
}

#[test]
fn a_crop_that_does_not_fit_is_an_error() {
    let mut decoder = decoder();
    let data = jpeg(40, 30, JpegOptions::default());
    let good = Crop::exact(Rect { x: 0, y: 0, width: 40, height: 30 }, (4, 4));
    for bad in [
        Crop::exact(Rect { x: 1, y: 0, width: 40, height: 30 }, (4, 4)),
        Crop::exact(Rect { x: u32::MAX, y: 0, width: 1, height: 1 }, (4, 4)),
        Crop::exact(Rect { x: 0, y: 0, width: 0, height: 30 }, (4, 4)),
        Crop { x: f64::NAN, ..good },
        Crop { width: -1.0, ..good },
        Crop { width: 41.0, ..good },
        Crop { target: Rect::whole(5, 4), ..good },
    ] {
        let error = decoder.crop_resize(&data, &bad, false, (4, 4), &mut [0; 48]).unwrap_err();
        assert!(matches!(error, DecodeError::Crop { .. }), "{bad:?} {error}");
    }
    let error = decoder.crop_resize(&data, &good, false, (4, 4), &mut [0; 47]).unwrap_err();
    assert_eq!(error, DecodeError::Output { found: 47, width: 4, height: 4 });
}

#[test]
fn bytes_that_are_no_image_are_named_by_their_first_ones() {
    let error = decoder().decode(b"hello, world").unwrap_err();
    assert_eq!(error.to_string(), "not an image of a known type: 12 bytes, the first are 68 65 6c 6c 6f 2c 20 77");
    assert!(matches!(decoder().decode(b""), Err(DecodeError::Unknown { bytes: 0, .. })));
    assert_eq!(Orientation::from_exif(b""), Orientation::UPRIGHT);
}

/// One small file of each format.
fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for subsampling in [Subsampling::S444, Subsampling::S420, Subsampling::Grey] {
        for (progressive, restart_every) in [(false, 0), (true, 0), (false, 2)] {
            seeds.push(jpeg(45, 37, JpegOptions { quality: 75, subsampling, progressive, restart_every }));
        }
    }
    seeds.push(encode_jpeg(&picture(24, 24, 4), 24, 24, &JpegOptions::default()).unwrap());
    for format in
        [ImageFormat::Png, ImageFormat::WebP, ImageFormat::Bmp, ImageFormat::Tiff, ImageFormat::Pnm, ImageFormat::Gif]
    {
        seeds.push(encoded(&picture(23, 17, 3), 23, 17, ColorType::Rgb8, format));
    }
    for color in [ColorType::Rgba16, ColorType::L16, ColorType::La8] {
        let pixels = vec![77; 23 * 17 * usize::from(color.bytes_per_pixel())];
        seeds.push(encoded(&pixels, 23, 17, color, ImageFormat::Png));
    }
    seeds
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_give_an_image_or_an_error(
        seed in 0_usize..19,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_u8..3), 0..12),
        cut in prop::option::of(any::<prop::sample::Index>()),
        accept in any::<bool>(),
        orientation in any::<bool>(),
        box_seed in any::<u64>(),
    ) {
        let mut seeds = seeds();
        let mut data = seeds.swap_remove(seed.min(seeds.len() - 1));
        for (at, byte, kind) in edits {
            let at = at.index(data.len());
            match kind {
                0 => data[at] = byte,
                1 => data.insert(at, byte),
                _ => { data.remove(at); }
            }
        }
        if let Some(cut) = cut {
            data.truncate(cut.index(data.len()) + 1);
        }
        let truncated = if accept { Truncated::Accept } else { Truncated::Reject };
        let options = DecodeOptions { truncated, orientation, max_pixels: 1 << 18, ..DecodeOptions::default() };
        let mut decoder = Decoder::new(options);
        let size = decoder.size(&data);
        let outcome = decoder.decode(&data).map(|image| (image.width, image.height, image.pixels.len()));
        if let Ok((width, height, bytes)) = outcome {
            prop_assert_eq!(Ok((width, height)), size);
            prop_assert_eq!(bytes, 3 * (width * height) as usize);
        }
        let geometry = Geometry::RandomResizedCrop { size: (16, 12), scale: (0.08, 1.0), ratio: (0.75, 1.34) };
        let mut out = [0; 3 * 16 * 12];
        let cropped = decoder
            .crop_resize_with(&data, (16, 12), &mut out, |w, h| drawn(&geometry, w, h, Random::new(box_seed, 0, 0)));
        if outcome.is_ok() {
            prop_assert!(cropped.is_ok(), "{:?}", cropped);
        }
    }

    #[test]
    fn bytes_at_random_are_no_image(data in prop::collection::vec(any::<u8>(), 0..300), start in 0_usize..8) {
        let heads: [&[u8]; 8] =
            [b"\xFF\xD8\xFF", b"\x89PNG\r\n\x1a\n", b"RIFF\x30\0\0\0WEBPVP8 ", b"GIF89a", b"BM", b"II*\0", b"P6\n", b""];
        let data = [heads[start], &data].concat();
        let mut decoder = Decoder::new(DecodeOptions { max_pixels: 1 << 18, ..DecodeOptions::default() });
        if let Ok(image) = decoder.decode(&data) {
            prop_assert_eq!(image.pixels.len(), 3 * (image.width * image.height) as usize);
        }
    }
}
