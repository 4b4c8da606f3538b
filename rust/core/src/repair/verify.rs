//! `Report`: the check of every checksum in a file.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::control::Control;
use crate::error::damage::Damage;
use crate::error::{Error, Result};
use crate::format::extent::Extent;
use crate::format::field_type::FieldType;
use crate::format::schema::FieldIndex;
use crate::memory;
use crate::parallel::pool::Pool;
use crate::read::reader::Reader;
use crate::repair::verify_values::{Found, Memory, check_columns, check_value, read_side};

/// The result of checking a whole file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Records whose payloads were read.
    pub records: u64,
    /// Payload bytes read.
    pub bytes: u64,
    /// Descriptions of the damage, in record order within a field; at most [`MAX_ERRORS`].
    pub errors: Vec<String>,
    /// The errors that are about one value.
    pub damaged: Vec<DamagedValue>,
    /// Images decoded; 0 unless values were checked.
    pub decoded: u64,
    /// Images of a known format that this build does not decode. Only their checksums were checked.
    pub undecoded: u64,
}

/// A damaged value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedValue {
    /// The record number.
    pub record: u64,
    /// The field's name.
    pub field: String,
    /// The value of the record's field `key`, if it is a readable string.
    pub key: Option<String>,
    /// The error, as in [`Report::errors`].
    pub error: String,
}

/// The field that identifies a record to the user.
const KEY: &str = "key";

/// The result of checking some payloads.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    /// In record order; each error names its record.
    pub errors: Vec<Error>,
    pub decoded: u64,
    pub undecoded: u64,
}

/// The most errors to list; further ones are counted in a last line.
pub const MAX_ERRORS: usize = 1000;
/// Records whose extents are looked up at once.
const WINDOW: u64 = 16 << 10;
/// Bytes of payloads that a thread checks at a time.
const GROUP: u64 = 1 << 20;
/// With less memory than this, one thread checks everything.
const AMPLE: usize = 16 << 20;

/// What [`verify`] checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Every index block and every payload against its CRC.
    Checksums,
    /// The values too. Images must decode completely and have their recorded size. Compressed
    /// values must decompress. Texts must be UTF-8, JSON must parse, lists must be well-formed, and
    /// bools must be 0 or 1. Each thread holds one value at a time.
    Values,
}

/// Reads the whole file and checks it, on all threads, by system calls.
///
/// Reports the bytes done so far. Damage goes into the report and is not an error, and so does a
/// value that does not fit into memory.
///
/// # Errors
/// Failed reads (a truncated file, a bad disk), too little memory for the work itself, and interrupts.
pub fn verify(reader: &Reader, depth: Depth, control: &dyn Control) -> Result<Report> {
    Verifier { reader: reader.clone(), depth }.report(control)
}

/// Checks the values of one snapshot.
#[derive(Debug, Clone)]
pub(crate) struct Verifier {
    pub reader: Reader,
    pub depth: Depth,
}

impl Verifier {
    fn report(&self, control: &dyn Control) -> Result<Report> {
        let reader = &self.reader;
        reader.check_file()?;
        memory::check(0)?;
        let mut report = Report { records: reader.len(), ..Report::default() };
        let key = reader.schema().find(KEY).filter(|&key| *reader.kind(key) == FieldType::String);
        let mut more = 0_u64;
        let mut note = |report: &mut Report, error: &Error| {
            if report.errors.len() >= MAX_ERRORS {
                more += 1;
                return;
            }
            report.errors.push(error.coded());
            if let Some((record, field)) = error.place() {
                let key =
                    key.and_then(|key| reader.strings(key, &reader.records(&[record]).ok()?).ok()?.pop().flatten());
                let (field, error) = (field.to_owned(), error.coded());
                report.damaged.push(DamagedValue { record, field, key, error });
            }
        };
        // The index first: columns with damaged blocks are reported here, once, and skipped below.
        for column in reader.index().columns() {
            for data in &column.chunks {
                for (_, error) in data.damaged_blocks(reader.path(), column.name())? {
                    note(&mut report, &error);
                }
            }
        }
        for error in reader.damaged_dictionaries() {
            note(&mut report, &error);
        }
        if self.depth == Depth::Values {
            check_columns(reader, |error| note(&mut report, error))?;
        }
        let done = Arc::new(AtomicU64::new(0));
        for (field, definition) in reader.schema().iter() {
            if !definition.kind.has_payloads() {
                continue;
            }
            // Records that no chunk covers have nothing to check, and a damaged footer may claim
            // any number of them.
            for window in reader.main_column(field).windows(WINDOW) {
                let wanted = self.readable_extents(field, window, |error| note(&mut report, error))?;
                let found = self.check_payloads(field, wanted, &done, control)?;
                report.decoded += found.decoded;
                report.undecoded += found.undecoded;
                for error in &found.errors {
                    note(&mut report, error);
                }
            }
        }
        report.bytes = done.load(Ordering::Relaxed);
        if more > 0 {
            report.errors.push(format!("{}: {more} more damaged places are not listed", reader.path().display()));
        }
        Ok(report)
    }

