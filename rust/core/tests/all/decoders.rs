//! Our own decoder of JPEGs against libjpeg-turbo: the same pixels, or the same error.
//!
//! `FASTRECORD_CASES=10` makes ten times as many images.

use fastrecord_core::image::{
    Crop, DecodeError, DecodeOptions, Decoder, JpegOptions, Random, Rect, Subsampling, Truncated, check_crop_index,
    crop_index, encode_jpeg,
};

use crate::pictures::{SUBSAMPLINGS, picture};

fn cases(usual: u32) -> u32 {
    usual * std::env::var("FASTRECORD_CASES").map_or(1, |text| text.parse::<u32>().unwrap())
}

type Pixels = Result<(u32, u32, Vec<u8>), DecodeError>;

/// One decoder of each kind, which keep what they keep from image to image.
struct Both(Decoder, Decoder);

impl Both {
    fn new(options: DecodeOptions) -> Self {
        Self(Decoder::new(options), Decoder::new(DecodeOptions { stock_jpeg: true, ..options }))
    }

    fn whole(&mut self, data: &[u8]) -> [Pixels; 2] {
        let one = |decoder: &mut Decoder| decoder.decode(data).map(|i| (i.width, i.height, i.pixels.to_vec()));
        [one(&mut self.0), one(&mut self.1)]
    }

    /// The crop's pixels: by our decoder with the side bytes, and by libjpeg-turbo.
    fn part(&mut self, data: &[u8], side: &[u8], part: Rect, (width, height): (u32, u32)) -> [Pixels; 2] {
        let one = |decoder: &mut Decoder, side: &[u8]| {
            let mut out = vec![0; 3 * width as usize * height as usize];
            let plan = |_, _| (Crop::exact(part, (width, height)), false);
            decoder.crop_resize_side(data, side, (width, height), &mut out, plan).map(|_| (width, height, out))
        };
        [one(&mut self.0, side), one(&mut self.1, &[])]
    }
}

fn any_part(random: &mut Random, width: u32, height: u32) -> Rect {
    let (x, y) = (random.below(width), random.below(height));
    Rect { x, y, width: 1 + random.below(width - x), height: 1 + random.below(height - y) }
}

/// A JPEG of any size, kind and quality. Some have tables of their own.
fn any_jpeg(random: &mut Random, most: u32) -> (Vec<u8>, Vec<u8>, u32, u32) {
    let (width, height) = (1 + random.below(most), 1 + random.below(most));
    let cmyk = random.below(8) == 0;
    let mut pixels = picture(width, height, if cmyk { 4 } else { 3 });
    let noise = random.below(3);
    for value in &mut pixels {
        if random.below(4) < noise {
            *value = random.bits() as u8;
        }
    }
    let options = JpegOptions {
        quality: 1 + random.below(100) as u8,
        subsampling: SUBSAMPLINGS[random.below(SUBSAMPLINGS.len() as u32) as usize],
        progressive: random.below(8) == 0,
        restart_every: if random.coin() { random.below(9) as u16 } else { 0 },
    };
    let subsampling =
        if cmyk && options.subsampling == Subsampling::Grey { Subsampling::S444 } else { options.subsampling };
    let data = encode_jpeg(&pixels, width, height, &JpegOptions { subsampling, ..options }).unwrap();
    let side = crop_index(&data).unwrap_or_default();
    assert!(side.is_empty() || check_crop_index(&data, &side).is_ok());
    (data, side, width, height)
}

#[test]
fn any_jpeg_has_the_same_pixels() {
    let mut both = Both::new(DecodeOptions::default());
    let mut reduced = Both::new(DecodeOptions { min_reduced: 1.0, ..DecodeOptions::default() });
    let mut random = Random::new(1, 1, 1);
    for case in 0..cases(600) {
        let most = if case % 4 == 0 { 300 } else { 70 };
        let (data, side, width, height) = any_jpeg(&mut random, most);
        let [own, stock] = both.whole(&data);
        assert!(own == stock && own.is_ok(), "case {case}");
        for _ in 0..4 {
            let part = any_part(&mut random, width, height);
            let [own, stock] = both.part(&data, &side, part, (part.width, part.height));
            assert!(own == stock && own.is_ok(), "case {case}: {part:?}");
            let small = (1 + random.below(40), 1 + random.below(40));
            let [own, stock] = reduced.part(&data, &side, part, small);
            assert!(own == stock && own.is_ok(), "case {case}: {part:?}, reduced");
        }
    }
}

