//! The core of fastrecord: an append-only file of training records, and parallel readers and
//! writers for it.
//!
//! ```
//! use fastrecord_core::{Access, DType, FieldType, Reader, Schema, Value, Verify, Writer, WriterOptions};
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
//! let (bytes, offsets) = reader.read_batch_copy(reader.field("data")?, &records, Verify::Always, &|| false)?;
//! assert_eq!((&bytes[..], &offsets[..]), (&b"secondfirst"[..], &[0, 6, 11][..]));
//! # Ok(())
//! # }
//! ```

#[cfg(not(all(target_endian = "little", target_pointer_width = "64", unix)))]
compile_error!("fastrecord needs a 64-bit little-endian Unix: views of the file are handed out as they lie in it");

pub mod augment;
mod build_info;
mod codec;
mod control;
mod copy;
mod error;
mod file;
mod format;
pub mod image;
mod interchange;
pub mod limits;
mod load;
pub mod memory;
mod order;
mod pack;
mod parallel;
mod read;
mod repair;
mod sys;
mod write;

pub use build_info::{instructions, libraries};
pub use codec::Codec;
pub use codec::choose::DEFAULT_LEVEL;
pub use control::Control;
pub use copy::convert::{Conversion, ConversionCounts};
pub use copy::copier::{Copier, Renumber};
pub use copy::gather::stored_bytes;
pub use error::damage::Damage;
pub use error::recovery::{Cause, Recovery};
pub use error::{Error, Result};
pub use file::storage::Storage;
pub use format::compression::{Choice, Compression};
pub use format::crc::crc32c_append;
pub use format::dtype::{ArrayType, DType, shape_text};
pub use format::field_type::FieldType;
pub use format::layout::{FORMAT_VERSION, FileId};
pub use format::layout::{from_hex, hex};
pub use format::list::{ListItem, encode_numbers, list_items, list_numbers};
pub use format::schema::{Field, FieldIndex, Schema};
pub use image::size::image_size;
pub use image::{Pixels, decode_image};
pub use interchange::example::{FeatureColumn, example_names, read_examples};
pub use interchange::tfrecord::{RecordRun, find_records};
pub use limits::MAX_DIMS;
pub use load::batch::{Failure, LoadCounters, Workload};
pub use load::decode_records::decode_records;
pub use load::images::{Supplied, View};
pub use load::loader::{Load, Loader};
pub use load::output::ImageOutput;
pub use load::plan::{LoadPlan, Output};
pub use load::sources::{LoadFile, LoadSource};
pub use order::blocks::{BlockOrder, Blocks};
pub use order::draw::{BalancedDraw, MixedDraw, WeightedDraw};
pub use order::permutation::Order;
pub use pack::add_index::{IndexCounts, IndexOptions, add_crop_index};
pub use pack::counts::ImageCounts;
pub use pack::ingest::{Ingest, OnError, Source};
pub use pack::recode::{Form, Limit, Recode, Recoded};
pub use parallel::buffers::{BatchBuffer, BufferPool};
pub use parallel::pool::default_threads;
pub use read::{
    Access, ColumnBytes, CommitParts, Contents, Datum, Mapping, PayloadParts, Ranges, Reader, Records, Shard,
    SnapshotId, Verify, largest_shape,
};
pub use repair::salvage::{LostRecords, Salvage};
pub use repair::verify::{DamagedValue, Depth, MAX_ERRORS, Report, verify};
pub use sys::files::most_open;
pub use sys::page_cache::resident_bytes;
pub use sys::{allocate, punch_hole};
pub use write::add_field::NewField;
pub use write::compress::Packed;
pub use write::value::Column;
pub use write::value::Value;
pub use write::value::encode_list;
pub use write::writer::{Mode, Writer, WriterOptions};