    /// The extents of a window of records. Leaves out damaged extents and those in damaged index
    /// blocks.
    pub(crate) fn readable_extents(
        &self,
        field: FieldIndex,
        window: Range<u64>,
        mut note: impl FnMut(&Error),
    ) -> Result<Vec<(u64, Extent)>> {
        let records = self.reader.run(window)?;
        if let Ok(extents) = self.reader.extents(field, &records) {
            return memory::collected(records.iter().copied().zip(extents));
        }
        let mut good = memory::room(records.len())?;
        for &record in &*records {
            match self.reader.extent(field, record) {
                Ok(extent) => good.push((record, extent)),
                Err(error @ Error::Value { damage: Damage::Extent(_), .. }) => note(&error),
                Err(error) if error.is_of_the_file() => return Err(error),
                Err(_) => {} // a damaged block, already reported
            }
        }
        Ok(good)
    }

    fn check_payload(&self, field: FieldIndex, record: u64, extent: &Extent, memory: &mut Memory) -> Result<Found> {
        if self.depth == Depth::Values {
            return check_value(&self.reader, field, record, extent, memory);
        }
        let crc = self.reader.read_crc(extent, 0, 0, &mut memory.stored)?;
        self.reader.compare_crc(field, record, extent.crc, crc)?;
        read_side(&self.reader, field, record, &mut memory.side).map(|_| Found::default())
    }

    /// Checks payloads on all threads.
    pub(crate) fn check_payloads(
        &self,
        field: FieldIndex,
        wanted: Vec<(u64, Extent)>,
        done: &Arc<AtomicU64>,
        control: &dyn Control,
    ) -> Result<Checked> {
        let mut groups = Vec::new();
        let (mut first, mut bytes) = (0, 0);
        for (i, (_, extent)) in wanted.iter().enumerate() {
            bytes += extent.stored;
            if bytes >= GROUP || i + 1 == wanted.len() {
                groups.push(first..i + 1);
                (first, bytes) = (i + 1, 0);
            }
        }
        let checked = Arc::new(Mutex::new((Vec::new(), Checked::default())));
        let stop = Arc::new(AtomicBool::new(false));
        let (this, shared, counter, stopped) =
            (self.clone(), Arc::clone(&checked), Arc::clone(done), Arc::clone(&stop));
        // What one thread takes to see whether memory is left, another lacks for an error's text.
        let threads = if memory::check(AMPLE).is_ok() { self.reader.threads() } else { 1 };
        Pool::current().run(
            groups.len(),
            threads,
            &|| {
                control.report(done.load(Ordering::Relaxed));
                stop.fetch_or(control.is_stopped(), Ordering::Relaxed);
                stop.load(Ordering::Relaxed)
            },
            move |item| {
                memory::check(0)?;
                let mut memory = Memory::default();
                for (record, extent) in &wanted[groups[item].clone()] {
                    if stopped.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    let outcome = this.check_payload(field, *record, extent, &mut memory);
                    // Names the value in the error: other values may be smaller.
                    let outcome = outcome.map_err(|error| match error {
                        Error::Memory { bytes } => {
                            let (path, field) = (this.reader.path().to_owned(), this.reader.name_of(field));
                            Error::TooLarge { path, record: *record, field, bytes }
                        }
                        error => error,
                    });
                    counter.fetch_add(extent.stored, Ordering::Relaxed);
                    let outcome = match outcome {
                        Err(error) if error.place().is_none() => return Err(error),
                        Ok(Found { decoded: 0, undecoded: 0 }) => continue,
                        outcome => outcome,
                    };
                    let (errors, checked) = &mut *shared.lock().unwrap_or_else(PoisonError::into_inner);
                    match outcome {
                        Ok(found) => {
                            checked.decoded += found.decoded;
                            checked.undecoded += found.undecoded;
                        }
                        Err(error) => errors.push((*record, error)),
                    }
                }
                Ok(())
            },
        )?;
        control.report_and_check(done.load(Ordering::Relaxed))?;
        let (mut damaged, mut checked) = std::mem::take(&mut *checked.lock().unwrap_or_else(PoisonError::into_inner));
        damaged.sort_by_key(|(record, _)| *record);
        checked.errors = damaged.into_iter().map(|(_, error)| error).collect();
        Ok(checked)
    }
}
