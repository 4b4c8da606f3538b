use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::image::{DecodeOptions, Decoder, JpegOptions, Subsampling, encode_jpeg};

const SAMPLINGS: [Subsampling; 7] = [
    Subsampling::S444,
    Subsampling::S422,
    Subsampling::S420,
    Subsampling::S440,
    Subsampling::S411,
    Subsampling::S441,
    Subsampling::Grey,
];

/// Returns pixels that are smooth in one part and noise in another.
fn pixels(width: u32, height: u32, channels: u32) -> Vec<u8> {
    let pixel = |n: u32| if n % (5 * width) < 2 * width { n.wrapping_mul(n) >> 5 } else { n >> 3 };
    (0..channels * width * height).map(|n| pixel(n) as u8).collect()
}

fn made(width: u32, height: u32, channels: u32, options: JpegOptions) -> Vec<u8> {
    encode_jpeg(&pixels(width, height, channels), width, height, &options).unwrap()
}

/// Splits a JPEG and restores it.
fn restored(splitter: &mut Splitter, data: &[u8]) -> Option<Vec<u8>> {
    let split = splitter.split(data)?;
    let mut out = Vec::new();
    restore(split.headers, split.ones, split.blocks, &mut out, data.len())?;
    Some(out)
}

/// Restores without knowing the length.
fn restored_at_any_length(headers: &[u8], ones: bool, blocks: &[ZigzagBlock]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    // The bytes are the same up to the limit: the first attempt shows how many there are.
    assert!(restore(headers, ones, blocks, &mut bytes, 1 << 22).is_none());
    let length = bytes.len();
    bytes.clear();
    restore(headers, ones, blocks, &mut bytes, length)?;
    Some(bytes)
}

#[test]
fn made_jpegs_come_back_byte_for_byte() {
    let mut splitter = Splitter::default();
    for subsampling in SAMPLINGS {
        for (width, height) in [(1, 1), (8, 8), (17, 33), (100, 75)] {
            for (quality, progressive, restart_every) in
                [(75, false, 0), (100, false, 1), (1, false, 3), (75, true, 0), (100, true, 2), (5, true, 0)]
            {
                let options = JpegOptions { quality, subsampling, progressive, restart_every };
                for channels in [3, 4] {
                    if channels == 4 && subsampling == Subsampling::Grey {
                        continue;
                    }
                    let data = made(width, height, channels, options);
                    let what = format!("{width} x {height}, {channels} channels, {options:?}");
                    assert!(restored(&mut splitter, &data).unwrap() == data, "{what}");
                }
            }
        }
    }
}

#[test]
fn bytes_around_the_image_come_back() {
    let data = made(40, 30, 3, JpegOptions::default());
    let comment = [&data[..2], &[0xFF, 0xFE, 0, 6, 0xFF, 0xD9, 0xFF, 0xDA], &data[2..], b"\xFF\xD8 and more"].concat();
    assert!(restored(&mut Splitter::default(), &comment).unwrap() == comment);
}

#[test]
fn the_bits_after_the_data_may_be_zeros_or_ones() {
    for restart_every in [0, 2] {
        for progressive in [false, true] {
            let data = made(50, 40, 3, JpegOptions { progressive, restart_every, ..JpegOptions::default() });
            let mut splitter = Splitter::default();
            let split = splitter.split(&data).unwrap();
            assert!(split.ones);
            let zeros = restored_at_any_length(split.headers, false, split.blocks).unwrap();
            assert!(zeros != data && restored(&mut splitter, &zeros).unwrap() == zeros);
            assert!(!splitter.split(&zeros).unwrap().ones);
        }
    }
}

#[test]
fn other_kinds_and_incomplete_jpegs_are_left_alone() {
    let data = made(60, 50, 3, JpegOptions::default());
    let frame = jpeg_info(&data).unwrap().frame_start;
    let mut splitter = Splitter::default();
    for marker in [0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA] {
        let mut other = data.clone();
        other[frame + 1] = marker;
        assert!(splitter.split(&other).is_none(), "{marker:x}");
    }
    for (at, byte) in [(4, 12), (5, 0xFF), (9, 2)] {
        let mut other = data.clone();
        other[frame + at] = byte;
        assert!(splitter.split(&other).is_none(), "{at}");
    }
    for progressive in [false, true] {
        let data = made(60, 50, 3, JpegOptions { progressive, ..JpegOptions::default() });
        for length in 0..data.len() {
            assert!(splitter.split(&data[..length]).is_none(), "{length}");
        }
    }
    // The last scan of a progressive JPEG is missing.
    let data = made(60, 50, 3, JpegOptions { progressive: true, ..JpegOptions::default() });
    let last = memchr::memmem::rfind(&data, &[0xFF, 0xDA]).unwrap();
    let tables = memchr::memmem::rfind(&data[..last], &[0xFF, 0xC4]).unwrap();
    assert!(splitter.split(&[&data[..tables], &[0xFF, 0xD9]].concat()).is_none());
}

