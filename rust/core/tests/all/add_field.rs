//! Adding a field to the records of a file either completes or changes nothing, even after a
//! failure.

use std::fs;
use std::path::Path;

use crate::common::tape::{Faults, Tape, crash, newest, recovered};
use crate::common::{
    ALL_TYPES, Cell, Nth, Rng, Row, all_types, append, append_all, assert_holds, folder, open, options, png,
    random_row, read_by_batch, value,
};
use fastrecord_core::{
    Access, ColumnBytes, DType, Depth, Error, Field, FieldType, Mode, Reader, Result, Schema, Value, Writer,
    WriterOptions, verify,
};

const INT64: FieldType = FieldType::Scalar(DType::Int64);
const FLOAT64: FieldType = FieldType::Scalar(DType::Float64);

fn field(name: &str, kind: &FieldType) -> Field {
    Schema::new([(name, kind.clone())]).unwrap().fields()[0].clone()
}

fn random_cell(rng: &mut Rng, kind: &FieldType, most: u64) -> Cell {
    random_row(rng, &Schema::new([("any", kind.clone())]).unwrap(), most).remove(0)
}

fn reopen(path: &Path) -> Writer {
    Writer::open(path, None, None, &options(Mode::Append)).unwrap()
}

/// A file of some records with one field.
fn labels(path: &Path, count: i64) -> Vec<Row> {
    let rows: Vec<Row> = (0..count).map(|label| vec![Cell::Int(label)]).collect();
    let schema = Schema::new([("label", INT64)]).unwrap();
    let mut writer = Writer::open(path, Some(schema), None, &options(Mode::Create)).unwrap();
    append_all(&mut writer, &rows);
    writer.close().unwrap();
    rows
}

/// Adds a field to all rows, a given number of values at a time.
fn add(writer: &mut Writer, rows: &mut [Row], field: &Field, rng: &mut Rng, most: u64, batch: usize) -> Result<u64> {
    let cells: Vec<Cell> = rows.iter().map(|_| random_cell(rng, &field.kind, most)).collect();
    let new = writer.start_field(field)?;
    for cells in cells.chunks(batch) {
        writer.fill(new, &cells.iter().map(value).collect::<Vec<_>>())?;
    }
    let commit = writer.commit_field(new)?;
    rows.iter_mut().zip(cells).for_each(|(row, cell)| row.push(cell));
    Ok(commit)
}

#[test]
fn fields_of_every_type_are_added_one_after_the_other_and_records_appended_between_them() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let (mut rng, mut rows) = (Rng(1), labels(&path, 300));
    let mut ids = vec![1];
    for (i, (name, kind)) in ALL_TYPES.iter().enumerate() {
        let new = field(&format!("{name} é"), kind);
        let mut writer = reopen(&path);
        add(&mut writer, &mut rows, &new, &mut rng, 3000, 1 + 70 * i).unwrap();
        for _ in 0..40 {
            rows.push(random_row(&mut rng, writer.schema(), 3000));
            append(&mut writer, rows.last().unwrap()).unwrap();
        }
        writer.close().unwrap();
        assert_holds(&path, &rows);
        ids.push(i as u32 + 2);
    }
    let reader = open(&path);
    assert_eq!(reader.schema().fields().iter().map(|f| f.id).collect::<Vec<_>>(), ids);
    assert!(verify(&reader, Depth::Checksums, &|| false).unwrap().errors.is_empty());
}

#[test]
fn records_of_the_same_session_get_the_field_and_are_committed_before_it() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut rows = labels(&path, 5);
    let (mut writer, mut rng) = (reopen(&path), Rng(2));
    rows.push(vec![Cell::Int(7)]);
    append(&mut writer, &rows[5]).unwrap();
    add(&mut writer, &mut rows, &field("key", &FieldType::String), &mut rng, 100, 4).unwrap();
    assert_eq!(writer.committed(), 6);
    drop(writer);
    assert_holds(&path, &rows);
}

