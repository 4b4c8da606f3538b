//! `Transfer`: copies the payloads of a window of records into another file. The kernel copies long
//! stretches; others go through memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::control::Control;
use crate::copy::pieces::{Piece, Stretch, stretches};
use crate::error::{Error, Result};
use crate::format::extent::Extent;
use crate::format::layout::PAGE;
use crate::format::schema::FieldIndex;
use crate::read::reader::Reader;
use crate::sys::DiskWatch;
use crate::write::output::Output;

/// Shorter stretches go through memory: a system call for each would cost more than copying them
/// twice.
const SHORT: u64 = 64 << 10;
/// Longer stretches keep their offset within a page, so that file systems can share blocks.
const LONG: u64 = 4 << 20;
/// Bytes that the kernel copies in one call. Ctrl-C is handled between two calls.
const STEP: u64 = 16 << 20;
/// `SPAN`: bytes read at once. `NEAR`: the largest gap between two payloads that is read along with
/// them.
const SPAN: u64 = 1 << 20;
const NEAR: u64 = 16 << 10;
/// Limits of a prefetched block, in bytes and in payloads.
const BLOCK_BYTES: u64 = 16 << 20;
const BLOCK_PIECES: usize = 16 << 10;
/// Payloads of at least this mean size are always prefetched. Smaller ones are prefetched only
/// while the disk is read: requesting them takes longer than copying.
const ALWAYS_AHEAD: u64 = 16 << 10;
/// Bytes between two reports.
const REPORT: u64 = 8 << 20;

/// A range of the source that was read.
#[derive(Debug, Default)]
pub(crate) struct Span {
    at: u64,
    length: usize,
    bytes: Vec<u8>,
}

impl Span {
    /// Bytes from an offset on: at least one, and as many as are buffered. If none are, reads up to
    /// `end`.
    fn get(&mut self, file: &File, offset: u64, wanted: u64, end: impl FnOnce() -> u64) -> io::Result<&[u8]> {
        let mut from = offset.wrapping_sub(self.at);
        if from >= self.length as u64 {
            let length = (end() - offset).clamp(1, SPAN) as usize;
            self.bytes.resize(length.max(self.bytes.len()), 0);
            self.length = 0;
            file.read_exact_at(&mut self.bytes[..length], offset)?;
            (self.at, self.length, from) = (offset, length, 0);
        }
        let to = (self.length as u64).min(from + wanted);
        Ok(&self.bytes[from as usize..to as usize])
    }
}

/// The field and the record of a piece.
type Named<'a> = dyn Fn(&Piece) -> (FieldIndex, u64) + 'a;

/// The state of copying one window.
pub(crate) struct Transfer<'a> {
    pub source: &'a Reader,
    pub output: &'a mut Output,
    /// The offset at which the copy began.
    pub start: u64,
    pub span: &'a mut Span,
    /// The alignment of each column's payloads.
    pub alignments: &'a [u64],
    /// With checksum checks: returns the field and record of a piece, for the message.
    pub verify: Option<&'a Named<'a>>,
    pub control: &'a dyn Control,
}

