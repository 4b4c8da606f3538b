//! Hostile bytes cause no harm: runs the corpus of the fuzz targets (rust/fuzz) and mutations of
//! it, without a fuzzer.
#![allow(clippy::print_stdout)] // a long run reports its results

use std::fs;
use std::path::{Path, PathBuf};

#[allow(dead_code, unreachable_pub)] // only the fuzz targets use all of it
#[path = "../../../../fuzz/src/lib.rs"]
mod fuzz;

use crate::common::Rng;

#[global_allocator]
static COUNTING: fuzz::guard::Counting = fuzz::guard::Counting;

/// Number of mutated inputs per target, unless the environment sets it.
const SHORT: u64 = 600;

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(name);
    let mut files: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 3, "{} is no corpus", folder.display());
    files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Mutates an input as a fuzzer does, but without feedback.
fn change(rng: &mut Rng, input: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=rng.below(4) {
        let at = rng.below(input.len() as u64 + 1) as usize;
        match rng.below(6) {
            0 => input.truncate(at),
            1 => {
                let count = rng.below(9) as usize;
                input.splice(at..at, rng.bytes(count));
            }
            2 => {
                let end = (at + rng.below(17) as usize).min(input.len());
                input.drain(at..end);
            }
            3 => {
                let from = rng.below(other.len() as u64 + 1) as usize;
                let end = (from + rng.below(65) as usize).min(other.len());
                input.splice(at..at, other[from..end].iter().copied());
            }
            _ => {
                if let Some(byte) = input.get_mut(at) {
                    *byte = [*byte ^ 1 << rng.below(8), 0, 0xFF, rng.next() as u8][rng.below(4) as usize];
                }
            }
        }
    }
}

fn replay(name: &str) {
    let target = fuzz::TARGETS.into_iter().find(|target| target.name == name).unwrap();
    fuzz::quiet::only_our_own_panics_end_it();
    let corpus = corpus(name);
    for (path, input) in &corpus {
        println!("{}", path.display());
        (target.run)(input);
    }
    let (count, seed) = (variable("FASTRECORD_TORTURE", SHORT), variable("FASTRECORD_SEED", 7));
    for number in 0..count {
        let mut rng = Rng(seed.wrapping_add(number << 32));
        let [from, other] = [0; 2].map(|_| &corpus[rng.below(corpus.len() as u64) as usize]);
        let mut input = from.1.clone();
        change(&mut rng, &mut input, &other.1);
        println!("seed {seed}, change {number} of {}", from.0.display());
        (target.run)(&input);
    }
    println!("torture: {{\"count\": {}, \"detail\": \"seed {seed}\"}}", count + corpus.len() as u64);
}

macro_rules! targets {
    ($($test:ident $name:literal)*) => {$(
        #[test]
        fn $test() {
            replay($name);
        }
    )*};
}

targets! {
    any_bytes_as_a_file_are_opened_or_an_error "open"
    everything_in_a_changed_file_is_read_or_an_error "read"
    any_directory_and_chunks_are_read_or_an_error "index"
    any_schema_and_metadata_are_read_or_an_error "schema"
    any_payload_is_a_value_or_an_error "payload"
    any_bytes_as_an_image_are_decoded_or_an_error "decode"
    any_jpeg_and_side_bytes_are_indexed_and_cropped_or_an_error "crop_index"
    any_packed_jpeg_is_decoded_or_an_error "packed"
    any_changed_file_is_appended_to_or_an_error "append"
    any_recipe_changes_any_image "augment"
}
