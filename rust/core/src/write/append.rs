//! `Writer::append` and `Writer::extend`: check values, write payloads, and gather index entries
//! until the commit.

use std::ops::Range;
use std::time::Instant;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::format::field_type::FieldType;
use crate::format::schema::Field;
use crate::parallel::sync::SLICE;
use crate::write::compress::{FieldEncoder, compress_ahead};
use crate::write::field::FieldWriter;
use crate::write::value::{Block, Column, Value, check_block, check_value};
use crate::write::writer::Writer;

/// Index bytes held in memory before a commit, whatever the size of the payloads.
const INDEX: usize = 64 << 20;
/// The limit, in bytes, for the values of all fields that are held until their compression is
/// chosen.
const HELD_IN_ALL: usize = 64 << 20;

/// Limits of the values that are compressed ahead: their number and bytes. Below `WORTH_IT` bytes,
/// waking other threads does not pay.
const AHEAD: usize = 16 << 10;
const AHEAD_BYTES: usize = 8 << 20;
const WORTH_IT: usize = 64 << 10;

impl Writer {
    /// Appends one record, a value for each field of the schema in order, and returns its number.
    ///
    /// # Errors
    /// A value does not fit its field (nothing is appended), or a write fails.
    pub fn append(&mut self, values: &[Value<'_>]) -> Result<u64> {
        self.check_appendable()?;
        let sizes = self.check_values(values)?;
        let record = self.records;
        self.append_row(values, &sizes)?;
        Ok(record)
    }

    /// Appends a record whose values have been checked.
    fn append_row(&mut self, values: &[Value<'_>], sizes: &[(u32, u32)]) -> Result<()> {
        let appended = self.append_checked(values, sizes);
        self.guard(appended)?;
        self.records += 1;
        if self.commit_is_due(0) {
            self.commit()?;
        }
        Ok(())
    }

    /// Whether appending this many bytes may write to the file or commit. The call then
    /// takes long enough that other threads should run during it.
    pub fn may_write(&self, bytes: usize) -> bool {
        // A record adds padding and entries to the bytes of its values. A false positive costs
        // little.
        const MORE: usize = 4096;
        self.output.may_write(bytes + MORE) || self.is_sampling() || self.commit_is_due(bytes + MORE)
    }

    /// Whether this many more bytes, of payloads or of the index, would trigger a commit.
    fn commit_is_due(&self, more: usize) -> bool {
        let (held, index) = self.all_fields().fold((0, 0), |(held, index), field| {
            (held + field.encoder().and_then(FieldEncoder::held).unwrap_or_default(), index + field.pending())
        });
        let payloads = self.output.position() + (self.output.string_bytes() + held) as u64 - self.commit_start;
        payloads + more as u64 >= self.commit_bytes || index + more >= INDEX
    }

    /// Whether values are held back until their compression is chosen. Appending may then take a
    /// while.
    fn is_sampling(&self) -> bool {
        self.all_fields().any(|field| field.encoder().is_some_and(|encoder| encoder.held().is_some()))
    }

    /// Checks all values before any is written. Returns the image size of each value, or zeros.
    fn check_values(&self, values: &[Value<'_>]) -> Result<Vec<(u32, u32)>> {
        let fields = self.metadata.schema.fields();
        if values.len() != fields.len() {
            return Err(Error::Schema(format!("{} values for {} fields", values.len(), fields.len())));
        }
        let check = |(field, value): (&Field, _)| {
            check_value(&field.kind, value).map_err(|detail| self.bad_value(self.records, &field.name, detail))
        };
        fields.iter().zip(values).map(check).collect()
    }

    pub(super) fn bad_value(&self, record: u64, field: &str, detail: String) -> Error {
        Error::BadValue { path: self.path().to_owned(), record, field: field.to_owned(), detail }
    }

    fn append_checked(&mut self, values: &[Value<'_>], sizes: &[(u32, u32)]) -> Result<()> {
        for (i, (value, &size)) in values.iter().zip(sizes).enumerate() {
            let field = &mut self.fields[i];
            field.append(value, size, &mut self.output, &mut self.scratch)?;
            if self.must_choose(&self.fields[i]) {
                self.choose(i)?;
            }
        }
        if self.output.strings_are_due() { self.put_strings() } else { Ok(()) }
    }

    /// Whether a field holds so many values that its compression must be chosen.
    pub(super) fn must_choose(&self, field: &FieldWriter) -> bool {
        let holds = |encoder: &FieldEncoder| encoder.held().is_some();
        field.encoder().is_some_and(|encoder| encoder.has_enough() || (holds(encoder) && self.held() >= HELD_IN_ALL))
    }

    /// Bytes of values of all fields that are held until their compression is chosen.
    fn held(&self) -> usize {
        self.all_fields().filter_map(|field| field.encoder()?.held()).sum()
    }

    /// Chooses the compression of a field of the schema, if it holds values.
    pub(super) fn choose(&mut self, i: usize) -> Result<()> {
        let row = &mut self.metadata.schema.fields_mut()[i];
        self.metadata_changed |= self.fields[i].choose(row, &mut self.output, &mut self.scratch)?;
        Ok(())
    }

    /// Writes the gathered strings together, and updates their extents.
    pub(super) fn put_strings(&mut self) -> Result<()> {
        let at = self.output.put_strings()?;
        self.all_fields_mut().for_each(|field| field.resolve_strings(at));
        Ok(())
    }

    /// Appends `count` records from one column for each field of the schema, in order. Returns the
    /// number of the first record.
    ///
    /// It can be stopped between two records.
    ///
    /// # Errors
    /// A column of another length, or a value that does not fit its field, with its record: nothing
    /// is appended. Failed writes and interrupts: the records appended before them stay.
    pub fn extend(&mut self, columns: &[Column<'_>], count: usize, control: &dyn Control) -> Result<u64> {
        self.check_appendable()?;
        let (first, sizes) = (self.records, self.check_columns(columns, count)?);
        let appended = self.append_rows(columns, &sizes, count, control);
        if appended.is_err() {
            self.fields.iter_mut().filter_map(FieldWriter::encoder_mut).for_each(FieldEncoder::drop_ready);
        }
        appended.map(|()| first)
    }

    fn append_rows(
        &mut self,
        columns: &[Column<'_>],
        sizes: &[Vec<(u32, u32)>],
        count: usize,
        control: &dyn Control,
    ) -> Result<()> {
        let blocks = self.blocks(columns);
        let (mut row, mut row_sizes) = (Vec::with_capacity(columns.len()), Vec::with_capacity(columns.len()));
        let mut asked = Instant::now();
        let mut compressed = 0;
        for i in 0..count {
            if i >= compressed {
                compressed = self.compress_rows(columns, &blocks, i..count, control)?;
            }
            row.clear();
            row_sizes.clear();
            row.extend(columns.iter().zip(&blocks).map(|(column, &block)| column.value(i, block)));
            row_sizes.extend(sizes.iter().map(|sizes| sizes.get(i).copied().unwrap_or_default()));
            self.append_row(&row, &row_sizes)?;
            if asked.elapsed() >= SLICE {
                asked = Instant::now();
                control.check()?;
            }
        }
        Ok(())
    }

    /// Compresses the values of the next records on all threads, as many as may wait in memory.
    /// Returns the record after them.
    fn compress_rows(
        &mut self,
        columns: &[Column<'_>],
        blocks: &[Block],
        rows: Range<usize>,
        control: &dyn Control,
    ) -> Result<usize> {
        let encoders: Vec<_> =
            self.fields.iter().map(|field| field.encoder().and_then(FieldEncoder::encoder)).collect();
        let compressed: Vec<usize> = (0..columns.len()).filter(|&i| encoders[i].is_some()).collect();
        if compressed.is_empty() {
            return Ok(if self.is_sampling() { rows.start + 1 } else { rows.end });
        }
        let (mut fields, mut values, mut bytes, mut end) = (Vec::new(), Vec::new(), 0, rows.start);
        while end < rows.end && bytes < AHEAD_BYTES && values.len() < AHEAD {
            for &i in &compressed {
                let value = columns[i].value(end, blocks[i]).payload();
                if let (Some(encoder), Some(value)) = (encoders[i], value) {
                    bytes += value.len();
                    fields.push(i);
                    values.push((encoder, value));
                }
            }
            end += 1;
        }
        if values.len() > 1 && bytes >= WORTH_IT {
            let ready = compress_ahead(&values, control)?;
            for (i, ready) in fields.into_iter().zip(ready) {
                if let Some(encoder) = self.fields[i].encoder_mut() {
                    encoder.put_ready(ready);
                }
            }
        }
        Ok(end)
    }

    fn blocks(&self, columns: &[Column<'_>]) -> Vec<Block> {
        let fields = self.schema().fields().iter().zip(columns);
        fields.map(|(field, column)| column.block(&field.kind)).collect()
    }

    /// Checks every value before any is written. Returns for each column the sizes of its images,
    /// if it has any.
    fn check_columns(&self, columns: &[Column<'_>], count: usize) -> Result<Vec<Vec<(u32, u32)>>> {
        let fields = self.schema().fields();
        if columns.len() != fields.len() {
            return Err(Error::Schema(format!("{} columns for {} fields", columns.len(), fields.len())));
        }
        let mut sizes = Vec::with_capacity(columns.len());
        for (field, column) in fields.iter().zip(columns) {
            let bad = |i: usize, detail| self.bad_value(self.records + i as u64, &field.name, detail);
            sizes.push(match column {
                Column::Block { data, shape } => {
                    let checked = check_block(&field.kind, data, shape, count);
                    checked.map_err(|(i, detail)| bad(i, detail))?;
                    Vec::new()
                }
                Column::Values(values) if values.len() != count => {
                    return Err(bad(0, format!("{} values for {count} records", values.len())));
                }
                Column::Values(values) => {
                    let check = |(i, value)| check_value(&field.kind, value).map_err(|detail| bad(i, detail));
                    let checked = values.iter().enumerate().map(check);
                    if field.kind == FieldType::Image {
                        checked.collect::<Result<_>>()?
                    } else {
                        checked.into_iter().try_for_each(|size| size.map(drop))?;
                        Vec::new()
                    }
                }
            });
        }
        Ok(sizes)
    }
}
