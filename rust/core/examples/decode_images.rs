//! Measures the CPU time of decoding and cropping images on one core: `decode_images ROUNDS
//! PATH...`. `ONLY=text` leaves out the methods whose names lack the text.
#![allow(clippy::print_stdout)] // its output

use std::error::Error;
use std::hint::black_box;
use std::io;

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};
use fastrecord_core::image::{
    Crop, DecodeOptions, Decoder, Geometry, Image, Random, crop_index, pack_jpeg, unpack_jpeg,
};

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.len() < 2 {
        return Err(io::Error::other("usage: decode_images ROUNDS PATH..."));
    }
    bench(&arguments)
}

/// Seconds of CPU time that this thread has used.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

const SIZE: (u32, u32) = (224, 224);

#[derive(Clone, Copy)]
enum Work {
    /// Decodes the whole image only.
    Decode,
    /// Decodes the whole image, then crops it.
    Whole(Geometry),
    /// As `Whole`, and resizes by another library: what loaders usually do.
    Usual(Geometry),
    /// Decodes only the part that the crop needs.
    Region(Geometry),
    /// As `Region`, with the image's crop index.
    Indexed(Geometry),
    /// As `Decode` or `Region`, of the packed JPEG.
    Packed(Option<Geometry>),
    /// Packs the JPEG, or restores it.
    Pack,
    Restore,
}

