//! `Copier`: copies records from file to file. Payloads are copied as stored, never decoded, unless
//! images are to get another form; entries get new offsets.
//!
//! A copy has one commit. Each of its columns is one chunk if no record lacks a value. The number
//! of records is known in advance, so space is reserved for their entries. They are written along
//! with the payloads, and memory does not grow with the number of records.

use std::collections::HashSet;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::{Map, Value as Json};

use crate::control::Control;
use crate::copy::column::CopyColumn;
use crate::copy::convert::{Conversion, ConversionCounts, Convert};
use crate::copy::gather::{Rows, add_sides, copy_values, extents_in, gather_extents};
use crate::copy::pieces::Piece;
use crate::copy::transfer::{Span, Transfer};
use crate::error::{Error, Result};
use crate::file::storage::Storage;
use crate::format::chunk::{Encoding, Part};
use crate::format::extent::Extent;
use crate::format::schema::{Field, FieldIndex};
use crate::read::reader::Reader;
use crate::write::writer::{Mode, Writer, WriterOptions};

/// Entries of all columns that are looked up at once. This bounds the memory of a copy.
const WINDOW: u64 = 128 << 10;
const WINDOW_RECORDS: u64 = 64 << 10;
/// As few records while images are converted: other payloads of these records follow their images.
const CONVERTED_RECORDS: u64 = 4 << 10;

/// Writes a new file from records of others.
///
/// The file can be read only after [`Copier::finish`]. Dropping the copier before that is
/// [`Copier::abort`].
#[derive(Debug)]
pub struct Copier {
    writer: Writer,
    columns: Vec<CopyColumn>,
    records: u64,
    verify: bool,
    span: Span,
    conversion: Option<Conversion>,
    counts: ConversionCounts,
    /// The offset at which the copy begins.
    start: u64,
    /// The payloads of a window, and the entries of each of its columns. Memory is kept from one
    /// window to the next, because fresh memory costs as much as copying.
    pieces: Vec<Piece>,
    entries: Vec<Vec<u8>>,
}

/// New numbers for the values of an int64 field: the value v becomes `numbers[v]`. Negative values
/// stay.
#[derive(Debug, Clone)]
pub struct Renumber {
    /// The field's name.
    pub field: String,
    /// The new value for each old value.
    pub numbers: Vec<i64>,
}

impl Copier {
    /// Creates a file with the fields of another one, for this many records.
    ///
    /// With `verify`, checks the checksum of each payload.
    ///
    /// # Errors
    /// As [`Writer::open`].
    pub fn create(path: &Path, like: &Reader, mode: Mode, records: u64, verify: bool) -> Result<Self> {
        let options = WriterOptions { mode, ..WriterOptions::default() };
        let writer = Writer::open(path, Some(like.schema().clone()), None, &options)?;
        Ok(Self::with(writer, records, verify))
    }

    /// Creates a file on any storage; for tests that inject write failures.
    ///
    /// # Errors
    /// I/O errors of the storage.
    pub fn create_in(
        path: &Path,
        storage: Box<dyn Storage>,
        like: &Reader,
        records: u64,
        verify: bool,
    ) -> Result<Self> {
        let writer = Writer::create_in(path, storage, like.schema().clone(), &WriterOptions::default())?;
        Ok(Self::with(writer, records, verify))
    }

    fn with(mut writer: Writer, records: u64, verify: bool) -> Self {
        let columns = CopyColumn::for_schema(writer.schema(), records);
        let start = writer.output().position();
        let (pieces, entries) = (Vec::new(), vec![Vec::new(); columns.len()]);
        let (conversion, counts) = (None, ConversionCounts::default());
        Self { start, writer, columns, records: 0, verify, span: Span::default(), conversion, counts, pieces, entries }
    }

    /// Converts the images of all records that are copied from now on.
    pub fn convert(&mut self, conversion: Conversion) {
        self.conversion = Some(conversion);
    }

    /// Counts of the images that were to be converted.
    pub fn converted(&self) -> ConversionCounts {
        self.counts
    }

    /// The file that is being written.
    pub fn path(&self) -> &Path {
        self.writer.path()
    }

    /// Records copied so far.
    pub fn len(&self) -> u64 {
        self.records
    }

    /// Whether no record has been copied yet.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Bytes written so far.
    pub fn bytes_written(&self) -> u64 {
        self.writer.bytes_written()
    }

    /// Copies a run of records; their payloads keep the layout of the source.
    ///
    /// Reports the bytes written so far.
    ///
    /// # Errors
    /// The source has other fields, is damaged or ends early; a value has no new number; failed
    /// writes and interrupts. The copy can then only be aborted.
    pub fn copy_run(
        &mut self,
        source: &Reader,
        run: Range<u64>,
        renumber: &[Renumber],
        control: &dyn Control,
    ) -> Result<()> {
        self.copy(source, &Rows::Run(run), renumber, control)
    }

