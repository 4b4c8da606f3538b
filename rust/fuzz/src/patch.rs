//! Applies changes to valid files: the input selects the file, the places and the changes. Padding
//! is left out, so almost every change affects bytes that a reader uses.

use std::ops::Range;
use std::sync::LazyLock;

use super::bytes::{Input, put, u64_at};
use super::seal::{FOOTER_MAGIC, PAGE, seal};

/// A valid file, and the ranges that are worth changing.
struct Sample {
    file: &'static [u8],
    /// Ranges of bytes that are not padding.
    ranges: Vec<Range<usize>>,
    /// The total length of the ranges.
    count: usize,
}

/// The files that `cargo run --bin samples` writes: images with and without side bytes, all other
/// types, compressed fields.
static SAMPLES: LazyLock<Vec<Sample>> = LazyLock::new(|| {
    let files: [&'static [u8]; 4] = [
        include_bytes!("../samples/plain.frec"),
        include_bytes!("../samples/images.frec"),
        include_bytes!("../samples/types.frec"),
        include_bytes!("../samples/packed.frec"),
    ];
    files.map(Sample::new).into()
});

/// Numbers that are often handled wrongly.
const WORDS: [u64; 16] = [
    0,
    1,
    7,
    31,
    64,
    4095,
    4096,
    8192,
    u16::MAX as u64,
    u32::MAX as u64,
    1 << 32,
    1 << 48,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 4095,
    u64::MAX,
];

impl Sample {
    fn new(file: &'static [u8]) -> Self {
        // Use the head and the slots of page 0, the fields of a footer, and every other page up to
        // a long run of zeros.
        let mut ranges = vec![0..32, 512..544, 1024..1056];
        for at in (PAGE..file.len()).step_by(PAGE) {
            let page = &file[at..at + PAGE];
            let used = page.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
            ranges.push(at..at + if page.starts_with(FOOTER_MAGIC) { 104 } else { used.next_multiple_of(8).min(PAGE) });
        }
        let count = ranges.iter().map(Range::len).sum();
        Self { file, ranges, count }
    }

    /// The offset of the byte with a given number.
    fn place(&self, number: usize) -> usize {
        let mut left = number % self.count;
        for range in &self.ranges {
            if left < range.len() {
                return range.start + left;
            }
            left -= range.len();
        }
        0
    }
}

/// The file that an input describes, with right checksums.
pub fn patched(input: &mut Input<'_>) -> Vec<u8> {
    let sample = &SAMPLES[usize::from(input.u8()) % SAMPLES.len()];
    let mut file = sample.file.to_vec();
    while !input.is_empty() {
        change(&mut file, sample, input);
    }
    seal(&mut file);
    file
}

fn change(file: &mut Vec<u8>, sample: &Sample, input: &mut Input<'_>) {
    let (how, at) = (input.u8(), sample.place(input.u16().into()));
    let more = usize::from(how >> 4);
    match how & 7 {
        0 => put(file, at, input.take(more + 1)),
        1 => {
            if let Some(byte) = file.get_mut(at) {
                *byte ^= 1 << (more % 8);
            }
        }
        2 => put(file, at & !7, &WORDS[more].to_le_bytes()),
        3 => put(file, at & !3, &WORDS[more].to_le_bytes()[..4]),
        // Slightly more or less than the original.
        4 => {
            let word = u64_at(file, at & !7).wrapping_add(u64::from(input.u8()) << more);
            put(file, at & !7, &word.to_le_bytes());
        }
        5 => {
            let word = u64_at(file, at & !7).wrapping_sub(u64::from(input.u8()) << more);
            put(file, at & !7, &word.to_le_bytes());
        }
        // Replaces an extent or a directory entry by another one, or a part of it.
        6 => {
            let from = sample.place(input.u16().into());
            let copied = file.get(from..).unwrap_or_default();
            let copied = copied[..copied.len().min(4 * (more + 1))].to_vec();
            put(file, at, &copied);
        }
        // Truncates the file, or appends bytes.
        _ if more < 4 => file.truncate(at),
        _ => {
            let rest = input.take(8 * more);
            file.extend_from_slice(rest);
        }
    }
}