#[test]
fn a_reader_keeps_its_snapshot_and_sees_the_field_once_it_refreshes() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    labels(&path, 50);
    for access in [Access::Mmap, Access::Pread] {
        let before = Reader::open(&path, access, None).unwrap();
        let known = before.schema().clone();
        let mut rows = read_by_batch(&before).unwrap();
        let mut writer = reopen(&path);
        let name = format!("score {access:?}");
        let new = writer.start_field(&field(&name, &FLOAT64)).unwrap();
        writer.fill(new, &[Value::Float(0.5); 50]).unwrap();
        writer.commit().unwrap(); // commits only complete fields, so nothing changes
        assert!(before.refresh().unwrap().is_none());
        writer.commit_field(new).unwrap();
        writer.close().unwrap();
        assert_eq!((read_by_batch(&before).unwrap(), before.schema()), (rows.clone(), &known));
        let after = before.refresh().unwrap().expect("a new commit");
        for row in &mut rows {
            row.push(Cell::Float(0.5_f64.to_bits()));
        }
        assert_eq!(read_by_batch(&after).unwrap(), rows);
        // Another process can open the old snapshot again by its name.
        let again = Reader::open_snapshot(&path, access, None, before.snapshot()).unwrap();
        assert_eq!(again.schema(), &known);
    }
}

#[test]
fn a_field_without_a_value_for_each_record_is_refused_and_the_file_is_as_it_was() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let rows = labels(&path, 9);
    let bytes = fs::read(&path).unwrap();
    let mut writer = reopen(&path);
    let new = writer.start_field(&field("key", &FieldType::String)).unwrap();
    writer.fill(new, &[Value::Str("value"); 7]).unwrap();
    assert_eq!(writer.filled(new).unwrap(), 7);
    let error = writer.commit_field(new).unwrap_err();
    let message = format!(
        "{}: field \"key\" was not added: 2 of the 9 records have no value: give one for each, in record order",
        path.display()
    );
    assert_eq!(error.to_string(), message);
    assert!(matches!(writer.filled(new), Err(Error::Schema(_))), "it is dropped");
    writer.close().unwrap();
    assert!(fs::read(&path).unwrap() == bytes);
    // `close` reports the same error.
    let mut writer = reopen(&path);
    let new = writer.start_field(&field("key", &FieldType::String)).unwrap();
    writer.fill(new, &[Value::Str("value"); 7]).unwrap();
    assert_eq!(writer.close().unwrap_err().to_string(), message);
    writer.close().unwrap();
    assert!(fs::read(&path).unwrap() == bytes);
    assert_holds(&path, &rows);
}

#[test]
fn what_does_not_fit_is_refused_names_its_record_and_nothing_of_the_call_is_taken() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    labels(&path, 4);
    let mut writer = reopen(&path);
    let image = png(3, 2, b"");
    let new = writer.start_field(&field("thumb", &FieldType::Image)).unwrap();
    writer.fill(new, &[Value::Bytes(&image)]).unwrap();
    let error = writer.fill(new, &[Value::Bytes(&image), Value::Bytes(b"no image"), Value::Bytes(&image)]).unwrap_err();
    let start = format!("{}: record 2, field thumb: ", path.display());
    assert!(error.to_string().starts_with(&start), "{error}");
    let error = writer.fill(new, &[Value::Int(1)]).unwrap_err();
    assert!(error.to_string().ends_with("record 1, field thumb: the value is not image"), "{error}");
    let error = writer.fill(new, &[Value::Bytes(&image); 4]).unwrap_err();
    assert!(error.to_string().ends_with("record 4, field thumb: too many values: the file has 4 records"), "{error}");
    assert_eq!(writer.filled(new).unwrap(), 1);
    let error = writer.append(&[Value::Int(1)]).unwrap_err();
    assert!(matches!(&error, Error::Filling { field, .. } if field == "thumb"), "{error}");
    writer.fill(new, &[Value::Bytes(&image); 3]).unwrap();
    writer.commit_field(new).unwrap();
    writer.append(&[Value::Int(1), Value::Bytes(&image)]).unwrap();
    assert!(writer.append(&[Value::Int(1)]).is_err());
    writer.close().unwrap();
    let rows: Vec<Row> =
        [0, 1, 2, 3, 1].map(|label| vec![Cell::Int(label), Cell::Image(image.clone(), (3, 2))]).to_vec();
    assert_holds(&path, &rows);
}

#[test]
fn a_name_that_is_taken_or_not_allowed_is_refused() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    labels(&path, 4);
    let mut writer = reopen(&path);
    let error = writer.start_field(&field("label", &FLOAT64)).unwrap_err();
    let text = "field \"label\" cannot be added: the file already has it; add the new values as \"label_v2\"";
    assert!(error.to_string().ends_with(text), "{error}");
    writer.start_field(&field("new", &FLOAT64)).unwrap();
    let error = writer.start_field(&field("new", &FLOAT64)).unwrap_err();
    assert!(error.to_string().ends_with("it is already being added"), "{error}");
}

