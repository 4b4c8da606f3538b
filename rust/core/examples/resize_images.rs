//! Compares resizing with the crate `fast_image_resize`, on random crops of real images and one
//! core: `resize_images ROUNDS PATH...`.
#![allow(clippy::print_stdout)] // its output

use std::hint::black_box;
use std::io;
use std::time::Instant;

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};
use fastrecord_core::image::{Crop, DecodeOptions, Decoder, Filter, Geometry, Image, Pixels, Random};
use fastrecord_core::image::{Rect, decode_image};

const SIZE: (u32, u32) = (224, 224);

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [rounds, paths @ ..] = &arguments[..] else {
        return Err(io::Error::other("usage: resize_images ROUNDS PATH..."));
    };
    let rounds: u64 = rounds.parse().map_err(io::Error::other)?;
    let decoded =
        |path: &String| decode_image(&std::fs::read(path)?, DecodeOptions::default()).map_err(io::Error::other);
    let images: Vec<Pixels> = paths.iter().map(decoded).collect::<io::Result<_>>()?;
    let random = Geometry::RandomResizedCrop { size: SIZE, scale: (0.08, 1.0), ratio: (3.0 / 4.0, 4.0 / 3.0) };
    let parts = [Some((300, 230)), Some((480, 360)), Some((120, 120)), None];
    let filters = [
        (Filter::Bilinear, FilterType::Bilinear),
        (Filter::Bicubic, FilterType::CatmullRom),
        (Filter::Lanczos, FilterType::Lanczos3),
        (Filter::Box, FilterType::Box),
    ];
    println!("median microseconds of fast_image_resize and of fastrecord, and the ratio");
    let (mut first, mut second) = (vec![0; 3 * (SIZE.0 * SIZE.1) as usize], vec![0; 3 * (SIZE.0 * SIZE.1) as usize]);
    for (filter, kind) in filters {
        let options = DecodeOptions { filter, ..DecodeOptions::default() };
        let (mut ours, mut theirs) = (Decoder::new(options), Resizer::new());
        for part in parts {
            let mut times = [Vec::new(), Vec::new()];
            for round in 0..rounds {
                for (at, image) in (0..).zip(&images) {
                    let (width, height) = (image.width, image.height);
                    let crop = match part {
                        // Each crop is a little different, so that no weights are kept.
                        Some((w, h)) if w + 2 <= width && h + 2 <= height => Crop {
                            x: uneven(round),
                            y: uneven(round),
                            width: f64::from(w),
                            height: f64::from(h),
                            bounds: Rect::whole(width, height),
                            target: Rect::whole(SIZE.0, SIZE.1),
                        },
                        Some(_) => continue,
                        None => random.crop(width, height, 0, &mut Random::new(0, round, at)),
                    };
                    let start = Instant::now();
                    reference(&mut theirs, kind, image, &crop, &mut first)?;
                    let between = Instant::now();
                    let pixels = Image { width, height, pixels: &image.pixels };
                    ours.crop_resize_pixels(pixels, &crop, false, SIZE, &mut second).map_err(io::Error::other)?;
                    times[1].push(between.elapsed());
                    times[0].push(between - start);
                    assert_eq!(black_box(&first), &second, "the pixels are the same");
                }
            }
            let [theirs, ours] = times.map(|mut times| {
                times.sort();
                times.get(times.len() / 2).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
            });
            let part = part.map_or("RandomResizedCrop".to_owned(), |(w, h)| format!("{w} x {h}"));
            println!("{theirs:7.1} {ours:7.1} {:6.2}  {filter:?}, {part} to 224", theirs / ours);
        }
    }
    Ok(())
}

/// A number between 0 and 1.
fn uneven(round: u64) -> f64 {
    f64::from((round % 997) as u32) / 997.0
}

fn reference(resizer: &mut Resizer, kind: FilterType, image: &Pixels, crop: &Crop, out: &mut [u8]) -> io::Result<()> {
    let source =
        TypedImageRef::<U8x3>::from_buffer(image.width, image.height, &image.pixels).map_err(io::Error::other)?;
    let mut target = TypedImage::<U8x3>::from_buffer(SIZE.0, SIZE.1, out).map_err(io::Error::other)?;
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(kind));
    let Rect { x, y, width, height } = crop.bounds;
    let view = fast_image_resize::images::TypedCroppedImage::new(source, x, y, width, height);
    let options = options.crop(crop.x - f64::from(x), crop.y - f64::from(y), crop.width, crop.height);
    resizer.resize_typed(&view.map_err(io::Error::other)?, &mut target, &options).map_err(io::Error::other)
}
