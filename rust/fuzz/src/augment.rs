//! Makes recipes of any operations, with any numbers that `fastrecord.transforms` accepts, and applies them to images
//! of any small size.

use std::hint::black_box;

use fastrecord_core::augment::{
    Canvas, Cut, Drawn, Interpolation, Mixing, Pixels, Plane, Recipe, Sample, Step, ToFloat,
};
use fastrecord_core::image::Random;
use serde_json::{Value, json};

use super::bytes::Input;
use super::guard;

/// The memory that one input may use.
const MEMORY: usize = 64 << 20;
/// Operations inside others, inside others.
const DEPTH: usize = 3;

/// Draws and applies what the input describes: whether it is JSON, else sizes, numbers and operations.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    guard::within(MEMORY, || {
        if input.u8() == 255 {
            let text = String::from_utf8_lossy(input.0);
            let _ = (Recipe::new(&text, "", 0).is_ok(), Mixing::new(&text).is_ok());
            return;
        }
        let (size, other) = ((side(&mut input), side(&mut input)), (side(&mut input), side(&mut input)));
        let base = Random::new(input.u8().into(), 0, input.u8().into());
        let pixels: Vec<u8> = noise(input.u8(), 3 * size.0 * size.1);
        let json = recipe(&mut input).to_string();
        let recipe = Recipe::new(&json, "image", 0).unwrap_or_else(|error| panic!("{error}: {json}"));
        let drawn = recipe.draw(&base, size);
        assert_eq!(format!("{drawn:?}"), format!("{:?}", recipe.draw(&base, size)), "draws of one position");
        for single in [false, true] {
            let canvas = applied(&drawn.steps, &pixels, size, single);
            if let Some(to_float) = &recipe.to_float {
                floats(&canvas, to_float, &drawn, input);
            }
        }
        follow(&drawn.steps, size, other);
    });
}

/// Applies steps in shared passes, and one by one.
fn applied(steps: &[Step], pixels: &[u8], size: (usize, usize), single: bool) -> Canvas {
    let [mut together, mut apart] = [Canvas::default(), Canvas::default()];
    for canvas in [&mut together, &mut apart] {
        canvas.begin(size.0, size.1).copy_from_slice(pixels);
        if single {
            canvas.make_single();
        }
    }
    Step::apply_all(steps, &mut together);
    for step in steps {
        step.apply(&mut apart);
    }
    assert_eq!((together.size(), together.pixels().len()), (size, pixels.len()));
    assert!(together.pixels() == apart.pixels(), "{steps:?} in shared passes");
    together
}

/// Converts an image, erases parts of it, and mixes it with its mirror image.
fn floats(canvas: &Canvas, to_float: &ToFloat, drawn: &Drawn, mut input: Input<'_>) {
    let (pixels, size) = (canvas.pixels(), canvas.size());
    let value = to_float.dtype.size();
    let mut first = vec![0; pixels.len() * value];
    to_float.write(pixels, &mut first);
    drawn.after.iter().for_each(|step| to_float.apply(step, size, &mut first));
    let mut second: Vec<u8> = pixels.iter().rev().copied().collect();
    for (sample, bytes) in [(Sample::Uint8, 1), (Sample::Uint16, 2), (Sample::Float32, 4)] {
        let many: Vec<u8> = second.iter().flat_map(|&value| std::iter::repeat_n(value, bytes)).collect();
        let mut out = vec![0; pixels.len() * value];
        to_float.write_plane(&Pixels { size, pixel: 3 * bytes, sample, bytes: &many }, &mut out);
    }
    to_float.write_grey(&pixels[..size.0 * size.1], &mut vec![0; size.0 * size.1 * value]);
    let mirrored = std::mem::take(&mut second);
    second.resize(first.len(), 0);
    to_float.write(&mirrored, &mut second);
    let list: Vec<Value> = (0..=input.u8() % 3)
        .map(|_| json!({"op": if input.u8() & 1 == 0 { "MixUp" } else { "CutMix" }, "alpha": near(&mut input, 1e-6, 1e6)}))
        .collect();
    let mixing = Mixing::new(&json!(list).to_string()).unwrap_or_else(|error| panic!("{error}: {list:?}"));
    let (blend, share) = mixing.draw(input.u8().into(), 0, input.u8().into(), size);
    assert!((0.0..=1.0).contains(&share), "{share} of {list:?}");
    blend.apply(to_float.dtype, to_float.planar, size, &mut first, &mut second);
}