/// Replaces factors of quantisation and the meaning of components by any others.
fn change_headers(data: &mut Vec<u8>, random: &mut Random) {
    let mut at = 2;
    while data[at + 1] != 0xDA {
        let length = 2 + usize::from(u16::from_be_bytes([data[at + 2], data[at + 3]]));
        match data[at + 1] {
            0xDB if length == 69 && random.coin() => {
                let id = data[at + 4];
                let factors = (0..64).flat_map(|_| (random.bits() as u16 >> random.below(16)).max(1).to_be_bytes());
                let body: Vec<u8> = std::iter::once(0x10 | id).chain(factors).collect();
                data.splice(at..at + length, segment(0xDB, &body));
                at += 2 + 2 + body.len();
                continue;
            }
            0xDB if length == 69 => {
                data[at + 5..at + 69].fill_with(|| (random.bits() as u8 >> random.below(8)).max(1));
            }
            0xE0 if random.coin() => {
                data.drain(at..at + length);
                continue;
            }
            0xEE if length == 16 => data[at + 15] = random.below(3) as u8,
            _ => {}
        }
        at += length;
    }
    if random.below(4) == 0 {
        let transform = random.below(3) as u8;
        data.splice(at..at, segment(0xEE, &[&b"Adobe\0d\0\0\0\0"[..], &[transform]].concat()));
    }
    if random.below(4) == 0 {
        // The frame and the scan name each component.
        let frame = data.windows(2).position(|pair| matches!(pair, [0xFF, 0xC0 | 0xC1])).unwrap() + 9;
        let scan = data.windows(2).position(|pair| pair == [0xFF, 0xDA]).unwrap() + 4;
        if data[frame] == 3 {
            for (n, id) in b"RGB".iter().enumerate() {
                data[frame + 1 + 3 * n] = *id;
                data[scan + 1 + 2 * n] = *id;
            }
        }
    }
}

#[test]
fn any_tables_and_colours_have_the_same_pixels() {
    let mut both = Both::new(DecodeOptions::default());
    let mut random = Random::new(4, 4, 4);
    let mut different = 0;
    for case in 0..cases(600) {
        let (mut data, _, width, height) = any_jpeg(&mut random, 70);
        if data.windows(2).any(|pair| pair == [0xFF, 0xC2]) {
            continue;
        }
        let [_, before] = both.whole(&data);
        change_headers(&mut data, &mut random);
        let [own, stock] = both.whole(&data);
        assert!(own == stock && own.is_ok(), "case {case}");
        different += u32::from(own != before);
        let part = any_part(&mut random, width, height);
        let [own, stock] = both.part(&data, &[], part, (part.width, part.height));
        assert!(own == stock && own.is_ok(), "case {case}: {part:?}");
    }
    assert!(different > cases(400));
}

/// Damages the bytes in one of many ways, mostly behind the headers.
fn damage(data: &mut Vec<u8>, random: &mut Random) {
    let len = data.len() as u32;
    let scan = data.windows(2).position(|pair| pair == [0xFF, 0xDA]).unwrap_or(0) as u32;
    let place = |random: &mut Random| match random.below(8) {
        0 => random.below(len) as usize,
        _ => (scan + random.below(len - scan)) as usize,
    };
    let special = [0xFF, 0x00, 0xD0, 0xD7, 0xD9, 0xD8, 0xDA, 0xC4, 0x01, 0x7F];
    for _ in 0..=random.below(3) {
        let at = place(random).min(data.len() - 1);
        let byte = if random.coin() { special[random.below(10) as usize] } else { random.bits() as u8 };
        match random.below(9) {
            0 | 1 => data[at] = byte,
            2 => data[at] ^= 1 << random.below(8),
            3 => data.insert(at, byte),
            4 => drop(data.remove(at)),
            5 => data.truncate(at.max(1)),
            6 => {
                let end = (at + random.below(40) as usize).min(data.len());
                data[at..end].fill(byte);
            }
            7 => {
                // Half of the rest is bytes of ones and zeros.
                for value in &mut data[at..] {
                    if random.coin() {
                        *value = if random.coin() { 0xFF } else { 0 };
                    }
                }
            }
            _ => {
                let marker = [0xFF, 0xD0 + random.below(10) as u8];
                data.splice(at..at, marker);
            }
        }
        if data.len() < 4 {
            return;
        }
    }
}

