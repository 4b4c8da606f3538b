//! Codes the coefficients of a scan (ITU-T T.81, F.1.2 and G.1.2).

use super::ZigzagBlock;
use super::coded::{CodedWriter, Output};
use super::codes::{AcCodes, Code, DcCodes};
use super::grid::{Grid, Units};
use super::headers::{Headers, Pass, Scan};
#[cfg(target_arch = "x86_64")]
use super::vector::has_avx512;
use crate::image::jpeg::entropy::RESTART;

/// The most components of a scan.
const MOST_COMPONENTS: usize = 4;

/// The most ends of blocks in a run.
const MOST_ENDS: u32 = 0x7FFF;
/// All encoders end a run that has so many bits of corrections, as libjpeg does: its buffer for 1000
/// bits may not have room for a block's.
const MOST_CORRECTIONS: u32 = 1000 - 64 + 1;

/// Appends the coded data of a scan. Returns `None` if the tables lack a code, or there is too little
/// room.
pub(super) fn scan(
    headers: &Headers<'_>,
    scan: &Scan,
    grid: &Grid,
    blocks: &[ZigzagBlock],
    ones: bool,
    out: &mut Output<'_>,
) -> Option<()> {
    let units = grid.units(scan)?;
    let interval = headers.restart_interval;
    let mut parts = Parts { writer: CodedWriter::new(out, ones), interval, left: interval, restarts: 0 };
    match scan.pass {
        Pass::Sequential => {
            let tables =
                tables(scan, |part| Some((DcCodes::new(headers.dc(part)?)?, AcCodes::new(headers.ac(part)?)?)))?;
            sequential(&mut parts, &units, &tables, blocks)?;
        }
        Pass::DcFirst { shift } => {
            let tables = tables(scan, |part| DcCodes::new(headers.dc(part)?))?;
            dc_first(&mut parts, &units, &tables, shift, blocks)?;
        }
        Pass::DcRefine { shift } => dc_refine(&mut parts, &units, shift, blocks)?,
        Pass::AcFirst { from, to, shift } => {
            let codes = AcCodes::new(headers.ac(scan.parts().first()?)?)?;
            ac_first(&mut parts, &units, &codes, (from, to, shift), blocks)?;
        }
        Pass::AcRefine { from, to, shift } => {
            let codes = AcCodes::new(headers.ac(scan.parts().first()?)?)?;
            ac_refine(&mut parts, &units, &codes, (from, to, shift), blocks)?;
        }
    }
    parts.writer.end()
}

/// Makes the tables of each component.
fn tables<T>(scan: &Scan, table: impl Fn(&super::headers::Part) -> Option<T>) -> Option<Vec<T>> {
    scan.parts().iter().map(table).collect()
}

/// The parts of coded data between restart markers.
struct Parts<'a, 'b> {
    writer: CodedWriter<'a, 'b>,
    interval: u32,
    /// Units before the next restart marker.
    left: u32,
    restarts: u32,
}

impl Parts<'_, '_> {
    /// Whether a restart marker comes before the next unit.
    #[inline(always)]
    const fn ends(&self) -> bool {
        self.interval > 0 && self.left == 0
    }

    /// Prepares for a unit: writes a restart marker if there must be one. Reports whether it did.
    #[inline(always)]
    fn next_unit(&mut self) -> Option<bool> {
        self.writer.next_unit()?;
        if self.interval == 0 {
            return Some(false);
        }
        let restarts = self.left == 0;
        if restarts {
            self.writer.marker(RESTART + (self.restarts % 8) as u8)?;
            self.restarts += 1;
            self.left = self.interval;
        }
        self.left -= 1;
        Some(restarts)
    }
}

/// The tables of each component.
type Tables = [(DcCodes, AcCodes)];

