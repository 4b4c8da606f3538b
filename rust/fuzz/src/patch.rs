//! Valid files with some changes: the input says which file, and what is changed where. Padding is left out, so that nearly every
//! change is one of something that is read.

use std::ops::Range;
use std::sync::LazyLock;

use super::bytes::{Input, put, u64_at};
use super::seal::{FOOTER_MAGIC, PAGE, seal};

/// A valid file, and where it is worth changing.
struct Sample {
    file: &'static [u8],
    /// Neighbouring bytes of it that are not padding.
    ranges: Vec<Range<usize>>,
    /// How many they are in all.
    count: usize,
}

/// The files, as `cargo run --bin samples` has written them: images with and without side bytes, every other type, compressed ones.
static SAMPLES: LazyLock<Vec<Sample>> = LazyLock::new(|| {
    let files: [&'static [u8]; 4] = [
        include_bytes!("../samples/plain.frec"),
        include_bytes!("../samples/images.frec"),
        include_bytes!("../samples/types.frec"),
        include_bytes!("../samples/packed.frec"),
    ];
    files.map(Sample::new).into()
});

/// Numbers that are likely to be mishandled.
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
        // The head of page 0, the slots; of a footer its fields, of all other pages what lies before a long run of zeros.
        let mut ranges = vec![0..32, 512..544, 1024..1056];
        for at in (PAGE..file.len()).step_by(PAGE) {
            let page = &file[at..at + PAGE];
            let used = page.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
            ranges.push(at..at + if page.starts_with(FOOTER_MAGIC) { 104 } else { used.next_multiple_of(8).min(PAGE) });
        }
        let count = ranges.iter().map(Range::len).sum();
        Self { file, ranges, count }
    }

    /// Where the byte of a number lies.
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

/// The file that an input tells, its checksums right.
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
        // A little more or less than there was.
        4 => {
            let word = u64_at(file, at & !7).wrapping_add(u64::from(input.u8()) << more);
            put(file, at & !7, &word.to_le_bytes());
        }
        5 => {
            let word = u64_at(file, at & !7).wrapping_sub(u64::from(input.u8()) << more);
            put(file, at & !7, &word.to_le_bytes());
        }
        // An extent in another's place, or a directory entry, or a part of one.
        6 => {
            let from = sample.place(input.u16().into());
            let copied = file.get(from..).unwrap_or_default();
            let copied = copied[..copied.len().min(4 * (more + 1))].to_vec();
            put(file, at, &copied);
        }
        // Cut off, or something behind the end.
        _ if more < 4 => file.truncate(at),
        _ => {
            let rest = input.take(8 * more);
            file.extend_from_slice(rest);
        }
    }
}