    /// Copies records in any order. Unless the order is ascending, it also becomes the order of the
    /// payloads.
    ///
    /// # Errors
    /// As [`Copier::copy_run`].
    pub fn copy_rows(
        &mut self,
        source: &Reader,
        rows: &[u64],
        renumber: &[Renumber],
        control: &dyn Control,
    ) -> Result<()> {
        self.copy(source, &Rows::Numbers(rows), renumber, control)
    }

    fn copy(&mut self, source: &Reader, rows: &Rows<'_>, renumber: &[Renumber], control: &dyn Control) -> Result<()> {
        self.writer.check_usable()?;
        let copied = self.copy_windows(source, rows, renumber, control);
        self.writer.guard(copied)
    }

    /// Copies the dictionaries that payloads of `source` may use. `fields` has the position in the
    /// source of each of this file's fields.
    fn adopt_dictionaries(&mut self, source: &Reader, fields: &[FieldIndex]) -> Result<()> {
        let (path, file, limit) = (source.path(), source.file(), source.data_end());
        for (mine, &theirs) in fields.iter().enumerate() {
            let Some(given) = source.schema()[theirs].compression.clone() else { continue };
            for range in &given.dictionaries {
                let bytes = |bytes: &mut [u8], at| file.read_exact_at(bytes, at).map_err(|e| Error::io(path, e));
                let read = |name: &str| range.read(path, name, limit, bytes);
                self.writer.adopt_dictionary(mine, &given, range, path, read)?;
            }
        }
        Ok(())
    }

    fn copy_windows(
        &mut self,
        source: &Reader,
        rows: &Rows<'_>,
        renumber: &[Renumber],
        control: &dyn Control,
    ) -> Result<()> {
        match rows {
            Rows::Run(run) if run.end > source.len() => return Err(source.out_of_range(run.end.cast_signed() - 1)),
            Rows::Run(_) => {}
            Rows::Numbers(numbers) => drop(source.records(*numbers)?),
        }
        let fields = self.fields_in(source)?;
        self.adopt_dictionaries(source, &fields)?;
        let most = if self.conversion.is_some() { CONVERTED_RECORDS } else { WINDOW_RECORDS };
        let step = (WINDOW / self.columns.len().max(1) as u64).clamp(64, most);
        let mut done = 0;
        while done < rows.len() {
            let empty = match rows {
                Rows::Run(run) => source.index().first_covered(run.start + done, run.end) - run.start - done,
                Rows::Numbers(_) => 0,
            };
            if empty > 0 {
                self.columns.iter_mut().try_for_each(|column| column.leave_out(self.writer.output(), empty))?;
                self.records += empty;
                done += empty;
                continue;
            }
            let until = rows.len().min(done + step);
            let window = match rows {
                Rows::Run(run) => Rows::Run(run.start + done..run.start + until),
                Rows::Numbers(numbers) => Rows::Numbers(&numbers[done as usize..until as usize]),
            };
            self.copy_window(source, &fields, &window, renumber, control)?;
            control.report_and_check(self.writer.bytes_written())?;
            done = until;
        }
        Ok(())
    }

    /// The position in the source of each field of the copy.
    fn fields_in(&self, source: &Reader) -> Result<Vec<FieldIndex>> {
        let (mine, theirs) = (self.writer.schema(), source.schema());
        let same = |mine: &Field| theirs.find(&mine.name).filter(|&i| theirs[i].kind == mine.kind);
        let found: Option<Vec<FieldIndex>> = mine.fields().iter().map(same).collect();
        found.filter(|found| found.len() == theirs.fields().len()).ok_or_else(|| {
            let (path, found, given) = (source.path().display(), theirs.describe(), mine.describe());
            Error::Schema(format!("{path} has the fields {found}, and the copy {given}"))
        })
    }

