//! Limits beyond which a value is refused, and the reason for each.
//!
//! Readers check these limits before they allocate memory or work for a file's values. Writers
//! check their input, so no writer creates a file that a reader refuses.
//!
//! The file's size bounds everything else: list items, directory entries, texts, arrays and bytes.

use crate::error::{Error, Result};
use std::path::Path;

/// Records in a file: record numbers are signed 64-bit integers in Python and numpy.
pub const MAX_RECORDS: u64 = i64::MAX as u64;

/// Fields in a schema. This is enough for any table of features. It is small enough that a hostile
/// file cannot make opening slow, as names are compared with each other.
pub const MAX_FIELDS: usize = 4096;

/// Bytes of a field's name in UTF-8: every message and every row of a listing contains names.
pub const MAX_NAME_BYTES: usize = 1024;

/// Bytes of a commit's metadata, including the schema: one byte of JSON may take about forty bytes
/// of memory when parsed.
pub const MAX_METADATA_BYTES: u64 = 256 << 20;

/// Dimensions of an array: the maximum that both numpy and torch support.
pub const MAX_DIMS: usize = 32;

/// Bytes of an image. A crop index addresses the coded data with 32 bits, and image libraries count
/// in C's `int`.
pub const MAX_IMAGE_BYTES: u64 = i32::MAX as u64;

/// Pixels above which an image is refused by default: where Pillow raises
/// `DecompressionBombError`.
pub const MAX_PIXELS: u64 = 2 * 89_478_485;

/// Pixels above which an image gets no crop index: its entries need memory while it is made.
pub const MAX_CROP_INDEX_PIXELS: u64 = 1 << 26;

/// Pixels per side of a JPEG that is written. The header has 16 bits; libjpeg allows at most this
/// value.
pub const MAX_JPEG_SIDE: u32 = 65_500;

/// Scans of a progressive JPEG. Each scan takes as long as the whole image but only a few bytes of
/// file. Encoders write about ten.
pub const MAX_JPEG_SCANS: u32 = 32;

/// Bytes that decoding an image of another format may use in addition to its pixels, which have at
/// most eight bytes each.
pub const MAX_IMAGE_WORKSPACE: u64 = 64 << 20;

/// Bytes after an image for a decoder's use: their table has 32-bit entries.
pub const MAX_SIDE_BYTES: u64 = u32::MAX as u64;

/// Bytes of a dictionary: content beyond a few hundred KiB does not help.
pub const MAX_DICTIONARY_BYTES: u64 = 16 << 20;

/// Bytes of a value that any compressed payload, however short, may expand to.
pub const SMALL_VALUE_BYTES: u64 = 1 << 26;

/// Maximum expansion of larger values: one stored byte for at most this many bytes of value. Memory
/// must be allocated before decompression shows whether the file's sizes are true.
pub const MAX_EXPANSION: u64 = 1024;

/// Bytes of a value that one lz4 block can hold; larger values are stored uncompressed.
pub const MAX_LZ4_BYTES: usize = 0x7e00_0000;

/// Returns all limits by name, in lower case.
pub fn limits() -> [(&'static str, u64); 16] {
    [
        ("max_records", MAX_RECORDS),
        ("max_fields", MAX_FIELDS as u64),
        ("max_name_bytes", MAX_NAME_BYTES as u64),
        ("max_metadata_bytes", MAX_METADATA_BYTES),
        ("max_dims", MAX_DIMS as u64),
        ("max_image_bytes", MAX_IMAGE_BYTES),
        ("max_pixels", MAX_PIXELS),
        ("max_crop_index_pixels", MAX_CROP_INDEX_PIXELS),
        ("max_jpeg_side", u64::from(MAX_JPEG_SIDE)),
        ("max_jpeg_scans", u64::from(MAX_JPEG_SCANS)),
        ("max_image_workspace", MAX_IMAGE_WORKSPACE),
        ("max_side_bytes", MAX_SIDE_BYTES),
        ("max_dictionary_bytes", MAX_DICTIONARY_BYTES),
        ("small_value_bytes", SMALL_VALUE_BYTES),
        ("max_expansion", MAX_EXPANSION),
        ("max_lz4_bytes", MAX_LZ4_BYTES as u64),
    ]
}

/// Refuses metadata that is too long to parse.
pub(crate) fn check_metadata(path: &Path, bytes: u64) -> Result<()> {
    if bytes <= MAX_METADATA_BYTES {
        return Ok(());
    }
    let what = format!("metadata of {bytes} bytes, the schema included");
    let way_out = "put what grows with the records into a field".to_owned();
    Err(Error::Limit { path: path.to_owned(), what, limit: MAX_METADATA_BYTES, way_out })
}

/// Refuses an image that is too long for decoders.
///
/// # Errors
/// The reason, as text.
pub(crate) fn check_image(bytes: u64) -> std::result::Result<(), String> {
    if bytes <= MAX_IMAGE_BYTES {
        return Ok(());
    }
    Err(format!("an image of {bytes} bytes: the limit is {MAX_IMAGE_BYTES}: store it in a field of type bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_and_images_are_taken_up_to_the_limit_and_not_beyond() {
        let path = Path::new("x.frec");
        check_metadata(path, MAX_METADATA_BYTES).unwrap();
        let message = check_metadata(path, MAX_METADATA_BYTES + 1).unwrap_err().to_string();
        assert!(message.contains("268435457 bytes") && message.contains("the limit is 268435456: put"), "{message}");
        check_image(MAX_IMAGE_BYTES).unwrap();
        let message = check_image(MAX_IMAGE_BYTES + 1).unwrap_err();
        assert!(message.contains("2147483648 bytes: the limit is 2147483647: store"), "{message}");
    }

    #[test]
    fn every_limit_has_a_name_of_its_own() {
        let mut names: Vec<&str> = limits().iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), limits().len());
    }
}
