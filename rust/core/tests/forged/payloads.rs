//! Extents and their descriptions of payloads.

use fastrecord_core::{Access, Depth, Error, Mode, Reader, Value, Verify, Writer, verify};

use crate::common;
use crate::common::{
    Cell, EXTENTS, Forge, Nth, VALUES, extent, extent_with_side, never, open, options, png, put, read_one_by_one,
};
use crate::{DATA_AND_LABEL, refused, take_all, written};

#[test]
fn an_extent_that_a_reader_must_refuse_names_record_and_field() {
    let build = |extent: [u8; 32]| {
        let mut forge = Forge::new(DATA_AND_LABEL, 1);
        forge.payload(&[7; 100]);
        forge.chunk(1, 0, EXTENTS, 32, 0, &extent);
        forge.chunk(2, 0, VALUES, 8, 0, &[0; 8]);
        forge.build(|_| ())
    };
    for (offset, length) in
        [(4096, 4097), (0, 100), (4095, 1), (u64::MAX, 1), (1, u64::MAX), (1 << 63, 1 << 63), (8193, 0)]
    {
        refused(&build(extent(offset, length, 0)), "record 0, field data: bad extent");
    }
    for (at, byte) in [(28, 1), (28, 255), (29, 2), (29, 1), (30, 1), (31, 128), (16, 99), (23, 1)] {
        let mut bad = extent(4096, 100, crc32c::crc32c(&[7; 100]));
        bad[at] = byte;
        refused(&build(bad), "record 0, field data: bad extent");
    }
}

#[test]
fn an_extent_with_side_bytes_that_a_reader_must_refuse_names_record_and_field() {
    let fields = r#"[{"id": 1, "name": "image", "type": "image"}]"#;
    let image = png(2, 3, b"and side bytes");
    let build = |extent: [u8; 32]| {
        let mut forge = Forge::new(fields, 1);
        forge.payload(&image);
        forge.chunk(1, 0, EXTENTS, 32, 0, &extent);
        forge.chunk(1, 1, VALUES, 4, 0, &2_u32.to_le_bytes());
        forge.chunk(1, 2, VALUES, 4, 0, &3_u32.to_le_bytes());
        forge.build(|_| ())
    };
    let (stored, crc) = (image.len() as u64, crc32c::crc32c(&image));
    let good = extent_with_side(4096, stored, 14, crc);
    let (_folder, path) = written(&build(good));
    assert_eq!(take_all(&path), [""; 0]);
    common::assert_holds(&path, &[vec![Cell::Image(png(2, 3, b""), (2, 3))]]);

    let with = |at: usize, byte: u8| {
        let mut bad = good;
        bad[at] = byte;
        bad
    };
    let raw = |raw: u64| {
        let mut bad = good;
        put(&mut bad, 16, &raw.to_le_bytes());
        bad
    };
    for bad in [with(28, 1), with(29, 0), with(29, 1), with(29, 3), with(29, 6), with(30, 1), with(31, 128)] {
        refused(&build(bad), "record 0, field image: bad extent");
    }
    for bad in [raw(stored), raw(stored + 1), raw(u64::MAX), raw(1 << 63), with(9, 255), with(14, 1), with(15, 128)] {
        refused(&build(bad), "record 0, field image: bad extent");
    }
}

#[test]
fn an_extent_of_side_bytes_that_lie_elsewhere_is_refused_unless_it_names_plain_bytes() {
    let fields = r#"[{"id": 1, "name": "image", "type": "image"}]"#;
    let build = |side: [u8; 32], encoding: u8| {
        let mut forge = Forge::new(fields, 2);
        let image = forge.payload(&png(2, 3, b""));
        forge.payload(b"\xFFside");
        forge.chunk(1, 0, EXTENTS, 32, 0, &[image, image].concat());
        forge.chunk(1, 1, VALUES, 4, 0, &[2, 0, 0, 0, 2, 0, 0, 0]);
        forge.chunk(1, 2, VALUES, 4, 0, &[3, 0, 0, 0, 3, 0, 0, 0]);
        forge.chunk(1, 3, encoding, 32, 1, &side);
        forge.build(|_| ())
    };
    let at = (4096 + png(2, 3, b"").len() as u64).next_multiple_of(8);
    let good = extent(at, 5, crc32c::crc32c(b"\xFFside"));
    let (_folder, path) = written(&build(good, EXTENTS));
    assert_eq!(take_all(&path), [""; 0]);
    let reader = open(&path);
    assert_eq!(reader.side_kinds(reader.nth(0), &reader.run(0..2).unwrap()).unwrap(), [0, 255]);
    assert!(verify(&reader, Depth::Checksums, &never).unwrap().errors.is_empty());
    common::assert_holds(
        &path,
        &[vec![Cell::Image(png(2, 3, b""), (2, 3))], vec![Cell::Image(png(2, 3, b""), (2, 3))]],
    );

    let with = |at: usize, byte: u8| {
        let mut bad = good;
        bad[at] = byte;
        bad
    };
    let with_side = extent_with_side(at, 5, 2, crc32c::crc32c(b"\xFFside"));
    let mut compressed = good;
    (compressed[16], compressed[28]) = (6, 1);
    for bad in [
        with(28, 1),
        with(28, 9),
        with(29, 2),
        with(29, 4),
        with(30, 1),
        with(16, 6),
        with(15, 1),
        extent(1 << 40, 5, 0),
        extent(u64::MAX, 5, 0),
        with_side,
        compressed,
    ] {
        let (_folder, path) = written(&build(bad, EXTENTS));
        let reader = open(&path);
        let error = reader.side_kinds(reader.nth(0), &reader.run(0..2).unwrap()).unwrap_err().to_string();
        assert!(error.contains("record 1, field image: the side bytes are damaged"), "{error}");
        let report = verify(&reader, Depth::Checksums, &never).unwrap();
        assert!(report.errors.len() == 1 && report.damaged[0].record == 1, "{:?}", report.errors);
    }
    refused(&build(good, VALUES), "not a column of field image");
}