    fn copy_window(
        &mut self,
        source: &Reader,
        fields: &[FieldIndex],
        rows: &Rows<'_>,
        renumber: &[Renumber],
        control: &dyn Control,
    ) -> Result<()> {
        source.check_file()?;
        let (pieces, gathered) = (&mut self.pieces, &mut self.entries);
        pieces.clear();
        for (number, column) in self.columns.iter_mut().enumerate() {
            let field = fields[column.field];
            if column.key.encoding == Encoding::Extents {
                gather_extents(source, field, column.key.part, number, rows, pieces, &mut gathered[number])?;
                continue;
            }
            let name = source.name_of(field);
            let numbers = renumber.iter().find(|r| r.field == name && column.key.part == Part::MAIN);
            copy_values(source, field, rows, numbers.map(|r| &r.numbers[..]), self.writer.output(), column)?;
        }
        if rows.ascending() {
            pieces.sort_unstable_by_key(|p| (p.offset, p.stored));
        } else {
            pieces.sort_unstable_by_key(|p| (self.columns[p.column as usize].text, p.entry, p.column));
        }
        let alignments: Vec<u64> = self.columns.iter().map(|c| c.alignment).collect();
        let columns = &self.columns;
        let named = |piece: &Piece| (fields[columns[piece.column as usize].field], rows.record(piece.entry.into()));
        if let Some(conversion) = self.conversion {
            let (output, start, verify) = (self.writer.output(), self.start, self.verify);
            let convert =
                Convert { source, output, start, conversion, alignments: &alignments, verify, name: &named, control };
            convert_images(convert, columns, pieces, gathered, &mut self.counts)?;
        }
        Transfer {
            source,
            start: self.start,
            output: self.writer.output(),
            span: &mut self.span,
            alignments: &alignments,
            verify: if self.verify { Some(&named) } else { None },
            control,
        }
        .copy(pieces, rows.ascending(), gathered)?;
        for (column, entries) in self.columns.iter_mut().zip(gathered) {
            if column.key.encoding == Encoding::Values {
                continue;
            }
            // Before the first value no entry is needed to mark missing ones.
            if !column.has_room() && extents_in(entries).all(Extent::is_missing) {
                column.leave_out(self.writer.output(), rows.len())?;
            } else {
                let from = source.index().column(fields[column.field], column.key.part);
                let whole = from.is_some_and(|from| from.first_missing(source.len()).is_none());
                if let (Some(from), Part::SIDE) = (from, column.key.part) {
                    // Sources may have an index or not: no room for the records of other sources.
                    let whole = whole && column.expected == source.len();
                    add_sides(source, from, rows, entries, whole, self.writer.output(), column)?;
                } else {
                    column.add(self.writer.output(), entries, whole)?;
                }
            }
        }
        self.records += rows.len();
        Ok(())
    }

    /// Writes the columns; no record can be added after that. [`Copier::finish`] does this too.
    /// When several copies are finished together, calling this first leaves little to do.
    ///
    /// # Errors
    /// Failed writes.
    pub fn settle(&mut self) -> Result<()> {
        self.writer.check_usable()?;
        let settled = self.columns.iter_mut().try_for_each(|column| column.end_chunk(self.writer.output()));
        let settled = settled.and_then(|()| self.writer.output().flush_and_free());
        self.writer.guard(settled)?;
        self.writer.adopt_columns(self.columns.iter_mut().flat_map(CopyColumn::take_chunks), self.records);
        (self.span, self.pieces) = (Span::default(), Vec::new());
        self.entries.fill(Vec::new());
        Ok(())
    }

    /// Makes the copy durable. Of several copies, commit all before the first [`Copier::close`].
    ///
    /// # Errors
    /// Failed writes.
    pub fn commit(&mut self, user: Map<String, Json>, complete: bool) -> Result<()> {
        self.settle()?;
        self.writer.set_metadata(user)?;
        self.writer.set_complete(complete);
        self.writer.finish()
    }

    /// Gives a committed copy its final name. Closing twice is allowed.
    ///
    /// # Errors
    /// The other file cannot be replaced.
    pub fn close(&mut self) -> Result<()> {
        self.writer.close()
    }

    /// Makes the copy durable and gives it its final name.
    ///
    /// # Errors
    /// Failed writes; the file is then removed.
    pub fn finish(&mut self, user: Map<String, Json>, complete: bool) -> Result<()> {
        self.commit(user, complete)?;
        self.close()
    }

    /// Removes the file, unless the copy is closed.
    pub fn abort(&mut self) {
        self.writer.discard();
    }
}

/// Converts the images of a window. Leaves the other pieces, without the crop indexes of converted images.
fn convert_images(
    convert: Convert<'_>,
    columns: &[CopyColumn],
    pieces: &mut Vec<Piece>,
    entries: &mut [Vec<u8>],
    counts: &mut ConversionCounts,
) -> Result<()> {
    let (conversion, limit) = (convert.conversion, convert.source.data_end());
    let concerned = |piece: &Piece| {
        let column = &columns[piece.column as usize];
        let entry = entries[piece.column as usize].as_chunks().0.get(piece.entry as usize);
        let extent = entry.and_then(|entry| Extent::decode(entry, limit));
        column.image && column.key.part == Part::MAIN && extent.is_some_and(|extent| conversion.concerns(&extent))
    };
    let (images, others): (Vec<Piece>, Vec<Piece>) = pieces.iter().partition(|piece| concerned(piece));
    let changed = convert.run(&images, entries, counts)?;
    *pieces = others;
    let changed = images.iter().zip(changed).filter(|(_, changed)| *changed).map(|(piece, _)| piece);
    let mut gone = HashSet::new();
    for piece in changed {
        let field = columns[piece.column as usize].field;
        let side = columns.iter().position(|column| column.field == field && column.key.part == Part::SIDE);
        let Some(side) = side else { continue };
        let missing = Extent { missing: true, ..Extent::default() }.encode();
        if let Some(entry) = entries[side].as_chunks_mut().0.get_mut(piece.entry as usize) {
            *entry = missing;
        }
        gone.insert((side as u32, piece.entry));
    }
    pieces.retain(|piece| !gone.contains(&(piece.column, piece.entry)));
    Ok(())
}
