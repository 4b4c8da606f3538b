//! Files assembled from docs/format.md alone, with right checksums. The reader refuses their
//! content with an error that names the place, or reads it. It never panics, hangs, or uses more
//! memory than the file is long.

#[path = "../common/mod.rs"]
mod common;
mod payloads;
mod random;
mod structure;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use common::{EXTENTS, Forge, VALUES, folder, never, options};
use fastrecord_core::{Access, Depth, Error, Mode, Reader, Verify, Writer, verify};
use tempfile::TempDir;

/// The largest block of memory requested at once.
struct Largest;

static LARGEST: AtomicU64 = AtomicU64::new(0);

#[allow(unsafe_code)]
// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Largest {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller keeps the same rules as for this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: likewise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Largest = Largest;

fn written(bytes: &[u8]) -> (TempDir, PathBuf) {
    let folder = folder();
    let path = folder.path().join("x.frec");
    fs::write(&path, bytes).unwrap();
    (folder, path)
}

/// Opens a file in every way and reads all its content; returns the errors as text.
fn take_all(path: &Path) -> Vec<String> {
    let length = fs::metadata(path).unwrap().len();
    LARGEST.store(0, Ordering::Relaxed);
    let mut errors = Vec::new();
    for access in [Access::Mmap, Access::Pread] {
        let reader = match Reader::open(path, access, None) {
            Ok(reader) => reader,
            Err(error) => {
                errors.push(error.to_string());
                continue;
            }
        };
        let last = reader.len().saturating_sub(1);
        let records: Vec<u64> =
            (0..reader.len().min(200)).chain([last / 2, last]).filter(|&r| r < reader.len()).collect();
        let records = reader.records(records).unwrap();
        let mut note = |error: Option<Error>| errors.extend(error.map(|e| e.to_string()));
        for (field, definition) in reader.schema().iter() {
            for part in ["", ".width", ".height"] {
                note(
                    reader
                        .column(&format!("{}{part}", definition.name))
                        .err()
                        .filter(|e| !matches!(e, Error::FieldType { .. })),
                );
            }
            if definition.kind.has_payloads() {
                note(reader.lengths(field, &records).err());
                note(reader.prefetch(field, &records, &|| false).err());
                note(reader.view_batch(field, &records, Verify::Never, &|| false).err());
                note(reader.view_batch(field, &records, Verify::Always, &never).err());
                note(reader.read_batch_copy(field, &records, Verify::Always, &never).err());
            } else {
                note(reader.values(field, &records).err());
            }
            for &record in records.iter() {
                note(reader.datum(field, record, Verify::Always).err());
                if definition.kind.has_payloads() {
                    note(reader.payload(field, record, Verify::Always).err());
                }
            }
        }
        match verify(&reader, Depth::Checksums, &|| false) {
            Ok(report) => errors.extend(report.errors),
            Err(error) => errors.push(error.to_string()),
        }
    }
    // A batch of 200 records may repeat a payload 200 times. The file bounds all memory that the
    // caller does not request.
    let most = LARGEST.load(Ordering::Relaxed);
    assert!(most <= 210 * length.max(4 << 20), "{most} bytes were asked for at once, of a file of {length}");
    errors.extend(Writer::open(path, None, None, &options(Mode::Append)).err().map(|e| e.to_string()));
    errors
}

const DATA_AND_LABEL: &str =
    r#"[{"id": 1, "name": "data", "type": "bytes"}, {"id": 2, "name": "label", "type": "int64"}]"#;

/// A valid file, assembled by hand: 3 records.
fn forged() -> Forge {
    let mut forge = Forge::new(DATA_AND_LABEL, 3);
    let extents: Vec<u8> = [&b"one"[..], b"", b"three"].iter().flat_map(|p| forge.payload(p)).collect();
    forge.chunk(1, 0, EXTENTS, 32, 0, &extents);
    forge.chunk(2, 0, VALUES, 8, 0, &[1_i64, -2, 3].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>());
    forge
}

fn refused(bytes: &[u8], expected: &str) {
    let (_folder, path) = written(bytes);
    let errors = take_all(&path);
    assert!(!errors.is_empty(), "accepted, but wanted: {expected}");
    assert!(
        errors.iter().all(|e| e.contains(expected) && e.contains("x.frec")),
        "wanted {expected:?}, got {errors:#?}"
    );
}
