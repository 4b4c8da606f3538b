//! `Grid`: where the blocks of an image are, and which of them a scan holds.

use super::headers::Scan;
use crate::image::jpeg::entropy::MOST_BLOCKS;
use crate::image::jpeg::segments::mcus;
use crate::image::probe::JpegInfo;

/// A component of the image.
#[derive(Debug, Clone, Copy, Default)]
struct Component {
    id: u8,
    /// Blocks of an MCU across and down.
    across: u32,
    down: u32,
    /// The first block in an MCU.
    first: usize,
    /// Blocks that show a part of the image: columns and rows.
    size: (u32, u32),
}

/// The blocks of an image: MCUs of all components, row by row.
#[derive(Debug)]
pub(super) struct Grid {
    components: [Component; 4],
    count: usize,
    /// Columns and rows of MCUs.
    mcus: (u32, u32),
    /// Blocks of an MCU.
    per_mcu: usize,
}

impl Grid {
    /// Returns `None` for JPEGs that are not 8-bit with Huffman codes.
    pub(super) fn new(data: &[u8], info: &JpegInfo) -> Option<Self> {
        let usual = matches!(data.get(info.frame_start + 1), Some(0xC0..=0xC2)) && info.unsupported().is_none();
        let count = usize::from(info.components);
        if !usual || count > 4 {
            return None;
        }
        let (mcu_width, mcu_height) = info.mcu();
        let mut components = [Component::default(); 4];
        let mut per_mcu = 0;
        for (component, sampling) in components.iter_mut().zip(&info.sampling[..count]) {
            // The factors of a single component have no effect.
            let factor = |factor: u8| if count == 1 { 1 } else { u32::from(factor) };
            let (across, down) = (factor(sampling.horizontal), factor(sampling.vertical));
            let size = ((info.width * across).div_ceil(mcu_width), (info.height * down).div_ceil(mcu_height));
            *component = Component { id: sampling.id, across, down, first: per_mcu, size };
            per_mcu += (across * down) as usize;
        }
        Some(Self { components, count, mcus: mcus(info), per_mcu })
    }

    /// The number of blocks.
    pub(super) const fn blocks(&self) -> usize {
        self.mcus.0 as usize * self.mcus.1 as usize * self.per_mcu
    }

    /// Returns the blocks of a scan. Returns `None` if its components are not those of the image.
    pub(super) fn units(&self, scan: &Scan) -> Option<Units> {
        let mut units = Units {
            blocks: [(0, 0); MOST_BLOCKS],
            count: 0,
            columns: self.mcus.0,
            rows: self.mcus.1,
            mcu: (1, 1),
            per_row: self.mcus.0 as usize * self.per_mcu,
            per_mcu: self.per_mcu,
        };
        for (number, part) in scan.parts().iter().enumerate() {
            let component = self.components[..self.count].iter().find(|component| component.id == part.id)?;
            if scan.parts()[..number].iter().any(|before| before.id == part.id) {
                return None;
            }
            if scan.parts().len() == 1 && self.count > 1 {
                (units.columns, units.rows) = component.size;
                units.mcu = (component.across, component.down);
                (units.blocks[0], units.count) = ((0, component.first), 1);
                return Some(units);
            }
            for block in 0..(component.across * component.down) as usize {
                *units.blocks.get_mut(units.count)? = (number, component.first + block);
                units.count += 1;
            }
        }
        Some(units)
    }

    /// Gives blocks that a scan of one component does not hold the first coefficient of the block
    /// before it.
    pub(super) fn fill_dummies(&self, scan: &Scan, blocks: &mut [super::ZigzagBlock]) -> Option<()> {
        let [part] = scan.parts() else { return Some(()) };
        let component = self.components[..self.count].iter().find(|component| component.id == part.id)?;
        let Component { across, down, first, size: (columns, rows), .. } = *component;
        let mut last = 0;
        for (number, mcu) in blocks.chunks_exact_mut(self.per_mcu).enumerate() {
            let (x, y) = (number as u32 % self.mcus.0 * across, number as u32 / self.mcus.0 * down);
            for (at, block) in mcu[first..first + (across * down) as usize].iter_mut().enumerate() {
                if x + at as u32 % across >= columns || y + at as u32 / across >= rows {
                    block.values[0] = last;
                }
                last = block.values[0];
            }
        }
        Some(())
    }
}

/// The units of a scan, in the order of its data: MCUs, or blocks if it has one component.
#[derive(Debug)]
pub(super) struct Units {
    /// The blocks of a unit: the number of the component in the scan, and the place in the MCU.
    blocks: [(usize, usize); MOST_BLOCKS],
    count: usize,
    /// Units in a row, and rows of units.
    pub(super) columns: u32,
    pub(super) rows: u32,
    /// Units in an MCU of the image, across and down.
    mcu: (u32, u32),
    /// Blocks in a row of MCUs, and in an MCU.
    per_row: usize,
    per_mcu: usize,
}

impl Units {
    /// The blocks of a unit: the number of the component in the scan, and the place after the
    /// unit's.
    #[inline]
    pub(super) fn blocks(&self) -> &[(usize, usize)] {
        &self.blocks[..self.count]
    }

    /// Returns the place of a unit among the blocks of the image.
    #[inline]
    pub(super) const fn place(&self, column: u32, row: u32) -> usize {
        let (across, down) = self.mcu;
        let mcu = (row / down) as usize * self.per_row + (column / across) as usize * self.per_mcu;
        mcu + (row % down * across + column % across) as usize
    }

    /// Returns the place of the first block of a unit among the blocks of the image.
    #[inline]
    pub(super) const fn block(&self, column: u32, row: u32) -> usize {
        self.place(column, row) + self.blocks[0].1
    }
}
