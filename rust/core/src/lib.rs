//! One append-only packed file of training records, read in parallel.
//!
//! ```
//! use fastrecord_core::{Access, DType, FieldType, Reader, Schema, Value, Writer, WriterOptions};
//!
//! # fn main() -> fastrecord_core::Result<()> {
//! let folder = tempfile::tempdir().unwrap();
//! let path = folder.path().join("train.frec");
//! let schema = Schema::new([("data", FieldType::Bytes), ("label", FieldType::Scalar(DType::Int64))])?;
//! let mut writer = Writer::open(&path, Some(schema), None, &WriterOptions::default())?;
//! writer.append(&[Value::Bytes(b"first"), Value::Int(3)])?;
//! writer.append(&[Value::Bytes(b"second"), Value::Int(4)])?;
//! writer.close()?;
//!
//! let reader = Reader::open(&path, Access::Mmap, None)?;
//! let records = reader.resolve(&[1, 0])?;
//! let (bytes, offsets) = reader.read_batch_copy(reader.field("data")?, &records, true, || false)?;
//! assert_eq!((&bytes[..], &offsets[..]), (&b"secondfirst"[..], &[0, 6, 11][..]));
//! # Ok(())
//! # }
//! ```

#[cfg(not(all(target_endian = "little", target_pointer_width = "64", unix)))]
compile_error!("fastrecord needs a 64-bit little-endian Unix: views of the file are handed out as they lie in it");

mod ahead;
mod append;
mod batch;
mod block_order;
mod buffer;
mod chunk;
mod chunks;
mod code;
mod codec;
mod columns;
mod commit;
mod compression;
mod copy;
mod copy_column;
mod crc;
mod datum;
mod decoding;
mod deep;
mod dictionary;
mod directory;
mod document;
mod draw;
mod dtype;
mod error;
mod extend;
mod extent;
mod faults;
mod field_type;
mod fill;
mod filling;
mod gather;
pub mod image;
mod images;
mod index;
mod ingest;
mod layout;
pub mod limits;
mod list;
mod loader;
mod lock;
mod lookup;
mod map;
mod mending;
mod open;
mod order;
mod packing;
mod payload;
mod pieces;
mod plan;
mod pool;
mod probe;
mod ragged;
mod reader;
mod recode;
mod remains;
mod resident;
mod safe;
mod salvage;
mod schema;
mod session;
mod snapshot;
mod sources;
mod stacking;
mod storage;
mod survey;
mod sync;
mod sys;
mod temporary;
mod transfer;
mod verify;
mod work;
mod writer;

pub use batch::Ranges;
pub use block_order::{BlockOrder, Blocks};
pub use code::code_of;
pub use codec::Codec;
pub use columns::ColumnBytes;
pub use compression::{Compression, DEFAULT_LEVEL};
pub use copy::{Copier, Renumber};
pub use datum::Datum;
pub use draw::{BalancedDraw, WeightedDraw};
pub use dtype::{ArrayType, DType, shape_text};
pub use error::{Error, Result};
pub use extend::Column;
pub use field_type::FieldType;
pub use fill::NewField;
pub use filling::{BatchBuffer, Spares};
pub use images::{Pixels, decode_image};
pub use ingest::OnError;
pub use layout::{FORMAT_VERSION, FileId};
pub use limits::MAX_DIMS;
pub use list::{ListItem, encode_list, encode_numbers, list_items, list_numbers};
pub use loader::{Failure, Load, LoadCounters, Loader, Workload};
pub use map::Mapping;
pub use order::Order;
pub use packing::Packed;
pub use plan::LoadPlan;
pub use pool::default_threads;
pub use probe::image_size;
pub use ragged::largest_shape;
pub use reader::Reader;
pub use recode::{Limit, Recode, Recoded, Tally};
pub use resident::resident_bytes;
pub use safe::{Obstacle, Safe};
pub use salvage::{Loss, Salvage};
pub use schema::{Field, Schema};
pub use snapshot::{Access, SnapshotId, from_hex, hex};
pub use sources::LoadSource;
pub use stacking::StackPlan;
pub use storage::Storage;
pub use survey::{instructions, libraries};
pub use verify::{DamagedValue, MAX_ERRORS, Report};
pub use writer::{Mode, Value, Writer, WriterOptions};
