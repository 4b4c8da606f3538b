//! The records of a `TFRecord` file.
//!
//! Format: "`TFRecord` and `tf.train.Example`" of `TensorFlow`'s guide. A record is the length of its
//! data (u64), the masked CRC-32C of these 8 bytes (u32), the data, and their masked CRC-32C (u32),
//! all little-endian.

use std::ops::Range;

use crate::format::crc::crc32c_append;

const HEAD: usize = 12;
const TAIL: usize = 4;

/// The records in a stretch of a file.
#[derive(Debug, Default, PartialEq)]
pub struct RecordRun {
    /// Where the data of each whole record is.
    pub data: Vec<Range<usize>>,
    /// Positions in `data` of the records with a wrong CRC.
    pub damaged: Vec<usize>,
    /// Where the first record begins that is not whole.
    pub end: usize,
    /// Length of that record with its head and tail, if its head is there.
    pub next: Option<u64>,
    /// The CRC of that record's length is wrong: nothing after it can be read.
    pub broken: bool,
}

/// Finds the whole records in `bytes`, which begin with a record. `check`: compare the CRCs of data.
#[must_use]
pub fn find_records(bytes: &[u8], check: bool) -> RecordRun {
    let mut run = RecordRun::default();
    while let Some((length, crc)) = bytes.get(run.end..).and_then(split_head) {
        if masked(length) != crc {
            run.broken = true;
            break;
        }
        let length = u64::from_le_bytes(*length);
        let whole = length.saturating_add((HEAD + TAIL) as u64);
        if whole > (bytes.len() - run.end) as u64 {
            run.next = Some(whole);
            break;
        }
        let start = run.end + HEAD;
        run.end += whole as usize;
        let data = start..run.end - TAIL;
        if check && masked(&bytes[data.clone()]).to_le_bytes() != bytes[data.end..run.end] {
            run.damaged.push(run.data.len());
        }
        run.data.push(data);
    }
    run
}

fn split_head(bytes: &[u8]) -> Option<(&[u8; 8], u32)> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let (crc, _) = rest.split_first_chunk::<4>()?;
    Some((length, u32::from_le_bytes(*crc)))
}

fn masked(bytes: &[u8]) -> u32 {
    crc32c_append(0, bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(data: &[u8]) -> Vec<u8> {
        let length = (data.len() as u64).to_le_bytes();
        [&length[..], &masked(&length).to_le_bytes(), data, &masked(data).to_le_bytes()].concat()
    }

    #[test]
    fn whole_records_are_found_and_the_cut_one_is_measured() {
        let bytes = [record(b"first"), record(b""), record(b"last one")].concat();
        let run = find_records(&bytes, true);
        assert_eq!((run.data, run.end, run.next, run.broken), (vec![12..17, 33..33, 49..57], 61, None, false));
        let run = find_records(&bytes[..60], true);
        assert_eq!((run.data.len(), run.end, run.next), (2, 37, Some(24)));
        assert_eq!(find_records(&bytes[..48], true).next, None);
    }

    #[test]
    fn damage_is_found() {
        let mut bytes = [record(b"first"), record(b"second")].concat();
        bytes[14] ^= 1;
        assert_eq!(find_records(&bytes, true).damaged, [0]);
        assert_eq!(find_records(&bytes, false).damaged, [0; 0]);
        bytes[21] ^= 1;
        let run = find_records(&bytes, true);
        assert_eq!((run.data.len(), run.end, run.broken), (1, 21, true));
    }

    #[test]
    fn a_length_that_no_file_has_is_no_overflow() {
        let length = u64::MAX.to_le_bytes();
        let bytes = [&length[..], &masked(&length).to_le_bytes(), &[0; 20]].concat();
        assert_eq!(find_records(&bytes, true).next, Some(u64::MAX));
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(find_records(&bytes, true).end <= bytes.len());
        }
    }
}
