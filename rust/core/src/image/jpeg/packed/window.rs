//! `PackedWindow`: the MCUs of a rectangle of a packed JPEG, row by row.

use std::ops::Range;

use super::block::AT_ONCE;
use super::cursor::Cursor;
use super::way::Way;
use super::{Packed, components, repeated};
use crate::image::jpeg::entropy::Mcus;
use crate::image::jpeg::segments::mcus;

/// Unpacks the MCUs of a rectangle.
pub(in crate::image::jpeg) struct PackedWindow<'a> {
    packed: Packed<'a>,
    /// The component of each block that is read at once.
    components: [u8; AT_ONCE],
    count: usize,
    columns: u32,
    area: Mcus,
    way: Way,
    /// The row of the image that is read, and the columns of it that were passed.
    row: u32,
    column: u32,
    cursor: Option<Cursor<'a>>,
    /// Blocks of the next MCUs, and which of them are left, if they are read one by one.
    ready: Vec<[i16; 64]>,
    left: Range<usize>,
}

impl<'a> PackedWindow<'a> {
    /// Begins to unpack the MCUs of a rectangle. Returns `None` if it is not within the image.
    pub(in crate::image::jpeg) fn new(packed: Packed<'a>, area: Mcus) -> Option<Self> {
        Self::by(Way::all().next()?, packed, area)
    }

    fn by(way: Way, packed: Packed<'a>, area: Mcus) -> Option<Self> {
        let of_mcu = components(&packed.info)?;
        let (columns, rows) = mcus(&packed.info);
        if area.x + area.columns > columns || area.y + area.rows > rows {
            return None;
        }
        let components = repeated(&of_mcu);
        let (count, row, column) = (of_mcu.len(), area.y, area.x);
        Some(Self {
            packed,
            components,
            count,
            columns,
            area,
            way,
            row,
            column,
            cursor: None,
            ready: Vec::new(),
            left: 0..0,
        })
    }

    /// Unpacks the next MCUs of a row, in natural order. Returns `None` if the packed bytes make no sense, or
    /// after the last one.
    pub(in crate::image::jpeg) fn next(&mut self, mut blocks: &mut [[i16; 64]]) -> Option<()> {
        while !blocks.is_empty() {
            let one = blocks.len() == self.count || !self.left.is_empty();
            let count = if one { self.take(blocks)? } else { self.unpack(blocks)? };
            blocks = blocks.get_mut(count..)?;
        }
        Some(())
    }

    /// Unpacks one MCU, and some ahead: each start takes time. Returns the number of its blocks.
    fn take(&mut self, blocks: &mut [[i16; 64]]) -> Option<usize> {
        if self.left.is_empty() {
            let mut ready = std::mem::take(&mut self.ready);
            ready.resize(AT_ONCE, [0; 64]);
            self.left = 0..self.unpack(&mut ready)?;
            self.ready = ready;
        }
        let from = self.left.start;
        self.left.start += self.count;
        blocks.get_mut(..self.count)?.copy_from_slice(self.ready.get(from..self.left.start)?);
        Some(self.count)
    }

