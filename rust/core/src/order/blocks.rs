//! `BlockOrder`: the epoch order of a `blocks` shuffle. Neighbouring records stay close in time, so
//! that a disk can read ahead.
//!
//! Records are split into blocks of neighbours, and the blocks are shuffled. The records of a
//! *window*, a fixed number of consecutive blocks, are shuffled with each other. The order builds
//! on [`Order`] and stores no permutation: each position is computed independently. `docs/order.md`
//! specifies the algorithm, which never changes.
//!
//! ```
//! use fastrecord_core::{BlockOrder, Blocks};
//!
//! let order = BlockOrder::new(10, Blocks { records: 2, window: 2 }, 0, 0);
//! let window = order.window(0); // the positions of the first window: two blocks of two records
//! assert_eq!(window, 0..4);
//! let mut rows: Vec<u64> = window.map(|position| order.row(position)).collect();
//! rows.sort_unstable();
//! assert!(rows.chunks(2).all(|block| block[0] % 2 == 0 && block[1] == block[0] + 1));
//! ```

use std::ops::Range;

use crate::order::permutation::{Order, ROUNDS, below, extended, keys_of};

/// Purposes of keys: the order of the blocks, the slot of the last block, and from here on the
/// windows.
const ORDER_OF_BLOCKS: u64 = 0;
const SLOT_OF_LAST: u64 = 1;
const FIRST_WINDOW: u64 = 2;

/// The block and window sizes of a `blocks` shuffle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    /// Neighbouring records per block; the last block has the remainder.
    pub records: u64,
    /// Blocks per window, whose records are shuffled with each other; the last window has the
    /// remainder.
    pub window: u64,
}

/// One epoch's permutation of `[0, n)` by blocks.
///
/// The blocks take *slots*. The last block may be short; its slot is drawn separately, and the
/// other blocks are permuted among the remaining slots. The short window is therefore known without
/// a search. Slots `[w * window, (w + 1) * window)` form window w, whose records are permuted.
#[derive(Debug, Clone)]
pub struct BlockOrder {
    n: u64,
    blocks: Blocks,
    /// Total number of blocks.
    count: u64,
    last_slot: u64,
    /// Records in the last block: at least 1, at most as many as in the other blocks.
    last_records: u64,
    /// The window that holds the last block.
    short: Window,
    others: Order,
    keys: [u64; ROUNDS],
}

#[derive(Debug, Clone)]
struct Window {
    number: u64,
    first_slot: u64,
    positions: Range<u64>,
}

impl BlockOrder {
    /// Prepares the order of `n` records for one epoch.
    ///
    /// # Panics
    /// If a block has no record or a window no block.
    pub fn new(n: u64, blocks: Blocks, seed: u64, epoch: u64) -> Self {
        assert!(blocks.records > 0 && blocks.window > 0, "a block has records and a window has blocks: {blocks:?}");
        let keys = keys_of(&[seed, epoch, n, blocks.records, blocks.window]);
        let count = n.div_ceil(blocks.records);
        let others = count.saturating_sub(1);
        let last_records = n - others * blocks.records;
        let last_slot = below(extended(keys[0], SLOT_OF_LAST), count);

        let first_slot = last_slot - last_slot % blocks.window;
        let start = first_slot * blocks.records;
        let before_last = blocks.window.min(count - first_slot).saturating_sub(1);
        let positions = start..start + before_last * blocks.records + last_records;
        let short = Window { number: last_slot / blocks.window, first_slot, positions };

        let others = Order::keyed(others, keys.map(|key| extended(key, ORDER_OF_BLOCKS)));
        Self { n, blocks, count, last_slot, last_records, short, others, keys }
    }

    /// Returns the number of records.
    pub fn len(&self) -> u64 {
        self.n
    }

    /// Reports whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// Returns the record at a position. Each record appears once over all positions in `[0, n)`.
    ///
    /// # Panics
    /// If `position` is not below `n`, as in indexing a slice.
    #[inline]
    pub fn row(&self, position: u64) -> u64 {
        let Window { number, first_slot, positions } = self.window_at(position);
        let keys = self.keys.map(|key| extended(key, FIRST_WINDOW + number));
        let mixed = Order::keyed(positions.end - positions.start, keys).row(position - positions.start);

        let size = self.blocks.records;
        if number == self.short.number {
            let last = (self.last_slot - first_slot) * size;
            if mixed >= last + self.last_records {
                let after = mixed - last - self.last_records;
                return self.others.row(self.last_slot + after / size) * size + after % size;
            }
            if mixed >= last {
                return (self.count - 1) * size + (mixed - last);
            }
        }
        let slot = first_slot + mixed / size;
        self.others.row(slot - u64::from(slot > self.last_slot)) * size + mixed % size
    }

    /// Returns the positions of the window that contains a position. They hold exactly the records
    /// of the window's blocks.
    ///
    /// # Panics
    /// If `position` is not below `n`.
    pub fn window(&self, position: u64) -> Range<u64> {
        self.window_at(position).positions
    }

