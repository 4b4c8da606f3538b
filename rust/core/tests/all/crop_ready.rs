//! Crop-ready JPEGs: the rewrite is lossless, parts decode to the same pixels as the whole, and any
//! decoder reads the files.

use fastrecord_core::image::{
    Crop, CropReady, DecodeError, DecodeOptions, Decoder, Geometry, JpegOptions, Markers, Random, Rect, Subsampling,
    Truncated, encode_jpeg, jpeg_info, rewrite,
};

use crate::image::drawn;
use proptest::prelude::*;

use crate::pictures::{SUBSAMPLINGS, jpeg, parts, picture};

fn ready(data: &[u8]) -> CropReady {
    rewrite(data, Markers::default()).unwrap().unwrap()
}

fn full(data: &[u8]) -> (u32, u32, Vec<u8>) {
    let mut decoder = Decoder::new(DecodeOptions::default());
    let image = decoder.decode(data).unwrap();
    (image.width, image.height, image.pixels.to_vec())
}

/// The output of a crop; uses the side bytes if there are any.
fn cropped(decoder: &mut Decoder, data: &[u8], beside: &[u8], crop: &Crop, size: (u32, u32)) -> Vec<u8> {
    let mut out = vec![0; 3 * size.0 as usize * size.1 as usize];
    decoder.crop_resize_side(data, beside, size, &mut out, |_, _| (*crop, false)).unwrap();
    out
}

/// Inserts a segment after the start marker.
fn with_segment(data: &[u8], marker: u8, segment: &[u8]) -> Vec<u8> {
    let length = u16::try_from(segment.len() + 2).unwrap().to_be_bytes();
    [&data[..2], &[0xFF, marker], &length, segment, &data[2..]].concat()
}