/// Alternates between the methods over all images, so that other load on the machine affects each
/// alike.
fn bench(arguments: &[String]) -> io::Result<()> {
    let rounds: usize = arguments[0].parse().map_err(io::Error::other)?;
    let images: Vec<Vec<u8>> = arguments[1..].iter().map(std::fs::read).collect::<io::Result<_>>()?;
    let random = Geometry::RandomResizedCrop { size: SIZE, scale: (0.08, 1.0), ratio: (3.0 / 4.0, 4.0 / 3.0) };
    let center = Geometry::center(SIZE, Some(256));
    let plain = DecodeOptions { min_reduced: f64::INFINITY, ..DecodeOptions::default() };
    let sharp = DecodeOptions { min_reduced: 1.0, ..plain };
    let stock = DecodeOptions { stock_jpeg: true, ..DecodeOptions::default() };
    let stock_plain = DecodeOptions { stock_jpeg: true, ..plain };
    let ways = [
        ("libjpeg-turbo: full decode", stock_plain, Work::Decode),
        (
            "libjpeg-turbo: full decode, fast_image_resize: RandomResizedCrop 224 + flip",
            stock_plain,
            Work::Usual(random),
        ),
        ("libjpeg-turbo: RandomResizedCrop 224 + flip", stock, Work::Region(random)),
        ("full decode", plain, Work::Decode),
        ("full decode, then RandomResizedCrop 224 + flip", plain, Work::Whole(random)),
        ("RandomResizedCrop 224 + flip", DecodeOptions::default(), Work::Region(random)),
        ("crop index: RandomResizedCrop 224 + flip", DecodeOptions::default(), Work::Indexed(random)),
        ("packed: RandomResizedCrop 224 + flip", DecodeOptions::default(), Work::Packed(Some(random))),
        ("packed: full decode", plain, Work::Packed(None)),
        ("packed: pack", plain, Work::Pack),
        ("packed: restore", plain, Work::Restore),
        ("RandomResizedCrop 224 + flip, reduced from 2 on", sharp, Work::Region(random)),
        ("full decode, then CenterCrop 224 of 256", plain, Work::Whole(center)),
        ("CenterCrop 224 of 256", DecodeOptions::default(), Work::Region(center)),
        ("crop index: CenterCrop 224 of 256", DecodeOptions::default(), Work::Indexed(center)),
        ("CenterCrop 224 of 256, reduced from 2 on", sharp, Work::Region(center)),
    ];
    let only = std::env::var("ONLY").unwrap_or_default();
    let plain_image = |data: &Vec<u8>| (data.clone(), Vec::new());
    let indexed: Vec<_> = images.iter().map(|data| (data.clone(), crop_index(data).unwrap_or_default())).collect();
    print_sides("crop index", &indexed);
    let packed: Vec<_> = images.iter().map(|data| pack_jpeg(data).unwrap_or_else(|| data.clone())).collect();
    let bytes = |images: &[Vec<u8>]| images.iter().map(Vec::len).sum::<usize>();
    println!("packed: {} bytes of {}", bytes(&packed), bytes(&images));
    let mut restored = vec![0; images.iter().map(Vec::len).max().unwrap_or(0)];
    let images: Vec<_> = images.iter().map(plain_image).collect();
    let mut seconds = vec![Vec::new(); ways.len()];
    let mut decoders = ways.map(|(_, options, _)| [Decoder::new(options), Decoder::new(options)]);
    let mut out = vec![0; 3 * 224 * 224];
    let mut resizer = Resizer::new();
    for round in 0..rounds {
        for (n, (_, _, work)) in ways.iter().enumerate().filter(|(_, (name, ..))| name.contains(&only)) {
            let [decoder, cropper] = &mut decoders[n];
            let start = cpu();
            let images = match work {
                Work::Indexed(_) => &indexed,
                _ => &images,
            };
            for (at, (data, side)) in images.iter().enumerate() {
                let draw = |geometry: &Geometry, w, h| {
                    let random = &mut Random::new(0, round as u64, at as u64);
                    (geometry.crop(w, h, 0, random), random.coin() && geometry.name() == "RandomResizedCrop")
                };
                match work {
                    Work::Decode => _ = black_box(decoder.decode(data).map_err(io::Error::other)?),
                    Work::Packed(None) => _ = black_box(decoder.decode(&packed[at]).map_err(io::Error::other)?),
                    Work::Packed(Some(geometry)) => {
                        let done = decoder.crop_resize_with(&packed[at], SIZE, &mut out, |w, h| draw(geometry, w, h));
                        done.map_err(io::Error::other)?;
                    }
                    Work::Pack => _ = black_box(pack_jpeg(data)),
                    // One that is stored as it came is an error.
                    Work::Restore => _ = black_box(unpack_jpeg(&packed[at], &mut restored[..data.len()])),
                    Work::Whole(geometry) => {
                        let image = decoder.decode(data).map_err(io::Error::other)?;
                        let (crop, flip) = draw(geometry, image.width, image.height);
                        cropper.crop_resize_pixels(image, &crop, flip, SIZE, &mut out).map_err(io::Error::other)?;
                    }
                    Work::Usual(geometry) => {
                        let image = decoder.decode(data).map_err(io::Error::other)?;
                        let (crop, flip) = draw(geometry, image.width, image.height);
                        resize_elsewhere(&mut resizer, image, &crop, flip, &mut out).map_err(io::Error::other)?;
                    }
                    Work::Region(geometry) | Work::Indexed(geometry) => {
                        let done = decoder.crop_resize_side(data, side, SIZE, &mut out, |w, h| draw(geometry, w, h));
                        done.map_err(io::Error::other)?;
                    }
                }
                black_box(&mut out);
            }
            seconds[n].push(cpu() - start);
        }
    }
    for ((name, _, _), seconds) in ways.iter().zip(&mut seconds).filter(|(_, seconds)| !seconds.is_empty()) {
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

fn print_sides(name: &str, images: &[(Vec<u8>, Vec<u8>)]) {
    let sides = images.iter().filter(|(_, side)| !side.is_empty()).count();
    let bytes = |of: fn(&(Vec<u8>, Vec<u8>)) -> usize| images.iter().map(of).sum::<usize>();
    let (values, more) = (bytes(|image| image.0.len()), bytes(|image| image.1.len()));
    println!("{name}: {sides} of {} images, {values} bytes and {more} more", images.len());
}

/// Crops and resizes with the library that other Rust programs use for it.
fn resize_elsewhere(
    resizer: &mut Resizer,
    image: Image<'_>,
    crop: &Crop,
    flip: bool,
    out: &mut [u8],
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let filter = ResizeAlg::Convolution(FilterType::Bilinear);
    let options = ResizeOptions::new().resize_alg(filter).crop(crop.x, crop.y, crop.width, crop.height);
    let source = TypedImageRef::<U8x3>::from_buffer(image.width, image.height, image.pixels)?;
    let mut target = TypedImage::<U8x3>::from_buffer(SIZE.0, SIZE.1, out)?;
    resizer.resize_typed(&source, &mut target, &options)?;
    if flip {
        for row in out.chunks_exact_mut(3 * SIZE.0 as usize) {
            row.as_chunks_mut::<3>().0.reverse();
        }
    }
    Ok(())
}
