//! `Rows`: the records to copy from a source, and the functions that look up their stored entries
//! and payloads.

use std::ops::Range;

use crate::copy::column::CopyColumn;
use crate::copy::pieces::Piece;
use crate::error::damage::Damage;
use crate::error::{Error, Result};
use crate::format::chunk::{Encoding, Part};
use crate::format::extent::{EXTENT_LEN, Extent};
use crate::format::field_type::FieldType;
use crate::format::schema::FieldIndex;
use crate::read::index::Column;
use crate::read::reader::Reader;
use crate::write::output::Output;

/// The records of a source that are copied next.
pub(crate) enum Rows<'a> {
    Run(Range<u64>),
    Numbers(&'a [u64]),
}

impl Rows<'_> {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Run(run) => run.end - run.start,
            Self::Numbers(numbers) => numbers.len() as u64,
        }
    }

    pub(crate) fn record(&self, i: u64) -> u64 {
        match self {
            Self::Run(run) => run.start + i,
            Self::Numbers(numbers) => numbers[i as usize],
        }
    }

    /// Whether payloads can keep the layout of the source.
    pub(crate) fn ascending(&self) -> bool {
        match self {
            Self::Run(_) => true,
            Self::Numbers(numbers) => numbers.is_sorted(),
        }
    }

    /// Calls `each` with runs of consecutive records, in order.
    pub(crate) fn for_each_run(&self, mut each: impl FnMut(Range<u64>) -> Result<()>) -> Result<()> {
        match self {
            Self::Run(run) => each(run.clone()),
            Self::Numbers(numbers) => numbers.chunk_by(|a, b| a + 1 == *b).try_for_each(|run| match run {
                [first, .., last] => each(*first..last + 1),
                [only] => each(*only..only + 1),
                [] => Ok(()),
            }),
        }
    }
}

fn no_column(source: &Reader, field: FieldIndex) -> Error {
    Error::corrupt(source.path(), "directory", format!("no column of field {}", source.name_of(field)))
}

pub(crate) fn extents_in(entries: &[u8]) -> impl Iterator<Item = &[u8; EXTENT_LEN]> {
    entries.as_chunks().0.iter()
}

/// Fills `entries` with the stored extents of a window. Adds the locations of their payloads to
/// `pieces`.
pub(crate) fn gather_extents(
    source: &Reader,
    field: FieldIndex,
    part: Part,
    number: usize,
    rows: &Rows<'_>,
    pieces: &mut Vec<Piece>,
    entries: &mut Vec<u8>,
) -> Result<()> {
    let column = source.index().column(field, part).ok_or_else(|| no_column(source, field))?;
    let limit = source.data_end();
    entries.clear();
    entries.reserve(rows.len() as usize * EXTENT_LEN);
    rows.for_each_run(|run| {
        column.for_each_stretch(source.path(), run, |count, bytes| {
            let Some(bytes) = bytes else {
                let missing = Extent { missing: true, ..Extent::default() }.encode();
                (0..count).for_each(|_| entries.extend_from_slice(&missing));
                return Ok(());
            };
            for (at, entry) in (entries.len() / EXTENT_LEN..).zip(extents_in(bytes)) {
                let extent = match Extent::decode(entry, limit) {
                    Some(extent) => extent,
                    None => Extent::explain(entry, limit)
                        .map_err(|detail| source.damaged(field, rows.record(at as u64), Damage::Extent(detail)))?,
                };
                if !extent.missing {
                    let (column, entry) = (number as u32, at as u32);
                    pieces.push(Piece { offset: extent.offset, stored: extent.stored, column, entry });
                }
            }
            entries.extend_from_slice(bytes);
            Ok(())
        })
    })
}

/// Copies the entries of a column of values. `numbers` renumbers the values of an int64 field.
pub(super) fn copy_values(
    source: &Reader,
    field: FieldIndex,
    rows: &Rows<'_>,
    numbers: Option<&[i64]>,
    output: &mut Output,
    to: &mut CopyColumn,
) -> Result<()> {
    let column = source.index().column(field, to.key.part).ok_or_else(|| no_column(source, field))?;
    let whole = column.first_missing(source.len()).is_none();
    let mut values = Vec::with_capacity(rows.len() as usize * column.width);
    rows.for_each_run(|run| {
        let mut record = run.start;
        column.for_each_stretch(source.path(), run, |count, bytes| {
            match (bytes, numbers) {
                (None, _) => {
                    to.add(output, &values, whole)?;
                    values.clear();
                    to.leave_out(output, count)?;
                }
                (Some(bytes), None) => values.extend_from_slice(bytes),
                (Some(bytes), Some(numbers)) => renumber(source, field, record, bytes, numbers, &mut values)?,
            }
            record += count;
            Ok(())
        })
    })?;
    to.add(output, &values, whole)
}

/// Adds the gathered entries of side bytes. Records that the source's column does not cover stay so: a
/// writer will look at their images. In another order than the source's they get missing entries, which
/// say the same, because a chunk for each record would be worse.
pub(super) fn add_sides(
    source: &Reader,
    from: &Column,
    rows: &Rows<'_>,
    entries: &[u8],
    whole: bool,
    output: &mut Output,
    to: &mut CopyColumn,
) -> Result<()> {
    if whole || !rows.ascending() {
        return to.add(output, entries, whole);
    }
    let mut rest = entries;
    rows.for_each_run(|run| {
        from.for_each_stretch(source.path(), run, |count, bytes| {
            let (these, more) = rest.split_at(count as usize * EXTENT_LEN);
            rest = more;
            if bytes.is_some() { to.add(output, these, false) } else { to.leave_out(output, count) }
        })
    })
}

fn renumber(
    source: &Reader,
    field: FieldIndex,
    first: u64,
    values: &[u8],
    numbers: &[i64],
    out: &mut Vec<u8>,
) -> Result<()> {
    for (record, value) in (first..).zip(values.as_chunks().0) {
        let value = i64::from_le_bytes(*value);
        let new = match usize::try_from(value) {
            Err(_) => value,
            Ok(old) => *numbers.get(old).ok_or_else(|| Error::BadValue {
                path: source.path().to_owned(),
                record,
                field: source.name_of(field),
                detail: format!("the label {value} has no class: the file names {} classes", numbers.len()),
            })?,
        };
        out.extend_from_slice(&new.to_le_bytes());
    }
    Ok(())
}

/// The approximate bytes that each record of a run takes in a file: payloads, padding and
/// entries.
///
/// # Errors
/// A damaged index, or a run that is out of range.
pub fn stored_bytes(source: &Reader, run: Range<u64>) -> Result<Vec<u64>> {
    if run.end > source.len() {
        return Err(source.out_of_range(run.end.cast_signed() - 1));
    }
    source.check_file()?;
    let rows = Rows::Run(run);
    let mut bytes = vec![0; rows.len() as usize];
    for (field, definition) in source.schema().iter() {
        let kind = &definition.kind;
        let sides = source.side_column(field).is_some();
        for (part, encoding, width) in kind.columns() {
            if (&FieldType::Image, Part::SIDE) == (kind, part) && !sides {
                continue;
            }
            // An entry takes its width, and its share of the check table: 4 bytes for 4096.
            for record in &mut bytes {
                *record += u64::from(width) + 1;
            }
            if encoding == Encoding::Extents {
                let (mut pieces, mut entries) = (Vec::new(), Vec::new());
                gather_extents(source, field, part, 0, &rows, &mut pieces, &mut entries)?;
                for piece in pieces {
                    bytes[piece.entry as usize] += piece.stored.next_multiple_of(kind.alignment());
                }
            }
        }
    }
    Ok(bytes)
}