fn with_orientation(data: &[u8], number: u8) -> Vec<u8> {
    let exif = [b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0", &[number][..], b"\0\0\0\0\0\0"].concat();
    with_segment(data, 0xE1, &exif)
}

#[test]
fn a_rewritten_jpeg_decodes_to_the_same_pixels_and_its_rows_begin_where_its_side_bytes_say() {
    for (width, height) in [(96, 96), (255, 129), (100, 333), (500, 97), (101, 99)] {
        for subsampling in SUBSAMPLINGS {
            for progressive in [false, true] {
                let data = jpeg(width, height, JpegOptions { subsampling, progressive, ..JpegOptions::default() });
                let ready = ready(&data);
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

#[test]
fn cmyk_jpegs_are_rewritten_too() {
    let data = encode_jpeg(&picture(150, 130, 4), 150, 130, &JpegOptions::default()).unwrap();
    let ready = ready(&data);
    assert_eq!(full(&ready.bytes), full(&data));
    let crop = Crop::exact(Rect { x: 60, y: 50, width: 50, height: 40 }, (50, 40));
    let mut decoder = Decoder::new(DecodeOptions::default());
    let expected = cropped(&mut decoder, &data, &[], &crop, (50, 40));
    assert_eq!(cropped(&mut decoder, &ready.bytes, &ready.side, &crop, (50, 40)), expected);
}

#[test]
fn a_part_is_the_crop_of_the_original_bit_for_bit() {
    let (mut one, mut other, mut random) =
        (Decoder::new(DecodeOptions::default()), Decoder::new(DecodeOptions::default()), Random::new(1, 2, 3));
    for subsampling in SUBSAMPLINGS {
        for (width, height) in [(193, 121), (161, 130), (97, 230), (330, 96), (385, 41)] {
            let data = jpeg(width, height, JpegOptions { quality: 85, subsampling, ..JpegOptions::default() });
            let ready = ready(&data);
            for part in parts(width, height, &mut random) {
                let (crop, size) = (Crop::exact(part, (part.width, part.height)), (part.width, part.height));
                let found = cropped(&mut one, &ready.bytes, &ready.side, &crop, size);
                let expected = cropped(&mut other, &data, &[], &crop, size);
                assert!(found == expected, "{part:?} of {width} x {height}, {subsampling:?}");
            }
        }
    }
}

#[test]
fn only_the_pieces_that_a_crop_touches_are_decoded() {
    let ready = ready(&jpeg(400, 400, JpegOptions::default()));
    let mut broken = ready.bytes.clone();
    // All zeros is not a code of these tables, so decoding the last rows detects it.
    let at = u32::from_le_bytes(ready.side[ready.side.len() - 4..].try_into().unwrap()) as usize;
    let end = broken.len() - 2;
    broken[at..end].iter_mut().for_each(|byte| *byte = if *byte == 0xFF { 0xFF } else { 0 });
    let mut decoder = Decoder::new(DecodeOptions::default());
    let crop = Crop::exact(Rect { x: 10, y: 10, width: 300, height: 300 }, (300, 300));
    let expected = cropped(&mut decoder, &ready.bytes, &[], &crop, (300, 300));
    assert!(cropped(&mut decoder, &broken, &ready.side, &crop, (300, 300)) == expected);
}

#[test]
fn what_is_kept_of_the_markers_is_the_callers_choice() {
    let mut data = jpeg(160, 120, JpegOptions::default());
    let segments: [(u8, &[u8]); 5] = [
        (0xE1, b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"),
        (0xE2, b"ICC_PROFILE\0\x01\x01profile"),
        (0xFE, b"a comment"),
        (0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>"),
        (0xE2, b"MPF\0MM\0*"),
    ];
    for (marker, segment) in segments {
        data = with_segment(&data, marker, segment);
    }
    let found = |bytes: &[u8], segment: &[u8]| bytes.windows(segment.len()).any(|window| window == segment);
    let icc = Markers { icc: true, ..Markers::NONE };
    let exif = Markers { exif: true, ..Markers::NONE };
    for (keep, kept) in [
        (Markers::ALL, [true, true, true, true, false]),
        (Markers::NONE, [false; 5]),
        (icc, [false, true, false, false, false]),
        (exif, [true, false, false, false, false]),
    ] {
        let ready = rewrite(&data, keep).unwrap().unwrap();
        assert_eq!(segments.map(|(_, segment)| found(&ready.bytes, segment)), kept, "{keep:?}");
        assert!(found(&ready.bytes, b"JFIF\0"));
        assert_eq!(full(&ready.bytes), full(&data));
        let mut turning = Decoder::new(DecodeOptions { orientation: true, ..DecodeOptions::default() });
        assert_eq!(turning.size(&ready.bytes).unwrap(), if keep.exif { (120, 160) } else { (160, 120) });
        let crop = Crop::exact(Rect { x: 70, y: 50, width: 40, height: 30 }, (40, 30));
        let expected = cropped(&mut turning, &ready.bytes, &[], &crop, (40, 30));
        assert!(cropped(&mut turning, &ready.bytes, &ready.side, &crop, (40, 30)) == expected);
    }
}

#[test]
fn what_is_better_left_as_it_is_is_left() {
    let none = |data: &[u8]| rewrite(data, Markers::ALL).unwrap().is_none();
    let plain = jpeg(200, 150, JpegOptions::default());
    assert!(!none(&plain));
    assert!(none(b"") && none(b"\x89PNG\r\n\x1a\n") && none(b"\xFF\xD8\xFF") && none(&[0xFF; 300]));
    assert!(none(&jpeg(40, 40, JpegOptions::default())), "too small");
    for share in [1, 30, 60, 99] {
        assert!(none(&plain[..plain.len() * share / 100]), "cut off at {share} %");
    }
    let middle = plain.len() / 2;
    for garbage in [[0xFF, 0xD8], [0xFF, 0xC4], [0xFF, 0xD3]] {
        let mut damaged = plain.clone();
        damaged[middle..middle + 2].copy_from_slice(&garbage);
        assert!(none(&damaged), "{garbage:x?}");
    }
    // The decoder smooths the blocks of a progressive file only if the finest scans are missing.
    let data = jpeg(200, 150, JpegOptions { progressive: true, ..JpegOptions::default() });
    assert!(!none(&data));
    let scan = data.windows(2).enumerate().filter(|(_, m)| *m == [0xFF, 0xDA]).nth(2).unwrap().0;
    assert!(none(&[&data[..scan], &[0xFF, 0xD9]].concat()));
    // The blocks have few bits: a marker costs more than the data between two markers.
    let smooth: Vec<u8> = (0..800 * 600_u32).flat_map(|at| [(at % 800 / 4) as u8; 3]).collect();
    let few = encode_jpeg(
        &smooth,
        800,
        600,
        &JpegOptions { quality: 10, subsampling: Subsampling::Grey, ..JpegOptions::default() },
    )
    .unwrap();
    assert!(none(&few));
}

#[test]
fn bytes_behind_the_end_and_between_segments_do_no_harm() {
    let plain = jpeg(200, 150, JpegOptions::default());
    let tail = [&plain[..], b"\0\0\0some trailer \xFF\xD8\xFF\xD9\0"].concat();
    assert_eq!(full(&ready(&tail).bytes), full(&plain));
    let stray = [&plain[..2], &[1, 2, 3], &plain[2..]].concat();
    if let Some(ready) = rewrite(&stray, Markers::ALL).unwrap() {
        assert_eq!(full(&ready.bytes), full(&plain));
    }
    // A rewritten file can be rewritten again, and does not change.
    let once = ready(&plain);
    assert_eq!(ready(&once.bytes), once);
}

#[test]
fn side_bytes_that_do_not_fit_change_nothing() {
    let data = jpeg(260, 180, JpegOptions { subsampling: Subsampling::S422, ..JpegOptions::default() });
    let (ready, other) = (ready(&data), ready(&jpeg(260, 180, JpegOptions { quality: 70, ..JpegOptions::default() })));
    let crop = Crop::exact(Rect { x: 70, y: 61, width: 90, height: 77 }, (50, 40));
    let mut decoder = Decoder::new(DecodeOptions::default());
    let expected = cropped(&mut decoder, &data, &[], &crop, (50, 40));
    let mut wrong = vec![vec![], vec![1], other.side, ready.side[..ready.side.len() - 1].to_vec(), vec![0xFF; 500]];
    wrong.push([&ready.side[..], &[0]].concat());
    for at in 0..ready.side.len() {
        for change in [1, 2, 0x10, 0x80] {
            let mut side = ready.side.clone();
            side[at] ^= change;
            wrong.push(side);
        }
    }
    // Move each row to the next position, and repeat the first rows.
    wrong.push([&ready.side[..8], &ready.side[12..], &ready.side[ready.side.len() - 4..]].concat());
    wrong.push([&ready.side[..12], &ready.side[8..ready.side.len() - 4]].concat());
    for side in wrong {
        assert!(cropped(&mut decoder, &ready.bytes, &side, &crop, (50, 40)) == expected, "{side:?}");
    }
    // A file that is not crop-ready, and a file of another format.
    assert!(cropped(&mut decoder, &data, &ready.side, &crop, (50, 40)) == expected);
}

#[test]
fn damage_in_what_a_crop_touches_is_treated_as_in_the_whole() {
    let ready = ready(&jpeg(200, 150, JpegOptions::default()));
    let crop = Crop::exact(Rect { x: 0, y: 0, width: 199, height: 100 }, (50, 40));
    let start = u32::from_le_bytes(ready.side[12..16].try_into().unwrap()) as usize;
    for truncated in [Truncated::Reject, Truncated::Accept] {
        let mut decoder = Decoder::new(DecodeOptions { truncated, ..DecodeOptions::default() });
        for at in start..start + 300 {
            let mut damaged = ready.bytes.clone();
            damaged[at] = 0xFF;
            let mut outs = [vec![0; 3 * 50 * 40], vec![0; 3 * 50 * 40]];
            let [with, without] = &mut outs;
            let plan = |_, _| (crop, false);
            let found = decoder.crop_resize_side(&damaged, &ready.side, (50, 40), with, plan);
            let expected = decoder.crop_resize_side(&damaged, &[], (50, 40), without, plan);
            assert_eq!(found.map(|_| ()), expected.map(|_| ()), "byte {at}");
            assert!(outs[0] == outs[1], "byte {at}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_geometry_gives_the_same_pixels_as_the_original(
        (width, height) in (96_u32..700, 96_u32..400),
        quality in 30_u8..=98,
        subsampling in 0_usize..7,
        progressive in any::<bool>(),
        orientation in 1_u8..=8,
        turn in any::<bool>(),
        kind in 0_u8..4,
        (out_width, out_height) in (1_u32..130, 1_u32..130),
        min_reduced in prop::sample::select(vec![0.5, 1.0, 2.5]),
        seed in any::<u64>(),
    ) {
        let options =
            JpegOptions { quality, subsampling: SUBSAMPLINGS[subsampling], progressive, restart_every: 0 };
        let data = with_orientation(&jpeg(width, height, options), orientation);
        let Some(ready) = rewrite(&data, Markers { exif: true, ..Markers::NONE }).unwrap() else {
            return Err(TestCaseError::reject("grows too much"));
        };
        let size = (out_width, out_height);
        let geometry = match kind {
            0 => Geometry::RandomResizedCrop { size, scale: (0.01, 1.0), ratio: (0.5, 2.0) },
            1 => Geometry::center(size, Some(out_width.max(out_height) + seed as u32 % 40)),
            2 => Geometry::random(size, seed as u32 % 50),
            _ => Geometry::center(size, None),
        };
        let mut decoder = Decoder::new(DecodeOptions { orientation: turn, min_reduced, ..DecodeOptions::default() });
        let mut outs = [vec![1; 3 * (out_width * out_height) as usize], vec![2; 3 * (out_width * out_height) as usize]];
        let [with, without] = &mut outs;
        for position in 0..6 {
            let plan = |w, h| drawn(&geometry, w, h, Random::new(seed, 0, position));
            decoder.crop_resize_side(&ready.bytes, &ready.side, size, with, plan).unwrap();
            decoder.crop_resize_with(&data, size, without, plan).unwrap();
            prop_assert!(with == without, "{geometry:?}, {options:?}, position {position}");
        }
    }

    #[test]
    fn any_bytes_as_value_and_side_give_an_image_or_an_error(
        subsampling in 0_usize..7,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_u8..6), 0..8),
        cut in prop::option::of(any::<prop::sample::Index>()),
        accept in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let options = JpegOptions { subsampling: SUBSAMPLINGS[subsampling], ..JpegOptions::default() };
        let CropReady { mut bytes, mut side } = ready(&jpeg(130, 100, options));
        for (at, byte, kind) in edits {
            let target = if kind < 3 { &mut bytes } else { &mut side };
            let at = at.index(target.len());
            match kind % 3 {
                0 => target[at] = byte,
                1 => target.insert(at, byte),
                _ => { target.remove(at); }
            }
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()) + 1);
        }
        let truncated = if accept { Truncated::Accept } else { Truncated::Reject };
        let mut decoder = Decoder::new(DecodeOptions { truncated, max_pixels: 1 << 18, ..DecodeOptions::default() });
        let geometry = Geometry::RandomResizedCrop { size: (16, 12), scale: (0.08, 1.0), ratio: (0.75, 1.34) };
        let mut out = [0; 3 * 16 * 12];
        let plan = |w, h| drawn(&geometry, w, h, Random::new(seed, 0, 0));
        let found = decoder.crop_resize_side(&bytes, &side, (16, 12), &mut out, plan);
        prop_assert!(!matches!(found, Err(DecodeError::Internal { .. })), "{:?}", found);
    }
}
