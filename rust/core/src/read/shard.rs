//! `Shard`: a file that is named, with what it holds, before it is opened.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde_json::Value as Json;

use crate::error::{Error, Result};
use crate::format::layout::PAGE;
use crate::format::schema::{Field, Schema};
use crate::read::reader::Reader;
use crate::read::snapshot::{Access, SnapshotId};

/// What a manifest says that a shard holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// Its fields, in any order and with any compression.
    pub schema: Schema,
    /// Its class names; null without them.
    pub classes: Json,
}

impl Contents {
    /// How a file differs from them; nothing if it does not.
    fn difference(&self, reader: &Reader) -> Option<String> {
        let (named, found) = (&self.schema, reader.schema());
        let same = |field: &Field| found.find(&field.name).is_some_and(|i| found[i].kind == field.kind);
        if named.fields().len() != found.fields().len() || !named.fields().iter().all(same) {
            let told = (named.describe(), found.describe());
            return Some(format!("its fields are not those that dataset.json names: {}, not {}", told.1, told.0));
        }
        let classes = reader.metadata().get("classes").unwrap_or(&Json::Null);
        (*classes != self.classes).then(|| "its classes are not those that dataset.json names".to_owned())
    }
}

/// One file of a data set, as its manifest names it (docs/manifest.md).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Where the file is, or what it is called if its bytes are at a `place`.
    pub path: PathBuf,
    /// The commit that belongs to the data set.
    pub snapshot: SnapshotId,
    /// Its records.
    pub records: u64,
    /// What it holds, if that is known. It is shared by the shards that hold the same.
    pub contents: Option<Arc<Contents>>,
    /// Where a copy of the file is, if the file itself is elsewhere; set before it is opened.
    pub place: OnceLock<PathBuf>,
}

impl Shard {
    /// Bytes of a footer, with which a commit ends.
    pub const FOOTER: u64 = PAGE;

    /// Opens the file.
    ///
    /// # Errors
    /// As [`Reader::open_snapshot`]; and [`Error::Replaced`] if the commit is another than the one
    /// that was named, or [`Error::Contents`] if it holds something else. The error names the way
    /// out.
    pub fn open(&self, access: Access, threads: Option<usize>) -> Result<Reader> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let renew = format!("`fastrecord manifest {}`", folder.display());
        let reader = self.open_as_named(access, threads, &renew)?;
        match self.contents.as_ref().and_then(|contents| contents.difference(&reader)) {
            None => Ok(reader),
            Some(found) => {
                let detail =
                    format!("{found}: put back the dataset.json of these shards, or {renew} names it as it is");
                Err(Error::Contents { path: self.path.clone(), detail })
            }
        }
    }

    fn open_as_named(&self, access: Access, threads: Option<usize>, renew: &str) -> Result<Reader> {
        if self.place.get().is_some() {
            return self.open_named(access, threads); // what brought it has compared it with the manifest
        }
        self.open_named(access, threads).map_err(|error| match error {
            Error::Io { path, source } if source.kind() == ErrorKind::NotFound => {
                let place = format!("dataset.json names this shard: put it back, or leave it out by {renew}");
                Error::unreadable(&path, &place, source)
            }
            Error::Replaced { path, expected, found } => {
                let found = format!("{found}; put back the shard that dataset.json names, or name this one by {renew}");
                Error::Replaced { path, expected, found }
            }
            other => other,
        })
    }

    fn open_named(&self, access: Access, threads: Option<usize>) -> Result<Reader> {
        let place = self.place.get().unwrap_or(&self.path);
        let reader = Reader::open_snapshot_at(&self.path, place, access, threads, self.snapshot)?;
        if reader.len() == self.records {
            return Ok(reader);
        }
        let (expected, found) = (format!("{} records", self.records), format!("{}", reader.len()));
        Err(Error::Replaced { path: self.path.clone(), expected, found })
    }

    /// Bytes from the start of the file to the end of the commit.
    pub fn bytes(&self) -> u64 {
        self.snapshot.footer + Self::FOOTER
    }
}
