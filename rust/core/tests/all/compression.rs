//! Compressed fields: values round-trip, damage is an error, and the memory that a file can demand
//! has a limit.

use std::fs;
use std::path::Path;

use crate::common::{EXTENTS, Forge, Nth, Rng, VALUES, folder, never, options};
use fastrecord_core::limits::MAX_METADATA_BYTES;
use fastrecord_core::{
    Access, Codec, Copier, Damage, Datum, Depth, Error, FieldType, Mode, Reader, Schema, Value, Verify, Writer,
    WriterOptions, verify,
};
use proptest::prelude::*;

const ZSTD: &str = r#"{"codec": "zstd", "level": 3}"#;
const LZ4: &str = r#"{"codec": "lz4"}"#;

/// A field of bytes and a text field, each with its own compression.
fn schema(data: &str, text: &str) -> Schema {
    let row =
        |name: &str, kind: &str, how: &str| format!(r#"{{"name": "{name}", "type": "{kind}", "compression": {how}}}"#);
    Schema::from_json(&format!("[{}, {}]", row("data", "bytes", data), row("text", "string", text))).unwrap()
}

fn create(path: &Path, schema: Schema) -> Writer {
    Writer::open(path, Some(schema), None, &options(Mode::Create)).unwrap()
}

/// Bytes that shrink to about a half, do not shrink, or shrink to almost nothing.
fn value(rng: &mut Rng, most: u64) -> Vec<u8> {
    let length = rng.below(most + 1) as usize;
    match rng.below(4) {
        0 => rng.bytes(length),
        1 => vec![rng.next() as u8; length],
        _ => rng.bytes(length).iter().map(|byte| byte % 16 + b'a').collect(),
    }
}

/// Rows of both fields.
fn rows(seed: u64, count: usize, most: u64) -> Vec<(Vec<u8>, String)> {
    let mut rng = Rng(seed);
    let text = |rng: &mut Rng| value(rng, most).iter().map(|byte| char::from(byte % 26 + b'a')).collect();
    (0..count).map(|_| (value(&mut rng, most), text(&mut rng))).collect()
}

fn append(writer: &mut Writer, rows: &[(Vec<u8>, String)]) {
    for (data, text) in rows {
        writer.append(&[Value::Bytes(data), Value::Str(text)]).unwrap();
    }
}

/// Asserts that all values are present, whichever way they are read.
fn assert_holds(path: &Path, rows: &[(Vec<u8>, String)]) {
    for access in [Access::Mmap, Access::Pread] {
        let reader = Reader::open(path, access, Some(2)).unwrap();
        let records = reader.records((0..rows.len() as u64).rev().collect::<Vec<u64>>()).unwrap();
        assert_eq!(reader.len(), rows.len() as u64);
        let texts = reader.strings(reader.nth(1), &records).unwrap();
        let (all, starts) = reader.read_batch_copy(reader.nth(0), &records, Verify::Always, &never).unwrap();
        let (owned, ranges) = reader.read_batch_owned(reader.nth(0), &records, Verify::Never, &never).unwrap();
        let lengths = reader.lengths(reader.nth(0), &records).unwrap();
        assert_eq!(all, owned);
        for (i, &record) in records.iter().enumerate() {
            let (data, text) = &rows[record as usize];
            assert_eq!(texts[i].as_ref(), Some(text));
            assert!(all[starts[i] as usize..starts[i + 1] as usize] == data[..], "record {record}");
            assert_eq!((ranges[i], lengths[i]), (Some((starts[i], data.len() as u64)), data.len() as u64));
            assert_eq!(&reader.payload(reader.nth(0), record, Verify::Never).unwrap(), data);
            match reader.datum(reader.nth(0), record, Verify::Always).unwrap() {
                Datum::Decompressed(found) => assert_eq!(&found, data),
                Datum::Payload(_, length) => assert_eq!(length, data.len() as u64),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(verify(&reader, Depth::Checksums, &|| false).unwrap().errors, [""; 0]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_values_come_back_whatever_the_codec_and_the_commits(
        data in prop::sample::select(vec![LZ4, ZSTD, r#"{"codec": "auto"}"#, r#"{"codec": "zstd", "level": 19}"#]),
        text in prop::sample::select(vec![LZ4, ZSTD, r#"{"codec": "zstd", "dictionary": true}"#, r#"{"codec": "auto"}"#]),
        sessions in prop::collection::vec(prop::collection::vec(0_usize..40, 0..4), 1..4),
        most in prop::sample::select(vec![0_u64, 30, 3_000, 100_000]),
        commit_bytes in prop::sample::select(vec![1_u64, 10_000, 1 << 30]),
        seed: u64,
    ) {
        let folder = folder();
        let path = folder.path().join("x.frec");
        let mut all = Vec::new();
        for (number, commits) in sessions.iter().enumerate() {
            let mode = if number == 0 { Mode::Create } else { Mode::Append };
            let options = WriterOptions { mode, commit_bytes, complete: None };
            let schema = (number == 0).then(|| schema(data, text));
            let mut writer = Writer::open(&path, schema, None, &options).unwrap();
            for (part, &count) in commits.iter().enumerate() {
                let new = rows(seed.wrapping_add((number * 100 + part) as u64), count, most);
                append(&mut writer, &new);
                all.extend(new);
                writer.commit().unwrap();
            }
            writer.close().unwrap();
        }
        assert_holds(&path, &all);
    }
}

#[test]
fn large_batches_are_decompressed_on_several_threads() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let all = rows(3, 60, 200_000);
    let mut writer = create(&path, schema(LZ4, ZSTD));
    append(&mut writer, &all);
    writer.close().unwrap();
    let reader = Reader::open(&path, Access::Mmap, None).unwrap();
    assert!(
        reader
            .lengths(reader.nth(0), &reader.records((0..60).collect::<Vec<u64>>()).unwrap())
            .unwrap()
            .iter()
            .sum::<u64>()
            > 1 << 20
    );
    assert_holds(&path, &all);
}

#[test]
fn values_are_stored_smaller_or_as_they_are() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut rng = Rng(1);
    let (noise, zeros) = (rng.bytes(50_000), vec![0; 50_000]);
    let mut writer = create(&path, schema(LZ4, ZSTD));
    for data in [&noise, &zeros, &Vec::new()] {
        writer.append(&[Value::Bytes(data), Value::Str("")]).unwrap();
    }
    let packed = writer.compression();
    assert_eq!((packed[0].codec, packed[0].raw), (Some(Codec::Lz4), 100_000));
    assert!((50_000..50_500).contains(&packed[0].stored));
    assert_eq!((packed[1].codec, packed[1].level, packed[1].raw), (Some(Codec::Zstd), Some(3), 0));
    writer.close().unwrap();
    let reader = Reader::open(&path, Access::Mmap, None).unwrap();
    assert!(matches!(reader.datum(reader.nth(0), 0, Verify::Always).unwrap(), Datum::Payload(_, 50_000)));
    assert!(
        matches!(reader.datum(reader.nth(0), 1, Verify::Always).unwrap(), Datum::Decompressed(found) if found == zeros)
    );
    assert!(
        reader.view_batch(reader.nth(0), &reader.records(&[0, 2]).unwrap(), Verify::Never, &never).unwrap().is_some()
    );
    assert!(
        reader.view_batch(reader.nth(0), &reader.records(&[0, 1]).unwrap(), Verify::Never, &never).unwrap().is_none()
    );
    // An uncompressed payload has the alignment that views need.
    assert!(matches!(reader.datum(reader.nth(0), 2, Verify::Always).unwrap(), Datum::Payload(at, 0) if at % 8 == 0));
}

#[test]
fn auto_takes_what_pays_and_the_file_goes_on_with_it() {
    let folder = folder();
    let auto = r#"{"codec": "auto"}"#;
    let mut rng = Rng(5);
    let noise: Vec<Vec<u8>> = (0..50).map(|_| rng.bytes(2_000)).collect();
    let same = "all work and no play makes jack a dull boy ".repeat(100);
    let path = folder.path().join("x.frec");
    let mut writer = create(&path, schema(auto, auto));
    assert!(writer.compression().iter().all(|packed| packed.codec.is_none()));
    for data in &noise {
        writer.append(&[Value::Bytes(data), Value::Str(&same)]).unwrap();
    }
    writer.commit().unwrap();
    let packed = writer.compression();
    assert_eq!(packed[0].codec, Some(Codec::None));
    assert_ne!(packed[1].codec, Some(Codec::None));
    assert!(packed[1].stored * 10 < packed[1].raw);
    assert!(packed[1].why.starts_with("of 50 values (215000 bytes) compressed lz4 "), "{}", packed[1].why);
    writer.close().unwrap();
    let reader = Reader::open(&path, Access::Mmap, None).unwrap();
    assert_eq!(reader.schema().fields()[0].compression, None);
    assert_eq!(reader.schema().fields()[1].compression.as_ref().map(|row| row.codec), packed[1].codec);

    // After the first records, the writer does not decide again.
    let given = schema(auto, auto);
    let mut writer = Writer::open(&path, Some(given), None, &options(Mode::Append)).unwrap();
    writer.append(&[Value::Bytes(same.as_bytes()), Value::Str(&same)]).unwrap();
    assert_eq!(writer.compression().len(), 1);
    assert_eq!(writer.compression()[0].codec, packed[1].codec);
    writer.close().unwrap();
    let mut all: Vec<_> = noise.into_iter().map(|data| (data, same.clone())).collect();
    all.push((same.clone().into_bytes(), same));
    assert_holds(&path, &all);
}

#[test]
fn values_are_held_back_until_there_are_enough_to_decide_by() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut writer = create(&path, schema(r#"{"codec": "auto"}"#, LZ4));
    let all = rows(9, 3, 1000);
    let long = vec![b'x'; 3 << 20];
    let mut undecided = Vec::new();
    for _ in 0..4 {
        writer.append(&[Value::Bytes(&long), Value::Str("")]).unwrap();
        undecided.push(writer.compression()[0].codec.is_none());
    }
    assert_eq!(undecided, [true, true, false, false]);
    append(&mut writer, &all);
    writer.close().unwrap();
    assert_holds(&path, &[vec![(long, String::new()); 4], all].concat());
}

/// JSON text in short pieces.
fn lines(count: usize) -> Vec<String> {
    let line = |i: usize| format!("{{\"path\": \"train/n0{:04}/{i}.jpg\", \"label\": {}}}", i % 97, i * 7 % 1000);
    (0..count).map(line).collect()
}

#[test]
fn a_dictionary_is_trained_once_and_used_by_later_writers() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let all = lines(3000);
    let size = |how: &str, name: &str| {
        let path = folder.path().join(name);
        let mut writer = create(&path, schema(LZ4, how));
        for line in &all {
            writer.append(&[Value::Bytes(b""), Value::Str(line)]).unwrap();
        }
        writer.close().unwrap();
        let packed = writer.compression().pop().unwrap();
        (packed.stored, packed.dictionary)
    };
    let with = size(r#"{"codec": "zstd", "dictionary": 8192}"#, "x.frec");
    assert!(with.1.is_some() && with.0 * 3 < size(ZSTD, "y.frec").0 * 2, "{with:?}");

    let mut writer = Writer::open(&path, None, None, &options(Mode::Append)).unwrap();
    assert_eq!(writer.compression()[1].dictionary, with.1);
    for line in &all[..500] {
        writer.append(&[Value::Bytes(b""), Value::Str(line)]).unwrap();
    }
    assert!(writer.compression()[1].stored * 5 < with.0, "the dictionary is used");
    writer.close().unwrap();
    let reader = Reader::open(&path, Access::Mmap, None).unwrap();
    assert_eq!(reader.schema().fields()[1].compression.as_ref().unwrap().dictionaries(), [with.1.unwrap()]);
    let rows: Vec<_> = all.iter().chain(&all[..500]).map(|line| (Vec::new(), line.clone())).collect();
    assert_holds(&path, &rows);

    // A flipped bit in it is an error that names it, both for readers and for the next writer.
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(4).position(|word| word == [0x37, 0xA4, 0x30, 0xEC]).unwrap();
    bytes[at + 100] ^= 4;
    fs::write(&path, &bytes).unwrap();
    let named = |error: Error| assert!(error.to_string().contains("dictionary "), "{error}");
    let reader = Reader::open(&path, Access::Mmap, None).unwrap();
    named(reader.strings(reader.nth(1), &reader.records(&[0]).unwrap()).unwrap_err());
    named(Writer::open(&path, None, None, &options(Mode::Append)).unwrap_err());
    assert_eq!(
        verify(&Reader::open(&path, Access::Mmap, None).unwrap(), Depth::Checksums, &|| false).unwrap().errors.len(),
        1
    );
}

#[test]
fn a_file_that_a_writer_cannot_open_keeps_every_byte() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let how = r#"{"codec": "zstd", "dictionary": 512}"#;
    let mut writer = create(&path, schema(LZ4, how));
    for line in lines(600) {
        writer.append(&[Value::Bytes(b""), Value::Str(&line)]).unwrap();
    }
    writer.close().unwrap();
    let whole = fs::read(&path).unwrap();
    let open = |mode, schema, user| Writer::open(&path, schema, user, &options(mode));
    let kept = |bytes: &[u8]| {
        assert!(fs::read(&path).unwrap() == bytes, "the file changed");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a file was left behind");
    };

    // Another schema, another compression, too much metadata, and a file that exists.
    let other = Schema::new([("data", FieldType::Bytes)]).unwrap();
    let huge = || Some([("x".to_owned(), "x".repeat(MAX_METADATA_BYTES as usize).into())].into_iter().collect());
    for (mode, schema, user) in [
        (Mode::Append, Some(other), None),
        (Mode::Append, Some(schema(ZSTD, how)), None),
        (Mode::Append, None, huge()),
        (Mode::Overwrite, Some(schema(LZ4, how)), huge()),
        (Mode::Create, Some(schema(LZ4, how)), None),
    ] {
        open(mode, schema, user).unwrap_err();
        kept(&whole);
    }

    // Damage anywhere, of the dictionary too.
    let mut errors = Vec::new();
    for at in (0..whole.len()).step_by(5) {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        fs::write(&path, &bytes).unwrap();
        errors.extend(open(Mode::Append, None, None).err().map(|error| error.to_string()));
        kept(&bytes);
    }
    assert!(errors.iter().any(|error| error.contains("dictionary ")), "{errors:?}");
}

#[test]
fn too_few_values_make_no_dictionary_and_are_compressed_all_the_same() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut writer = create(&path, schema(LZ4, r#"{"codec": "zstd", "level": 5, "dictionary": true}"#));
    let text = "word ".repeat(100);
    writer.append(&[Value::Bytes(b""), Value::Str(&text)]).unwrap();
    writer.close().unwrap();
    let packed = writer.compression().pop().unwrap();
    assert_eq!((packed.codec, packed.level, packed.dictionary), (Some(Codec::Zstd), Some(5), None));
    assert!(packed.why.starts_with("no dictionary: "), "{}", packed.why);
    assert_holds(&path, &[(Vec::new(), text)]);
}

#[test]
fn another_compression_than_the_files_is_refused_to_append() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut writer = create(&path, schema(LZ4, ZSTD));
    append(&mut writer, &rows(1, 1, 100));
    writer.close().unwrap();
    for (data, text) in [(ZSTD, ZSTD), (LZ4, LZ4), (LZ4, r#"{"codec": "zstd", "level": 4}"#)] {
        let error = Writer::open(&path, Some(schema(data, text)), None, &options(Mode::Append)).unwrap_err();
        assert!(matches!(error, Error::SchemaMismatch { .. }) && error.to_string().contains("compression"), "{error}");
    }
    let plain = Schema::new([("data", FieldType::Bytes), ("text", FieldType::String)]).unwrap();
    for schema in [schema(LZ4, ZSTD), plain] {
        drop(Writer::open(&path, Some(schema), None, &options(Mode::Append)).unwrap());
    }
}

#[test]
fn every_flipped_bit_of_a_compressed_payload_is_an_error() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    for how in [LZ4, ZSTD] {
        let _ = fs::remove_file(&path);
        let mut writer = create(&path, schema(how, how));
        let text = "to be or not to be, that is the question; ".repeat(4);
        writer.append(&[Value::Bytes(text.as_bytes()), Value::Str(&text)]).unwrap();
        let stored = writer.compression()[0].stored as usize;
        writer.close().unwrap();
        let good = fs::read(&path).unwrap();
        assert!(stored < text.len());
        for bit in 0..8 * stored {
            let mut bytes = good.clone();
            bytes[4096 + bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &bytes).unwrap();
            let access = if bit % 2 == 0 { Access::Mmap } else { Access::Pread };
            let reader = Reader::open(&path, access, None).unwrap();
            let damaged = |error: Error| {
                assert!(matches!(error, Error::Value { record: 0, damage: Damage::Checksum { .. }, .. }), "{error}");
            };
            damaged(
                reader
                    .read_batch_copy(reader.nth(0), &reader.records(&[0]).unwrap(), Verify::Never, &never)
                    .unwrap_err(),
            );
            damaged(
                reader
                    .read_batch_owned(reader.nth(0), &reader.records(&[0]).unwrap(), Verify::Never, &never)
                    .unwrap_err(),
            );
            damaged(reader.payload(reader.nth(0), 0, Verify::Never).unwrap_err());
            if access == Access::Mmap {
                damaged(reader.datum(reader.nth(0), 0, Verify::Never).unwrap_err());
            }
            assert_eq!(verify(&reader, Depth::Checksums, &|| false).unwrap().errors.len(), 1);
        }
    }
}

/// A file of one value: `stored` bytes, declared as `raw` bytes compressed by `codec`, with a right
/// CRC.
fn made_by_hand(path: &Path, kind: &str, codec: u8, stored: &[u8], raw: u64) -> Reader {
    let mut file = Forge::new(&format!(r#"[{{"id": 1, "name": "data", "type": "{kind}"}}]"#), 1);
    let mut entry = file.payload(stored);
    entry[16..24].copy_from_slice(&raw.to_le_bytes());
    entry[28] = codec;
    file.chunk(1, 0, EXTENTS, 32, 0, &entry);
    if kind == "image" {
        for part in [1, 2] {
            file.chunk(1, part, VALUES, 4, 0, &[1, 0, 0, 0]);
        }
    }
    fs::write(path, file.build(|_| ())).unwrap();
    Reader::open(path, Access::Mmap, None).unwrap()
}

/// One zstd frame that repeats `word`.
fn bomb(raw: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 << 20);
    zstd_safe::compress(&mut out, &vec![0_u8; raw], 19).unwrap();
    out
}

#[test]
fn what_the_index_says_of_a_compressed_payload_is_not_believed() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let stored = bomb(1000);
    let good = made_by_hand(&path, "bytes", 2, &stored, 1000);
    assert_eq!(good.payload(good.nth(0), 0, Verify::Always).unwrap(), [0; 1000]);
    for (codec, stored, raw) in [
        (2, &stored[..], 999),
        (2, &stored, 1001),
        (2, &stored[..stored.len() - 1], 1000),
        (2, &[&stored[..], &stored[..]].concat(), 1000),
        (2, &[&stored[..], &stored[..]].concat(), 2000),
        (2, &[&stored[..], b"\x50\x2a\x4d\x18\0\0\0\0"].concat(), 1000),
        (1, &stored, 1000),
        (2, b"garbage", 1000),
        (1, b"garbage", 1000),
        (1, b"\x10a", 2000),
        (1, b"\x00", 10),
    ] {
        let reader = made_by_hand(&path, "bytes", codec, stored, raw);
        let read = [
            reader.payload(reader.nth(0), 0, Verify::Always).unwrap_err(),
            reader.read_batch_copy(reader.nth(0), &reader.records(&[0]).unwrap(), Verify::Always, &never).unwrap_err(),
            reader.datum(reader.nth(0), 0, Verify::Never).unwrap_err(),
        ];
        for error in read {
            assert!(
                matches!(&error, Error::Value { record: 0, field, damage: Damage::Compressed(_), .. } if field == "data"),
                "{error}"
            );
        }
    }
    // The index alone shows that the value is impossible.
    let kinds = [("bytes", 3, 1000), ("bytes", 255, 1000), ("bytes", 2, 0), ("bytes", 2, stored.len() as u64)];
    for (kind, codec, raw) in kinds.into_iter().chain([("image", 2, 1000), ("bytes", 2, u64::MAX)]) {
        let reader = made_by_hand(&path, kind, codec, &stored, raw);
        for error in [
            reader.payload(reader.nth(0), 0, Verify::Always).unwrap_err(),
            reader.lengths(reader.nth(0), &reader.records(&[0]).unwrap()).unwrap_err(),
        ] {
            assert!(
                matches!(error, Error::Value { record: 0, damage: Damage::Extent(_), .. }),
                "{kind} {codec} {raw}: {error}"
            );
        }
    }
}

#[test]
fn a_bomb_is_refused_before_any_memory_is_asked_for() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let raw = (1 << 26) + 1;
    let stored = bomb(raw);
    assert!(stored.len() * 1024 < raw);
    let reader = made_by_hand(&path, "bytes", 2, &stored, raw as u64);
    let error = reader.payload(reader.nth(0), 0, Verify::Always).unwrap_err();
    assert!(error.to_string().contains("more than any codec can"), "{error}");
    // Readers accept declared sizes up to 64 MiB. A writer stores a value uncompressed if readers
    // would refuse it.
    let reader = made_by_hand(&path, "bytes", 2, &bomb(raw - 1), raw as u64 - 1);
    assert_eq!(reader.payload(reader.nth(0), 0, Verify::Always).unwrap().len(), raw - 1);
    let path = folder.path().join("y.frec");
    let mut writer = create(&path, schema(ZSTD, LZ4));
    writer.append(&[Value::Bytes(&vec![0; raw]), Value::Str("")]).unwrap();
    assert_eq!(writer.compression()[0].stored, raw as u64);
    writer.close().unwrap();
    let reader = Reader::open(&path, Access::Mmap, None).unwrap();
    assert_eq!(reader.payload(reader.nth(0), 0, Verify::Always).unwrap().len(), raw);
}

#[test]
fn a_frame_that_names_an_unknown_dictionary_is_an_error() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let lines = lines(2000);
    let (all, sizes) = (lines.concat(), lines.iter().map(String::len).collect::<Vec<_>>());
    let mut dictionary = Vec::with_capacity(2048);
    zstd_safe::train_from_buffer(&mut dictionary, all.as_bytes(), &sizes).unwrap();
    let (text, mut stored) = (&lines[0], Vec::with_capacity(1000));
    let context = &mut zstd_safe::CCtx::create();
    context.compress_using_dict(&mut stored, text.as_bytes(), &dictionary, 3).unwrap();
    let reader = made_by_hand(&path, "bytes", 2, &stored, text.len() as u64);
    let error = reader.payload(reader.nth(0), 0, Verify::Always).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }) && error.to_string().contains("a payload needs it"), "{error}");
}

#[test]
fn schemas_say_what_is_wrong_with_a_compression() {
    let refused = |field: &str, text: &str| {
        let error = Schema::from_json(&format!(r#"[{{"name": "x", {field}}}]"#)).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    };
    refused(r#""type": "image", "compression": {"codec": "lz4"}"#, "images are compressed already");
    refused(r#""type": "int64", "compression": {"codec": "lz4"}"#, "index column");
    refused(r#""type": "bytes", "compression": {"codec": "gzip"}"#, "gzip");
    refused(r#""type": "bytes", "compression": {"codec": "lz4", "level": 1}"#, "only zstd has levels");
    refused(r#""type": "bytes", "compression": {"codec": "lz4", "dictionary": true}"#, "only zstd has dictionaries");
    for level in ["0", "23", "1.5", "\"3\"", "true"] {
        let field = format!(r#""type": "bytes", "compression": {{"codec": "zstd", "level": {level}}}"#);
        refused(&field, "levels 1 to 22");
    }
    for bytes in ["1", "-1", "16777217", "\"x\""] {
        let field = format!(r#""type": "bytes", "compression": {{"codec": "zstd", "dictionary": {bytes}}}"#);
        refused(&field, "a dictionary has 256 to 16777216 bytes");
    }
    refused(r#""type": "bytes", "compression": "lz4""#, "not an object");
    refused(r#""type": "bytes", "compression": {}"#, "no codec");
}

#[test]
fn copies_of_files_take_the_dictionaries_of_all_of_them_along() {
    let folder = folder();
    let all = lines(6000);
    let how = r#"{"codec": "zstd", "dictionary": 4096}"#;
    let paths = ["a.frec", "b.frec", "c.frec"].map(|name| folder.path().join(name));
    // The last value is not compressed.
    let schemas = [
        schema(LZ4, how),
        schema(LZ4, how),
        Schema::new([("data", FieldType::Bytes), ("text", FieldType::String)]).unwrap(),
    ];
    for ((path, schema), lines) in paths.iter().zip(schemas).zip(all.chunks(2000)) {
        let mut writer = create(path, schema);
        for line in lines {
            writer.append(&[Value::Bytes(line.as_bytes()), Value::Str(line)]).unwrap();
        }
        writer.close().unwrap();
    }
    let readers = paths.map(|path| Reader::open(&path, Access::Mmap, None).unwrap());
    for first in [0, 2] {
        let path = folder.path().join(format!("{first}.frec"));
        let mut copier = Copier::create(&path, &readers[first], Mode::Create, 6000, true).unwrap();
        for reader in &readers {
            copier.copy_run(reader, 0..1000, &[], &|| false).unwrap();
            copier.copy_rows(reader, &(1000..2000).collect::<Vec<_>>(), &[], &|| false).unwrap();
        }
        copier.finish(serde_json::Map::new(), true).unwrap();
        let rows: Vec<_> = all.iter().map(|line| (line.clone().into_bytes(), line.clone())).collect();
        assert_holds(&path, &rows);
        let reader = Reader::open(&path, Access::Mmap, None).unwrap();
        assert_eq!(reader.schema().fields()[1].compression.as_ref().unwrap().dictionaries().len(), 2);
        // Records can be appended, compressed with the last dictionary.
        let mut writer = Writer::open(&path, None, None, &options(Mode::Append)).unwrap();
        writer.append(&[Value::Bytes(b""), Value::Str(&all[0])]).unwrap();
        assert!(writer.compression().iter().any(|packed| packed.dictionary.is_some() && packed.stored < packed.raw));
        writer.close().unwrap();
    }
}
