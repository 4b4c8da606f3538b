//! Reads everything in a file in every way; asserts that the ways agree.

use std::hint::black_box;

use fastrecord_core::image::DecodeOptions;
use fastrecord_core::{
    ColumnBytes, Datum, Depth, FieldIndex, FieldType, Ranges, Reader, Records, Verify, decode_records, largest_shape,
    verify,
};

/// Larger values are not copied; the target `payload` covers them.
const LARGEST: u64 = 64 << 10;
/// Number of records to read of each field.
const RECORDS: u64 = 48;
const FIELDS: usize = 48;
/// The limits for long runs: similar inputs cover the parts that one input leaves out.
const FEW_RECORDS: u64 = 6;
const FEW_FIELDS: usize = 3;
/// Larger images are refused.
pub const PIXELS: u64 = 1 << 14;

/// The memory that opening and reading a file of the given size may use. Some parsed data is many
/// times larger in memory than in the file. This module limits the memory that a caller requests.
pub fn bound(bytes: usize) -> usize {
    (32 << 20) + 160 * bytes
}

fn never() -> bool {
    false
}

/// The part of a file to read.
#[derive(Debug, Clone, Copy)]
struct Share {
    records: u64,
    fields: usize,
    /// The first field.
    first: usize,
    /// Whether the whole file is verified.
    verify: bool,
    /// Whether copies of batches check their checksums.
    checks: &'static [Verify],
    /// Number of images to decode.
    images: usize,
}

const ALL: Share = Share {
    records: RECORDS,
    fields: FIELDS,
    first: 0,
    verify: true,
    checks: &[Verify::Always, Verify::Never],
    images: 4,
};

impl Share {
    /// The part to read for an input: many inputs find more than a full read of each.
    fn of(input: &[u8]) -> Self {
        if !cfg!(fuzzing) {
            return ALL;
        }
        let draw = crc32c::crc32c(input);
        Self {
            records: FEW_RECORDS,
            fields: FEW_FIELDS,
            first: (draw >> 8) as usize,
            verify: draw.is_multiple_of(4),
            checks: if draw & 16 == 0 { &[Verify::Always] } else { &[Verify::Never] },
            images: 1,
        }
    }

    fn records(&self, len: u64) -> Vec<u64> {
        if len <= self.records {
            return (0..len).collect();
        }
        let last = self.records / 3;
        (0..self.records - 2 - last).chain([len / 3, len / 2]).chain(len - last..len).collect()
    }
}

/// Reads fields of some records, and calls every other method of the reader.
pub fn everything(reader: &Reader, input: &[u8]) {
    let share = Share::of(input);
    black_box((reader.metadata().len(), reader.complete(), reader.tail_bytes(), reader.bytes(), reader.snapshot()));
    black_box(reader.schema().describe());
    let _ = black_box(reader.resolve(&[0, -1, i64::MIN, i64::MAX]));
    let Ok(records) = reader.records(share.records(reader.len())) else { return };
    let fields: Vec<_> = reader.schema().iter().collect();
    for number in 0..fields.len().min(share.fields) {
        let (field, definition) = fields[(share.first + number) % fields.len()];
        for part in ["", ".width", ".height", ".dim1"] {
            column(reader, field, &format!("{}{part}", definition.name), part.is_empty());
        }
        let _ = black_box(reader.sizes(field));
        if definition.kind.has_payloads() {
            payloads(reader, field, &definition.kind, &records, share);
        } else {
            values(reader, field, &records);
        }
    }
    if share.verify {
        let _ = black_box(verify(reader, Depth::Checksums, &|| false));
    }
    let _ = black_box(reader.refresh());
}

fn column(reader: &Reader, field: FieldIndex, name: &str, main: bool) {
    let Ok((kind, bytes)) = reader.column(name) else { return };
    let bytes = match &bytes {
        ColumnBytes::Mapped(offset, length) => {
            let map = reader.mapping().expect("a mapped column has a mapping");
            &map.bytes()[*offset as usize..(*offset + *length) as usize]
        }
        ColumnBytes::Copied(bytes) => bytes,
    };
    let width = kind.nbytes().expect("a column's entries have one size") as usize;
    assert_eq!(bytes.len() as u64, reader.len() * width as u64, "column {name}");
    for record in [0, reader.len().saturating_sub(1)] {
        if main && record < reader.len() {
            let value = reader
                .values(field, &reader.records(&[record]).unwrap())
                .expect("a value of a column that could be read");
            assert_eq!(value, bytes[record as usize * width..][..width]);
        }
    }
}