fn sequential(parts: &mut Parts<'_, '_>, units: &Units, tables: &Tables, blocks: &[ZigzagBlock]) -> Option<()> {
    #[cfg(target_arch = "x86_64")]
    if has_avx512() {
        // SAFETY: only the instructions make the function unsafe, and the processor supports them.
        #[allow(unsafe_code)]
        return unsafe { sequential_avx512(parts, units, tables, blocks) };
    }
    sequential_by(parts, units, tables, blocks, CodedWriter::block)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
fn sequential_avx512(parts: &mut Parts<'_, '_>, units: &Units, tables: &Tables, blocks: &[ZigzagBlock]) -> Option<()> {
    sequential_by(parts, units, tables, blocks, |writer, first, codes, block| writer.block_avx512(first, codes, block))
}

#[inline(always)]
fn sequential_by<'a, 'b>(
    parts: &mut Parts<'a, 'b>,
    units: &Units,
    tables: &Tables,
    blocks: &[ZigzagBlock],
    write: impl Fn(&mut CodedWriter<'a, 'b>, Code, &AcCodes, &ZigzagBlock) -> Option<()>,
) -> Option<()> {
    let mut predictions = [0_i32; MOST_COMPONENTS];
    for row in 0..units.rows {
        for column in 0..units.columns {
            if parts.next_unit()? {
                predictions = [0; MOST_COMPONENTS];
            }
            let place = units.place(column, row);
            for &(component, offset) in units.blocks() {
                let block = blocks.get(place + offset)?;
                let (dc, ac) = tables.get(component)?;
                let prediction = &mut predictions[component & (MOST_COMPONENTS - 1)];
                let first = i32::from(block.values[0]);
                let code = dc.get(first - *prediction);
                *prediction = first;
                write(&mut parts.writer, code, ac, block)?;
            }
        }
    }
    Some(())
}

fn dc_first(
    parts: &mut Parts<'_, '_>,
    units: &Units,
    tables: &[DcCodes],
    shift: u32,
    blocks: &[ZigzagBlock],
) -> Option<()> {
    let mut predictions = [0_i32; MOST_COMPONENTS];
    for row in 0..units.rows {
        for column in 0..units.columns {
            if parts.next_unit()? {
                predictions = [0; MOST_COMPONENTS];
            }
            let place = units.place(column, row);
            for &(component, offset) in units.blocks() {
                let first = i32::from(blocks.get(place + offset)?.values[0] >> shift);
                let prediction = &mut predictions[component & (MOST_COMPONENTS - 1)];
                parts.writer.code(tables.get(component)?.get(first - *prediction))?;
                *prediction = first;
            }
        }
    }
    Some(())
}

fn dc_refine(parts: &mut Parts<'_, '_>, units: &Units, shift: u32, blocks: &[ZigzagBlock]) -> Option<()> {
    for row in 0..units.rows {
        for column in 0..units.columns {
            parts.next_unit()?;
            let place = units.place(column, row);
            for &(_, offset) in units.blocks() {
                let bit = blocks.get(place + offset)?.values[0] >> shift & 1;
                parts.writer.bits(u64::from(bit.cast_unsigned()), 1);
            }
        }
    }
    Some(())
}

/// Blocks that end, and the corrections of their coefficients.
struct Ends<'a> {
    codes: &'a AcCodes,
    run: u32,
    corrections: [u64; 16],
    /// Bits of the corrections.
    count: u32,
}

impl<'a> Ends<'a> {
    const fn new(codes: &'a AcCodes) -> Self {
        Self { codes, run: 0, corrections: [0; 16], count: 0 }
    }

    /// Adds the end of a block, with some corrections.
    fn add(&mut self, writer: &mut CodedWriter<'_, '_>, corrections: u64, count: u32) -> Option<()> {
        self.run += 1;
        if count > 0 {
            // The first one is the highest bit of the first number.
            let (at, used) = ((self.count / 64) as usize, self.count % 64);
            let bits = corrections << (64 - count);
            *self.corrections.get_mut(at)? |= bits >> used;
            if used + count > 64 {
                *self.corrections.get_mut(at + 1)? = bits << (64 - used);
            }
            self.count += count;
        }
        if self.run == MOST_ENDS || self.count > MOST_CORRECTIONS { self.write(writer) } else { Some(()) }
    }

    /// Writes the run, if there is one.
    fn write(&mut self, writer: &mut CodedWriter<'_, '_>) -> Option<()> {
        if self.run == 0 {
            return Some(());
        }
        let size = self.run.ilog2();
        writer.code(self.codes.alone(size))?;
        writer.bits(u64::from(self.run - (1 << size)), size);
        for at in 0..self.count.div_ceil(64) {
            let bits = (self.count - 64 * at).min(64);
            writer.bits(self.corrections[at as usize & 15] >> (64 - bits), bits);
        }
        self.corrections = [0; 16];
        (self.run, self.count) = (0, 0);
        Some(())
    }
}