#[test]
fn only_the_right_length_is_restored() {
    let data = made(60, 50, 3, JpegOptions { restart_every: 1, ..JpegOptions::default() });
    let mut splitter = Splitter::default();
    let split = splitter.split(&data).unwrap();
    for length in 0..data.len() + 10 {
        let mut out = vec![7];
        let done = restore(split.headers, split.ones, split.blocks, &mut out, length);
        assert_eq!(done.is_some(), length == data.len());
        assert!(out.len() <= 1 + length);
    }
    let mut out = Vec::new();
    assert!(restore(split.headers, split.ones, &split.blocks[1..], &mut out, data.len()).is_none());
}

#[test]
fn coefficients_without_a_code_are_refused() {
    let data = made(8, 8, 3, JpegOptions { subsampling: Subsampling::Grey, ..JpegOptions::default() });
    let mut splitter = Splitter::default();
    let split = splitter.split(&data).unwrap();
    let attempt = |values: &[(usize, i16)]| {
        let mut block = ZigzagBlock::ZERO;
        for &(k, value) in values {
            block.values[k] = value;
            block.mask |= 1 << k & !1;
        }
        restored_at_any_length(split.headers, true, &[block]).is_some()
    };
    for fits in [&[(0, 2047)][..], &[(0, -2047)], &[(1, 1023)], &[(1, -1023), (63, 1)], &[(5, 2), (22, 2)]] {
        assert!(attempt(fits), "{fits:?}");
    }
    for wide in [&[(0, 2048)][..], &[(0, i16::MIN)], &[(1, 1024)], &[(1, 1), (2, i16::MIN)], &[(63, -1024)]] {
        assert!(!attempt(wide), "{wide:?}");
    }
}

