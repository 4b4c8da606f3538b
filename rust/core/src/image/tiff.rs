//! The first directory of a TIFF file (TIFF 6.0, section 2), which is also the layout of EXIF data.

/// One entry of the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub tag: u16,
    /// The type of its values: 3 is SHORT.
    pub kind: u16,
    /// The number of values that it declares.
    pub count: u32,
    /// The first two bytes of the value, or of its offset.
    pub value: u16,
}

/// Iterates over the entries that are complete. Yields nothing if the data are not a TIFF file.
pub(super) fn entries(tiff: &[u8]) -> impl Iterator<Item = Entry> {
    let little = match tiff.get(..4) {
        Some([b'I', b'I', 42, 0]) => Some(true),
        Some([b'M', b'M', 0, 42]) => Some(false),
        _ => None,
    };
    let u16_at = move |at: usize| {
        let bytes = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if little? { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let u32_at = move |at: usize| {
        let bytes = tiff.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if little? { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    };
    let directory = u32_at(4).map(|at| at as usize);
    let count = directory.and_then(u16_at).unwrap_or(0);
    (0..usize::from(count)).map_while(move |n| {
        let at = directory? + 2 + 12 * n;
        let _whole = u32_at(at + 8)?;
        Some(Entry { tag: u16_at(at)?, kind: u16_at(at + 2)?, count: u32_at(at + 4)?, value: u16_at(at + 8)? })
    })
}
