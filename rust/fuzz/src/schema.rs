//! Parses schemas and metadata: docs/format.md, section 5.

use std::path::Path;

use fastrecord_core::{Access, Reader, Schema};

use super::append::append_one;
use super::forge::Forge;
use super::place::{Memory, with_file};
use super::{guard, walk};

/// Parses the bytes as a schema, as the metadata of a file, and as schema rows; then appends a
/// record to the files.
pub fn run(data: &[u8]) {
    guard::within(walk::bound(data.len()), || schema(data));
    let mut forge = Forge::new("[]", 0);
    forge.metadata = data.to_vec();
    file(forge, data);
    if let Ok(rows) = std::str::from_utf8(data) {
        file(Forge::new(rows, 0), data);
    }
}

fn schema(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(schema) = Schema::from_json(text) else { return };
    let again = Schema::from_json(&schema.to_json()).expect("what a schema says of itself");
    assert!(schema.same_fields(&again));
    for field in schema.fields() {
        assert_eq!(schema.position(&field.name).map(|at| &schema.fields()[at]), Some(field));
    }
}

fn file(forge: Forge, data: &[u8]) {
    let file = forge.build(|_| {});
    guard::within(walk::bound(data.len()), || {
        let schema = with_file(&file, |path| {
            let reader = Reader::open(path, Access::Pread, Some(1)).ok()?;
            walk::everything(&reader, data);
            Some(reader.schema().clone())
        });
        if let Some(schema) = schema {
            append_one(Path::new("memory.frec"), &Memory::new(file.clone()), &schema);
        }
    });
}
