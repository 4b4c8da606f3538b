//! Reads payloads (compressed values, lists, texts, arrays) with arbitrary extents.

use std::hint::black_box;
use std::path::Path;

use fastrecord_core::{Access, FieldType, Reader, Verify};

use super::append::append_one;
use super::bytes::{Input, chance, u32_at};
use super::forge::{EXTENTS, Forge, VALUES, extent};
use super::place::{Memory, with_file};
use super::{guard, walk};

/// The types that a payload may have.
const TYPES: [&str; 12] = [
    r#"{"type": "bytes"}"#,
    r#"{"type": "string"}"#,
    r#"{"type": "json"}"#,
    r#"{"type": "array", "dtype": "uint8", "shape": [null, 3]}"#,
    r#"{"type": "array", "dtype": "int16", "shape": [null, null]}"#,
    r#"{"type": "array", "dtype": "complex128", "shape": [5]}"#,
    r#"{"type": "list", "item": {"type": "string"}}"#,
    r#"{"type": "list", "item": {"type": "float64"}}"#,
    r#"{"type": "list", "item": {"type": "bytes"}}"#,
    r#"{"type": "list", "item": {"type": "array", "dtype": "uint16", "shape": [null, 2]}}"#,
    r#"{"type": "list", "item": {"type": "array", "dtype": "int8", "shape": []}}"#,
    r#"{"type": "list", "item": {"type": "array", "dtype": "bool", "shape": [0, 7]}}"#,
];
/// A dictionary by zstd's trainer; frames that name its id are decompressed with it.
const DICTIONARY: &[u8] = include_bytes!("../samples/dictionary.zdict");
/// Values up to this number of bytes are cheap to read; larger ones are read occasionally.
const CHEAP: u64 = 1 << 16;
const LARGEST: u64 = 1 << 26;

/// Builds a file of one record with the rest of the input as its payload, and reads it in every
/// way.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (kind, codec, flags) = (usize::from(input.u8()) % TYPES.len(), input.u8(), input.u8());
    let raw: u64 = input.u32().into();
    let raw = if chance(data, 256) { raw % (LARGEST + 4096) } else { raw % CHEAP };
    let shape = if flags & 1 == 0 { None } else { Some([u64::from(input.u8()), u64::from(input.u8())]) };
    // The first 8 bytes mark it as a dictionary and hold its id.
    let dictionary = if flags & 8 == 0 {
        DICTIONARY.to_vec()
    } else {
        let length = 8 * usize::from(input.u8());
        [&DICTIONARY[..8], input.take(length)].concat()
    };
    let stored = input.0;
    let raw = if codec.is_multiple_of(3) { stored.len() as u64 } else { raw };
    let dictionary = (flags & 2 != 0).then_some(&dictionary[..]);
    let file = file(TYPES[kind], codec % 3, dictionary, shape, raw, stored);
    guard::within(walk::bound(file.len()) + 12 * raw as usize, || {
        with_file(&file, |path| {
            let access = if flags & 4 == 0 { Access::Mmap } else { Access::Pread };
            if let Ok(reader) = Reader::open(path, access, Some(1)) {
                walk::everything(&reader, data);
                large(&reader);
                // Writing takes as long as all reads, so in long runs only some inputs are written.
                if !cfg!(fuzzing) || chance(data, 8) {
                    append_one(Path::new("memory.frec"), &Memory::new(file.clone()), reader.schema());
                }
            }
        });
    });
}

/// Handles values that are too large to be read in all ways.
fn large(reader: &Reader) {
    let Some((field, definition)) = reader.schema().iter().next() else { return };
    let Ok(value) = reader.payload(field, 0, Verify::Always) else { return };
    if matches!(definition.kind, FieldType::List(_)) && value.len() as u64 <= CHEAP {
        let _ = black_box(reader.items(field, 0, &value));
    }
}

fn file(kind: &str, codec: u8, dictionary: Option<&[u8]>, shape: Option<[u64; 2]>, raw: u64, stored: &[u8]) -> Vec<u8> {
    let mut forge = Forge::new("[]", 1);
    let compression = dictionary.map_or("null".to_owned(), |dictionary| {
        let (id, crc) = (u32_at(dictionary, 4), crc32c::crc32c(dictionary));
        let place = format!(r#""offset": {}, "length": {}"#, forge.payload(dictionary), dictionary.len());
        format!(r#"{{"codec": "zstd", "level": 1, "dictionaries": [{{"id": {id}, {place}, "crc": {crc}}}]}}"#)
    });
    let row = kind.trim_start_matches('{');
    let rows = format!(r#"[{{"id": 1, "name": "a", "compression": {compression}, {row}]"#);
    forge.metadata = Forge::new(&rows, 1).metadata;
    let offset = forge.payload(stored);
    forge.chunk(1, 0, EXTENTS, 32, &extent(offset, stored.len() as u64, raw, codec, 0));
    if kind.contains("[null, null]") {
        for (part, dim) in (1..).zip(shape.unwrap_or([raw / 2, 1])) {
            forge.chunk(1, part, VALUES, 8, &dim.to_le_bytes());
        }
    }
    forge.build(|_| {})
}
