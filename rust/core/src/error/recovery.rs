//! `Recovery`: what survived a failed write, and how to recover. Formats the last sentence of write
//! errors.

use std::fmt;
use std::io;

/// The state of the file after a failed write or sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovery {
    /// The last durable commit; 0 if there is none.
    pub commit: u64,
    /// The records of that commit.
    pub records: u64,
    /// Whether the writer was to replace a file. That file is unchanged.
    pub replaces: bool,
    /// Whether the file may also hold the next commit, because its footer was being written.
    pub footer_pending: bool,
    /// Why the write failed.
    pub cause: Cause,
}

/// Causes of a failed write that a user can act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The disk, or the quota, is full.
    NoSpace,
    /// The file system or a limit of the process does not allow a larger file.
    TooLarge,
    /// The path no longer leads to the file: data written to it would not be found.
    NoName,
    /// Any other cause, for example the disk.
    Other,
}

impl Cause {
    pub(crate) fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            io::ErrorKind::FileTooLarge => Self::TooLarge,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.cause == Cause::NoName {
            return f.write_str("it writes nothing more: open another writer");
        }
        if self.commit > 0 {
            let records = if self.records == 1 { "record" } else { "records" };
            write!(f, "the file is good up to its last commit ({} {records})", self.records)?;
            if self.footer_pending {
                write!(f, ", and may hold the one that was being written")?;
            }
        } else if self.replaces {
            write!(f, "the old file is unchanged, and nothing of the new one is left")?;
        } else {
            write!(f, "nothing was committed, and no file is left")?;
        }
        write!(f, "; ")?;
        match self.cause {
            Cause::NoSpace => write!(f, "make room, then ")?,
            Cause::TooLarge => {
                write!(f, "a file cannot be larger here (`ulimit -f`, or the file system): raise the limit, then ")?;
            }
            Cause::NoName | Cause::Other => {}
        }
        f.write_str(if self.commit > 0 { "open it again to continue" } else { "write it again" })
    }
}
