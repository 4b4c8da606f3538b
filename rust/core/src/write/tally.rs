//! `Tally`: what became of the images that were appended.

/// What became of images.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Images appended.
    pub images: u64,
    /// Of them, as they came, byte for byte.
    pub kept: u64,
    /// Made smaller.
    pub smaller: u64,
    /// Rewritten for crops, smaller ones included.
    pub crop_ready: u64,
    /// Stored as pixels, smaller ones included.
    pub raw: u64,
    /// Bytes that came.
    pub bytes_in: u64,
    /// Bytes that are stored, side bytes included.
    pub bytes_out: u64,
}
