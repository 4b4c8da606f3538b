//! Writes `samples/`, the valid files that the targets `read` and `append` change. They are
//! committed because the corpus refers to offsets in them: regenerate them only together with the
//! corpus.
//!
//! `cargo run --bin samples`, in `rust/fuzz`.

use std::error::Error;
use std::path::Path;

use fastrecord_core::image::{JpegOptions, encode_jpeg};
use fastrecord_core::{Schema, Value, Writer, WriterOptions, encode_list, encode_numbers};
use fastrecord_fuzz::bytes::put;
use fastrecord_fuzz::place::Memory;
use fastrecord_fuzz::seal::{FOOTER_MAGIC, PAGE, seal};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn writer(rows: &str) -> Outcome<(Writer, Memory)> {
    let memory = Memory::default();
    let options = WriterOptions::default();
    let schema = Schema::from_json(rows)?;
    Ok((Writer::create_in(Path::new("memory"), Box::new(memory.clone()), schema, &options)?, memory))
}

/// Saves a file under a fixed id.
fn save(name: &str, mut writer: Writer, memory: &Memory) -> Outcome<Vec<u8>> {
    writer.close()?;
    let mut file = memory.bytes();
    let id = b"0123456789abcdef";
    put(&mut file, 16, id);
    for at in (PAGE..file.len()).step_by(PAGE) {
        if file[at..].starts_with(FOOTER_MAGIC) {
            put(&mut file, at + 16, id);
        }
    }
    seal(&mut file);
    std::fs::write(format!("samples/{name}"), &file)?;
    Ok(file)
}