    /// Unpacks some MCUs of a piece, at most as many as there is room for. Returns the number of their blocks.
    fn unpack(&mut self, blocks: &mut [[i16; 64]]) -> Option<usize> {
        let Mcus { x, y, columns, rows } = self.area;
        if self.column == x + columns {
            (self.row, self.column, self.cursor) = (self.row + 1, x, None);
        }
        if self.row == y + rows {
            return None;
        }
        let interval = self.packed.interval;
        let within = self.column % interval;
        let end = (self.column - within + interval).min(self.columns);
        if within == 0 || self.cursor.is_none() {
            let blocks = (end - (self.column - within)) as usize * self.count;
            let mut cursor = Cursor::new(&self.packed, self.row, self.column / interval, blocks)?;
            let of_mcu = self.components.iter().copied().take(self.count).cycle();
            cursor.skip(of_mcu.take(within as usize * self.count))?;
            self.cursor = Some(cursor);
        }
        let mcus = (end.min(x + columns) - self.column).min((blocks.len().min(AT_ONCE) / self.count) as u32);
        let count = mcus as usize * self.count;
        let cursor = self.cursor.as_mut()?;
        cursor.next(self.way, &self.components, blocks.get_mut(..count).filter(|blocks| !blocks.is_empty())?)?;
        self.column += mcus;
        if self.column == end {
            cursor.finish()?;
        }
        Some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::jpeg::packed::pack;
    use crate::image::jpeg::zigzag::{NATURAL, ZigzagBlock};
    use proptest::prelude::*;

    /// Returns the headers of a JPEG. `factors` are the sampling factors of its first component.
    fn headers(width: u16, height: u16, components: u8, factors: u8) -> Vec<u8> {
        let mut data = b"\xFF\xD8\xFF\xC0\0".to_vec();
        data.push(8 + 3 * components);
        data.push(8);
        data.extend(height.to_be_bytes());
        data.extend(width.to_be_bytes());
        data.push(components);
        (0..components).for_each(|id| data.extend([id, if id == 0 { factors } else { 0x11 }, 0]));
        data.extend(b"\xFF\xDA\0\x02");
        data
    }

    /// Few numbers of any size, most of them at low frequencies.
    fn block() -> impl Strategy<Value = ZigzagBlock> {
        let value = prop_oneof![-1..=1_i16, -30..=30_i16, -200..=200_i16, -32767..=32767_i16];
        (-2000..=2000_i16, prop::collection::vec((value, 0..3_u8), 0..64)).prop_map(|(first, others)| {
            let mut block = ZigzagBlock::ZERO;
            block.values[0] = first;
            for (k, (value, rare)) in (1..64).zip(others) {
                if rare == 0 && value != 0 {
                    block.values[k] = value;
                    block.mask |= 1 << k;
                }
            }
            block
        })
    }

    fn natural(block: &ZigzagBlock) -> [i16; 64] {
        let mut out = [0; 64];
        block.values.iter().zip(NATURAL).for_each(|(value, place)| out[usize::from(place)] = *value);
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn blocks_come_back_in_each_way_in_any_rectangle(
            all in prop::collection::vec(block(), 1..40),
            (width, height) in (1..1200_u16, 1..40_u16),
            kind in prop::sample::select(vec![(1, 0x11), (3, 0x11), (3, 0x22), (3, 0x21), (4, 0x22), (3, 0x41)]),
            place in any::<[prop::sample::Index; 4]>(),
        ) {
            let headers = headers(width, height, kind.0, kind.1);
            let info = crate::image::probe::jpeg_info(&headers).unwrap();
            let (columns, rows) = mcus(&info);
            let count = components(&info).unwrap().len();
            let blocks: Vec<_> = all.iter().cycle().take(columns as usize * rows as usize * count).copied().collect();
            let mut bytes = Vec::new();
            pack(&headers, true, &blocks, &mut bytes).unwrap();
            let packed = Packed::read(&bytes).unwrap();
            prop_assert!(packed.ones && packed.headers == headers);
            let mut found = Vec::new();
            packed.blocks(&mut found).unwrap();
            prop_assert!(found == blocks);
            let (x, y) = (place[0].index(columns as usize) as u32, place[1].index(rows as usize) as u32);
            let area = Mcus {
                x,
                y,
                columns: 1 + place[2].index((columns - x) as usize) as u32,
                rows: 1 + place[3].index((rows - y) as usize) as u32,
            };
            for way in Way::all() {
                let mut window = PackedWindow::by(way, packed, area).unwrap();
                let mut mcu = vec![[7; 64]; count];
                for y in area.y..area.y + area.rows {
                    for x in area.x..area.x + area.columns {
                        window.next(&mut mcu).unwrap();
                        let at = (y * columns + x) as usize * count;
                        for (found, expected) in mcu.iter().zip(&blocks[at..]) {
                            prop_assert!(*found == natural(expected), "{way:?}");
                        }
                    }
                }
                prop_assert!(window.next(&mut mcu).is_none());
            }
        }

        #[test]
        fn damaged_bytes_are_refused_or_give_the_same_in_each_way(
            all in prop::collection::vec(block(), 1..40),
            flips in prop::collection::vec((any::<prop::sample::Index>(), 0_u8..8), 1..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let headers = headers(50, 20, 3, 0x22);
            let blocks: Vec<_> = all.iter().cycle().take(4 * 2 * 6).copied().collect();
            let mut bytes = Vec::new();
            pack(&headers, true, &blocks, &mut bytes).unwrap();
            prop_assert!(Packed::read(&bytes[..cut.index(bytes.len())]).is_none());
            for (at, bit) in flips {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << bit;
            }
            let Some(packed) = Packed::read(&bytes) else { return Ok(()) };
            let (columns, rows) = mcus(&packed.info);
            let count = components(&packed.info).unwrap().len();
            let mut all = Vec::new();
            for way in Way::all() {
                let mut window = PackedWindow::by(way, packed, Mcus { x: 0, y: 0, columns, rows }).unwrap();
                let mut mcu = vec![[7; 64]; count];
                let mut found = Vec::new();
                while window.next(&mut mcu).is_some() {
                    found.extend_from_slice(&mcu);
                }
                all.push(found);
            }
            prop_assert!(all.iter().all(|found| *found == all[0]));
            let _ = packed.blocks(&mut Vec::new());
        }
    }
}
