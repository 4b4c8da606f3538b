//! `Piece`, a payload to copy, and `Stretch`, a range of the file that consists of such payloads.

use std::ops::Range;

use crate::format::layout::align;

/// One payload of a window of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Its offset in its file.
    pub offset: u64,
    /// Its stored bytes.
    pub stored: u64,
    /// The column that refers to it.
    pub column: u32,
    /// Its entry in the column, counted from the start of the window.
    pub entry: u32,
}

impl Piece {
    /// The offset after its last byte. Extents were checked against the end of their file, so this
    /// cannot overflow.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.stored
    }
}

/// A range of a file that holds only payloads and padding between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub start: u64,
    pub end: u64,
    /// The pieces that lie in it.
    pub pieces: Range<usize>,
    /// The largest alignment of its pieces.
    pub alignment: u64,
}

impl Stretch {
    pub(crate) fn length(&self) -> u64 {
        self.end - self.start
    }
}

/// Joins pieces, sorted by offset, into stretches. Pieces may overlap: several records may share a
/// payload.
pub(crate) fn stretches(pieces: &[Piece], alignment_of: impl Fn(&Piece) -> u64) -> Vec<Stretch> {
    let mut found: Vec<Stretch> = Vec::new();
    for (i, piece) in pieces.iter().enumerate() {
        let alignment = alignment_of(piece);
        match found.last_mut() {
            // Bytes between the end of one piece and the next possible start of the other are
            // padding.
            Some(last) if piece.offset <= last.end || Some(piece.offset) == align(last.end, alignment) => {
                last.end = last.end.max(piece.end());
                last.pieces.end = i + 1;
                last.alignment = last.alignment.max(alignment);
            }
            _ => found.push(Stretch { start: piece.offset, end: piece.end(), pieces: i..i + 1, alignment }),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(offset: u64, stored: u64) -> Piece {
        Piece { offset, stored, column: 0, entry: 0 }
    }

    fn ranges(pieces: &[Piece], alignment: u64) -> Vec<(u64, u64)> {
        stretches(pieces, |_| alignment).iter().map(|s| (s.start, s.end)).collect()
    }

    #[test]
    fn neighbours_join_across_padding_only() {
        let pieces = [piece(64, 10), piece(80, 8), piece(88, 3), piece(104, 1), piece(112, 2)];
        // Another payload could begin between 91 and 104.
        assert_eq!(ranges(&pieces, 8), [(64, 91), (104, 114)]);
        assert_eq!(ranges(&[piece(64, 10), piece(74, 1), piece(76, 1)], 1), [(64, 75), (76, 77)]);
        assert_eq!(ranges(&[piece(64, 1), piece(128, 64), piece(256, 1)], 64), [(64, 192), (256, 257)]);
    }

    #[test]
    fn payloads_that_overlap_are_one_stretch_that_ends_behind_the_last() {
        let pieces = [piece(64, 100), piece(64, 100), piece(72, 8), piece(168, 8)];
        assert_eq!(ranges(&pieces, 8), [(64, 176)]);
        assert_eq!(stretches(&pieces, |_| 8)[0].pieces, 0..4);
    }

    #[test]
    fn empty_payloads_lie_in_a_stretch_as_others_do() {
        assert_eq!(ranges(&[piece(64, 0), piece(64, 5), piece(72, 0)], 8), [(64, 72)]);
        assert!(ranges(&[], 8).is_empty());
    }

    #[test]
    fn a_stretch_has_the_largest_alignment_of_its_pieces() {
        let pieces = [piece(64, 8), Piece { column: 1, ..piece(128, 8) }];
        let found = stretches(&pieces, |piece| if piece.column == 0 { 8 } else { 64 });
        assert_eq!((found.len(), found[0].alignment), (1, 64));
    }
}