#[test]
fn several_fields_grow_side_by_side_and_each_is_committed_or_dropped_by_itself() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let mut rows = labels(&path, 6);
    let mut writer = reopen(&path);
    let image = writer.start_field(&field("image", &FieldType::Image)).unwrap();
    let dropped = writer.start_field(&field("dropped", &FieldType::String)).unwrap();
    let key = writer.start_field(&field("key", &FieldType::String)).unwrap();
    let thumb = png(7, 5, b"..");
    for (i, row) in rows.iter_mut().enumerate() {
        let text = format!("key {i}");
        writer.fill(image, &[Value::Bytes(&thumb)]).unwrap();
        writer.fill(dropped, &[Value::Str("never seen")]).unwrap();
        writer.fill(key, &[Value::Str(&text)]).unwrap();
        row.extend([Cell::Text(text), Cell::Image(thumb.clone(), (7, 5))]);
    }
    writer.commit_field(key).unwrap();
    writer.drop_new_field(dropped).unwrap();
    writer.drop_new_field(dropped).unwrap();
    // The remaining field is complete, so closing commits it.
    writer.close().unwrap();
    assert_holds(&path, &rows);
    let reader = open(&path);
    let ids: Vec<_> = reader.schema().fields().iter().map(|f| (f.id, f.name.as_str())).collect();
    assert_eq!(ids, [(1, "label"), (4, "key"), (2, "image")]);
}

#[test]
fn a_dropped_field_is_gone_its_id_is_never_reused_and_older_snapshots_have_it() {
    let folder = folder();
    let path = folder.path().join("x.frec");
    let (mut rng, mut rows) = (Rng(3), labels(&path, 30));
    let mut writer = reopen(&path);
    assert!(matches!(writer.drop_field("none"), Err(Error::NoField { .. })));
    assert!(writer.drop_field("label").is_err(), "the only one");
    let key = field("key", &FieldType::String);
    add(&mut writer, &mut rows, &key, &mut rng, 50, 30).unwrap();
    writer.close().unwrap();
    let before = open(&path);
    let mut writer = reopen(&path);
    writer.drop_field("key").unwrap();
    writer.close().unwrap();
    assert_eq!(read_by_batch(&before).unwrap(), rows);
    for row in &mut rows {
        row.truncate(1);
    }
    assert_holds(&path, &rows);
    // Open another session, so that the ids come from the file.
    let mut writer = reopen(&path);
    add(&mut writer, &mut rows, &key, &mut rng, 50, 30).unwrap();
    writer.close().unwrap();
    assert_holds(&path, &rows);
    assert_eq!(open(&path).schema().fields()[1].id, 3);
}

#[test]
fn a_big_column_is_written_in_chunks_while_it_grows_and_is_one_chunk_after_close() {
    const COUNT: i64 = 4_500_000;
    let folder = folder();
    let path = folder.path().join("x.frec");
    let schema = Schema::new([("label", INT64)]).unwrap();
    let mut writer = Writer::open(&path, Some(schema), None, &options(Mode::Create)).unwrap();
    for label in 0..COUNT {
        writer.append(&[Value::Int(label)]).unwrap();
    }
    let written = writer.bytes_written();
    let new = writer.start_field(&field("score", &INT64)).unwrap();
    for start in (0..COUNT).step_by(50_000) {
        let values: Vec<_> = (start..start + 50_000).map(|i| Value::Int(-i)).collect();
        writer.fill(new, &values).unwrap();
    }
    assert!(writer.bytes_written() > written + (32 << 20), "entries are not all held in memory");
    writer.commit_field(new).unwrap();
    let reader = open(&path);
    assert!(matches!(reader.column("score").unwrap().1, ColumnBytes::Copied(_)), "two chunks");
    writer.close().unwrap();
    let reader = open(&path);
    let (_, ColumnBytes::Mapped(..)) = reader.column("score").unwrap() else { panic!("more than one chunk") };
    let bytes =
        reader.values(reader.nth(1), &reader.records(&[0, 4_194_303, 4_194_304, COUNT as u64 - 1]).unwrap()).unwrap();
    let words: Vec<i64> = bytes.chunks_exact(8).map(|word| i64::from_le_bytes(word.try_into().unwrap())).collect();
    assert_eq!(words, [0, -4_194_303, -4_194_304, 1 - COUNT]);
}

/// The content of each commit of a recorded session, from commit 1.
struct Story {
    tape: Tape,
    commits: Vec<Vec<Row>>,
}

impl Story {
    fn open(&self) -> Writer {
        let (path, storage) = (Path::new("tape.frec"), Box::new(self.tape.clone()));
        if self.tape.live().is_empty() {
            Writer::create_in(path, storage, all_types(), &WriterOptions::default()).unwrap()
        } else {
            Writer::append_in(path, storage, &WriterOptions::default()).unwrap()
        }
    }

