//! `Writer::extend`: appends many records with one call.

use crate::control::Control;
use crate::write::value::Column;
use crate::write::value::block_value;
use crate::write::value::check_block;
use std::ops::Range;
use std::time::Instant;

use crate::error::{Error, Result};
use crate::format::field_type::FieldType;
use crate::format::schema::Field;
use crate::parallel::sync::SLICE;
use crate::write::value::Value;
use crate::write::value::check_value;
use crate::write::writer::Writer;

/// Limits of the values that are compressed ahead: their number and bytes. Below `WORTH_IT` bytes,
/// waking other threads does not pay.
const AHEAD: usize = 16 << 10;
const AHEAD_BYTES: usize = 8 << 20;
const WORTH_IT: usize = 64 << 10;

impl Column<'_> {
    /// The value of one record. A value of a block has `bytes` bytes.
    fn value(&self, i: usize, bytes: usize, scalar: bool) -> Value<'_> {
        match self {
            Self::Block { data, shape } => {
                let data = &data[i * bytes..(i + 1) * bytes];
                if scalar { Value::Number(data) } else { Value::Array { data, shape } }
            }
            Self::Values(values) => values[i],
        }
    }
}

impl Writer {
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
        let kinds: Vec<(usize, bool)> = self.blocks(columns);
        let (mut row, mut row_sizes) = (Vec::with_capacity(columns.len()), Vec::with_capacity(columns.len()));
        let mut asked = Instant::now();
        let mut packed = 0;
        for i in 0..count {
            if i >= packed {
                packed = self.pack_rows(columns, &kinds, i..count, control)?;
            }
            row.clear();
            row_sizes.clear();
            row.extend(columns.iter().zip(&kinds).map(|(column, &(bytes, scalar))| column.value(i, bytes, scalar)));
            row_sizes.extend(sizes.iter().map(|sizes| sizes.get(i).copied().unwrap_or_default()));
            self.append_row(&row, &row_sizes).inspect_err(|_| self.drop_ready())?;
            if asked.elapsed() >= SLICE {
                asked = Instant::now();
                if control.is_stopped() {
                    self.drop_ready();
                    return Err(Error::Interrupted);
                }
            }
        }
        Ok(first)
    }

    /// Compresses the values of the next records on all threads, as many as may wait in memory.
    /// Returns the record after them.
    fn pack_rows(
        &mut self,
        columns: &[Column<'_>],
        kinds: &[(usize, bool)],
        rows: Range<usize>,
        control: &dyn Control,
    ) -> Result<usize> {
        let mut number = 0;
        let mut packing = Vec::new();
        for (column, &(bytes, scalar)) in columns.iter().zip(kinds) {
            if self.packs(number) {
                packing.push((number, column, bytes, scalar));
            }
            number += self.columns[number].parts;
        }
        if packing.is_empty() {
            return Ok(if self.is_sampling() { rows.start + 1 } else { rows.end });
        }
        let (mut values, mut held, mut end) = (Vec::new(), 0, rows.start);
        while end < rows.end && held < AHEAD_BYTES && values.len() < AHEAD {
            for &(number, column, bytes, scalar) in &packing {
                if let Some(value) = column.value(end, bytes, scalar).packed() {
                    held += value.len();
                    values.push((number, value));
                }
            }
            end += 1;
        }
        if values.len() > 1 && held >= WORTH_IT {
            self.pack_ahead(&values, control)?;
        }
        Ok(end)
    }

    /// For each column the bytes of one value, if it is a block, and whether the value is a number.
    fn blocks(&self, columns: &[Column<'_>]) -> Vec<(usize, bool)> {
        let fields = self.schema().fields().iter().zip(columns);
        let block = |(field, column): (&Field, &Column<'_>)| match (&field.kind, column) {
            (kind, Column::Block { shape, .. }) => (block_value(kind, shape), matches!(kind, FieldType::Scalar(_))),
            (_, Column::Values(_)) => (0, false),
        };
        fields.map(block).collect()
    }

    /// Checks every value before any is written. Returns for each column the sizes of its images,
    /// if it has any.
    fn check_columns(&self, columns: &[Column<'_>], count: usize) -> Result<Vec<Vec<(u32, u32)>>> {
        let fields = self.schema().fields();
        if columns.len() != fields.len() {
            return Err(Error::Schema(format!("{} columns for {} fields", columns.len(), fields.len())));
        }
        let mut sizes = Vec::with_capacity(columns.len());
        for ((field, column), (bytes, _)) in fields.iter().zip(columns).zip(self.blocks(columns)) {
            let bad = |i: usize, detail| self.bad_value(self.records + i as u64, &field.name, detail);
            sizes.push(match column {
                Column::Block { data, shape } => {
                    let checked = check_block(&field.kind, data, shape, bytes, count);
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