fn plain() -> Outcome<()> {
    let (mut writer, memory) = writer(
        r#"[{"name": "data", "type": "bytes"}, {"name": "key", "type": "string"}, {"name": "label", "type": "int64"},
            {"name": "weight", "type": "float64"}]"#,
    )?;
    for number in 0..24 {
        let (data, key) = (vec![number as u8; 3 * number as usize], format!("train/{number}.bin"));
        writer.append(&[Value::Bytes(&data), Value::Str(&key), Value::Int(number), Value::Float(0.5)])?;
        if number == 9 {
            writer.commit()?;
        }
    }
    writer.set_metadata(serde_json::from_str(r#"{"classes": ["cat", "dog"], "made": {"by": [1, null, 2.5]}}"#)?)?;
    save("plain.frec", writer, &memory).map(drop)
}

/// Brightness and colours that change slowly, which makes small JPEGs.
fn pixels(width: usize, height: usize) -> Vec<u8> {
    (0..width * height).flat_map(|at| [at % width, at / width, at % 7].map(|value| (2 * value % 256) as u8)).collect()
}

fn images() -> Outcome<()> {
    let (mut writer, memory) = writer(r#"[{"name": "image", "type": "image"}, {"name": "label", "type": "uint16"}]"#)?;
    let large = encode_jpeg(&pixels(112, 96), 112, 96, &JpegOptions { quality: 30, ..JpegOptions::default() })?;
    // Readers ignore side bytes of this kind.
    let side = [1, 0, 7, 0];
    let crc = crc32c::crc32c_append(crc32c::crc32c(&large), &side);
    let small = encode_jpeg(&pixels(20, 12), 20, 12, &JpegOptions { progressive: true, ..JpegOptions::default() })?;
    let raw = [&b"P6\n5 4\n255\n"[..], &pixels(5, 4)].concat();
    let label = Value::Number(&[7, 0]);
    writer.append(&[Value::Image { data: &large, side: &side, size: (112, 96), crc }, label])?;
    writer.append(&[Value::Bytes(&small), label])?;
    writer.append(&[Value::Bytes(&raw), label])?;
    save("images.frec", writer, &memory).map(drop)
}

fn types() -> Outcome<()> {
    let rows = r#"[{"name": "any", "type": "array", "dtype": "float32", "shape": [null, null]},
        {"name": "rows", "type": "array", "dtype": "uint8", "shape": [null, 3]},
        {"name": "fixed", "type": "array", "dtype": "int64", "shape": [3, 4]},
        {"name": "tiny", "type": "array", "dtype": "int16", "shape": [3]}, {"name": "flag", "type": "bool"},
        {"name": "texts", "type": "list", "item": {"type": "string"}},
        {"name": "numbers", "type": "list", "item": {"type": "float64"}},
        {"name": "boxes", "type": "list", "item": {"type": "array", "dtype": "int32", "shape": [null, 4]}},
        {"name": "json", "type": "json"}]"#;
    let (mut writer, memory) = writer(rows)?;
    let item = Schema::from_json(r#"[{"name": "i", "type": "array", "dtype": "int32", "shape": [null, 4]}]"#)?;
    let item = &item.fields()[0].kind;
    for number in 0..5_u8 {
        let count = u64::from(number);
        let floats = vec![number; 4 * 2 * number as usize];
        let small = vec![number; 3 * number as usize];
        let texts: Vec<String> = (0..number).map(|i| "x".repeat(i.into())).collect();
        let texts: Vec<Value<'_>> = texts.iter().map(|text| Value::Str(text)).collect();
        let texts = encode_list(&fastrecord_core::FieldType::String, &texts)?;
        let dtype = fastrecord_core::DType::Float64;
        let numbers = encode_numbers(dtype, &vec![number; 8 * number as usize]);
        let (one, two) = (vec![1; 16], vec![2; 32]);
        let boxes = [Value::Array { data: &one, shape: &[1, 4] }, Value::Array { data: &two, shape: &[2, 4] }];
        let boxes = encode_list(item, &boxes)?;
        writer.append(&[
            Value::Array { data: &floats, shape: &[2, count] },
            Value::Array { data: &small, shape: &[count, 3] },
            Value::Array { data: &[number; 96], shape: &[3, 4] },
            Value::Array { data: &[number; 6], shape: &[3] },
            Value::Number(&[number % 2]),
            Value::List(&texts),
            Value::List(&numbers),
            Value::List(&boxes),
            Value::Str(r#"{"a": [1, 2]}"#),
        ])?;
    }
    save("types.frec", writer, &memory).map(drop)
}

fn packed() -> Outcome<()> {
    let rows = r#"[{"name": "text", "type": "json", "compression": {"codec": "zstd", "level": 3, "dictionary": 512}},
        {"name": "data", "type": "bytes", "compression": {"codec": "lz4"}},
        {"name": "pixels", "type": "array", "dtype": "uint8", "shape": [null, 8], "compression": {"codec": "zstd"}},
        {"name": "names", "type": "list", "item": {"type": "string"}, "compression": {"codec": "lz4"}}]"#;
    let (mut writer, memory) = writer(rows)?;
    for number in 0..160_u64 {
        let text = format!(r#"{{"path": "train/n0{:04}/{number}.jpg", "label": {}}}"#, number % 97, number * 7 % 100);
        let data = if number < 20 { vec![number as u8; 300] } else { Vec::new() };
        let shape = if number < 20 { [5 + number, 8] } else { [0, 8] };
        let names = if number < 20 { [Value::Str("some name, some name, some name"); 3].to_vec() } else { Vec::new() };
        let names = encode_list(&fastrecord_core::FieldType::String, &names)?;
        let pixels = vec![3; (8 * shape[0]) as usize];
        let pixels = Value::Array { data: &pixels, shape: &shape };
        writer.append(&[Value::Str(&text), Value::Bytes(&data), pixels, Value::List(&names)])?;
    }
    let file = save("packed.frec", writer, &memory)?;
    let start = file.windows(4).position(|word| word == [0x37, 0xa4, 0x30, 0xec]).ok_or("no dictionary in it")?;
    let text = String::from_utf8_lossy(&file);
    let (_, rest) = text.rsplit_once(r#""dictionaries""#).ok_or("no dictionary is named")?;
    let (_, rest) = rest.split_once(r#""length":"#).ok_or("no length")?;
    let length: usize = rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse()?;
    std::fs::write("samples/dictionary.zdict", &file[start..start + length])?;
    Ok(())
}

fn main() -> Outcome<()> {
    plain()?;
    images()?;
    types()?;
    packed()
}
