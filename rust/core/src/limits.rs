//! What is refused because it is too large, and why. Readers hold these against whatever a file says before they allocate or
//! work for it, writers against what they are given, so that no writer makes a file that a reader refuses.
//!
//! What is not here is bounded by the file's size: a list's items, a directory's entries, texts, arrays and bytes.

use crate::error::{Error, Result};
use std::path::Path;

/// Records of a file: their numbers are signed 64-bit integers in Python and numpy.
pub const MAX_RECORDS: u64 = i64::MAX as u64;

/// Fields of a schema: enough for any table of features, small enough that a hostile file cannot make opening slow, as names are
/// compared with each other.
pub const MAX_FIELDS: usize = 4096;

/// Bytes of a field's name in UTF-8: names stand in every message, and in every row of a listing.
pub const MAX_NAME_BYTES: usize = 1024;

/// Bytes of a commit's metadata, the schema included: a byte of JSON may take some forty of memory once it is parsed.
pub const MAX_METADATA_BYTES: u64 = 256 << 20;

/// Dimensions of an array: what numpy and torch can both hold.
pub const MAX_DIMS: usize = 32;

/// Bytes of an image. The coded data of a crop-ready one are named by 32 bits, and libraries that decode images count in C's `int`.
pub const MAX_IMAGE_BYTES: u64 = i32::MAX as u64;

/// Pixels above which an image is refused unless the caller says another number: where Pillow raises `DecompressionBombError`.
pub const MAX_PIXELS: u64 = 2 * 89_478_485;

/// Pixels above which an image is not made crop-ready: to check a rewritten one takes memory for both.
pub const MAX_CROP_READY_PIXELS: u64 = 1 << 26;

/// Pixels of a side of a JPEG that is written: its header has 16 bits, of which libjpeg allows these.
pub const MAX_JPEG_SIDE: u32 = 65_500;

/// Scans of a progressive JPEG: each takes as long as the whole image, and a few bytes make one. Encoders write ten or so.
pub const MAX_JPEG_SCANS: u32 = 32;

/// Bytes that decoding an image of any other kind may take besides its pixels, of eight bytes at most.
pub const MAX_IMAGE_WORKSPACE: u64 = 64 << 20;

/// Bytes behind an image that a decoder may use: their table has entries of 32 bits.
pub const MAX_SIDE_BYTES: u64 = u32::MAX as u64;

/// Bytes of a dictionary: what one holds beyond some hundred KiB is worth no more.
pub const MAX_DICTIONARY_BYTES: u64 = 16 << 20;

/// Bytes of a value that any compressed payload, however short, may become.
pub const SMALL_VALUE_BYTES: u64 = 1 << 26;

/// Of a larger value there is at least one stored byte for so many: memory is allocated before it shows whether a file tells
/// the truth.
pub const MAX_EXPANSION: u64 = 1024;

/// Bytes of a value that one lz4 block can hold; larger ones are stored as they are.
pub const MAX_LZ4_BYTES: usize = 0x7e00_0000;

/// All of them by name, in lower case.
pub fn limits() -> [(&'static str, u64); 16] {
    [
        ("max_records", MAX_RECORDS),
        ("max_fields", MAX_FIELDS as u64),
        ("max_name_bytes", MAX_NAME_BYTES as u64),
        ("max_metadata_bytes", MAX_METADATA_BYTES),
        ("max_dims", MAX_DIMS as u64),
        ("max_image_bytes", MAX_IMAGE_BYTES),
        ("max_pixels", MAX_PIXELS),
        ("max_crop_ready_pixels", MAX_CROP_READY_PIXELS),
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

/// Refuses metadata that is too long to be parsed.
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
/// As text.
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