    /// Records the content of a commit before the attempt: a failed commit may still reach the
    /// disk.
    fn expect(&mut self, rows: &[Row]) {
        self.commits.push(rows.to_vec());
    }

    fn promise(&mut self) {
        let found = newest(&self.tape.live()).expect("a commit was made");
        assert_eq!(found as usize, self.commits.len());
        self.tape.promise(found);
    }

    fn survives(&self, name: &str, times: u64) {
        let folder = folder();
        let path = folder.path().join("x.frec");
        let ops = self.tape.ops();
        for length in 0..=ops.len() {
            for time in 0..times {
                let seed = (length as u64) << 32 | time;
                let mut rng = Rng(seed);
                let (disk, promised) = crash(&ops[..length], &mut rng);
                fs::write(&path, &disk).unwrap();
                let (commit, rows) = recovered(&path).unwrap_or_default();
                let context = format!("{name}: crash({length} of {} operations, seed {seed})", ops.len());
                assert!(commit >= promised, "{context}: commit {promised} was promised, {commit} is there");
                let expected = commit.checked_sub(1).map_or(&[][..], |before| &self.commits[before as usize]);
                assert!(rows == expected, "{context}: commit {commit} has other records than were written");
                if commit > 0 && rng.chance(20) {
                    goes_on(&path, disk, rows, &mut rng);
                }
            }
        }
    }
}

/// The next writer adds a field to the file that a crash leaves.
fn goes_on(path: &Path, disk: Vec<u8>, mut rows: Vec<Row>, rng: &mut Rng) {
    let tape = Tape::holding(disk);
    let mut writer = Writer::append_in(path, Box::new(tape.clone()), &WriterOptions::default()).unwrap();
    add(&mut writer, &mut rows, &field("after the crash", &FieldType::String), rng, 500, 3).unwrap();
    writer.close().unwrap();
    fs::write(path, tape.live()).unwrap();
    assert_eq!(recovered(path).unwrap().1, rows);
}

/// Appends records, adds a field of every type (each after an abandoned one), and appends again.
fn record(story: &mut Story, rng: &mut Rng, faults: Faults) -> Result<()> {
    let mut rows: Vec<Row> = (0..7).map(|_| random_row(rng, &all_types(), 2000)).collect();
    let mut writer = story.open();
    story.tape.break_next(faults);
    append_all(&mut writer, &rows);
    story.expect(&rows);
    writer.commit()?;
    story.promise();
    for (name, kind) in &ALL_TYPES {
        let given_up = writer.start_field(&field("given up", kind))?;
        writer.fill(given_up, &[value(&random_cell(rng, kind, 5000))])?;
        writer.drop_new_field(given_up)?;
        let new = writer.start_field(&field(&format!("{name} 2"), kind))?;
        for row in &mut rows {
            row.push(random_cell(rng, kind, 2000));
            writer.fill(new, &[value(row.last().unwrap())])?;
        }
        story.expect(&rows);
        writer.commit_field(new)?;
        story.promise();
    }
    for _ in 0..3 {
        rows.push(random_row(rng, writer.schema(), 2000));
        append(&mut writer, rows.last().unwrap())?;
    }
    story.expect(&rows);
    writer.close()?;
    story.promise();
    Ok(())
}

#[test]
fn a_crash_at_any_moment_of_adding_fields_leaves_a_whole_commit_and_the_next_writer_adds_another() {
    for seed in 0..2 {
        let (mut rng, mut story) = (Rng(seed), Story { tape: Tape::default(), commits: Vec::new() });
        record(&mut story, &mut rng, Faults::default()).unwrap();
        story.survives(&format!("story {seed}"), 20);
    }
}

#[test]
fn a_full_disk_or_a_failed_sync_while_fields_are_added_stops_the_writer_and_the_file_is_good() {
    let mut broken = 0;
    let writes = (0..40).map(|write| Faults { write: Some(write), sync: None });
    let syncs = (0..20).map(|sync| Faults { write: None, sync: Some(sync) });
    for (number, faults) in writes.chain(syncs).enumerate() {
        let (mut rng, mut story) = (Rng(number as u64), Story { tape: Tape::default(), commits: Vec::new() });
        let Err(error) = record(&mut story, &mut rng, faults) else { continue };
        assert!(matches!(error, Error::WriteFailed { .. } | Error::WriterFailed { .. }), "{error}");
        broken += 1;
        story.survives(&format!("{faults:?}"), 1);
    }
    assert!(broken > 30, "only {broken} sessions met a fault");
}
