//! A file as of one commit: its mapping, index, payloads and batches. Imports `file`, `format`,
//! `codec`, `parallel` and `sys`.

mod batch;
mod columns;
mod extents;
mod guard;
pub(crate) mod index;
mod mapping;
mod open;
mod padded;
mod parts;
pub(crate) mod payload;
mod prefetch;
pub(crate) mod reader;
mod record;
pub(crate) mod records;
pub(crate) mod seen;
pub(crate) mod shard;
mod side;
pub(crate) mod snapshot;
pub(crate) mod source;

pub use batch::Ranges;
pub use columns::ColumnBytes;
pub use mapping::Mapping;
pub use padded::largest_shape;
pub use parts::{CommitParts, PayloadParts};
pub use reader::Reader;
pub use record::Datum;
pub use records::Records;
pub use seen::Verify;
pub use shard::{Contents, Shard};
pub use snapshot::{Access, SnapshotId};