#[test]
fn damaged_jpegs_have_the_same_pixels_or_the_same_error() {
    let mut both = [Truncated::Reject, Truncated::Accept]
        .map(|truncated| Both::new(DecodeOptions { truncated, max_pixels: 1 << 20, ..DecodeOptions::default() }));
    let mut random = Random::new(2, 2, 2);
    let mut decoded = 0;
    for case in 0..cases(400) {
        let (data, side, width, height) = any_jpeg(&mut random, 150);
        for _ in 0..10 {
            let mut bad = data.clone();
            damage(&mut bad, &mut random);
            let part = any_part(&mut random, width, height);
            for both in &mut both {
                let [own, stock] = both.whole(&bad);
                assert!(own == stock, "case {case}: {:?}, {:?}", own.map(drop), stock.map(drop));
                decoded += u32::from(own.is_ok());
                let [own, stock] = both.part(&bad, &[], part, (part.width, part.height));
                assert!(own == stock, "case {case}: {part:?}: {:?}, {:?}", own.map(drop), stock.map(drop));
                // With side bytes, damage to other parts goes unnoticed.
                let [own, stock] = both.part(&bad, &side, part, (part.width, part.height));
                assert!(own.is_ok() || own == stock, "case {case}: {part:?}: {:?}", own.map(drop));
            }
        }
    }
    assert!(decoded > cases(400), "most damaged JPEGs still have pixels");
}

#[test]
fn an_index_is_small_and_a_wrong_one_never_gives_wrong_pixels() {
    let mut both = Both::new(DecodeOptions::default());
    let mut random = Random::new(3, 3, 3);
    let (mut indexed, mut refused) = (0, 0);
    for case in 0..cases(150) {
        let (width, height) = (97 + random.below(200), 97 + random.below(200));
        let mut pixels = picture(width, height, 3);
        for value in &mut pixels {
            *value = value.wrapping_add(random.below(64) as u8);
        }
        let options = JpegOptions {
            quality: 60 + random.below(41) as u8,
            subsampling: SUBSAMPLINGS[random.below(SUBSAMPLINGS.len() as u32) as usize],
            restart_every: if random.coin() { 1 + random.below(30) as u16 } else { 0 },
            ..JpegOptions::default()
        };
        let data = encode_jpeg(&pixels, width, height, &options).unwrap();
        let Some(side) = crop_index(&data) else { continue };
        assert!(side.len() <= data.len() / 64);
        indexed += 1;
        for _ in 0..5 {
            let part = any_part(&mut random, width, height);
            let [own, stock] = both.part(&data, &side, part, (part.width, part.height));
            assert!(own == stock && own.is_ok(), "case {case}: {part:?}");

            let mut wrong = side.clone();
            let at = random.below(side.len() as u32) as usize;
            match random.below(3) {
                0 => wrong[at] ^= 1 << random.below(8),
                1 => wrong[at] = random.bits() as u8,
                _ => wrong.swap(at, side.len() - 1 - at),
            }
            refused += u32::from(check_crop_index(&data, &wrong).is_err());
            assert_eq!(check_crop_index(&data, &wrong).is_ok(), wrong == side);
            let [own, stock] = both.part(&data, &wrong, part, (part.width, part.height));
            assert!(own == stock && own.is_ok(), "case {case}: {part:?}, byte {at}");
        }
    }
    assert!(indexed > cases(75) && refused > cases(300), "{indexed}, {refused}");
}

