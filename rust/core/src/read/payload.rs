//! Payloads on their way to the caller: `Reader` methods that read, check, and copy or decompress
//! one value. The target buffer has exactly the size of the value.

use std::cell::RefCell;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;

use crate::codec;
use crate::error::damage::Damage;
use crate::error::{Error, Result};
use crate::format::dictionary::Dictionary;
use crate::format::extent::Extent;
use crate::format::schema::{Field, FieldIndex};
use crate::memory;
use crate::read::reader::Reader;
use crate::read::seen::{Verify, is_set};
use crate::read::source::Source;

/// Buffers above this size, in bytes, are not kept.
const KEEP: usize = 4 << 20;

/// Bytes that are copied and then checked at a time. A piece stays in the first-level cache in
/// between.
const PIECE: usize = 16 << 10;

/// Bytes of a long payload that are read at a time to compute its CRC.
const READ: usize = 1 << 20;

thread_local! {
    /// Holds bytes read by system calls until they are decompressed.
    static STORED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Reader {
    /// Calls `work` with the bytes of the mapping, or `None` without one. If a page cannot be read,
    /// the error names the record.
    #[inline]
    pub(crate) fn with_mapped<T>(
        &self,
        field: FieldIndex,
        records: &[u64],
        extents: &[Extent],
        work: impl FnOnce(Option<&[u8]>) -> Result<T>,
    ) -> Result<T> {
        self.inner.random.with(work).map_err(|e| self.name_lost(field, records, extents, e))
    }

    /// The stored bytes of a payload.
    #[inline]
    pub(crate) fn stored_in<'a>(&self, extent: &Extent, mapped: &'a [u8]) -> Result<&'a [u8]> {
        let start = extent.offset as usize;
        let outside = || Error::corrupt(self.path(), "index", "an extent lies outside of the mapping");
        mapped.get(start..start + extent.stored as usize).ok_or_else(outside)
    }

    /// Copies a value to `out`, which must have its size.
    pub(crate) fn copy_one(
        &self,
        field: FieldIndex,
        record: u64,
        extent: &Extent,
        out: &mut [u8],
        verify: Verify,
    ) -> Result<()> {
        self.with_mapped(field, &[record], std::slice::from_ref(extent), |mapped| {
            self.copy_from(mapped, field, record, extent, out, verify)
        })
    }

    /// As [`Reader::copy_one`], for callers that read several values. `mapped` is the argument that
    /// [`Source::with`] passes.
    #[inline]
    pub(crate) fn copy_from(
        &self,
        mapped: Option<&[u8]>,
        field: FieldIndex,
        record: u64,
        extent: &Extent,
        out: &mut [u8],
        verify: Verify,
    ) -> Result<()> {
        if !extent.is_plain() {
            return self.decompress_one(field, record, extent, out);
        }
        match (&self.inner.random, mapped) {
            (_, Some(mapped)) => {
                let stored = self.stored_in(extent, mapped)?;
                let (bytes, side) = stored.split_at(out.len());
                if !Self::is_due_in(self.inner.seen.bits(field), record, verify) {
                    out.copy_from_slice(bytes);
                    return Ok(());
                }
                let mut crc = 0;
                for (to, from) in out.chunks_mut(PIECE).zip(bytes.chunks(PIECE)) {
                    to.copy_from_slice(from);
                    crc = crate::format::crc::crc32c_append(crc, to);
                }
                self.compare_crc(field, record, extent.crc, crate::format::crc::crc32c_append(crc, side))?;
                self.remember(field, record, verify);
                Ok(())
            }
            (Source::Mapped(_), None) => self.copy_one(field, record, extent, out, verify),
            (Source::File(file), None) => {
                file.read_exact_at(out, extent.offset).map_err(|e| self.failed_read(field, record, e))?;
                if verify == Verify::Never {
                    return self.inner.guard.check_after(file);
                }
                let crc = self.read_crc(extent, extent.length(), crate::format::crc::crc32c(out), &mut Vec::new())?;
                self.compare_crc(field, record, extent.crc, crc)
            }
        }
    }

    /// Whether the CRC of a payload in the mapping must be checked, given the bits of its field.
    #[inline]
    pub(crate) fn is_due_in(bits: &[AtomicU64], record: u64, verify: Verify) -> bool {
        match verify {
            Verify::Never => false,
            Verify::Once => !is_set(bits, record),
            Verify::Always => true,
        }
    }

    /// Whether the CRC of a payload that is read in place from the mapping must be checked. The
    /// check may take long.
    pub fn is_due(&self, field: FieldIndex, record: u64, verify: Verify) -> bool {
        Self::is_due_in(self.inner.seen.bits(field), record, verify)
    }

    /// Remembers that a payload in the mapping is intact.
    pub(crate) fn remember(&self, field: FieldIndex, record: u64, verify: Verify) {
        if verify == Verify::Once {
            self.inner.seen.set(field, record);
        }
    }

    /// Checks the CRCs of payloads in place in the mapping. Does nothing without a mapping.
    pub(crate) fn check_mapped(
        &self,
        field: FieldIndex,
        records: &[u64],
        extents: &[Extent],
        verify: Verify,
    ) -> Result<()> {
        self.with_mapped(field, records, extents, |mapped| {
            let Some(mapped) = mapped else { return Ok(()) };
            for (&record, extent) in records.iter().zip(extents) {
                // A record may occur twice.
                if !self.is_due(field, record, verify) {
                    continue;
                }
                self.check_crc(field, record, extent, self.stored_in(extent, mapped)?)?;
                self.remember(field, record, verify);
            }
            Ok(())
        })
    }

    /// Continues `crc` over the stored bytes from `at` on, piece by piece, for any length.
    pub(crate) fn read_crc(&self, extent: &Extent, mut at: u64, mut crc: u32, piece: &mut Vec<u8>) -> Result<u32> {
        while at < extent.stored {
            resized(piece, (extent.stored - at).min(READ as u64))?;
            let place = extent.offset + at;
            let read = self.inner.file.read_exact_at(piece, place);
            read.map_err(|e| Error::unreadable(self.path(), &format!("byte {place}"), e))?;
            crc = crate::format::crc::crc32c_append(crc, piece);
            at += piece.len() as u64;
        }
        Ok(crc)
    }

    pub(crate) fn check_crc(&self, field: FieldIndex, record: u64, extent: &Extent, bytes: &[u8]) -> Result<()> {
        self.compare_crc(field, record, extent.crc, crate::format::crc::crc32c(bytes))
    }

    pub(crate) fn compare_crc(&self, field: FieldIndex, record: u64, stored: u32, computed: u32) -> Result<()> {
        if stored == computed {
            return Ok(());
        }
        Err(self.damaged(field, record, Damage::Checksum { stored, computed }))
    }

    /// Reads, checks and decompresses a value into `out`, which must have its size.
    ///
    /// Always verifies the CRC, even with [`Verify::Never`]: decoders miss some corruption and then
    /// return garbage. The check is cheap compared to decompression.
    pub(crate) fn decompress_one(&self, field: FieldIndex, record: u64, extent: &Extent, out: &mut [u8]) -> Result<()> {
        match &self.inner.random {
            Source::Mapped(map) => {
                let outcome =
                    map.read(|bytes| self.decompress(field, record, extent, self.stored_in(extent, bytes)?, out));
                outcome.map_err(|e| self.name_lost(field, &[record], &[*extent], e))?
            }
            Source::File(file) => STORED.with_borrow_mut(|stored| {
                resized(stored, extent.stored)?;
                file.read_exact_at(stored, extent.offset).map_err(|e| self.failed_read(field, record, e))?;
                let outcome = self.decompress(field, record, extent, stored, out);
                if stored.capacity() > KEEP {
                    *stored = Vec::new();
                }
                outcome
            }),
        }
    }

    /// Decompresses a value into new memory.
    pub(crate) fn decompressed(&self, field: FieldIndex, record: u64, extent: &Extent) -> Result<Vec<u8>> {
        let mut value = Vec::new();
        resized(&mut value, extent.length())?;
        self.decompress_one(field, record, extent, &mut value)?;
        Ok(value)
    }

    /// Checks and decompresses stored bytes.
    pub(crate) fn decompress(
        &self,
        field: FieldIndex,
        record: u64,
        extent: &Extent,
        stored: &[u8],
        out: &mut [u8],
    ) -> Result<()> {
        self.check_crc(field, record, extent, stored)?;
        let mut unusable = None;
        let dictionary = |id| {
            self.dictionary(field, id).map_err(|error| {
                let text = error.to_string();
                unusable = Some(error);
                text
            })
        };
        codec::decode(extent.codec, stored, out, dictionary)
            .map_err(|detail| unusable.unwrap_or_else(|| self.damaged(field, record, Damage::Compressed(detail))))
    }

    /// The errors of the damaged dictionaries of all fields.
    pub(crate) fn damaged_dictionaries(&self) -> Vec<Error> {
        let (file, limit) = (&self.inner.file, self.inner.footer.offset);
        let of = |(field, all): (&Field, &Vec<Dictionary>)| {
            all.iter().filter_map(|d| d.prepared(self.path(), &field.name, file, limit).err()).collect::<Vec<_>>()
        };
        self.schema().fields().iter().zip(&self.inner.dictionaries).flat_map(of).collect()
    }

    fn dictionary(&self, field: FieldIndex, id: u32) -> Result<&zstd_safe::DDict<'static>> {
        let name = self.name_of(field);
        let known = self.inner.dictionaries.get(field.position()).map_or(&[][..], Vec::as_slice);
        let Some(dictionary) = known.iter().find(|dictionary| dictionary.id() == id) else {
            let detail =
                format!("a payload needs it, and the schema does not say where it lies ({} are known)", known.len());
            return Err(Error::corrupt(self.path(), format!("dictionary {id} of field {name}"), detail));
        };
        dictionary.prepared(self.path(), &name, &self.inner.file, self.inner.footer.offset)
    }
}

/// Resizes a buffer. If a hostile file asks for too many bytes, this is an error and not an abort.
pub(crate) fn resized(buffer: &mut Vec<u8>, bytes: u64) -> Result<()> {
    memory::reserve(buffer, (bytes as usize).saturating_sub(buffer.len()))?;
    buffer.resize(bytes as usize, 0);
    Ok(())
}
