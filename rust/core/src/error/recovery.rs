//! What is safe after a failed write, and what to do: the sentence that ends the errors of writers.

use std::fmt;
use std::io;

/// What a writer has left behind when a write or a sync failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Safe {
    /// The last commit that is durable; 0 if there is none.
    pub commit: u64,
    /// The records that it has.
    pub records: u64,
    /// Whether the writer was to take the place of a file, which is still as it was.
    pub replaces: bool,
    /// Whether the next commit was so far that the file may turn out to have it.
    pub under_way: bool,
    /// What kept the write from being done.
    pub obstacle: Obstacle,
}

/// What a user can do something about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// The disk, or the quota, is full.
    NoSpace,
    /// The file system or a limit of the process allows no larger file.
    TooLarge,
    /// The file's name leads elsewhere: nothing that is written there is found.
    NoName,
    /// Anything else: the disk, perhaps.
    Other,
}

impl Obstacle {
    pub(crate) fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            io::ErrorKind::FileTooLarge => Self::TooLarge,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for Safe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.obstacle == Obstacle::NoName {
            return f.write_str("it writes nothing more: open another writer");
        }
        if self.commit > 0 {
            write!(f, "the file is good up to its last commit ({} records)", self.records)?;
            if self.under_way {
                write!(f, ", or has the one that was under way as well")?;
            }
        } else if self.replaces {
            write!(f, "the file that was to be replaced is as it was, and nothing of the new one is left")?;
        } else {
            write!(f, "nothing was committed, and no file is left")?;
        }
        write!(f, "; ")?;
        match self.obstacle {
            Obstacle::NoSpace => write!(f, "make room, then ")?,
            Obstacle::TooLarge => {
                write!(f, "no file may be larger here (`ulimit -f`, or the file system): once it may, ")?;
            }
            Obstacle::NoName | Obstacle::Other => {}
        }
        f.write_str(if self.commit > 0 { "open it again to go on" } else { "write it again" })
    }
}
