//! `ScanReader`: decodes the coded data of a scan to coefficients (ITU-T T.81, F.2.2 and G.2).
#![allow(clippy::cast_possible_wrap, clippy::cast_sign_loss)] // bits of values, taken as they are

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256i, _mm256_cmpeq_epi8, _mm256_movemask_epi8, _mm256_packs_epi16, _mm256_permute4x64_epi64,
    _mm256_setzero_si256,
};

use super::ZigzagBlock;
use super::grid::{Grid, Units};
use super::headers::{Headers, Pass, Scan};
use crate::image::jpeg::entropy::{AcTable, Bits, CodeTable, Coded, DcTable, Recent, coefficients, difference, value};

/// The most components of a scan.
const MOST_COMPONENTS: usize = 4;

/// Reuses its memory from scan to scan.
#[derive(Debug, Default)]
pub(super) struct ScanReader {
    coded: Coded,
    dc: Recent<DcTable>,
    ac: Recent<AcTable>,
    codes: Recent<CodeTable>,
}

impl ScanReader {
    /// The memory for coded data, in bytes.
    pub(super) const fn memory(&self) -> usize {
        self.coded.memory()
    }

    /// Decodes the data of a scan into the blocks of the image, and returns their length. Sets `ones`
    /// to whether the bits after the data are ones, if it is not set. Returns `None` if anything is
    /// irregular.
    pub(super) fn read(
        &mut self,
        raw: &[u8],
        headers: &Headers<'_>,
        scan: &Scan,
        grid: &Grid,
        ones: &mut Option<bool>,
        blocks: &mut [ZigzagBlock],
    ) -> Option<usize> {
        let Self { coded, dc, ac, codes } = self;
        let units = grid.units(scan)?;
        coded.read(raw, (headers.restart_interval > 0).then_some(0)).ok()?;
        let mut parts = Parts::new(coded, headers.restart_interval, ones)?;
        match scan.pass {
            Pass::Sequential => {
                let mut places = [(0, 0); MOST_COMPONENTS];
                for (place, part) in places.iter_mut().zip(scan.parts()) {
                    *place = (dc.place(headers.dc(part)?), ac.place(headers.ac(part)?));
                }
                let tables = places.map(|(first, other)| (dc.at(first), ac.at(other)));
                parts.sequential(&units, &tables, blocks)?;
            }
            Pass::DcFirst { shift } => {
                let mut places = [0; MOST_COMPONENTS];
                for (place, part) in places.iter_mut().zip(scan.parts()) {
                    *place = dc.place(headers.dc(part)?);
                }
                let tables = places.map(|place| dc.at(place));
                parts.dc_first(&units, &tables, shift, blocks)?;
            }
            Pass::DcRefine { shift } => parts.dc_refine(&units, shift, blocks)?,
            Pass::AcFirst { from, to, shift } => {
                let place = codes.place(headers.ac(scan.parts().first()?)?);
                parts.ac_first(&units, codes.at(place), (from, to, shift), blocks)?;
            }
            Pass::AcRefine { from, to, shift } => {
                let place = codes.place(headers.ac(scan.parts().first()?)?);
                parts.ac_refine(&units, codes.at(place), (from, to, shift), blocks)?;
            }
        }
        parts.finish()?;
        if !matches!(scan.pass, Pass::AcFirst { .. } | Pass::AcRefine { .. }) {
            grid.fill_dummies(scan, blocks)?;
        }
        Some(coded.stop())
    }
}

/// The tables of each component.
type Tables<'a> = [(&'a DcTable, &'a AcTable); MOST_COMPONENTS];

/// The parts of coded data between restart markers.
struct Parts<'a> {
    coded: &'a Coded,
    bits: Bits<'a>,
    interval: u32,
    /// Units before the next restart marker.
    left: u32,
    /// Restart markers that were passed.
    restarts: usize,
    ones: &'a mut Option<bool>,
}

impl<'a> Parts<'a> {
    fn new(coded: &'a Coded, interval: u32, ones: &'a mut Option<bool>) -> Option<Self> {
        Some(Self { coded, bits: Bits::start(coded.bytes(), 0)?, interval, left: interval, restarts: 0, ones })
    }

    /// Prepares for a unit: passes a restart marker if there must be one. Reports whether it did.
    #[inline(always)]
    fn next_unit(&mut self) -> Option<bool> {
        if self.interval == 0 {
            return Some(false);
        }
        let restarts = self.left == 0;
        if restarts {
            self.restart()?;
        }
        self.left -= 1;
        Some(restarts)
    }

    #[cold]
    fn restart(&mut self) -> Option<()> {
        if self.restarts == self.coded.restarts() {
            return None;
        }
        self.end_part()?;
        self.bits = Bits::start(self.coded.bytes(), 8 * self.coded.end(self.restarts))?;
        self.restarts += 1;
        self.left = self.interval;
        Some(())
    }

