//! `Window`: the MCUs of a rectangle, row by row.

use super::bits::{Ahead, Bits};
use super::block::{coefficients, difference, skip};
use super::coded::Coded;
use super::index::{Entry, Index};
use super::tables::{AcTable, DcTable, Huffman, Recent, SkipTable};
use super::{MOST_BLOCKS, MOST_COMPONENTS};
use crate::image::jpeg::segments::check_end;

/// Tables for skipping cost as much time as they save on about this many blocks.
const MANY: u64 = 1000;

/// How the MCUs of a scan are coded.
#[derive(Debug)]
pub(in crate::image::jpeg) struct Layout {
    /// Components of the scan.
    pub(in crate::image::jpeg) components: usize,
    /// The blocks of an MCU: the component of each, and its tables.
    pub(in crate::image::jpeg) blocks: Vec<(usize, Huffman, Huffman)>,
    /// MCUs in a row of the image, and rows of MCUs.
    pub(in crate::image::jpeg) mcus: (u32, u32),
    /// MCUs between restart markers; 0 without markers.
    pub(in crate::image::jpeg) restart_interval: u32,
}

/// MCUs of an image: the columns and rows of a rectangle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::image::jpeg) struct Mcus {
    pub(in crate::image::jpeg) x: u32,
    pub(in crate::image::jpeg) y: u32,
    pub(in crate::image::jpeg) columns: u32,
    pub(in crate::image::jpeg) rows: u32,
}

/// Where the coded data of a row begin.
#[derive(Debug, Clone, Copy)]
pub(in crate::image::jpeg) enum Source<'a> {
    /// One after the other, from the start of the scan on.
    Scan(&'a [u8]),
    /// Where an index of the coded data says.
    Index(&'a [u8], &'a Index),
}

/// A block of an MCU: its component, and the places of its tables.
#[derive(Debug, Clone, Copy, Default)]
struct Block {
    component: usize,
    dc: usize,
    ac: usize,
    skip: Option<usize>,
}

/// The memory of a decoder that is used again for the next image.
#[derive(Debug, Default)]
pub(in crate::image::jpeg) struct Entropy {
    coded: Coded,
    dc: Recent<DcTable>,
    ac: Recent<AcTable>,
    skip: Recent<SkipTable>,
}

impl Entropy {
    /// The memory for coded data, in bytes.
    pub(in crate::image::jpeg) const fn memory(&self) -> usize {
        self.coded.memory()
    }

    /// Begins to decode the MCUs of a rectangle. Returns `None` if the layout is unusual.
    pub(in crate::image::jpeg) fn window<'a>(
        &'a mut self,
        layout: &Layout,
        area: Mcus,
        source: Source<'a>,
    ) -> Option<Window<'a>> {
        let mcus = |columns: u32, rows: u32| u64::from(columns) * u64::from(rows);
        let Mcus { x, y, columns, rows } = area;
        let skipped = match source {
            Source::Scan(_) => mcus(layout.mcus.0, y + rows - 1) + u64::from(x) - mcus(columns, rows - 1),
            // A few in each row.
            Source::Index(..) => 0,
        };
        self.window_that_skips(layout, area, source, skipped * layout.blocks.len() as u64 >= MANY)
    }

    fn window_that_skips<'a>(
        &'a mut self,
        layout: &Layout,
        area: Mcus,
        source: Source<'a>,
        skips: bool,
    ) -> Option<Window<'a>> {
        let mut blocks = [Block::default(); MOST_BLOCKS];
        for (block, (component, dc, ac)) in blocks.iter_mut().zip(&layout.blocks) {
            if *component >= MOST_COMPONENTS {
                return None;
            }
            *block = Block {
                component: *component,
                dc: self.dc.place(dc),
                ac: self.ac.place(ac),
                skip: skips.then(|| self.skip.place(ac)),
            };
        }
        let within = area.x + area.columns <= layout.mcus.0 && area.y + area.rows <= layout.mcus.1;
        if layout.blocks.len() > MOST_BLOCKS || !within {
            return None;
        }
        Some(Window {
            entropy: self,
            source,
            blocks,
            count: layout.blocks.len(),
            mcus: layout.mcus,
            area,
            interval: layout.restart_interval,
            row: 0,
            column: area.columns,
            ahead: Ahead::default(),
            predictions: [0; MOST_COMPONENTS],
            left: 0,
            restarts: 0,
            jumped: false,
            begun: 0,
            checked: false,
        })
    }

    /// Makes an index of an image with an entry every `interval` MCUs of a row. Returns `None` if
    /// the coded data are irregular.
    pub(in crate::image::jpeg) fn index(&mut self, layout: &Layout, coded: &[u8], interval: u32) -> Option<Index> {
        let (columns, rows) = layout.mcus;
        let area = Mcus { x: 0, y: 0, columns, rows };
        let mut index = Index::new(interval, columns, layout.components);
        let mut window = self.window_that_skips(layout, area, Source::Scan(coded), true)?;
        window.read(coded, 0, 0)?;
        for _ in 0..rows {
            for column in (0..columns).step_by(interval as usize) {
                index.push(window.entry()?)?;
                window.walk(interval.min(columns - column))?;
            }
        }
        (window.row, window.column) = (rows, columns);
        let stop = window.entropy.coded.stop();
        check_end(coded, stop)?;
        index.set_end(stop);
        window.ends().then_some(index)
    }
}

