//! `Writer::commit`: makes records durable. See docs/format.md, section 7.

use std::time::Instant;

use crate::error::Result;
use crate::format::chunk::Chunk;
use crate::format::layout::{Footer, PAGE, Slot, slot_offset};
use crate::limits::check_metadata;
use crate::write::column::MergeRule;
use crate::write::field::FieldWriter;
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

    pub(super) fn commit_changes(&mut self, last: bool) -> Result<u64> {
        let commit = self.write_commit(last)?;
        self.check_name()?;
        Ok(commit)
    }

    /// Checks that the path still names the file that was written.
    fn check_name(&self) -> Result<()> {
        let path = self.replacing.as_ref().map_or(self.path(), |replacing| &replacing.temporary);
        self.output.storage()?.check_name(path, self.records)
    }

    fn write_commit(&mut self, last: bool) -> Result<u64> {
        (0..self.fields.len()).try_for_each(|i| self.choose(i))?;
        let committed = self.committed();
        let rule = MergeRule { last, session_start: self.session_start, committed };
        let merges = self.fields.iter().any(|field| field.merges(rule, self.output.position()));
        if let Some(footer) = self.footer
            && self.records == committed
            && !self.metadata_changed
            && !self.columns_changed
            && !(last && merges)
        {
            return Ok(footer.commit);
        }
        let started = Instant::now();
        self.put_strings()?;
        for field in &mut self.fields {
            field.write_columns(&mut self.output, rule, self.records)?;
        }
        if self.metadata_changed || self.footer.is_none() {
            let bytes = self.metadata.encode();
            check_metadata(self.path(), bytes.len() as u64)?;
            self.metadata_range = self.output.put_checked(&bytes)?;
        }
        let mut chunks: Vec<&Chunk> = self.fields.iter().flat_map(FieldWriter::chunks).collect();
        chunks.sort_by_key(|c| (c.field, c.part, c.first));
        let bytes: Vec<u8> = chunks.iter().flat_map(|c| c.encode()).collect();
        let directory = self.output.put_checked(&bytes)?;
        self.output.pad(PAGE)?;
        self.output.flush()?;
        let footer = Footer {
            offset: self.output.position(),
            commit: self.footer.map_or(0, |f| f.commit) + 1,
            records: self.records,
            directory,
            metadata: self.metadata_range,
            previous: self.footer.map_or(0, |f| f.offset),
            covers_content: chunks.iter().all(|chunk| chunk.table_crc.is_some()),
        };
        let mut slot = Slot { footer: footer.offset, commit: footer.commit, sealed: false };
        self.output.write_at(&slot.encode(&self.id), slot_offset(footer.commit))?;
        self.output.sync()?;
        self.footer_pending = true;
        self.output.write_at(&footer.encode(&self.id), footer.offset)?;
        self.output.sync()?;
        if self.footer.is_none() && self.replacing.is_none() {
            let synced = self.output.storage()?.sync_name(self.path()).map_err(|e| self.output.error(e));
            // The folder may also be gone.
            synced.or_else(|error| self.check_name().and(Err(error)))?;
        }
        let Footer { commit, records, .. } = footer;
        let (bytes, seconds) = (footer.end() - self.commit_start, started.elapsed().as_secs_f64());
        log::debug!(target: "fastrecord_core::commit", "{}: commit {commit}: {records} records, {bytes} bytes more, {seconds:.3} s", self.path().display());
        self.output.continue_at(footer.end());
        self.commit_start = footer.end();
        self.footer = Some(footer);
        self.footer_pending = false;
        (self.metadata_changed, self.columns_changed) = (false, false);
        slot.sealed = true;
        self.output.write_at(&slot.encode(&self.id), slot_offset(footer.commit))?;
        Ok(footer.commit)
    }
}
