//! Decodes the images of a list and writes raw RGB, or measures how fast that goes: what
//! `benches/compare_pillow.py` compares with Pillow.
//!
//! Reads lines of `MODE PATH X Y W H BX BY BW BH OUT_W OUT_H` (MODE: `full`, or `crop` of the part X Y W H of which the
//! filter sees BX BY BW BH) from standard input and writes for each, to standard output, width, height (u32,
//! little-endian; 0 0 and a text of so many bytes, after its length, for an error) and the pixels.
//! `decode_images bench ROUNDS PATH...` measures one core, in CPU time. `decode_images boxes W H N` writes N random crops of
//! an image of W x H pixels, a line each.
#![allow(clippy::print_stdout)] // its output

use std::hint::black_box;
use std::io::{self, BufRead, Write};

use fastrecord_core::image::{Crop, DecodeOptions, Decoder, Geometry, Random, Rect};

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((mode, rest)) if mode == "bench" => bench(rest),
        Some((mode, rest)) if mode == "boxes" => boxes(rest),
        _ => serve(),
    }
}

fn serve() -> io::Result<()> {
    let mut decoder = Decoder::new(DecodeOptions::default());
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|w| w.parse::<f64>().ok()).unwrap_or(0.0);
        #[allow(clippy::cast_sign_loss)]
        let whole = |at: usize| number(at) as u32;
        let data = std::fs::read(words[1])?;
        let answer = if words[0] == "full" {
            decoder.decode(&data).map(|image| (image.width, image.height, image.pixels.to_vec()))
        } else {
            let size = (whole(10), whole(11));
            let crop = Crop {
                x: number(2),
                y: number(3),
                width: number(4),
                height: number(5),
                bounds: Rect { x: whole(6), y: whole(7), width: whole(8), height: whole(9) },
                target: Rect::whole(size.0, size.1),
            };
            let mut pixels = vec![0; 3 * size.0 as usize * size.1 as usize];
            decoder.crop_resize(&data, &crop, false, size, &mut pixels).map(|_| (size.0, size.1, pixels))
        };
        match answer {
            Ok((width, height, pixels)) => {
                out.write_all(&width.to_le_bytes())?;
                out.write_all(&height.to_le_bytes())?;
                out.write_all(&pixels)?;
            }
            Err(e) => {
                let text = e.to_string();
                out.write_all(&[0; 8])?;
                out.write_all(&u32::try_from(text.len()).unwrap_or(0).to_le_bytes())?;
                out.write_all(text.as_bytes())?;
            }
        }
        out.flush()?;
    }
    Ok(())
}

fn boxes(arguments: &[String]) -> io::Result<()> {
    let numbers: Vec<u32> = arguments.iter().map(|a| a.parse().map_err(io::Error::other)).collect::<io::Result<_>>()?;
    let geometry = Geometry::RandomResizedCrop { size: SIZE, scale: (0.08, 1.0), ratio: (3.0 / 4.0, 4.0 / 3.0) };
    for position in 0..numbers[2] {
        let (crop, flip) = geometry.draw(numbers[0], numbers[1], true, Random::new(0, 0, position.into()));
        let Rect { x, y, width, height } = crop.bounds;
        println!("{x} {y} {width} {height} {}", u8::from(flip));
    }
    Ok(())
}

/// Seconds of CPU time that this thread has used.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

const SIZE: (u32, u32) = (224, 224);

#[derive(Clone, Copy)]
enum Work {
    /// The whole image, and nothing else.
    Decode,
    /// The whole image, then the crop.
    Whole(Geometry),
    /// What the crop needs.
    Region(Geometry),
}

/// Takes turns over all images, so that what else the machine does slows down each way alike.
fn bench(arguments: &[String]) -> io::Result<()> {
    let rounds: usize = arguments[0].parse().map_err(io::Error::other)?;
    let images: Vec<Vec<u8>> = arguments[1..].iter().map(std::fs::read).collect::<io::Result<_>>()?;
    let random = Geometry::RandomResizedCrop { size: SIZE, scale: (0.08, 1.0), ratio: (3.0 / 4.0, 4.0 / 3.0) };
    let center = Geometry::CenterCrop { size: SIZE, resize: Some(256) };
    let plain = DecodeOptions { min_reduced: f64::INFINITY, ..DecodeOptions::default() };
    let sharp = DecodeOptions { min_reduced: 1.0, ..plain };
    let ways = [
        ("full decode", plain, Work::Decode),
        ("full decode, then RandomResizedCrop 224 + flip", plain, Work::Whole(random)),
        ("RandomResizedCrop 224 + flip", DecodeOptions::default(), Work::Region(random)),
        ("RandomResizedCrop 224 + flip, reduced from 2 on", sharp, Work::Region(random)),
        ("full decode, then CenterCrop 224 of 256", plain, Work::Whole(center)),
        ("CenterCrop 224 of 256", DecodeOptions::default(), Work::Region(center)),
        ("CenterCrop 224 of 256, reduced from 2 on", sharp, Work::Region(center)),
    ];
    let mut seconds = vec![Vec::new(); ways.len()];
    let mut decoders = ways.map(|(_, options, _)| [Decoder::new(options), Decoder::new(options)]);
    let mut out = vec![0; 3 * 224 * 224];
    for round in 0..rounds {
        for (n, (_, _, work)) in ways.iter().enumerate() {
            let [decoder, cropper] = &mut decoders[n];
            let start = cpu();
            for (at, data) in images.iter().enumerate() {
                let draw = |geometry: &Geometry, w, h| {
                    geometry.draw(
                        w,
                        h,
                        matches!(geometry, Geometry::RandomResizedCrop { .. }),
                        Random::new(0, round as u64, at as u64),
                    )
                };
                match work {
                    Work::Decode => _ = black_box(decoder.decode(data).map_err(io::Error::other)?),
                    Work::Whole(geometry) => {
                        let image = decoder.decode(data).map_err(io::Error::other)?;
                        let (crop, flip) = draw(geometry, image.width, image.height);
                        cropper.crop_resize_pixels(image, &crop, flip, SIZE, &mut out).map_err(io::Error::other)?;
                    }
                    Work::Region(geometry) => {
                        let done = decoder.crop_resize_with(data, SIZE, &mut out, |w, h| draw(geometry, w, h));
                        done.map_err(io::Error::other)?;
                    }
                }
                black_box(&mut out);
            }
            seconds[n].push(cpu() - start);
        }
    }
    for ((name, _, _), seconds) in ways.iter().zip(&mut seconds) {
        seconds.sort_by(f64::total_cmp);
        let rate = |at: usize| f64::from(u32::try_from(images.len()).unwrap_or(0)) / seconds[at];
        let last = seconds.len() - 1;
        println!(
            "{:7.1} images/s (p10 {:.1}, p90 {:.1})  {name}",
            rate(last / 2),
            rate(last * 9 / 10),
            rate(last / 10)
        );
    }
    Ok(())
}