    /// Checks the bits that are left over.
    fn end_part(&mut self) -> Option<()> {
        let (position, end) = (self.bits.ahead().position(), self.coded.end(self.restarts));
        if position.div_ceil(8) != end {
            return None;
        }
        let mask = 0xFF_u8 >> (position % 8);
        if mask == 0xFF {
            return Some(());
        }
        let rest = self.coded.bytes().get(position / 8)? & mask;
        let ones = *self.ones.get_or_insert(rest != 0);
        (rest == if ones { mask } else { 0 }).then_some(())
    }

    fn finish(mut self) -> Option<()> {
        self.end_part()?;
        (self.restarts == self.coded.restarts()).then_some(())
    }

    fn sequential(&mut self, units: &Units, tables: &Tables<'_>, blocks: &mut [ZigzagBlock]) -> Option<()> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2") && is_x86_feature_detected!("lzcnt") {
            // SAFETY: only the instructions make the function unsafe, and the processor supports them.
            #[allow(unsafe_code)]
            return unsafe { self.sequential_avx2(units, tables, blocks) };
        }
        self.sequential_by(units, tables, blocks, mask)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi2,lzcnt")]
    fn sequential_avx2(&mut self, units: &Units, tables: &Tables<'_>, blocks: &mut [ZigzagBlock]) -> Option<()> {
        self.sequential_by(units, tables, blocks, |values| mask_avx2(values))
    }

    #[inline(always)]
    fn sequential_by(
        &mut self,
        units: &Units,
        tables: &Tables<'_>,
        blocks: &mut [ZigzagBlock],
        mask: impl Fn(&[i16; 64]) -> u64,
    ) -> Option<()> {
        let mut predictions = [0_i32; MOST_COMPONENTS];
        for row in 0..units.rows {
            for column in 0..units.columns {
                if self.next_unit()? {
                    predictions = [0; MOST_COMPONENTS];
                }
                let place = units.place(column, row);
                let mut bits = self.bits;
                for &(component, offset) in units.blocks() {
                    let block = blocks.get_mut(place + offset)?;
                    let component = component & (MOST_COMPONENTS - 1);
                    let (dc, ac) = tables[component];
                    predictions[component] = predictions[component].wrapping_add(difference(&mut bits, dc)?);
                    block.values = [0; 64];
                    coefficients::<true>(&mut bits, ac, &mut block.values)?;
                    block.mask = mask(&block.values); // without the first one
                    block.values[0] = predictions[component] as i16;
                }
                self.bits = bits;
            }
        }
        Some(())
    }

    fn dc_first(
        &mut self,
        units: &Units,
        tables: &[&DcTable; MOST_COMPONENTS],
        shift: u32,
        blocks: &mut [ZigzagBlock],
    ) -> Option<()> {
        let mut predictions = [0_i32; MOST_COMPONENTS];
        for row in 0..units.rows {
            for column in 0..units.columns {
                if self.next_unit()? {
                    predictions = [0; MOST_COMPONENTS];
                }
                let place = units.place(column, row);
                for &(component, offset) in units.blocks() {
                    let block = blocks.get_mut(place + offset)?;
                    let component = component & (MOST_COMPONENTS - 1);
                    let change = difference(&mut self.bits, tables[component])?;
                    predictions[component] = predictions[component].wrapping_add(change);
                    block.values[0] = (predictions[component] << shift) as i16;
                }
            }
        }
        Some(())
    }

    fn dc_refine(&mut self, units: &Units, shift: u32, blocks: &mut [ZigzagBlock]) -> Option<()> {
        for row in 0..units.rows {
            for column in 0..units.columns {
                self.next_unit()?;
                let place = units.place(column, row);
                for &(_, offset) in units.blocks() {
                    let bit = take(&mut self.bits, 1)? as i16;
                    blocks.get_mut(place + offset)?.values[0] |= bit << shift;
                }
            }
        }
        Some(())
    }

