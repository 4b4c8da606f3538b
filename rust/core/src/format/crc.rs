//! CRC-32C, computed with the widest instructions that the processor has.

use crc_fast::{CrcAlgorithm, Digest, checksum, get_calculator_target};

/// The instructions in use, as the `crc_fast` crate names them.
pub(crate) fn instructions() -> String {
    get_calculator_target(CrcAlgorithm::Crc32Iscsi)
}

/// The CRC of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Continues `crc`: returns the CRC of its bytes followed by `bytes`. The CRC of no bytes is 0.
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    // If either part is empty, no state exists to continue from.
    if crc == 0 {
        return crc32c(bytes);
    }
    if bytes.is_empty() {
        return crc;
    }
    // The state is the register before the final inversion.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_check_values_of_the_standards_come_out() {
        // RFC 3720, appendix B.4, and the check value of CRC-32/ISCSI in the catalogue.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!((crc32c(b""), crc32c_append(0, b"123456789")), (0, 0xe306_9283));
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_give_what_another_implementation_gives(
            bytes in proptest::collection::vec(any::<u8>(), 0..20_000),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..4),
        ) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieced = cuts.windows(2).fold(0, |crc, cut| crc32c_append(crc, &bytes[cut[0]..cut[1]]));
            let expected = ::crc32c::crc32c(&bytes);
            prop_assert_eq!((crc32c(&bytes), pieced), (expected, expected));
        }
    }
}
