//! Reads everything in a valid file with some changes.

use fastrecord_core::{Access, Reader};

use super::bytes::Input;
use super::patch::patched;
use super::place::with_file;
use super::{guard, walk};

/// Opens the file that the input describes, and reads all of its content.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let access = if input.u8() & 1 == 0 { Access::Mmap } else { Access::Pread };
    let file = patched(&mut input);
    guard::within(walk::bound(file.len()), || {
        with_file(&file, |path| {
            if let Ok(reader) = Reader::open(path, access, Some(1)) {
                walk::everything(&reader, data);
            }
        });
    });
}
