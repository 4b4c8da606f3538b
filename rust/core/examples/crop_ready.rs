//! Rewrites JPEGs as crop-ready files, compares random crops of both, and measures the CPU time of
//! both crops on one core: `crop_ready ROUNDS PATH...`.
#![allow(clippy::print_stdout)] // its output

use std::hint::black_box;
use std::io;

use fastrecord_core::image::{Crop, DecodeOptions, Decoder, Geometry, Markers, Random, rewrite};

const SIZE: (u32, u32) = (224, 224);

struct Pair {
    original: Vec<u8>,
    bytes: Vec<u8>,
    side: Vec<u8>,
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((rounds, paths)) = arguments.split_first().filter(|(_, paths)| !paths.is_empty()) else {
        return Err(io::Error::other("usage: crop_ready ROUNDS PATH..."));
    };
    let rounds: u64 = rounds.parse().map_err(io::Error::other)?;
    let images = rewrite_all(paths)?;
    compare(&images, rounds)?;
    bench(&images, rounds)
}

/// Seconds of CPU time that this thread has used.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

fn number(n: usize) -> f64 {
    u32::try_from(n).map_or(f64::INFINITY, f64::from)
}

fn rewrite_all(paths: &[String]) -> io::Result<Vec<Pair>> {
    let originals: Vec<Vec<u8>> = paths.iter().map(std::fs::read).collect::<io::Result<_>>()?;
    let (start, mut rewritten) = (cpu(), 0);
    let mut sizes = [0; 3];
    let mut pairs = Vec::new();
    for (original, path) in originals.into_iter().zip(paths) {
        let (bytes, side) = if let Some(ready) = rewrite(&original, Markers::ALL).map_err(io::Error::other)? {
            rewritten += 1;
            sizes[0] += original.len();
            sizes[1] += ready.bytes.len();
            sizes[2] += ready.side.len();
            (ready.bytes, ready.side)
        } else {
            println!("left as it is: {path}");
            (original.clone(), Vec::new())
        };
        pairs.push(Pair { original, bytes, side });
    }
    let percent = |n: usize| 100.0 * number(n) / number(sizes[0]);
    println!(
        "{rewritten} of {} rewritten: {:+.2} % in size, side bytes {:.2} %, {:.1} ms of CPU time an image",
        paths.len(),
        percent(sizes[1]) - 100.0,
        percent(sizes[2]),
        (cpu() - start) * 1e3 / number(paths.len())
    );
    Ok(pairs)
}

/// Draws a crop and a flip.
fn drawn(geometry: &Geometry, width: u32, height: u32, mut random: Random) -> (Crop, bool) {
    (geometry.crop(width, height, 0, &mut random), random.coin())
}

fn random() -> Geometry {
    Geometry::RandomResizedCrop { size: SIZE, scale: (0.08, 1.0), ratio: (3.0 / 4.0, 4.0 / 3.0) }
}

fn compare(images: &[Pair], rounds: u64) -> io::Result<()> {
    let mut decoder = Decoder::new(DecodeOptions::default());
    let mut outputs = [vec![0; 3 * 224 * 224], vec![0; 3 * 224 * 224]];
    let (mut same, mut crops) = (0, 0);
    for geometry in [random(), Geometry::center(SIZE, Some(256))] {
        for round in 0..rounds {
            for (at, pair) in (0..).zip(images) {
                let plan = |w, h| drawn(&geometry, w, h, Random::new(0, round, at));
                let [a, b] = &mut outputs;
                decoder.crop_resize_with(&pair.original, SIZE, a, plan).map_err(io::Error::other)?;
                decoder.crop_resize_side(&pair.bytes, &pair.side, SIZE, b, plan).map_err(io::Error::other)?;
                same += usize::from(a == b);
                crops += 1;
            }
        }
    }
    println!("{same} of {crops} crops are the same bit for bit");
    Ok(())
}

/// Alternates between the methods over all images, so that other load on the machine affects each
/// alike.
fn bench(images: &[Pair], rounds: u64) -> io::Result<()> {
    let geometry = random();
    let names = [
        "originals, full decode, then RandomResizedCrop 224 + flip",
        "originals, RandomResizedCrop 224 + flip",
        "crop-ready, RandomResizedCrop 224 + flip",
    ];
    let mut best = [f64::INFINITY; 3];
    let mut decoders = [0; 2].map(|_| Decoder::new(DecodeOptions::default()));
    let mut out = vec![0; 3 * 224 * 224];
    for _ in 0..rounds {
        for (way, best) in best.iter_mut().enumerate() {
            let start = cpu();
            for (at, pair) in (0..).zip(images) {
                let plan = |w, h| drawn(&geometry, w, h, Random::new(0, 0, at));
                let [decoder, cropper] = &mut decoders;
                let done = match way {
                    0 => decoder.decode(&pair.original).and_then(|image| {
                        let (crop, flip) = plan(image.width, image.height);
                        cropper.crop_resize_pixels(image, &crop, flip, SIZE, &mut out)
                    }),
                    1 => decoder.crop_resize_with(&pair.original, SIZE, &mut out, plan),
                    _ => decoder.crop_resize_side(&pair.bytes, &pair.side, SIZE, &mut out, plan),
                };
                done.map_err(io::Error::other)?;
                black_box(&mut out);
            }
            *best = best.min(cpu() - start);
        }
    }
    for (name, seconds) in names.iter().zip(best) {
        println!("{:7.1} images/s, {:.2} x the first  {name}", number(images.len()) / seconds, best[0] / seconds);
    }
    Ok(())
}