#[test]
fn with_an_index_only_what_a_crop_needs_is_decoded() {
    let mut pixels = picture(400, 400, 3);
    for (number, value) in pixels.iter_mut().enumerate() {
        *value ^= (number % 61) as u8;
    }
    let data = encode_jpeg(&pixels, 400, 400, &JpegOptions::default()).unwrap();
    let side = crop_index(&data).unwrap();
    // The first rows lose their codes: all zeros are not one that these tables have at a place
    // where the index begins.
    let mut broken = data.clone();
    let scan = broken.windows(2).position(|pair| pair == [0xFF, 0xDA]).unwrap() + 14;
    let end = scan + (data.len() - scan) / 3;
    broken[scan..end].iter_mut().for_each(|byte| *byte = if *byte == 0xFF { 0xFF } else { 0 });
    let part = Rect { x: 100, y: 250, width: 120, height: 120 };
    let mut both = Both::new(DecodeOptions::default());
    let expected = both.part(&data, &[], part, (120, 120))[1].clone().unwrap();
    assert_eq!(both.part(&broken, &side, part, (120, 120))[0], Ok(expected.clone()));
    assert_ne!(both.part(&broken, &[], part, (120, 120))[0], Ok(expected));
}

/// A segment that does not affect the pixels.
fn segment(marker: u8, body: &[u8]) -> Vec<u8> {
    [&[0xFF, marker][..], &(body.len() as u16 + 2).to_be_bytes(), body].concat()
}

#[test]
fn bytes_between_segments_do_not_hide_a_table() {
    let [fine, coarse] = [95, 5].map(|quality| {
        let options = JpegOptions { quality, ..JpegOptions::default() };
        encode_jpeg(&picture(40, 30, 3), 40, 30, &options).unwrap()
    });
    let place = |data: &[u8], marker: u8| data.windows(2).position(|pair| pair == [0xFF, marker]).unwrap();
    let scan = place(&fine, 0xDA);
    let table = &coarse[place(&coarse, 0xDB)..][..2 + 67];
    let mut both = Both::new(DecodeOptions::default());
    // libjpeg ignores these before a marker: a byte of ones, and markers without a segment.
    for ignored in [0xFF, 0x01, 0xD0] {
        // Read as a segment, `ignored` has a length of 0xFFFE, and ends within a comment. There, a
        // comment would begin that holds the last table.
        let start = [&[0xFF, ignored][..], &segment(0xFE, &[])].concat();
        let after = 2 + start.len() + scan - 2 + 4;
        let filler = vec![0; 4 + usize::from(u16::from_be_bytes([0xFF, 0xFE])) - after];
        let hides = [&[0xFF, 0xFE][..], &(table.len() as u16 + 2).to_be_bytes()].concat();
        let comment = segment(0xFE, &[filler, hides].concat());
        let data = [&fine[..2], &start, &fine[2..scan], &comment, table, &segment(0xE0, &[]), &fine[scan..]].concat();
        let [own, stock] = both.whole(&data);
        assert!(own == stock && own.is_ok(), "{ignored:#x}");
        assert_ne!(own, both.whole(&fine)[0], "the table has an effect");
    }
}

#[test]
fn a_jpeg_without_huffman_tables_has_no_index_whatever_came_before() {
    // TurboJPEG uses the tables of the standard, which libjpeg takes if there are none.
    let usual = encode_jpeg(&picture(120, 100, 3), 120, 100, &JpegOptions::default()).unwrap();
    let mut without = usual.clone();
    while let Some(at) = without.windows(2).position(|pair| pair == [0xFF, 0xC4]) {
        let length = usize::from(u16::from_be_bytes([without[at + 2], without[at + 3]]));
        without.drain(at..at + 2 + length);
    }
    // A new thread has a new decoder.
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(crop_index(&without), None));
        scope.spawn(|| assert!(crop_index(&usual).is_some() && crop_index(&without).is_none()));
    });
    let [own, stock] = Both::new(DecodeOptions::default()).whole(&without);
    assert!(own == stock && own == Both::new(DecodeOptions::default()).whole(&usual)[1]);
}