/// Segments that define tables with a code for each symbol.
fn full_tables() -> Vec<u8> {
    let mut segments = vec![0xFF, 0xC4, 0, 35, 0x00, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    segments.extend(0..16);
    segments.extend([0xFF, 0xC4, 1, 19, 0x10, 0, 0, 0, 0, 0, 0, 0, 255, 1, 0, 0, 0, 0, 0, 0, 0]);
    segments.extend(0..=255);
    segments
}

/// The components of a scan, the band, and the bits before and after it.
type Entry = (Vec<usize>, [u8; 2], [u8; 2]);

/// Returns headers with these scans for the image of other ones.
fn headers(data: &[u8], progressive: bool, script: &[Entry], restarts: &[u16]) -> Vec<u8> {
    let info = jpeg_info(data).unwrap();
    let mut headers = data[..info.scan_start].to_vec();
    headers[info.frame_start + 1] = if progressive { 0xC2 } else { 0xC1 };
    headers.extend(full_tables());
    for (scan, (components, band, [high, low])) in script.iter().enumerate() {
        if let Some(interval) = restarts.get(scan) {
            headers.extend([0xFF, 0xDD, 0, 4]);
            headers.extend(interval.to_be_bytes());
        }
        let count = components.len() as u8;
        headers.extend([0xFF, 0xDA, 0, 6 + 2 * count, count]);
        headers.extend(components.iter().flat_map(|&component| [info.sampling[component].id, 0]));
        headers.extend([band[0], band[1], high << 4 | low]);
    }
    headers.extend([0xFF, 0xD9]);
    headers
}

/// The scans of a component's other coefficients: bands that begin with some bits, which come one by one.
fn bands(component: usize, cuts: &[u8], shift: u8) -> Vec<Entry> {
    let mut script = Vec::new();
    let mut from = 1;
    for &cut in cuts.iter().filter(|&&cut| cut < 63).chain(&[63]) {
        if cut >= from {
            script.push((vec![component], [from, cut], [0, shift]));
            from = cut + 1;
        }
    }
    script.extend((0..shift).rev().map(|low| (vec![component], [1, 63], [low + 1, low])));
    script
}

fn script() -> impl Strategy<Value = (bool, Vec<Entry>)> {
    let together = || {
        prop_oneof![
            Just(vec![vec![0, 1, 2]]),
            Just(vec![vec![0], vec![1, 2]]),
            Just(vec![vec![1], vec![0], vec![2]]),
            Just(vec![vec![0, 2], vec![1]]),
        ]
    };
    let sequential =
        together().prop_map(|groups| (false, groups.into_iter().map(|group| (group, [0, 63], [0, 0])).collect()));
    let progressive =
        (together(), 0..4_u8, vec((vec(1..63_u8, 0..4), 0..4_u8), 3)).prop_map(|(groups, shift, others)| {
            let mut script: Vec<Entry> = groups.iter().map(|group| (group.clone(), [0, 0], [0, shift])).collect();
            for (component, (mut cuts, shift)) in others.into_iter().enumerate() {
                cuts.sort_unstable();
                script.extend(bands(component, &cuts, shift));
            }
            for low in (0..shift).rev() {
                script.extend(groups.iter().map(|group| (group.clone(), [0, 0], [low + 1, low])));
            }
            (true, script)
        });
    prop_oneof![sequential, progressive]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 60 } else { 400 }))]

    #[test]
    fn scans_of_any_script_hold_the_same_image(
        sampling in 0..6_usize,
        (width, height) in (1..70_u32, 1..70_u32),
        quality in 1..=100_u8,
        (progressive, script) in script(),
        restarts in vec(0..9_u16, 0..4),
    ) {
        let options = JpegOptions { quality, subsampling: SAMPLINGS[sampling], ..JpegOptions::default() };
        let data = made(width, height, 3, options);
        let mut splitter = Splitter::default();
        let original = splitter.split(&data).unwrap().blocks.to_vec();
        let odd = restored_at_any_length(&headers(&data, progressive, &script, &restarts), true, &original).unwrap();
        let split = splitter.split(&odd).unwrap();
        let mut out = Vec::new();
        restore(split.headers, split.ones, split.blocks, &mut out, odd.len()).unwrap();
        prop_assert!(out == odd);
        let mut stock = Decoder::new(DecodeOptions { stock_jpeg: true, ..DecodeOptions::default() });
        let expected = stock.decode(&data).unwrap().pixels.to_vec();
        prop_assert!(stock.decode(&odd).unwrap().pixels == expected);
    }

    #[test]
    fn damage_is_noticed_or_comes_back(
        progressive: bool,
        restart_every in 0..3_u16,
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut data = made(60, 50, 3, JpegOptions { progressive, restart_every, ..JpegOptions::default() });
        for (at, byte) in changes {
            *at.get_mut(&mut data) = byte;
        }
        let mut splitter = Splitter::default();
        if let Some(split) = splitter.split(&data) {
            let mut out = Vec::new();
            let _ = restore(split.headers, split.ones, split.blocks, &mut out, data.len());
            prop_assert!(out.len() <= data.len());
        }
    }

    #[test]
    fn hostile_headers_are_survived(
        progressive: bool,
        restart_every in 0..3_u16,
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in proptest::option::of(any::<prop::sample::Index>()),
        values in vec((any::<prop::sample::Index>(), any::<u64>(), vec(any::<i16>(), 64)), 0..4),
        length in 0..20_000_usize,
    ) {
        let data = made(40, 30, 3, JpegOptions { progressive, restart_every, ..JpegOptions::default() });
        let mut splitter = Splitter::default();
        let split = splitter.split(&data).unwrap();
        let (mut headers, mut blocks) = (split.headers.to_vec(), split.blocks.to_vec());
        for (at, byte) in changes {
            *at.get_mut(&mut headers) = byte;
        }
        if let Some(cut) = cut {
            headers.truncate(cut.index(headers.len()));
        }
        for (at, mask, values) in values {
            *at.get_mut(&mut blocks) = ZigzagBlock { mask, values: values.try_into().unwrap() };
        }
        let mut out = Vec::new();
        let done = restore(&headers, split.ones, &blocks, &mut out, length);
        prop_assert!(out.len() <= length && (done.is_none() || out.len() == length));
    }
}