/// Moves images of another size as the steps move theirs.
fn follow(steps: &[Step], size: (usize, usize), other: (usize, usize)) {
    let mut canvas = Canvas::default();
    for interpolation in [Interpolation::Nearest, Interpolation::Bilinear] {
        canvas.begin(other.0, other.1).copy_from_slice(&noise(1, 3 * other.0 * other.1));
        for step in steps {
            step.follow(&mut canvas, size, interpolation, [1, 2, 3]);
        }
    }
    let mut plane = Plane::default();
    for (sample, pixel) in [(Sample::Uint8, 1), (Sample::Uint16, 2), (Sample::Float32, 8), (Sample::Other, 3)] {
        for nearest in [true, sample == Sample::Other] {
            let bytes = noise(2, other.0 * other.1 * pixel);
            let from = Pixels { size: other, pixel, sample, bytes: &bytes };
            let [width, height] = [other.0, other.1].map(|side| f64::from(side as u32));
            let cut = Cut {
                part: [0.0, 0.0, width, height],
                bounds: [0, 0, other.0, other.1],
                target: [0, 0, other.0, other.1],
            };
            plane.cut(from, &cut, other, nearest, &vec![7; pixel]);
            for step in steps {
                plane.follow(step, size, nearest, &vec![7; pixel]);
            }
            assert_eq!((plane.pixels().size, plane.pixels().bytes.len()), (other, bytes.len()));
        }
    }
    for step in steps {
        black_box(step.matrix(size));
    }
}

fn noise(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at as u8).wrapping_mul(seed | 1) ^ (at >> 4) as u8).collect()
}

/// A side of an image: mostly a few pixels, at most 67.
fn side(input: &mut Input<'_>) -> usize {
    let byte = usize::from(input.u8());
    if byte < 189 { 1 + byte % 9 } else { byte - 188 }
}

/// A number from `low` to `high`, among them both.
fn between(input: &mut Input<'_>, low: f64, high: f64) -> f64 {
    let part = f64::from(input.u8()) / 255.0;
    low * (1.0 - part) + high * part
}

/// A number from `low` to `high`, of any order of magnitude.
fn near(input: &mut Input<'_>, low: f64, high: f64) -> f64 {
    any(input).abs().clamp(low, high)
}

/// Any number that is not infinite: mostly an angle or a place.
fn any(input: &mut Input<'_>) -> f64 {
    match input.u8() {
        byte @ 0..200 => (f64::from(byte) - 100.0) * 2.0,
        byte @ 200..228 => 10_f64.powi((i32::from(byte) - 214) * 22),
        byte => -(10_f64.powi((i32::from(byte) - 241) * 22)),
    }
}

/// A range of numbers that `draw` gives.
fn range(input: &mut Input<'_>, draw: impl Fn(&mut Input<'_>) -> f64) -> Value {
    let (one, other) = (draw(input), draw(input));
    json!([one.min(other), one.max(other)])
}

/// A value, or null.
fn maybe(input: &mut Input<'_>, draw: impl Fn(&mut Input<'_>) -> Value) -> Value {
    if input.u8() & 1 == 0 { Value::Null } else { draw(input) }
}

fn recipe(input: &mut Input<'_>) -> Value {
    let kind = input.u8();
    let three = |input: &mut Input<'_>, low: f64| {
        [(); 3].map(|()| if low > 0.0 { near(input, low, 1e300) } else { any(input) })
    };
    let to_float = (kind & 3 > 0).then(|| {
        let (mean, std) = (three(input, 0.0), three(input, 1e-9));
        let dtype = ["", "float32", "float16", "bfloat16"][usize::from(kind & 3)];
        json!({"dtype": dtype, "mean": mean, "std": std, "planar": kind & 4 == 0})
    });
    let after: Vec<Value> = (0..kind >> 6).map(|_| erasing(input)).collect();
    let operations = operations(input, DEPTH);
    json!({"operations": operations, "to_float": to_float, "after": after})
}

/// Some operations; those of them that have others inside have at least one.
fn operations(input: &mut Input<'_>, depth: usize) -> Vec<Value> {
    let count = if depth == DEPTH { input.u8() % 7 } else { 1 + input.u8() % 3 };
    (0..count).map(|_| operation(input, depth)).collect()
}

fn erasing(input: &mut Input<'_>) -> Value {
    json!({
        "op": "RandomErasing", "p": between(input, 0.0, 1.0), "scale": range(input, |input| between(input, 0.0, 1.0)),
        "ratio": range(input, |input| near(input, 1e-6, 1e300)), "value": [any(input), any(input), any(input)],
    })
}

