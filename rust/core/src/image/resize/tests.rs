//! Compares each pixel with the crate `fast_image_resize`.

use fast_image_resize::images::{TypedCroppedImage, TypedCroppedImageMut, TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions};
use proptest::prelude::*;

use super::*;

/// Resizes with the other crate, and mirrors the output.
fn reference(filter: Filter, source: &Source<'_>, target: Target<'_>) {
    let Source { pixels, width, height, bounds, part: [left, top, part_width, part_height] } = *source;
    let kind = match filter {
        Filter::Bilinear => FilterType::Bilinear,
        Filter::Bicubic => FilterType::CatmullRom,
        Filter::Lanczos => FilterType::Lanczos3,
        Filter::Box => FilterType::Box,
    };
    let image = TypedImageRef::<U8x3>::from_buffer(width, height, pixels).unwrap();
    let view = TypedCroppedImage::new(image, bounds.x, bounds.y, bounds.width, bounds.height).unwrap();
    let axis = |start: f64, length: f64, offset: u32, limit: u32| {
        let start = (start - f64::from(offset)).clamp(0.0, f64::from(limit));
        (start, length.min(f64::from(limit) - start))
    };
    let (x, w) = axis(left, part_width, bounds.x, bounds.width);
    let (y, h) = axis(top, part_height, bounds.y, bounds.height);
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(kind)).crop(x, y, w, h);
    let Target { pixels: out, width, area, mirror } = target;
    let rows = out.len() as u32 / (3 * width);
    let whole = TypedImage::<U8x3>::from_buffer(width, rows, out).unwrap();
    let mut place = TypedCroppedImageMut::new(whole, area.x, area.y, area.width, area.height).unwrap();
    fast_image_resize::Resizer::new().resize_typed(&view, &mut place, &options).unwrap();
    if mirror {
        for row in out.chunks_exact_mut(3 * width as usize) {
            let turned: Vec<u8> = row.rchunks_exact(3).flatten().copied().collect();
            row.copy_from_slice(&turned);
        }
    }
}

/// Pixels of all values, black and white ones more often: sums then leave the range of 8 bits.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        match state >> 29 {
            0 => 0,
            1 => 255,
            _ => (state >> 16) as u8,
        }
    };
    (0..len).map(|_| byte()).collect()
}

/// Resizes with each kind of instructions, and compares.
fn compare(
    resizers: &mut [Resizer; 2],
    filter: Filter,
    source: &Source<'_>,
    size: (u32, u32),
    area: Rect,
    mirror: bool,
) {
    let mut expected = vec![7; 3 * (size.0 * size.1) as usize];
    reference(filter, source, Target { pixels: &mut expected, width: size.0, area, mirror });
    for resizer in resizers {
        let mut found = vec![7; expected.len()];
        resize(resizer, filter, source, Target { pixels: &mut found, width: size.0, area, mirror }).unwrap();
        let instructions = resizer.kernel.instructions();
        let differs = found.iter().zip(&expected).position(|(a, b)| a != b);
        let part = source.part;
        assert_eq!(differs, None, "{instructions}: {filter:?}, {part:?} of {:?} to {area:?}", source.bounds);
    }
}

fn resizers() -> [Resizer; 2] {
    [Resizer::new(), Resizer { kernel: Kernel::portable(), ..Resizer::new() }]
}

fn filters() -> impl Strategy<Value = Filter> {
    prop_oneof![Just(Filter::Bilinear), Just(Filter::Bicubic), Just(Filter::Lanczos), Just(Filter::Box)]
}

/// Along one axis: pixels, the first of the bounds and their number, the part's start and length, the
/// output's pixels before, in and after the target.
type Line = (u32, (u32, u32), (f64, f64), [u32; 3]);

