//! Opens arbitrary bytes as a file.

use std::hint::black_box;
use std::path::Path;

use fastrecord_core::{Access, Reader};

use super::place::with_file;
use super::seal::seal;
use super::{guard, walk};

/// Opens the bytes unchanged, and again with right checksums.
pub fn run(data: &[u8]) {
    opened(data);
    let mut file = data.to_vec();
    seal(&mut file);
    opened(&file);
}

fn opened(file: &[u8]) {
    guard::within(walk::bound(file.len()), || {
        with_file(file, |path: &Path| {
            let Ok(reader) = Reader::open(path, Access::Pread, Some(1)) else { return };
            assert!(reader.bytes() <= file.len() as u64);
            black_box((reader.schema().to_json(), reader.metadata().len(), reader.tail_bytes()));
            let snapshot = reader.snapshot();
            for field in reader.schema().fields() {
                let _ = black_box(reader.column(&field.name));
            }
            let again = Reader::open_snapshot(path, Access::Mmap, Some(1), snapshot).expect("what could be opened");
            assert_eq!(again.len(), reader.len());
        });
    });
}