#[test]
fn side_bytes_of_what_is_no_image_are_refused() {
    let mut forge = Forge::new(DATA_AND_LABEL, 1);
    forge.payload(&[7; 100]);
    forge.chunk(1, 0, EXTENTS, 32, 0, &extent_with_side(4096, 100, 10, crc32c::crc32c(&[7; 100])));
    forge.chunk(2, 0, VALUES, 8, 0, &[0; 8]);
    refused(&forge.build(|_| ()), "record 0, field data: bad extent: 10 side bytes, which only images have");
}

#[test]
fn a_missing_value_is_not_an_error_until_it_is_copied() {
    let mut forge = Forge::new(DATA_AND_LABEL, 4);
    let mut missing = [0; 32];
    missing[29] = 1;
    let there = forge.payload(b"there");
    forge.chunk(1, 0, EXTENTS, 32, 1, &[there, missing].concat());
    forge.chunk(2, 0, VALUES, 8, 0, &[5; 8]);
    forge.chunk(2, 0, VALUES, 8, 3, &[6; 8]);
    let (_folder, path) = written(&forge.build(|_| ()));
    for access in [Access::Mmap, Access::Pread] {
        let reader = Reader::open(&path, access, None).unwrap();
        let rows = read_one_by_one(&reader).unwrap();
        let (five, six) = (Cell::Int(i64::from_le_bytes([5; 8])), Cell::Int(i64::from_le_bytes([6; 8])));
        assert_eq!(rows[0], [Cell::Missing, five]);
        assert_eq!(rows[1], [Cell::Bytes(b"there".to_vec()), Cell::Missing]);
        assert_eq!(rows[2], [Cell::Missing, Cell::Missing]);
        assert_eq!(rows[3], [Cell::Missing, six]);
        assert_eq!(reader.lengths(reader.nth(0), &reader.records(&[0, 1, 2, 3]).unwrap()).unwrap(), [0, 5, 0, 0]);
        assert!(matches!(
            reader.read_batch_copy(reader.nth(0), &reader.records(&[1, 2]).unwrap(), Verify::Always, &never),
            Err(Error::Missing { record: 2, .. })
        ));
        assert!(matches!(
            reader.values(reader.nth(1), &reader.records(&[0, 1]).unwrap()),
            Err(Error::Missing { record: 1, .. })
        ));
        assert!(matches!(reader.column("label"), Err(Error::Missing { record: 1, .. })));
        assert!(verify(&reader, Depth::Checksums, &|| false).unwrap().errors.is_empty());
    }
}

#[test]
fn appending_behind_records_without_a_value_leaves_them_without_one() {
    let mut forge = Forge::new(DATA_AND_LABEL, 4);
    let extents = [forge.payload(b"first"), forge.payload(b"second")].concat();
    forge.chunk(1, 0, EXTENTS, 32, 0, &extents);
    forge.chunk(2, 0, VALUES, 8, 1, &[5; 16]);
    let (_folder, path) = written(&forge.build(|_| ()));
    let before = read_one_by_one(&open(&path)).unwrap();
    for _ in 0..3 {
        let mut writer = Writer::open(&path, None, None, &options(Mode::Append)).unwrap();
        writer.append(&[Value::Bytes(b"new"), Value::Int(9)]).unwrap();
        writer.close().unwrap();
    }
    let mut expected = before;
    expected.extend(vec![vec![Cell::Bytes(b"new".to_vec()), Cell::Int(9)]; 3]);
    assert_eq!(read_one_by_one(&open(&path)).unwrap(), expected);
}

#[test]
fn strings_that_are_no_utf8_are_an_error_that_names_the_record() {
    let mut forge = Forge::new(r#"[{"id": 1, "name": "key", "type": "string"}]"#, 2);
    let extents = [forge.payload(b"good"), forge.payload(b"\xff\xfe")].concat();
    forge.chunk(1, 0, EXTENTS, 32, 0, &extents);
    let (_folder, path) = written(&forge.build(|_| ()));
    for access in [Access::Mmap, Access::Pread] {
        let reader = Reader::open(&path, access, None).unwrap();
        assert_eq!(reader.strings(reader.nth(0), &reader.records(&[0]).unwrap()).unwrap(), [Some("good".to_owned())]);
        let error = reader.strings(reader.nth(0), &reader.records(&[0, 1]).unwrap()).unwrap_err();
        assert!(error.to_string().contains("record 1, field key: not valid UTF-8"), "{error}");
    }
}
