//! Side bytes of images are stored after the value and covered by its CRC, and are never part of
//! the value.

use std::fs;
use std::sync::Arc;

use crate::common::{
    Cell, Nth, Row, all_types, append_all, append_with_side, assert_holds, folder, never, open, options, png,
};
use crate::pictures::jpeg;
use fastrecord_core::image::{DecodeOptions, JpegOptions};
use fastrecord_core::{
    Access, BatchBuffer, BufferPool, Damage, Depth, Error, FieldType, LoadCounters, LoadPlan, LoadSource, Mode, Reader,
    Result, Schema, Value, Verify, Workload, Writer, verify,
};

fn row(rest: &[u8]) -> Row {
    let (data, text) = (b"data".to_vec(), "key".to_owned());
    vec![Cell::Image(png(5, 4, rest), (5, 4)), Cell::Bytes(data), Cell::Text(text), Cell::Int(1), Cell::Float(0)]
}

#[test]
fn readers_hand_out_the_value_alone() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    // Small and large values, which use different write and copy paths; batches of one thread and
    // of several.
    let rows = [0, 10, 5_000, 70_000, 300_000, 900_000].map(|length| row(&vec![b'v'; length]));
    let mut writer = Writer::open(&path, Some(all_types()), None, &options(Mode::Create)).unwrap();
    for (number, row) in rows.iter().enumerate() {
        append_with_side(&mut writer, row, &vec![b's'; [0, 1, 8, 100_000][number % 4]]).unwrap();
    }
    writer.commit().unwrap();
    append_all(&mut writer, &rows);
    writer.close().unwrap();
    assert_holds(&path, &[&rows[..], &rows[..]].concat());
    for access in [Access::Mmap, Access::Pread] {
        let reader = Reader::open(&path, access, Some(2)).unwrap();
        let all = reader.run(0..12).unwrap();
        let lengths = reader.lengths(reader.nth(0), &all).unwrap();
        assert_eq!(lengths[..6], lengths[6..]);
        let views = reader.view_batch(reader.nth(0), &all, Verify::Never, &never).unwrap().unwrap();
        assert_eq!(views.into_iter().map(|view| view.unwrap().1).collect::<Vec<_>>(), lengths);
        for verify in [Verify::Never, Verify::Always] {
            let (bytes, starts) = reader.read_batch_copy(reader.nth(0), &all, verify, &never).unwrap();
            assert_eq!(starts[12], 2 * lengths[..6].iter().sum::<u64>());
            assert!(!bytes.contains(&b's'));
            assert_eq!(reader.payload(reader.nth(0), 3, verify).unwrap().len() as u64, lengths[3]);
        }
        // The whole value is requested from the kernel.
        let side = 1 + 8 + 100_000 + 1;
        assert_eq!(reader.prefetch(reader.nth(0), &all, &never).unwrap(), lengths.iter().sum::<u64>() + side);
        reader.view_batch(reader.nth(0), &all, Verify::Always, &never).unwrap();
    }
}

#[test]
fn damage_in_side_bytes_is_damage_of_the_payload() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut writer = Writer::open(&path, Some(all_types()), None, &options(Mode::Create)).unwrap();
    let (value, side) = (row(&[b'v'; 100]), [b's'; 50]);
    append_with_side(&mut writer, &value, &side).unwrap();
    writer.close().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(50).position(|window| window == side).unwrap();
    bytes[at + 49] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let damaged = |error: Error| {
        assert!(matches!(error, Error::Value { record: 0, damage: Damage::Checksum { .. }, .. }), "{error}");
    };
    for access in [Access::Mmap, Access::Pread] {
        let reader = Reader::open(&path, access, None).unwrap();
        damaged(
            reader.read_batch_copy(reader.nth(0), &reader.records(&[0]).unwrap(), Verify::Always, &never).unwrap_err(),
        );
        damaged(reader.payload(reader.nth(0), 0, Verify::Always).unwrap_err());
        assert_eq!(verify(&reader, Depth::Checksums, &|| false).unwrap().errors.len(), 1);
        let Cell::Image(image, _) = &value[0] else { panic!() };
        assert_eq!(
            reader.read_batch_copy(reader.nth(0), &reader.records(&[0]).unwrap(), Verify::Never, &never).unwrap().0,
            *image
        );
        if access == Access::Mmap {
            damaged(
                reader.view_batch(reader.nth(0), &reader.records(&[0]).unwrap(), Verify::Always, &never).unwrap_err(),
            );
            damaged(reader.datum(reader.nth(0), 0, Verify::Always).unwrap_err());
        }
    }
}