/// Decodes the MCUs of a rectangle, row by row.
pub(in crate::image::jpeg) struct Window<'a> {
    entropy: &'a mut Entropy,
    source: Source<'a>,
    blocks: [Block; MOST_BLOCKS],
    count: usize,
    mcus: (u32, u32),
    area: Mcus,
    interval: u32,
    /// The next row of the rectangle to begin.
    row: u32,
    /// The next column of the rectangle.
    column: u32,
    ahead: Ahead,
    /// The last first coefficient of each component.
    predictions: [i32; MOST_COMPONENTS],
    /// MCUs before the next restart marker.
    left: u32,
    /// Restart markers that were passed.
    restarts: usize,
    /// Whether MCUs before the next restart marker were left out.
    jumped: bool,
    /// Where the data that were read last begin, in the coded data.
    begun: usize,
    /// Whether an entry of the index was compared in this row.
    checked: bool,
}

impl Window<'_> {
    /// Decodes the next MCU into blocks of zeros. Returns `None` if the coded data are irregular.
    pub(in crate::image::jpeg) fn next(&mut self, blocks: &mut [[i16; 64]]) -> Option<()> {
        if self.column == self.area.columns {
            self.begin_row()?;
        }
        self.column += 1;
        self.count_down()?;
        let Entropy { coded, dc, ac, .. } = &*self.entropy;
        let mut bits = Bits::resume(coded.bytes(), self.ahead);
        for (block, kind) in blocks.iter_mut().zip(&self.blocks[..self.count]) {
            let prediction = &mut self.predictions[kind.component & (MOST_COMPONENTS - 1)];
            *prediction = prediction.wrapping_add(difference(&mut bits, dc.at(kind.dc))?);
            block[0] = *prediction as i16;
            coefficients::<false>(&mut bits, ac.at(kind.ac), block)?;
        }
        self.ahead = bits.ahead();
        self.within()?;
        if self.column == self.area.columns { self.check_row() } else { self.check() }
    }

    /// Returns `None` behind the next restart marker: libjpeg reads zeros there.
    fn within(&self) -> Option<()> {
        (self.ahead.position() <= 8 * self.entropy.coded.end(self.restarts)).then_some(())
    }

    /// Whether nothing is left over, in case that the last MCU of the image was decoded.
    pub(in crate::image::jpeg) fn ends(&self) -> bool {
        let Mcus { x, y, columns, rows } = self.area;
        let coded = &self.entropy.coded;
        let last = (x + columns, y + rows) == self.mcus && (self.column, self.row) == (columns, rows);
        !last || self.restarts == coded.restarts() && self.ahead.position().div_ceil(8) == coded.end(self.restarts)
    }

    fn begin_row(&mut self) -> Option<()> {
        let Mcus { x, y, columns, .. } = self.area;
        let skipped = match self.source {
            Source::Scan(raw) if self.row == 0 => {
                self.read(raw, 0, 0)?;
                check_end(raw, self.entropy.coded.stop())?;
                u64::from(y) * u64::from(self.mcus.0) + u64::from(x)
            }
            Source::Scan(_) => u64::from(self.mcus.0 - columns),
            Source::Index(raw, index) => self.seek(raw, index)?,
        };
        self.row += 1;
        self.column = 0;
        self.skip(skipped)
    }

    /// Begins after a restart marker, or at the start of a scan; or, except for the predictions, at
    /// another bit.
    fn read(&mut self, raw: &[u8], restart: u8, bit: usize) -> Option<()> {
        let coded = &mut self.entropy.coded;
        coded.read(raw, (self.interval > 0).then_some(restart)).ok()?;
        self.ahead = Bits::start(coded.bytes(), bit)?.ahead();
        self.predictions = [0; MOST_COMPONENTS];
        (self.left, self.restarts, self.jumped) = (self.interval, 0, false);
        Some(())
    }

    /// Begins at the last entry before the next row of the rectangle. Returns the MCUs between
    /// them.
    fn seek(&mut self, raw: &[u8], index: &Index) -> Option<u64> {
        let (row, interval) = (self.area.y + self.row, index.interval());
        let (first, after) =
            (self.area.x / interval, (self.area.x + self.area.columns).min(self.mcus.0).div_ceil(interval));
        let from = index.entry(row, first)?;
        let to = index.entry(row, after).map_or(index.end(), |entry| entry.bit.div_ceil(8));
        // A byte of ones comes with the zero that is stuffed after it.
        let to = to + usize::from(to > 0 && raw.get(to - 1) == Some(&0xFF));
        let mcu = row * self.mcus.0 + first * interval;
        let restart = mcu.checked_div(self.interval).unwrap_or(0) % 8;
        self.begun = from.bit / 8;
        self.read(raw.get(self.begun..to)?, restart as u8, from.bit % 8)?;
        self.predictions = from.predictions;
        if self.interval > 0 {
            self.left = self.interval - mcu % self.interval;
        }
        self.checked = false;
        Some((self.area.x - first * interval).into())
    }

    /// Returns the entry of an index for the next MCU.
    fn entry(&self) -> Option<Entry> {
        let coded = &self.entropy.coded;
        let position = self.ahead.position();
        // No restart marker follows the last MCU of all.
        if self.interval > 0 && self.left == 0 && self.restarts < coded.restarts() {
            let end = coded.end(self.restarts);
            let bit = 8 * (self.begun + coded.original(end));
            return (position.div_ceil(8) == end).then_some(Entry { bit, ..Entry::default() });
        }
        let bit = 8 * (self.begun + coded.original(position / 8)) + position % 8;
        Some(Entry { bit, predictions: self.predictions })
    }

    /// At an entry of the index, checks that it is reached as it says: one that is wrong must not
    /// give wrong pixels.
    fn check(&mut self) -> Option<()> {
        let Source::Index(_, index) = self.source else { return Some(()) };
        let column = self.area.x + self.column;
        if !column.is_multiple_of(index.interval()) && column != self.mcus.0 {
            return Some(());
        }
        self.checked = true;
        let row = self.area.y + self.row - 1;
        match index.entry(row, column.div_ceil(index.interval())) {
            Some(expected) => (self.entry()? == expected).then_some(()),
            None => (self.begun + self.entropy.coded.original(self.ahead.position().div_ceil(8)) == index.end())
                .then_some(()),
        }
    }

    /// Checks the last entry of a row, or the next one if there was none.
    fn check_row(&mut self) -> Option<()> {
        let Source::Index(_, index) = self.source else { return Some(()) };
        let end = self.area.x + self.column;
        let next = end.next_multiple_of(index.interval()).min(self.mcus.0);
        if !self.checked {
            self.walk(next - end)?;
            self.column += next - end;
        }
        self.check()?;
        self.column = self.area.columns;
        Some(())
    }

    /// Moves over MCUs as if each were needed.
    fn walk(&mut self, mcus: u32) -> Option<()> {
        for _ in 0..mcus {
            self.count_down()?;
            self.decode_over(1)?;
        }
        Some(())
    }

    /// Prepares for an MCU: passes a restart marker if there must be one.
    fn count_down(&mut self) -> Option<()> {
        if self.interval > 0 {
            if self.left == 0 {
                self.restart()?;
            }
            self.left -= 1;
        }
        Some(())
    }

    fn restart(&mut self) -> Option<()> {
        let coded = &self.entropy.coded;
        let end = coded.end(self.restarts);
        let regular = self.jumped || self.ahead.position().div_ceil(8) == end;
        if !regular || self.restarts == coded.restarts() {
            return None;
        }
        self.ahead = Bits::start(coded.bytes(), 8 * end)?.ahead();
        self.predictions = [0; MOST_COMPONENTS];
        (self.left, self.jumped) = (self.interval, false);
        self.restarts += 1;
        Some(())
    }

    /// Moves over MCUs. To the next restart marker it jumps.
    fn skip(&mut self, mut mcus: u64) -> Option<()> {
        while mcus > 0 {
            if self.interval > 0 && self.left == 0 {
                self.restart()?;
            }
            let part = if self.interval > 0 { mcus.min(self.left.into()) } else { mcus };
            mcus -= part;
            if self.interval > 0 {
                self.left -= part as u32;
                self.jumped = self.left == 0;
            }
            if !self.jumped {
                self.decode_over(part)?;
            }
        }
        Some(())
    }

    fn decode_over(&mut self, mcus: u64) -> Option<()> {
        let Entropy { coded, dc, ac, skip: table } = &*self.entropy;
        let mut unused = [0; 64];
        let mut bits = Bits::resume(coded.bytes(), self.ahead);
        for _ in 0..mcus {
            for kind in &self.blocks[..self.count] {
                let prediction = &mut self.predictions[kind.component & (MOST_COMPONENTS - 1)];
                *prediction = prediction.wrapping_add(difference(&mut bits, dc.at(kind.dc))?);
                match kind.skip {
                    Some(place) => skip(&mut bits, table.at(place), ac.at(kind.ac))?,
                    None => coefficients::<false>(&mut bits, ac.at(kind.ac), &mut unused)?,
                }
            }
        }
        self.ahead = bits.ahead();
        self.within()
    }
}