    #[inline]
    fn window_at(&self, position: u64) -> Window {
        assert!(position < self.n, "position {position} is out of range: the order has {}", self.n);
        // If the product overflows, all records lie in one window, the short one.
        let whole = self.blocks.records.saturating_mul(self.blocks.window);
        if position < self.short.positions.start {
            let number = position / whole;
            let start = number * whole;
            return Window { number, first_slot: number * self.blocks.window, positions: start..start + whole };
        }
        if position < self.short.positions.end {
            return self.short.clone();
        }
        let after = (position - self.short.positions.end) / whole;
        let number = self.short.number + 1 + after;
        let first_slot = number * self.blocks.window;
        let start = self.short.positions.end + after * whole;
        let end = start + self.blocks.window.min(self.count - first_slot) * self.blocks.records;
        Window { number, first_slot, positions: start..end }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::order::permutation::tests::{deviation, is_permutation};

    fn order(n: u64, records: u64, window: u64, seed: u64, epoch: u64) -> BlockOrder {
        BlockOrder::new(n, Blocks { records, window }, seed, epoch)
    }

    fn rows(order: &BlockOrder) -> Vec<u64> {
        (0..order.len()).map(|position| order.row(position)).collect()
    }

    /// Returns the blocks of each window, sorted. Checks that a window has all records of its
    /// blocks and no others.
    fn windows(order: &BlockOrder) -> Vec<Vec<u64>> {
        let mut windows = Vec::new();
        let mut start = 0;
        while start < order.len() {
            let positions = order.window(start);
            assert_eq!(positions.start, start, "{order:?}");
            assert!(positions.clone().all(|position| order.window(position) == positions), "{order:?}");
            start = positions.end;
            let mut rows: Vec<u64> = positions.map(|position| order.row(position)).collect();
            rows.sort_unstable();
            let size = order.blocks.records;
            let blocks: Vec<u64> = rows.chunk_by(|a, b| a / size == b / size).map(|block| block[0] / size).collect();
            let whole = blocks.iter().flat_map(|block| block * size..((block + 1) * size).min(order.len()));
            assert!(rows.iter().copied().eq(whole), "{order:?}: {rows:?}");
            windows.push(blocks);
        }
        assert_eq!(start, order.len());
        windows
    }

    #[test]
    fn the_order_never_changes() {
        assert_eq!(rows(&order(1, 1, 1, 0, 0)), [0]);
        assert_eq!(rows(&order(10, 3, 2, 0, 0)), [2, 7, 0, 8, 1, 6, 5, 4, 9, 3]);
        assert_eq!(rows(&order(10, 3, 2, 0, 1)), [1, 2, 5, 4, 3, 0, 7, 9, 6, 8]);
        assert_eq!(rows(&order(10, 3, 2, 1, 0)), [8, 1, 0, 7, 6, 2, 5, 3, 4, 9]);
        assert_eq!(rows(&order(12, 4, 1, u64::MAX, u64::MAX)), [5, 6, 7, 4, 0, 3, 1, 2, 11, 8, 10, 9]);
        for (n, records, window, golden) in [
            (1_000, 8, 16, [(0, 387), (1, 95), (2, 760), (999, 790)]),
            (1_281_167, 32, 128, [(0, 841_318), (1, 518_713), (640_000, 1_164_335), (1_281_166, 237_630)]),
            (
                1 << 40,
                64,
                64,
                [
                    (0, 780_960_285_296),
                    (1, 182_403_506_808),
                    (1 << 39, 951_270_973_648),
                    ((1 << 40) - 1, 721_927_501_964),
                ],
            ),
        ] {
            let order = order(n, records, window, 42, 7);
            assert_eq!(golden.map(|(position, _)| (position, order.row(position))), golden, "n = {n}");
        }
    }

    #[test]
    fn every_small_order_is_a_permutation_whose_windows_are_whole_blocks() {
        for n in 0_u64..=40 {
            for records in 1..=n + 2 {
                for window in 1..=n.div_ceil(records) + 1 {
                    let order = order(n, records, window, n, window);
                    assert!(is_permutation(&rows(&order)), "{order:?}");
                    let windows = windows(&order);
                    let full = n.div_ceil(records) / window;
                    assert!(
                        windows.iter().take(full as usize).all(|blocks| blocks.len() as u64 == window),
                        "{order:?}"
                    );
                    assert_eq!(windows.len() as u64, n.div_ceil(records).div_ceil(window), "{order:?}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_order_is_a_permutation_whose_windows_are_whole_blocks(
            n in 1_u64..5_000, records in 1_u64..600, window in 1_u64..80, seed: u64, epoch: u64
        ) {
            let order = order(n, records, window, seed, epoch);
            prop_assert!(is_permutation(&rows(&order)));
            windows(&order);
        }

        #[test]
        fn orders_of_any_length_stay_in_range_and_repeat_nothing(
            n in 1_u64.., records in 1_u64.., window in 1_u64.., widths in (0_u32..64, 0_u32..64), seed: u64, start: u64
        ) {
            let order = order(n, (records >> widths.0).max(1), (window >> widths.1).max(1), seed, 0);
            let positions = (0..n.min(300)).map(|step| ((u128::from(start) + u128::from(step)) % u128::from(n)) as u64);
            let rows: HashSet<u64> = positions.map(|position| order.row(position)).collect();
            prop_assert_eq!(rows.len() as u64, n.min(300));
            prop_assert!(rows.iter().all(|&row| row < n));
        }
    }

    #[test]
    fn seed_epoch_length_and_grouping_are_separate_words_of_the_key() {
        let orders = [
            (1000, 10, 20, 0, 0),
            (1000, 10, 20, 0, 1),
            (1000, 10, 20, 1, 0),
            (1000, 20, 10, 0, 0),
            (1000, 10, 50, 0, 0),
            (1000, 10, 20, 0, 1 << 63),
            (1001, 10, 20, 0, 0),
        ];
        let orders = orders.map(|(n, records, window, seed, epoch)| rows(&order(n, records, window, seed, epoch)));
        for (i, one) in orders.iter().enumerate() {
            for other in &orders[..i] {
                let same = one.iter().zip(other).filter(|(a, b)| a == b).count();
                assert!(same < 8, "{same} of 1000 positions agree");
            }
        }
    }

    #[test]
    fn each_window_is_mixed_in_its_own_way() {
        let order = order(8_000, 10, 10, 0, 0);
        // For each position of a window, the rank of its record in file order.
        let ranks: Vec<Vec<usize>> = (0..80)
            .map(|window| {
                let rows: Vec<u64> = (window * 100..window * 100 + 100).map(|position| order.row(position)).collect();
                let mut sorted = rows.clone();
                sorted.sort_unstable();
                rows.iter().map(|row| sorted.binary_search(row).unwrap()).collect()
            })
            .collect();
        let same = |(a, b): (&Vec<usize>, &Vec<usize>)| a.iter().zip(b).filter(|(a, b)| a == b).count();
        let agree: usize = ranks.iter().zip(&ranks[1..]).map(same).sum();
        // One of 100 positions agrees by chance.
        assert!((40..130).contains(&agree), "{agree} of 7900");
    }

    #[test]
    fn every_record_comes_to_every_position_of_a_window_equally_often() {
        let mut counts = vec![0_u32; 26 * 26];
        for seed in 0..8_000 {
            for (position, row) in rows(&order(26, 4, 7, seed, 3)).into_iter().enumerate() {
                counts[position * 26 + row as usize] += 1;
            }
        }
        assert!(deviation(&counts) < 4.0, "{counts:?}");
    }

    #[test]
    fn a_position_sees_all_records_of_the_whole_blocks_equally_often_and_likewise_those_of_the_short_one() {
        let mut counts = vec![0_u32; 26 * 26];
        for seed in 0..8_000 {
            for (position, row) in rows(&order(26, 4, 2, seed, 3)).into_iter().enumerate() {
                counts[position * 26 + row as usize] += 1;
            }
        }
        for (position, rows) in counts.chunks(26).enumerate() {
            let (whole, short) = rows.split_at(24);
            assert!(deviation(whole) < 4.5, "{position}: {whole:?}");
            // A window with the short block either begins at a multiple of 8 and has 6 records, or
            // is the last one and has 2.
            if position % 8 < 6 {
                assert!(deviation(short) < 4.5, "{position}: {short:?}");
            } else {
                assert_eq!(short, [0, 0], "{position}");
            }
        }
    }

    #[test]
    fn every_order_of_blocks_comes_equally_often_with_the_short_one_anywhere() {
        let mut counts = std::collections::HashMap::new();
        for seed in 0..48_000 {
            *counts.entry(windows(&order(7, 2, 1, seed, 0)).concat()).or_insert(0_u32) += 1;
        }
        assert_eq!(counts.len(), 24);
        let counts: Vec<u32> = counts.into_values().collect();
        assert!(deviation(&counts) < 4.0, "{counts:?}");
    }

    #[test]
    fn neighbouring_positions_of_a_window_take_every_pair_of_its_blocks_equally_often() {
        let mut pairs = vec![0_u32; 64 * 64];
        for epoch in 0..40 {
            let order = order(64 * 64, 64, 64, 1, epoch);
            for pair in rows(&order).windows(2) {
                pairs[(pair[0] / 64 * 64 + pair[1] / 64) as usize] += 1;
            }
        }
        // A record is never its own neighbour. A pair within one block is rarer by 1 in 64, far
        // below the noise.
        assert!(deviation(&pairs).abs() < 4.0, "{}", deviation(&pairs));
    }

    #[test]
    #[should_panic(expected = "position 5 is out of range: the order has 5")]
    fn a_position_outside_of_the_order_is_refused() {
        order(5, 2, 2, 0, 0).row(5);
    }
}
