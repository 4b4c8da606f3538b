//! `map`, `map_channels`: replace each value by its entry in a table, 64 at once where the CPU can.

/// What becomes of each value.
pub(super) type Table = [u8; 256];

/// Returns the table that changes nothing.
pub(super) fn identity() -> Table {
    std::array::from_fn(|at| at as u8)
}

/// Reports whether a table takes less time than nearly any computation.
pub(super) fn is_fast() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512vbmi") && is_x86_feature_detected!("avx512bw");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Maps all values.
pub(super) fn map(values: &mut [u8], table: &Table) {
    #[cfg(target_arch = "x86_64")]
    if is_fast() {
        // SAFETY: only the instructions make the function unsafe, and the processor supports them.
        #[allow(unsafe_code)]
        return unsafe { map_by_instruction(values, table) };
    }
    map_portably(values, table);
}

/// Maps the values of RGB pixels, each channel by its own table.
pub(super) fn map_channels(pixels: &mut [u8], tables: &[Table; 3]) {
    #[cfg(target_arch = "x86_64")]
    if is_fast() {
        // SAFETY: only the instructions make the function unsafe, and the processor supports them.
        #[allow(unsafe_code)]
        return unsafe { map_channels_by_instruction(pixels, tables) };
    }
    map_channels_portably(pixels, tables);
}

fn map_portably(values: &mut [u8], table: &Table) {
    for value in values {
        *value = table[usize::from(*value)];
    }
}

fn map_channels_portably(pixels: &mut [u8], [red, green, blue]: &[Table; 3]) {
    for [r, g, b] in pixels.as_chunks_mut::<3>().0 {
        (*r, *g, *b) = (red[usize::from(*r)], green[usize::from(*g)], blue[usize::from(*b)]);
    }
}

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m512i, _mm512_mask_blend_epi8, _mm512_movepi8_mask, _mm512_permutex2var_epi8};

/// Looks 64 values up. A permutation finds them in a half of the table, by their seven lower bits.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn look_up(values: __m512i, table: &[__m512i; 4]) -> __m512i {
    let lower = _mm512_permutex2var_epi8(table[0], values, table[1]);
    let upper = _mm512_permutex2var_epi8(table[2], values, table[3]);
    _mm512_mask_blend_epi8(_mm512_movepi8_mask(values), lower, upper)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn map_by_instruction(values: &mut [u8], table: &Table) {
    let quarters: [__m512i; 4] = bytemuck::must_cast(*table);
    let (chunks, rest) = values.as_chunks_mut::<64>();
    for chunk in chunks {
        *chunk = bytemuck::must_cast(look_up(bytemuck::must_cast(*chunk), &quarters));
    }
    map_portably(rest, table);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn map_channels_by_instruction(pixels: &mut [u8], tables: &[Table; 3]) {
    /// The places of the first channel in 64 values, in those after them, and in the last third.
    const FIRST: [u64; 3] = [0x9249_2492_4924_9249, 0x4924_9249_2492_4924, 0x2492_4924_9249_2492];
    let [red, green, blue]: [[__m512i; 4]; 3] = tables.map(bytemuck::must_cast);
    let (chunks, rest) = pixels.as_chunks_mut::<192>();
    for chunk in chunks {
        for (third, values) in chunk.as_chunks_mut::<64>().0.iter_mut().enumerate() {
            let from = bytemuck::must_cast(*values);
            // The second channel is where the first one is in the third before.
            let of_green = FIRST[(third + 2) % 3];
            let two = _mm512_mask_blend_epi8(of_green, look_up(from, &blue), look_up(from, &green));
            *values = bytemuck::must_cast(_mm512_mask_blend_epi8(FIRST[third], two, look_up(from, &red)));
        }
    }
    map_channels_portably(rest, tables);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_the_same_with_and_without_instructions() {
        let tables = [7, 59, 101].map(|step: u8| identity().map(|value| value.wrapping_mul(step) ^ 0x5A));
        for length in (0..500).chain([1 << 16]).map(|pixels| 3 * pixels) {
            let pixels: Vec<u8> = (0..length).map(|at: usize| (at * at / 3 + at) as u8).collect();
            let [mut fast, mut plain] = [pixels.clone(), pixels];
            map(&mut fast, &tables[0]);
            map_portably(&mut plain, &tables[0]);
            assert_eq!(fast, plain);
            map_channels(&mut fast, &tables);
            map_channels_portably(&mut plain, &tables);
            assert_eq!(fast, plain);
        }
    }
}
