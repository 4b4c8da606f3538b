//! `Report`: the check of every checksum in a file.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::control::Control;
use crate::error::{Error, Result};
use crate::format::extent::Extent;
use crate::format::field_type::FieldType;
use crate::format::schema::FieldIndex;
use crate::parallel::pool::Pool;
use crate::read::payload::resized;
use crate::read::reader::Reader;
use crate::repair::verify_values::{Found, Memory};

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
const PIECE: usize = 1 << 20;

impl Reader {
    /// Reads every index block and every payload and checks their CRCs, on all threads, by system
    /// calls.
    ///
    /// Reports the bytes done so far. Damage goes into the report and is not an error.
    ///
    /// # Errors
    /// Failed reads (a truncated file, a bad disk) and interrupts.
    pub fn verify(&self, control: &dyn Control) -> Result<Report> {
        self.verify_as(false, control)
    }

    /// As [`Reader::verify`], and also checks the values. Images must decode completely and have
    /// their recorded size. Compressed values must decompress. Texts must be UTF-8, JSON must
    /// parse, lists must be well-formed, and bools must be 0 or 1.
    ///
    /// Each thread holds one value at a time.
    ///
    /// # Errors
    /// As [`Reader::verify`]. A value that does not fit into memory goes into the report.
    pub fn verify_deep(&self, control: &dyn Control) -> Result<Report> {
        self.verify_as(true, control)
    }

    fn verify_as(&self, deep: bool, control: &dyn Control) -> Result<Report> {
        self.check_file()?;
        let mut report = Report { records: self.len(), ..Report::default() };
        let key = self.schema().find(KEY).filter(|&key| *self.kind(key) == FieldType::String);
        let mut more = 0_u64;
        let mut note = |report: &mut Report, error: &Error| {
            if report.errors.len() >= MAX_ERRORS {
                more += 1;
                return;
            }
            report.errors.push(error.coded());
            if let Some((record, field)) = error.place() {
                let key = key.and_then(|key| self.strings(key, &self.records(&[record]).ok()?).ok()?.pop().flatten());
                let (field, error) = (field.to_owned(), error.coded());
                report.damaged.push(DamagedValue { record, field, key, error });
            }
        };
        // The index first: columns with damaged blocks are reported here, once, and skipped below.
        for column in self.inner.index.columns() {
            for data in &column.chunks {
                for error in data.damaged_blocks(self.path(), column.name()) {
                    if error.is_of_the_file() {
                        return Err(error);
                    }
                    note(&mut report, &error);
                }
            }
        }
        for error in self.damaged_dictionaries() {
            note(&mut report, &error);
        }
        if deep {
            self.check_columns(|error| note(&mut report, error))?;
        }
        let done = Arc::new(AtomicU64::new(0));
        for (field, definition) in self.schema().iter() {
            if !definition.kind.has_payloads() {
                continue;
            }
            // Records that no chunk covers have nothing to check, and a damaged footer may claim
            // any number of them.
            let windows = self.main_column(field).chunks.iter().flat_map(|data| {
                let (first, end) = (data.chunk.first, data.chunk.end_record());
                (first..end).step_by(WINDOW as usize).map(move |start| start..end.min(start + WINDOW))
            });
            for window in windows {
                let wanted = self.readable_extents(field, window, |error| note(&mut report, error))?;
                let found = self.verify_payloads(field, wanted, deep, &done, control)?;
                report.decoded += found.decoded;
                report.undecoded += found.undecoded;
                for error in &found.errors {
                    note(&mut report, error);
                }
            }
        }
        report.bytes = done.load(Ordering::Relaxed);
        if more > 0 {
            report.errors.push(format!("{}: {more} more damaged places are not listed", self.path().display()));
        }
        Ok(report)
    }

    /// The extents of a window of records. Leaves out damaged extents and those in damaged index
    /// blocks.
    pub(crate) fn readable_extents(
        &self,
        field: FieldIndex,
        window: std::ops::Range<u64>,
        mut note: impl FnMut(&Error),
    ) -> Result<Vec<(u64, Extent)>> {
        let records = self.run(window)?;
        if let Ok(extents) = self.extents(field, &records) {
            return Ok(records.iter().copied().zip(extents).collect());
        }
        let mut good = Vec::new();
        for &record in &*records {
            match self.extent(field, record) {
                Ok(extent) => good.push((record, extent)),
                Err(error @ Error::BadExtent { .. }) => note(&error),
                Err(error) if error.is_of_the_file() => return Err(error),
                Err(_) => {} // a damaged block, already reported
            }
        }
        Ok(good)
    }

    /// Checks the CRCs of payloads on all threads; with `deep`, also their values.
    pub(crate) fn verify_payloads(
        &self,
        field: FieldIndex,
        wanted: Vec<(u64, Extent)>,
        deep: bool,
        done: &Arc<AtomicU64>,
        control: &dyn Control,
    ) -> Result<Checked> {
        let mut groups = Vec::new();
        let (mut first, mut bytes) = (0, 0);
        for (i, (_, extent)) in wanted.iter().enumerate() {
            bytes += extent.stored;
            if bytes >= PIECE as u64 || i + 1 == wanted.len() {
                groups.push(first..i + 1);
                (first, bytes) = (i + 1, 0);
            }
        }
        let checked = Arc::new(Mutex::new((Vec::new(), Checked::default())));
        let stop = Arc::new(AtomicBool::new(false));
        let (this, shared, counter, stopped) =
            (self.clone(), Arc::clone(&checked), Arc::clone(done), Arc::clone(&stop));
        Pool::current().run(
            groups.len(),
            self.threads(),
            &|| {
                control.report(done.load(Ordering::Relaxed));
                stop.fetch_or(control.is_stopped(), Ordering::Relaxed);
                stop.load(Ordering::Relaxed)
            },
            move |item| {
                let mut memory = Memory::default();
                for (record, extent) in &wanted[groups[item].clone()] {
                    if stopped.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    let outcome = if deep {
                        this.check_value(field, *record, extent, &mut memory)
                    } else {
                        let crc = this.read_crc(extent, 0, 0, &mut memory.stored);
                        let compared = crc.and_then(|crc| this.compare_crc(field, *record, extent.crc, crc));
                        compared.map(|()| Found::default())
                    };
                    // Names the value in the error: other values may be smaller.
                    let outcome = outcome.map_err(|error| match error {
                        Error::Memory { bytes } => {
                            let (path, field) = (this.path().to_owned(), this.name_of(field));
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

    /// Continues `crc` over the stored bytes from `at` on, piece by piece, for any length.
    pub(crate) fn read_crc(&self, extent: &Extent, mut at: u64, mut crc: u32, piece: &mut Vec<u8>) -> Result<u32> {
        while at < extent.stored {
            resized(piece, (extent.stored - at).min(PIECE as u64))?;
            let place = extent.offset + at;
            let read = self.inner.file.read_exact_at(piece, place);
            read.map_err(|e| Error::unreadable(self.path(), &format!("byte {place}"), e))?;
            crc = crate::format::crc::crc32c_append(crc, piece);
            at += piece.len() as u64;
        }
        Ok(crc)
    }
}