/// Returns the bits of a band.
const fn band(from: u32, to: u32) -> u64 {
    u64::MAX << from & u64::MAX >> (63 - to)
}

fn ac_first(
    parts: &mut Parts<'_, '_>,
    units: &Units,
    codes: &AcCodes,
    (from, to, shift): (u32, u32, u32),
    blocks: &[ZigzagBlock],
) -> Option<()> {
    let mut ends = Ends::new(codes);
    for row in 0..units.rows {
        for column in 0..units.columns {
            if parts.ends() {
                ends.write(&mut parts.writer)?;
            }
            parts.next_unit()?;
            let block = blocks.get(units.block(column, row))?;
            let mut rest = block.mask & band(from, to);
            let mut last = from - 1;
            while rest != 0 {
                let k = rest.trailing_zeros();
                rest &= rest - 1;
                let value = block.values[k as usize & 63];
                let shifted = {
                    let amount = (value.unsigned_abs() >> shift).cast_signed();
                    if value < 0 { amount.wrapping_neg() } else { amount }
                };
                if shifted == 0 {
                    continue;
                }
                ends.write(&mut parts.writer)?;
                let mut run = k - last - 1;
                last = k;
                while run > 15 {
                    parts.writer.code(codes.alone(15))?;
                    run -= 16;
                }
                parts.writer.code(codes.get(run, shifted))?;
            }
            if last < to {
                ends.add(&mut parts.writer, 0, 0)?;
            }
        }
    }
    ends.write(&mut parts.writer)
}

fn ac_refine(
    parts: &mut Parts<'_, '_>,
    units: &Units,
    codes: &AcCodes,
    (from, to, shift): (u32, u32, u32),
    blocks: &[ZigzagBlock],
) -> Option<()> {
    let mut ends = Ends::new(codes);
    for row in 0..units.rows {
        for column in 0..units.columns {
            if parts.ends() {
                ends.write(&mut parts.writer)?;
            }
            parts.next_unit()?;
            refine(&mut parts.writer, &mut ends, blocks.get(units.block(column, row))?, (from, to, shift))?;
        }
    }
    ends.write(&mut parts.writer)
}

/// Writes a bit of each coefficient of a band.
fn refine(
    writer: &mut CodedWriter<'_, '_>,
    ends: &mut Ends<'_>,
    block: &ZigzagBlock,
    (from, to, shift): (u32, u32, u32),
) -> Option<()> {
    let codes = ends.codes;
    let amount = |k: u32| block.values[k as usize & 63].unsigned_abs() >> shift;
    let mut rest = block.mask & band(from, to);
    // Coefficients that were zero before this scan.
    let mut new = 0_u64;
    let mut known = rest;
    while known != 0 {
        let bit = known & known.wrapping_neg();
        match amount(known.trailing_zeros()) {
            0 => rest ^= bit,
            1 => new |= bit,
            _ => {}
        }
        known ^= bit;
    }
    let (mut corrections, mut count) = (0_u64, 0);
    let (mut run, mut last) = (0, from - 1);
    while rest != 0 {
        let k = rest.trailing_zeros();
        run += k - last - 1;
        last = k;
        // Runs of sixteen zeros are part of the end, if no new coefficient follows.
        while run > 15 && new != 0 {
            ends.write(writer)?;
            writer.code(codes.alone(15))?;
            writer.bits(corrections, count);
            (corrections, count) = (0, 0);
            run -= 16;
        }
        let bit = rest & rest.wrapping_neg();
        rest ^= bit;
        if new & bit == 0 {
            corrections = corrections << 1 | u64::from(amount(k) & 1);
            count += 1;
            continue;
        }
        new ^= bit;
        ends.write(writer)?;
        let value = block.values[k as usize & 63];
        writer.code(codes.get(run, if value < 0 { -1 } else { 1 }))?;
        writer.bits(corrections, count);
        (corrections, count, run) = (0, 0, 0);
    }
    if run + (to - last) > 0 || count > 0 { ends.add(writer, corrections, count) } else { Some(()) }
}
