//! `Writer::commit`: makes records durable. See docs/format.md, section 7.

use std::time::Instant;

use crate::error::{Error, Result};
use crate::file::lock;
use crate::format::chunk::Chunk;
use crate::format::layout::{CheckedRange, Footer, PAGE, Slot, slot_offset};
use crate::limits::check_metadata;
use crate::sys;
use crate::write::writer::Writer;

impl Writer {
    /// Makes all records durable and returns the commit number. Does nothing if there is nothing
    /// new.
    ///
    /// # Errors
    /// A failed write or sync: the file is then valid up to the previous commit.
    /// [`Error::NameLost`]: the file was removed, moved or replaced; the data that could be written
    /// is in it. The writer refuses to continue after either.
    pub fn commit(&mut self) -> Result<u64> {
        self.check_usable()?;
        let committed = self.commit_changes(false);
        self.guard(committed)
    }

    pub(crate) fn commit_changes(&mut self, last: bool) -> Result<u64> {
        let commit = self.write_commit(last)?;
        self.check_name()?;
        Ok(commit)
    }

    /// Checks that the path still names the file that was written.
    fn check_name(&self) -> Result<()> {
        let path = self.temporary.as_ref().unwrap_or(&self.path);
        self.identity.map_or(Ok(()), |identity| lock::check_name(path, identity, self.fd, self.records))
    }

    fn write_commit(&mut self, last: bool) -> Result<u64> {
        self.settle_all()?;
        let committed = self.committed();
        let session_bytes = self.position() - self.session_start;
        let merges =
            self.columns[..self.named_columns()].iter().any(|c| c.merge_from(last, session_bytes, committed).is_some());
        if let Some(footer) = self.footer
            && self.records == committed
            && !self.document_changed
            && !(last && merges)
        {
            return Ok(footer.commit);
        }
        let started = Instant::now();
        self.flush_heap()?;
        let named = self.named_columns();
        for column in 0..named {
            self.write_column(column, last)?;
        }
        if self.document_changed || self.footer.is_none() {
            let bytes = self.document.encode();
            check_metadata(&self.path, bytes.len() as u64)?;
            self.metadata = self.put_checked(&bytes)?;
        }
        let mut chunks: Vec<&Chunk> = self.columns[..named].iter().flat_map(|c| &c.chunks).collect();
        chunks.sort_by_key(|c| (c.field, c.part, c.first));
        let bytes: Vec<u8> = chunks.iter().flat_map(|c| c.encode()).collect();
        let directory = self.put_checked(&bytes)?;
        self.pad(PAGE)?;
        self.flush()?;
        let footer = Footer {
            offset: self.buffer_at,
            commit: self.footer.map_or(0, |f| f.commit) + 1,
            records: self.records,
            directory,
            metadata: self.metadata,
            previous: self.footer.map_or(0, |f| f.offset),
        };
        let mut slot = Slot { footer: footer.offset, commit: footer.commit, sealed: false };
        self.write_at(&slot.encode(&self.id), slot_offset(footer.commit))?;
        self.sync()?;
        self.under_way = true;
        self.write_at(&footer.encode(&self.id), footer.offset)?;
        self.sync()?;
        if self.footer.is_none() && self.temporary.is_none() && self.fd.is_some() {
            let synced = sys::sync_parent(&self.path).map_err(|e| Error::io(&self.path, e));
            // The folder may also be gone.
            synced.or_else(|error| self.check_name().and(Err(error)))?;
        }
        let Footer { commit, records, .. } = footer;
        let (bytes, seconds) = (footer.end() - self.commit_start, started.elapsed().as_secs_f64());
        log::debug!(target: "fastrecord_core::commit", "{}: commit {commit}: {records} records, {bytes} bytes more, {seconds:.3} s", self.path.display());
        self.buffer_at = footer.end();
        self.writeback_at = footer.end();
        self.commit_start = footer.end();
        self.footer = Some(footer);
        self.under_way = false;
        self.document_changed = false;
        slot.sealed = true;
        self.write_at(&slot.encode(&self.id), slot_offset(footer.commit))?;
        Ok(footer.commit)
    }

    fn put_checked(&mut self, bytes: &[u8]) -> Result<CheckedRange> {
        self.pad(8)?;
        let range = CheckedRange {
            offset: self.position(),
            length: bytes.len() as u64,
            crc: crate::format::crc::crc32c(bytes),
        };
        self.put(bytes)?;
        Ok(range)
    }
}
