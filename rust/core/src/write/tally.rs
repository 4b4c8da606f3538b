//! `Tally`: counts of the images that were appended.

/// Counts of appended images.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Images appended.
    pub images: u64,
    /// Images kept byte for byte.
    pub kept: u64,
    /// Images scaled down.
    pub smaller: u64,
    /// Images rewritten for crops, including scaled ones.
    pub crop_ready: u64,
    /// Images stored as pixels, including scaled ones.
    pub raw: u64,
    /// Bytes of the input.
    pub bytes_in: u64,
    /// Bytes stored, including side bytes.
    pub bytes_out: u64,
}