#[test]
fn only_images_take_side_bytes() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let schema = Schema::new([("data", FieldType::Bytes)]).unwrap();
    let mut writer = Writer::open(&path, Some(schema), None, &options(Mode::Create)).unwrap();
    let value = |side| Value::Image { data: b"data", side, size: (1, 1), crc: crc32c::crc32c(b"data") };
    let error = writer.append(&[value(b"side")]).unwrap_err();
    assert!(error.to_string().contains("only images have side bytes"), "{error}");
    writer.append(&[value(b"")]).unwrap();
    writer.close().unwrap();
    let reader = Reader::open(&path, Access::Mmap, None).unwrap();
    assert_eq!(reader.payload(reader.nth(0), 0, Verify::Always).unwrap(), b"data");
}

#[test]
fn side_bytes_of_an_unknown_kind_change_no_pixel() {
    let folder = folder();
    let paths = ["plain.frec", "side.frec"].map(|name| folder.path().join(name));
    for (path, side) in paths.iter().zip([&[][..], &[1, 0, 7, 0, 9, 0, 0, 0]]) {
        let schema = Schema::new([("image", FieldType::Image)]).unwrap();
        let mut writer = Writer::open(path, Some(schema), None, &options(Mode::Create)).unwrap();
        for number in 0..6 {
            let size = (150 + 30 * number, 250 - 20 * number);
            let data = jpeg(size.0, size.1, JpegOptions::default());
            let crc = crc32c::crc32c_append(crc32c::crc32c(&data), side);
            writer.append(&[Value::Image { data: &data, side, size, crc }]).unwrap();
        }
        writer.close().unwrap();
    }
    let [plain, side] = paths.map(|path| loaded(&open(&path)).unwrap());
    assert!(plain == side && plain.iter().any(|&byte| byte > 0));
}

/// The pixels of a batch of random crops of a file's first six images, or the first error.
pub fn loaded(reader: &Reader) -> Result<Vec<u8>> {
    let source = LoadSource { fields: vec![reader.nth(0)], reader: reader.clone() };
    let output = crate::loader::random_crops((40, 30));
    let plan = LoadPlan::new(vec![source.into()], &[output], DecodeOptions::default(), Verify::Always).unwrap();
    let loader = Arc::new(plan).start(Arc::new(LoadCounters::default()), 2).unwrap();
    let rows: Vec<u64> = (0..60).map(|row| row % 6).collect();
    let buffer = BufferPool::new(1).take(60 * 40 * 30 * 3).unwrap();
    let load =
        Workload { seed: 3, epoch: 0, rows, positions: (0..60).collect(), buffers: vec![buffer], ahead: Vec::new() };
    let (buffers, failures) = loader.submit(load).unwrap().wait(&never).unwrap();
    match failures.into_iter().next() {
        Some(failure) => Err(failure.error),
        None => Ok(pixels_of(&buffers[0])),
    }
}

#[allow(unsafe_code)]
fn pixels_of(buffer: &BatchBuffer) -> Vec<u8> {
    // SAFETY: the buffer has this many bytes, all of them written, and the loader has released it.
    unsafe { std::slice::from_raw_parts(buffer.as_ptr(), buffer.len()) }.to_vec()
}
