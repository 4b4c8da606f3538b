//! Reads directories and the chunks that they name: docs/format.md, sections 3 and 4.

use fastrecord_core::{Access, Reader};

use super::bytes::{Input, put, u64_at};
use super::forge::Forge;
use super::place::with_file;
use super::{guard, walk};

/// The schemas that the columns may belong to.
const SCHEMAS: [&str; 6] = [
    r#"[{"id": 1, "name": "a", "type": "bytes"}]"#,
    r#"[{"id": 1, "name": "a", "type": "image"}, {"id": 2, "name": "b", "type": "int64"}]"#,
    r#"[{"id": 1, "name": "a", "type": "string"}, {"id": 7, "name": "b", "type": "array", "dtype": "uint8", "shape": [3]}]"#,
    r#"[{"id": 1, "name": "a", "type": "array", "dtype": "int16", "shape": [null, 3, null]}]"#,
    r#"[{"id": 1, "name": "a", "type": "array", "dtype": "float32", "shape": [null, 2]},
        {"id": 2, "name": "b", "type": "array", "dtype": "int8", "shape": [0, 100]}]"#,
    r#"[{"id": 1, "name": "a", "type": "list", "item": {"type": "string"}}, {"id": 2, "name": "b", "type": "bool"},
        {"id": 3, "name": "c", "type": "json", "compression": {"codec": "lz4"}}]"#,
];

/// The columns of each schema: field, part, encoding, width.
const COLUMNS: [&[(u32, u8, u8, u16)]; 6] = [
    &[(1, 0, 2, 32)],
    &[(1, 0, 2, 32), (1, 1, 1, 4), (1, 2, 1, 4), (2, 0, 1, 8)],
    &[(1, 0, 2, 32), (7, 0, 1, 3)],
    &[(1, 0, 2, 32), (1, 1, 1, 8), (1, 2, 1, 8)],
    &[(1, 0, 2, 32), (2, 0, 2, 32)],
    &[(1, 0, 2, 32), (2, 0, 1, 1), (3, 0, 2, 32)],
];

/// Builds a file of the chunks that the input describes, fills them with the rest of the input, and
/// reads everything.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let head = input.u8();
    let access = if head & 1 == 0 { Access::Mmap } else { Access::Pread };
    let schema = usize::from(head >> 1) % SCHEMAS.len();
    let records = small_or_any(&mut input);
    let mut forge = Forge::new(SCHEMAS[schema], records);
    for number in 0..usize::from(input.u8() % 12) {
        chunk(&mut forge, COLUMNS[schema], number, &mut input);
    }
    // Offsets of payloads are far easier to guess if they begin at 0.
    let mut area = input.0.to_vec();
    for word in area.chunks_exact_mut(32) {
        let offset = u64_at(word, 0);
        if offset < 1 << 16 {
            put(word, 0, &(offset + 4096).to_le_bytes());
        }
    }
    forge.bytes.extend(area);
    // Room for the check tables of the last chunks.
    forge.bytes.resize(forge.bytes.len() + 64, 0);
    let file = forge.build(|_| {});
    guard::within(walk::bound(file.len()), || {
        with_file(&file, |path| {
            if let Ok(reader) = Reader::open(path, access, Some(1)) {
                walk::everything(&reader, data);
            }
        });
    });
}

/// A number of one byte or, if that byte is 255, of eight bytes.
fn small_or_any(input: &mut Input<'_>) -> u64 {
    match input.u8() {
        255 => input.u64(),
        small => small.into(),
    }
}

/// One directory entry: the valid one for the schema, or one with any of its words replaced.
fn chunk(forge: &mut Forge, columns: &[(u32, u8, u8, u16)], number: usize, input: &mut Input<'_>) {
    let change = input.u8();
    let column = if change & 1 == 0 { number } else { input.u8().into() };
    let (mut field, mut part, mut encoding, mut width) = columns[column % columns.len()];
    if change & 2 != 0 {
        (field, part, encoding, width) = (input.u8().into(), input.u8(), input.u8(), input.u8().into());
    }
    let first = if change & 4 == 0 { 0 } else { small_or_any(input) };
    let count = if change & 8 == 0 { forge.records } else { small_or_any(input) };
    let mut offset = 4096 + 64 * u64::from(input.u8() % 32);
    if change & 16 != 0 {
        offset = input.u64();
    }
    let mut length = count.wrapping_mul(width.into());
    if change & 32 != 0 {
        length = input.u64();
    }
    forge.entry(field, (part, encoding), width, [first, count, offset, length]);
    if change & 64 != 0 {
        let at = forge.directory.len() - 24 + usize::from(input.u8() % 24);
        forge.directory[at] = 1;
    }
}
