//! The whole-file check: every checksum there is.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::format::chunk::Part;
use crate::format::extent::Extent;
use crate::format::field_type::FieldType;
use crate::parallel::pool::Pool;
use crate::read::payload::resized;
use crate::read::reader::Reader;
use crate::repair::verify_values::{Found, Memory};

/// What a check of a whole file found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Records whose payloads were read.
    pub records: u64,
    /// Payload bytes that were read.
    pub bytes: u64,
    /// What is damaged, in record order within a field; at most [`MAX_ERRORS`].
    pub errors: Vec<String>,
    /// Those of the errors that are about one value.
    pub damaged: Vec<DamagedValue>,
    /// Images that were decoded: none, unless values were checked.
    pub decoded: u64,
    /// Images of a kind that is known and not decoded here; nothing but their checksums was checked.
    pub undecoded: u64,
}

/// A value that is damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedValue {
    /// Its record.
    pub record: u64,
    /// Its field.
    pub field: String,
    /// What the record's field `key` says, if it has one of type string that can be read.
    pub key: Option<String>,
    /// What is wrong, as in [`Report::errors`].
    pub error: String,
}

/// The field that names a record to its user.
const KEY: &str = "key";

/// What came of checking some payloads.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    /// In record order; each names its record.
    pub errors: Vec<Error>,
    pub decoded: u64,
    pub undecoded: u64,
}

/// So many damaged places are listed; more are counted in a last line.
pub const MAX_ERRORS: usize = 1000;
/// Records whose extents are looked up at once.
const WINDOW: u64 = 16 << 10;
const PIECE: usize = 1 << 20;

impl Reader {
    /// Reads every index block and every payload and checks their CRCs, on all threads, by system calls.
    ///
    /// `progress` is called on the calling thread now and then with bytes done so far; when it says true, the check stops.
    /// Damage is in the report, not an error.
    ///
    /// # Errors
    /// Failed reads (a file that was truncated, a bad disk) and interrupts.
    pub fn verify(&self, progress: impl FnMut(u64) -> bool) -> Result<Report> {
        self.verify_as(false, progress)
    }

    /// As [`Reader::verify`], and looks into the values: images are decoded, all pixels of them, and have the size that the file
    /// says; what is compressed is decompressed; texts are UTF-8, JSON parses, lists are lists, and bools are 0 or 1.
    ///
    /// Each thread holds one value at a time.
    ///
    /// # Errors
    /// As there. A value that memory does not hold is in the report.
    pub fn verify_deep(&self, progress: impl FnMut(u64) -> bool) -> Result<Report> {
        self.verify_as(true, progress)
    }

    fn verify_as(&self, deep: bool, mut progress: impl FnMut(u64) -> bool) -> Result<Report> {
        self.check_file()?;
        let mut report = Report { records: self.len(), ..Report::default() };
        let key = self.schema().position(KEY).filter(|&key| self.schema().fields()[key].kind == FieldType::String);
        let mut more = 0_u64;
        let mut note = |report: &mut Report, error: &Error| {
            if report.errors.len() >= MAX_ERRORS {
                more += 1;
                return;
            }
            report.errors.push(error.coded());
            if let Some((record, field)) = error.place() {
                let key = key.and_then(|key| self.strings(key, &[record]).ok()?.pop().flatten());
                let (field, error) = (field.to_owned(), error.coded());
                report.damaged.push(DamagedValue { record, field, key, error });
            }
        };
        // The index first: columns whose blocks are damaged are named here, once, and skipped below.
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
        for (field, definition) in self.schema().fields().iter().enumerate() {
            if !definition.kind.has_payloads() {
                continue;
            }
            // Records that no chunk covers have nothing to check, and a damaged footer may count any number of them.
            let chunks = self.inner.index.column(field, Part::MAIN).map_or(&[][..], |column| &column.chunks);
            let windows = chunks.iter().flat_map(|data| {
                let (first, end) = (data.chunk.first, data.chunk.end_record());
                (first..end).step_by(WINDOW as usize).map(move |start| start..end.min(start + WINDOW))
            });
            for window in windows {
                let wanted = self.readable_extents(field, window, |error| note(&mut report, error))?;
                let found = self.verify_payloads(field, wanted, deep, &done, &mut progress)?;
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

    /// The extents of a window of records; those that are damaged or under damaged index blocks are left out.
    pub(crate) fn readable_extents(
        &self,
        field: usize,
        window: std::ops::Range<u64>,
        mut note: impl FnMut(&Error),
    ) -> Result<Vec<(u64, Extent)>> {
        let records: Vec<u64> = window.collect();
        if let Ok(extents) = self.extents(field, &records) {
            return Ok(records.into_iter().zip(extents).collect());
        }
        let mut good = Vec::new();
        for record in records {
            match self.extents(field, &[record]) {
                Ok(extents) => good.extend(extents.into_iter().map(|e| (record, e))),
                Err(error @ Error::BadExtent { .. }) => note(&error),
                Err(error) if error.is_of_the_file() => return Err(error),
                Err(_) => {} // a damaged block, noted already
            }
        }
        Ok(good)
    }

    /// Checks the checksums of payloads, on all threads; `deep` says to look into the values too.
    pub(crate) fn verify_payloads(
        &self,
        field: usize,
        wanted: Vec<(u64, Extent)>,
        deep: bool,
        done: &Arc<AtomicU64>,
        progress: &mut impl FnMut(u64) -> bool,
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
            || {
                let interrupted = progress(done.load(Ordering::Relaxed));
                stop.fetch_or(interrupted, Ordering::Relaxed);
                interrupted
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
                    // The others may be smaller.
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
        if progress(done.load(Ordering::Relaxed)) {
            return Err(Error::Interrupted);
        }
        let (mut damaged, mut checked) = std::mem::take(&mut *checked.lock().unwrap_or_else(PoisonError::into_inner));
        damaged.sort_by_key(|(record, _)| *record);
        checked.errors = damaged.into_iter().map(|(_, error)| error).collect();
        Ok(checked)
    }

    /// The CRC of the stored bytes from `at` on behind those of `crc`; any number of them, read piece by piece.
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
