//! Random files.

use std::sync::atomic::Ordering;

use proptest::prelude::*;

use crate::common::{EXTENTS, Rng, VALUES, extent, extent_with_side, png, put, u64_at};
use crate::{DATA_AND_LABEL, LARGEST, forged, take_all, written};

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_directory_entries_and_extents_are_no_panic_and_bounded_memory(seed: u64) {
        let mut rng = Rng(seed);
        let odd = |rng: &mut Rng, near: u64| match rng.below(5) {
            0 => rng.next(),
            1 => u64::MAX - rng.below(9000),
            2 => rng.below(20),
            3 => near.wrapping_add(rng.below(129)).wrapping_sub(64),
            _ => near,
        };
        let mut forge = forged();
        let image = forge.payload(&png(2, 3, b""));
        forge.chunk(3, 0, EXTENTS, 32, 0, &image.repeat(3));
        forge.chunk(3, 1, VALUES, 4, 0, &[1; 12]);
        let schema = DATA_AND_LABEL.replace(']', r#", {"id": 3, "name": "image", "type": "image"}]"#);
        forge.metadata = format!(r#"{{"schema": {schema}, "complete": true, "metadata": {{}}}}"#).into();
        if rng.chance(50) {
            for _ in 0..=rng.below(2) {
                let (number, word) = (rng.below(4) as usize, rng.below(8) as usize);
                let changed = odd(&mut rng, u64_at(&forge.directory[number], 8 * word as u64));
                put(&mut forge.directory[number], 8 * word, &changed.to_le_bytes());
            }
        } else {
            let (at, length) = (odd(&mut rng, 4096), odd(&mut rng, 5));
            let side = odd(&mut rng, 2).min(length);
            let mut bad = if rng.chance(50) { extent(at, length, 0) } else { extent_with_side(at, length, side, 0) };
            if rng.chance(30) {
                bad[16 + rng.below(16) as usize] = rng.next() as u8;
            }
            let (field, number) = if rng.chance(50) { (1, 0) } else { (3, 2) };
            forge.directory.remove(number);
            forge.chunk(field, 0, EXTENTS, 32, 0, &bad.repeat(3));
            let entry = forge.directory.pop().unwrap();
            forge.directory.insert(number, entry);
        }
        if rng.chance(30) {
            forge.records = odd(&mut rng, 3);
        }
        let (_folder, path) = written(&forge.build(|_| ()));
        take_all(&path);
    }

    #[test]
    fn any_bytes_are_no_panic(seed: u64, length in 0_usize..20_000) {
        let mut rng = Rng(seed);
        let mut bytes = rng.bytes(length);
        let good = forged().build(|_| ());
        for _ in 0..rng.below(4) {
            let at = rng.below(good.len() as u64) as usize;
            let end = (at + rng.below(8192) as usize).min(good.len());
            if end <= bytes.len() {
                bytes[at..end].copy_from_slice(&good[at..end]);
            }
        }
        if rng.chance(80) && bytes.len() >= 4096 {
            bytes[..4096].copy_from_slice(&good[..4096]);
        }
        let (_folder, path) = written(&bytes);
        take_all(&path);
    }

    #[test]
    fn any_bytes_with_the_head_of_an_image_are_no_panic(seed: u64) {
        let mut rng = Rng(seed);
        let heads: [&[u8]; 20] = [
            b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR", b"\xff\xd8\xff\xe0\0\x10JFIF\0", b"\xff\xd8\xff\xe1", b"GIF89a", b"BM",
            b"RIFF\0\0\0\0WEBPVP8 ", b"RIFF\0\0\0\0WEBPVP8L", b"RIFF\0\0\0\0WEBPVP8X", b"II*\0\x08\0\0\0", b"MM\0*\0\0\0\x08",
            b"\0\0\0\x20ftypheic", b"\0\0\0\x20ftypavif", b"\0\0\0\x0cJXL \r\n\x87\n", b"\xff\x0a", b"8BPS\0\x01",
            b"\0\0\x01\0\x01\0", b"qoif", b"#?RADIANCE\n", b"P6 ", b"\x76\x2f\x31\x01",
        ];
        let mut data = heads[rng.below(20) as usize].to_vec();
        let length = rng.below(300) as usize;
        data.extend(if rng.chance(50) { rng.bytes(length) } else { vec![0; length] });
        for _ in 0..rng.below(6) {
            let at = rng.below(data.len() as u64) as usize;
            data[at] = *[0, 1, 0xff, 0x7f, 0x80, b'\n', b' ', b'9'].get(rng.below(8) as usize).unwrap();
        }
        LARGEST.store(0, Ordering::Relaxed);
        if let Ok((width, height)) = fastrecord_core::image_size(&data) {
            prop_assert!(width > 0 && height > 0);
        }
        prop_assert!(LARGEST.load(Ordering::Relaxed) < 16 << 20);
    }
}