/// How moved pixels are found, and what is outside.
fn border(input: &mut Input<'_>, mut operation: Value) -> Value {
    let how = input.u8();
    operation["interpolation"] = json!(if how & 1 == 0 { "nearest" } else { "bilinear" });
    operation["fill"] = if how & 2 == 0 { Value::Null } else { json!([how, 255, input.u8()]) };
    operation
}

fn operation(input: &mut Input<'_>, depth: usize) -> Value {
    let kind = input.u8() % if depth == 0 { 19 } else { 22 };
    let p = between(input, 0.0, 1.0);
    let centre = |input: &mut Input<'_>| maybe(input, |input| json!([any(input), any(input)]));
    let angles = |input: &mut Input<'_>| range(input, any);
    let factors = |input: &mut Input<'_>| maybe(input, |input| range(input, |input| near(input, 0.0, 1e300)));
    match kind {
        0 => json!({"op": "RandomHorizontalFlip", "p": p}),
        1 => json!({"op": "RandomVerticalFlip", "p": p}),
        2 => {
            let made = json!({"op": "RandomRotation", "degrees": angles(input), "center": centre(input)});
            border(input, made)
        }
        3 => {
            let translate = maybe(input, |input| json!([between(input, 0.0, 1.0), between(input, 0.0, 1.0)]));
            let scale = maybe(input, |input| range(input, |input| near(input, 1e-6, 1e300)));
            let shear = maybe(input, |input| json!([angles(input), angles(input)]));
            let made = json!({
                "op": "RandomAffine", "degrees": angles(input), "translate": translate, "scale": scale, "shear": shear,
                "center": centre(input),
            });
            border(input, made)
        }
        4 => {
            let made = json!({"op": "RandomPerspective", "distortion_scale": between(input, 0.0, 1.0), "p": p});
            border(input, made)
        }
        5 => json!({
            "op": "ColorJitter", "brightness": factors(input), "contrast": factors(input), "saturation": factors(input),
            "hue": maybe(input, |input| range(input, |input| between(input, -0.5, 0.5))),
        }),
        6 => json!({"op": "RandomGrayscale", "p": p}),
        7 => {
            let width = |input: &mut Input<'_>| match input.u8() {
                255 => 1023,
                byte => 2 * u32::from(byte / 8) + 1,
            };
            json!({
                "op": "GaussianBlur", "kernel_size": [width(input), width(input)],
                "sigma": range(input, |input| near(input, 1e-6, 1e300)),
            })
        }
        8 => json!({"op": "RandomSolarize", "threshold": between(input, 0.0, 255.0), "p": p}),
        9 => json!({"op": "RandomPosterize", "bits": input.u8() % 9, "p": p}),
        10 => json!({"op": "RandomInvert", "p": p}),
        11 => json!({"op": "RandomEqualize", "p": p}),
        12 => json!({"op": "RandomAutocontrast", "p": p}),
        13 => json!({"op": "RandomAdjustSharpness", "sharpness_factor": near(input, 0.0, 1e300), "p": p}),
        14 => erasing(input),
        15 => {
            let made = json!({"op": "TrivialAugmentWide", "num_magnitude_bins": input.u16().max(2)});
            border(input, made)
        }
        16 => {
            let bins = input.u16().max(2);
            let made = json!({
                "op": "RandAugment", "num_ops": input.u8() % 5, "magnitude": input.u16() % bins, "num_magnitude_bins": bins,
            });
            border(input, made)
        }
        17 => border(input, json!({"op": "AutoAugment"})),
        18 => {
            let made = json!({
                "op": "AugMix", "severity": 1 + input.u8() % 10, "mixture_width": 1 + input.u8() % 8,
                "chain_depth": i16::from(input.u8() % 8) - 1, "alpha": near(input, 1e-3, 1e300), "all_ops": input.u8() & 1 == 0,
            });
            border(input, made)
        }
        19 => json!({"op": "RandomApply", "transforms": operations(input, depth - 1), "p": p}),
        20 => {
            let transforms = operations(input, depth - 1);
            let mut weights: Vec<f64> = transforms.iter().map(|_| near(input, 0.0, 1e300)).collect();
            if weights.iter().sum::<f64>() == 0.0 {
                weights.fill(1.0);
            }
            json!({"op": "RandomChoice", "transforms": transforms, "p": weights})
        }
        _ => json!({"op": "RandomOrder", "transforms": operations(input, depth - 1)}),
    }
}