    fn ac_first(
        &mut self,
        units: &Units,
        table: &CodeTable,
        (from, to, shift): (u32, u32, u32),
        blocks: &mut [ZigzagBlock],
    ) -> Option<()> {
        let mut run_of_ends = 0_u32;
        for row in 0..units.rows {
            for column in 0..units.columns {
                if self.next_unit()? && run_of_ends > 0 {
                    return None;
                }
                if run_of_ends > 0 {
                    run_of_ends -= 1;
                    continue;
                }
                let ZigzagBlock { mask, values } = blocks.get_mut(units.block(column, row))?;
                let bits = &mut self.bits;
                let mut k = from;
                while k <= to {
                    bits.fill()?;
                    let (length, symbol) = table.get(bits.peek())?;
                    bits.drop(length);
                    let (run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
                    if size > 0 {
                        k += run;
                        if k > to {
                            return None;
                        }
                        let value = value(bits.peek(), 63 - size);
                        bits.drop(size);
                        values[k as usize & 63] = value << shift;
                        *mask |= 1 << k;
                    } else if run == 15 {
                        k += 15;
                    } else {
                        run_of_ends = (1 << run) - 1 + take(bits, run)?;
                        break;
                    }
                    k += 1;
                }
            }
        }
        (run_of_ends == 0).then_some(())
    }

    fn ac_refine(
        &mut self,
        units: &Units,
        table: &CodeTable,
        (from, to, shift): (u32, u32, u32),
        blocks: &mut [ZigzagBlock],
    ) -> Option<()> {
        let mut run_of_ends = 0_u32;
        for row in 0..units.rows {
            for column in 0..units.columns {
                if self.next_unit()? && run_of_ends > 0 {
                    return None;
                }
                let block = blocks.get_mut(units.block(column, row))?;
                let bits = &mut self.bits;
                let mut k = from;
                while run_of_ends == 0 && k <= to {
                    bits.fill()?;
                    let (length, symbol) = table.get(bits.peek())?;
                    bits.drop(length);
                    let run = u32::from(symbol >> 4);
                    let new = match symbol & 15 {
                        0 if run < 15 => {
                            run_of_ends = (1 << run) + take(bits, run)?;
                            break;
                        }
                        0 => 0,
                        1 => 2 * take(bits, 1)? as i16 - 1,
                        _ => return None,
                    };
                    // The run counts the coefficients that are zero; each of the others gets a bit.
                    let place = nth_zero(block.mask, k, run);
                    if place > to {
                        return None;
                    }
                    correct(bits, block, k, place, shift)?;
                    if new != 0 {
                        block.values[place as usize & 63] = new << shift;
                        block.mask |= 1 << place;
                    }
                    k = place + 1;
                }
                if run_of_ends > 0 {
                    correct(bits, block, k, to + 1, shift)?;
                    run_of_ends -= 1;
                }
            }
        }
        (run_of_ends == 0).then_some(())
    }
}

/// Returns the place of the zero that `run` other ones precede, from `k` on; 64 or more if there is none.
fn nth_zero(mask: u64, k: u32, run: u32) -> u32 {
    let mut zeros = !mask & (u64::MAX << k);
    for _ in 0..run {
        zeros &= zeros.wrapping_sub(1);
    }
    zeros.trailing_zeros()
}

/// Reads a bit for each coefficient from `from` up to before `to` that is not zero.
fn correct(bits: &mut Bits<'_>, block: &mut ZigzagBlock, from: u32, to: u32, shift: u32) -> Option<()> {
    let mut known = if from < 64 { block.mask & (u64::MAX << from) & (u64::MAX >> (64 - to)) } else { 0 };
    let mut filled = 0;
    while known != 0 {
        if filled == 0 {
            bits.fill()?;
            filled = 48;
        }
        filled -= 1;
        let value = &mut block.values[known.trailing_zeros() as usize];
        let bit = (bits.peek() >> 63) as i16;
        bits.drop(1);
        let sign = *value >> 15 | 1;
        *value = value.wrapping_add((sign * bit) << shift);
        known &= known - 1;
    }
    Some(())
}

/// Reads some bits, at most 16.
fn take(bits: &mut Bits<'_>, count: u32) -> Option<u32> {
    bits.fill()?;
    let taken = (bits.peek() >> 1 >> (63 - count)) as u32;
    bits.drop(count);
    Some(taken)
}

/// Returns the mask of the values that are not zero.
fn mask(values: &[i16; 64]) -> u64 {
    values.iter().rev().fold(0, |mask, &value| mask << 1 | u64::from(value != 0))
}

/// As [`mask`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn mask_avx2(values: &[i16; 64]) -> u64 {
    let [a, b, c, d]: [__m256i; 4] = bytemuck::must_cast(*values);
    let zeros = |a, b| {
        // A value that is not zero saturates to one that is not. The halves are packed one by one.
        let bytes = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi16(a, b));
        _mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_setzero_si256())).cast_unsigned()
    };
    !(u64::from(zeros(a, b)) | u64::from(zeros(c, d)) << 32)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn vector_instructions_find_the_same_mask(values in proptest::collection::vec(prop_oneof![Just(0), any::<i16>()], 64)) {
            let values = values.try_into().unwrap();
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has the instructions.
                #[allow(unsafe_code)]
                let found = unsafe { mask_avx2(&values) };
                prop_assert_eq!(found, mask(&values));
            }
        }
    }
}
