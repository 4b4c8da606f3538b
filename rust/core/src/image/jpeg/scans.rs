//! `Scans`: the scans of a JPEG with several scans, their number and completeness. It does not
//! decode them.

use crate::image::probe::{JpegInfo, next_marker};

/// The result of a walk over the scans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scans {
    pub(super) count: u32,
    /// Whether each component has all of its coefficients, down to the last bit.
    pub(super) complete: bool,
}

/// Reads the headers of all scans, but at most `most + 1`.
pub(super) fn scans(data: &[u8], info: &JpegInfo, most: u32) -> Scans {
    let components = usize::from(info.components).min(info.sampling.len());
    // For each coefficient, the bits that are still missing; all of them at first.
    let mut missing = [[u8::MAX; 64]; 4];
    let mut count = 0;
    let mut at = info.scan_start;
    while let Some((marker, start)) = next_marker(data, at) {
        at = start + 2;
        match marker {
            0x01 | 0xD0..=0xD7 => continue,
            0xD8 | 0xD9 => break,
            _ => {}
        }
        let Some(&[high, low]) = data.get(at..).and_then(<[u8]>::first_chunk) else { break };
        let end = at + usize::from(u16::from_be_bytes([high, low])).max(2);
        if marker == 0xDA {
            count += 1;
            if count > most {
                break;
            }
            note(data.get(at + 2..end).unwrap_or_default(), info, &mut missing[..components]);
        }
        at = end;
    }
    Scans { count, complete: missing[..components].iter().flatten().all(|&bits| bits == 0) }
}

/// Reports whether there are several scans, according to the header of the first one.
pub(super) fn has_several(data: &[u8], info: &JpegInfo) -> bool {
    info.progressive || data.get(info.scan_start + 4) != Some(&info.components)
}

/// Records the coefficients that a scan with this header provides.
fn note(header: &[u8], info: &JpegInfo, missing: &mut [[u8; 64]]) {
    let Some((&components, rest)) = header.split_first() else { return };
    let Some((parts, &[from, to, bits])) = rest.split_at_checked(2 * usize::from(components)) else { return };
    for part in parts.chunks_exact(2) {
        let known = info.sampling.iter().take(missing.len()).position(|component| component.id == part[0]);
        let Some(component) = known.map(|at| &mut missing[at]) else { continue };
        if !info.progressive {
            component.fill(0);
        } else if let Some(band) = component.get_mut(usize::from(from)..=usize::from(to)) {
            band.fill(bits & 15);
        }
    }
}