impl Transfer<'_> {
    /// Copies payloads in the given order and writes their new offsets into `entries`, one buffer
    /// per column.
    pub(crate) fn copy(mut self, pieces: &[Piece], sorted: bool, entries: &mut [Vec<u8>]) -> Result<()> {
        self.span.length = 0; // it may hold bytes of another file
        if !sorted || self.verify.is_some() {
            return self.copy_pieces(pieces, entries);
        }
        let mut kernel = true;
        let mut waiting = 0;
        for stretch in stretches(pieces, |piece| self.alignment(piece)) {
            if stretch.length() < SHORT {
                continue;
            }
            self.copy_pieces(&pieces[waiting..stretch.pieces.start], entries)?;
            waiting = stretch.pieces.end;
            let to = self.copy_stretch(&stretch, &mut kernel)?;
            for piece in &pieces[stretch.pieces.clone()] {
                place(entries, piece, to + (piece.offset - stretch.start));
            }
        }
        self.copy_pieces(&pieces[waiting..], entries)
    }

    fn alignment(&self, piece: &Piece) -> u64 {
        self.alignments.get(piece.column as usize).copied().unwrap_or(1)
    }

    fn written(&self) -> u64 {
        self.output.position() - self.start
    }

    fn report(&mut self) -> Result<()> {
        self.control.report_and_check(self.written())
    }

    /// Copies a stretch as a whole. Returns its offset in the copy.
    fn copy_stretch(&mut self, stretch: &Stretch, kernel: &mut bool) -> Result<u64> {
        let alignment = if stretch.length() >= LONG { PAGE } else { stretch.alignment };
        self.output.pad_like(stretch.start, alignment)?;
        self.output.flush()?;
        let to = self.output.position();
        let mut at = stretch.start;
        self.ask(at, stretch.end.min(at + STEP));
        while at < stretch.end {
            // The first step ends at a page boundary, so that the others are whole pages.
            let end = stretch.end.min((at + STEP) / PAGE * PAGE);
            self.ask(end, stretch.end.min(end + STEP));
            self.copy_step(at, end, kernel)?;
            at = end;
            self.output.flush()?; // starts writeback
            self.report()?;
        }
        Ok(to)
    }

    fn ask(&self, from: u64, to: u64) {
        self.source.ask_range(from, to - from);
    }

    /// Copies a range to the end of the file: through the kernel while that works, the rest through
    /// memory.
    fn copy_step(&mut self, mut at: u64, end: u64, kernel: &mut bool) -> Result<()> {
        let file = self.source.file();
        while *kernel && at < end {
            match self.output.put_from(file, at, end - at) {
                // Not supported here, or the source has ended; reading it then fails.
                Ok(0) => *kernel = false,
                Ok(copied) => at += copied,
                Err(error) if is_full(&error) => return Err(self.output.error(error)),
                // Files on two disks, an old kernel, an unsupported file system, or a failed read,
                // which fails again below.
                Err(error) => {
                    *kernel = false;
                    log::debug!(target: "fastrecord_core::transfer", "{}: not copied by the kernel: {error}", self.output.path().display());
                }
            }
        }
        while at < end {
            let bytes = self.span.get(file, at, end - at, || end).map_err(|e| Error::io(self.source.path(), e))?;
            self.output.put(bytes)?;
            at += bytes.len() as u64;
        }
        Ok(())
    }

    /// Copies payloads one by one.
    fn copy_pieces(&mut self, pieces: &[Piece], entries: &mut [Vec<u8>]) -> Result<()> {
        let (mut begun, mut asked) = (0, 0);
        let mut before: Option<(Piece, u64)> = None;
        let mut reported = self.written();
        let disk = DiskWatch::default();
        disk.was_read(); // counts from here on
        for (i, piece) in pieces.iter().enumerate() {
            if i == begun {
                if i == 0 {
                    asked = self.ask_block(pieces, 0, &disk);
                }
                begun = asked;
                asked = self.ask_block(pieces, begun, &disk);
            }
            let to = match before {
                // Empty payloads of two fields may also share an offset, but the alignments may
                // differ.
                Some((same, to))
                    if (same.offset, same.stored) == (piece.offset, piece.stored)
                        && to.is_multiple_of(self.alignment(piece)) =>
                {
                    to
                }
                _ => self.copy_piece(pieces, i, entries)?,
            };
            place(entries, piece, to);
            before = Some((*piece, to));
            if self.written() - reported >= REPORT {
                reported = self.written();
                self.report()?;
            }
        }
        Ok(())
    }

    fn copy_piece(&mut self, pieces: &[Piece], i: usize, entries: &[Vec<u8>]) -> Result<u64> {
        let piece = &pieces[i];
        self.output.pad(self.alignment(piece))?;
        let to = self.output.position();
        let (mut at, mut crc) = (piece.offset, 0);
        while at < piece.end() {
            let bytes = self.span.get(self.source.file(), at, piece.end() - at, || end_of_span(&pieces[i..], at));
            let bytes = bytes.map_err(|e| Error::io(self.source.path(), e))?;
            if self.verify.is_some() {
                crc = crate::format::crc::crc32c_append(crc, bytes);
            }
            self.output.put(bytes)?;
            at += bytes.len() as u64;
        }
        if let Some(name) = self.verify {
            let stored = Extent::crc_of(&entries[piece.column as usize].as_chunks().0[piece.entry as usize]);
            let (field, record) = name(piece);
            self.source.compare_crc(field, record, stored, crc)?;
        }
        Ok(to)
    }

    /// Prefetches the block of payloads that starts at `first`, in disk order. Returns its end.
    fn ask_block(&self, pieces: &[Piece], first: usize, disk: &DiskWatch) -> usize {
        let (mut end, mut bytes) = (first, 0);
        while end < pieces.len() && bytes < BLOCK_BYTES && end - first < BLOCK_PIECES {
            bytes += pieces[end].stored;
            end += 1;
        }
        let cold = disk.was_read();
        if cold || bytes >= ALWAYS_AHEAD * (end - first) as u64 {
            let mut block = pieces[first..end].to_vec();
            block.sort_unstable_by_key(|p| p.offset);
            for stretch in stretches(&block, |piece| self.alignment(piece)) {
                self.ask(stretch.start, stretch.end);
            }
        }
        end
    }
}

/// The end of the read for the first of some pieces, starting at `at` within it. Nearby pieces are
/// read along with it.
fn end_of_span(pieces: &[Piece], at: u64) -> u64 {
    let mut end = at;
    for piece in pieces {
        let near = (at..=end.saturating_add(NEAR)).contains(&piece.offset) && piece.end() <= at.saturating_add(SPAN);
        if end > at && !near {
            break;
        }
        end = end.max(piece.end());
    }
    end
}

/// Writes the new offset of a payload into its entry.
fn place(entries: &mut [Vec<u8>], piece: &Piece, offset: u64) {
    let at = piece.entry as usize * 32;
    if let Some(bytes) = entries.get_mut(piece.column as usize).and_then(|e| e.get_mut(at..at + 8)) {
        bytes.copy_from_slice(&offset.to_le_bytes());
    }
}

/// Whether the disk is full or the file would be too large.
fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG))
}