fn lines() -> impl Strategy<Value = Line> {
    let sides = || prop_oneof![1..=4_u32, 1..=30_u32, 1..=300_u32];
    let ends = (0..9999_u32, 0..9999_u32);
    (sides(), ends.clone(), ends, 0..4_u8, sides(), [0..3_u32, 0..3_u32]).prop_map(
        |(side, bounds, part, kind, target, [before, after])| {
            let range = |(a, b): (u32, u32), length: u32| {
                let first = a.min(b) * length / 9999;
                (first, (a.max(b) * length).div_ceil(9999).max(first + 1) - first)
            };
            let (first, length) = range(bounds, side);
            let (start, count) = range(part, length);
            let part = match kind {
                0 => (f64::from(first), f64::from(length)),
                1 | 2 => (f64::from(first + start), f64::from(count)),
                _ => {
                    let [a, b] = [part.0.min(part.1), part.0.max(part.1)].map(|n| f64::from(n * length) / 9999.0);
                    (f64::from(first) + a, (b - a).max(0.01))
                }
            };
            let target = if kind == 2 { count } else { target };
            (side, (first, length), part, [before, target, after])
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn every_pixel_is_as_that_of_the_other_crate(
        filter in filters(),
        (width, (left, columns), (x, w), [before, across, after]) in lines(),
        (height, (top, rows), (y, h), [above, down, below]) in lines(),
        mirror in any::<bool>(),
    ) {
        let pixels = noise(3 * (width * height) as usize);
        let bounds = Rect { x: left, y: top, width: columns, height: rows };
        let source = Source { pixels: &pixels, width, height, bounds, part: [x, y, w, h] };
        let area = Rect { x: before, y: above, width: across, height: down };
        compare(&mut resizers(), filter, &source, (before + across + after, above + down + below), area, mirror);
    }
}

#[test]
fn one_resizer_makes_images_of_many_sizes_one_after_the_other() {
    let mut resizers = resizers();
    // Among them the same ones again, mirrored; sources that are much larger than the output; and
    // rows too wide for the loads of a group.
    for (n, (from, to)) in [
        ((300, 230), (224, 224)),
        ((300, 230), (224, 224)),
        ((480, 360), (224, 224)),
        ((120, 120), (224, 224)),
        ((120, 120), (224, 224)),
        ((2000, 300), (33, 7)),
        ((900, 11), (1, 1)),
        ((70_000, 3), (3, 2)),
        ((70_000, 3), (9, 3)),
        ((1, 1), (40, 30)),
        ((300, 230), (224, 224)),
    ]
    .into_iter()
    .enumerate()
    {
        let pixels = noise(3 * (from.0 * from.1) as usize);
        for filter in [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos, Filter::Box] {
            let bounds = Rect::whole(from.0, from.1);
            let part = [0.0, 0.0, f64::from(from.0), f64::from(from.1)];
            let source = Source { pixels: &pixels, width: from.0, height: from.1, bounds, part };
            compare(&mut resizers, filter, &source, to, Rect::whole(to.0, to.1), n % 2 == 1);
        }
    }
}

#[test]
fn only_the_needed_rows_are_read_and_each_output_row_is_made_with_its_last_one() {
    let (mut resizer, row) = (Resizer::new(), noise(3 * 100));
    let part = Part { bounds: Rect { x: 10, y: 20, width: 80, height: 200 }, part: [20.0, 60.0, 40.0, 80.0] };
    let mut out = vec![0; 3 * 20 * 40];
    let target = Target { pixels: &mut out, width: 20, area: Rect::whole(20, 40), mirror: false };
    let mut rows = resizer.start(Filter::Bilinear, &part, target).unwrap();
    // Half the size: two pixels to each side of the middle of two.
    assert_eq!(rows.needed_rows(), 59..141);
    let made: Vec<usize> = rows
        .needed_rows()
        .map(|_| {
            rows.push(&row);
            rows.made
        })
        .collect();
    assert_eq!(made, (0..82).map(|pushed: usize| pushed.saturating_sub(1) / 2).collect::<Vec<_>>());
}

#[test]
fn bounds_outside_of_the_pixels_are_an_error() {
    let pixels = noise(3 * 20 * 10);
    let mut out = [0; 3 * 4 * 4];
    for bounds in [Rect { x: 1, y: 0, width: 20, height: 10 }, Rect::whole(20, 11)] {
        let source = Source { pixels: &pixels, width: 20, height: 11, bounds, part: [0.0, 0.0, 4.5, 4.5] };
        let target = Target { pixels: &mut out, width: 4, area: Rect::whole(4, 4), mirror: false };
        assert!(resize(&mut Resizer::new(), Filter::Box, &source, target).is_err());
    }
}