fn values(reader: &Reader, field: FieldIndex, records: &Records<'_>) {
    let all = reader.values(field, records);
    let width = all.as_ref().map_or(0, |all| all.len() / records.len().max(1));
    for (i, &record) in records.iter().enumerate() {
        let one = reader.values(field, &reader.records(&[record]).unwrap());
        if let (Ok(all), Ok(one)) = (&all, &one) {
            assert_eq!(&all[i * width..(i + 1) * width], one);
        }
        let _ = black_box(reader.datum(field, record, Verify::Always));
    }
    let _ = black_box(reader.shapes(field, records));
}

fn payloads(reader: &Reader, field: FieldIndex, kind: &FieldType, records: &Records<'_>, share: Share) {
    let _ = black_box(reader.lengths(field, records));
    let _ = black_box(reader.prefetch(field, records, &never));
    if *kind == FieldType::Image {
        let _ = black_box(reader.side_kinds(field, records));
    }
    // A damaged record must not hide the others.
    let fits = |&&record: &&u64| {
        reader.lengths(field, &reader.records(&[record]).unwrap()).is_ok_and(|lengths| lengths[0] <= LARGEST)
    };
    let good: Vec<u64> = records.iter().filter(fits).copied().collect();
    let good = reader.records(good).expect("records of the file");
    let singles: Vec<Option<Vec<u8>>> = good.iter().map(|&record| one(reader, field, kind, record)).collect();
    if let Ok(Some(ranges)) = reader.view_batch(field, &good, Verify::Never, &never)
        && let Some(map) = reader.random_mapping()
    {
        compare(&singles, &ranges, map.bytes());
    }
    for &verify in share.checks {
        if let Ok((bytes, ranges)) = reader.read_batch_owned(field, &good, verify, &never) {
            compare(&singles, &ranges, &bytes);
        }
        if let Ok((bytes, starts)) = reader.read_batch_copy(field, &good, verify, &never) {
            let ranges: Ranges = starts.windows(2).map(|pair| Some((pair[0], pair[1] - pair[0]))).collect();
            compare(&singles, &ranges, &bytes);
        }
    }
    let _ = black_box(reader.view_batch(field, &good, Verify::Always, &never));
    if let FieldType::Array(array) = kind {
        let _ = black_box(reader.shapes(field, records));
        if let Ok(shapes) = reader.shapes(field, &good) {
            padded(reader, field, &good, &largest_shape(array, &shapes), array.dtype().size());
        }
    }
    if kind.holds_bytes() {
        let options = DecodeOptions { max_pixels: PIXELS, ..DecodeOptions::default() };
        for &record in good.iter().take(share.images) {
            let _ = black_box(decode_records(
                reader,
                field,
                &reader.records(&[record]).unwrap(),
                Verify::Always,
                options,
                Some(1),
                &never,
            ));
        }
    }
}

/// Reads one value separately, if its checksum is right.
fn one(reader: &Reader, field: FieldIndex, kind: &FieldType, record: u64) -> Option<Vec<u8>> {
    let _ = black_box(reader.payload(field, record, Verify::Never));
    let checked = reader.payload(field, record, Verify::Always);
    match (reader.datum(field, record, Verify::Always), &checked) {
        (Ok(Datum::Payload(offset, length)), checked) => {
            if let (Some(map), Ok(bytes)) = (reader.mapping(), checked) {
                assert_eq!(map.bytes()[offset as usize..(offset + length) as usize], bytes[..]);
            }
        }
        (Ok(Datum::Decompressed(bytes)), Ok(checked)) => assert_eq!(&bytes, checked),
        (Ok(Datum::Str(text)), Ok(checked)) => assert_eq!(text.as_bytes(), checked),
        _ => {}
    }
    let bytes = checked.ok()?;
    if matches!(kind, FieldType::List(_))
        && let Ok(items) = reader.items(field, record, &bytes)
    {
        let mut before = 0;
        for item in items {
            assert!(item.range.start >= before && item.range.end <= bytes.len());
            before = item.range.end;
        }
    }
    Some(bytes)
}

fn compare(singles: &[Option<Vec<u8>>], ranges: &Ranges, bytes: &[u8]) {
    assert_eq!(singles.len(), ranges.len());
    for (single, range) in singles.iter().zip(ranges) {
        if let (Some(single), Some((offset, length))) = (single, range) {
            assert_eq!(bytes[*offset as usize..(*offset + *length) as usize], single[..]);
        }
    }
}

fn padded(reader: &Reader, field: FieldIndex, records: &Records<'_>, most: &[u64], item: usize) {
    let bytes = most.iter().try_fold((records.len() * item) as u64, |bytes, &dim| bytes.checked_mul(dim));
    if let Some(bytes) = bytes.filter(|&bytes| bytes <= 4 * LARGEST) {
        let mut out = vec![0; bytes as usize];
        let _ = black_box(reader.read_batch_padded(
            field,
            records,
            most,
            &[7; 16][..item],
            &mut out,
            Verify::Always,
            &never,
        ));
    }
}
