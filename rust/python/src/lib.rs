//! The private module `fastrecord._core`: argument checks, the GIL and error conversion. It
//! contains no algorithm.
#![allow(missing_docs)] // the classes document what Python sees
#![allow(clippy::doc_markdown)] // docstrings follow Python's conventions
#![allow(clippy::needless_pass_by_value)] // Python passes arguments by value

mod augment;
mod build_info;
mod convert;
mod copier;
mod error;
mod exclusive;
mod image;
mod interchange;
mod loader;
mod logging;
mod order;
mod read;
mod salvage;
mod write;

use fastrecord_core::Order;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

/// Return the rows at positions of the epoch order of n rows, int64 (N,).
#[pyfunction]
fn permute<'py>(
    py: Python<'py>,
    n: u64,
    seed: u64,
    epoch: u64,
    positions: PyReadonlyArray1<'py, i64>,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let positions = crate::convert::indices::positions(&positions, n)?;
    let order = Order::new(n, seed, epoch);
    let rows = py.detach(|| positions.iter().map(|&p| order.row(p).cast_signed()).collect());
    Ok(PyArray1::from_vec(py, rows))
}

/// Return (width, height) of an encoded image from its first bytes, or None if the type is unknown.
#[pyfunction]
fn image_size(data: &Bound<'_, PyAny>) -> PyResult<Option<(u32, u32)>> {
    let buffer = pyo3::buffer::PyBuffer::<u8>::get(data)?;
    Ok(fastrecord_core::image_size(&buffer.to_vec(data.py())?).ok())
}

/// Return the default number of threads: the CPUs of the affinity mask, or the CPU quota of the
/// control group if it is lower.
#[pyfunction]
fn default_threads() -> usize {
    fastrecord_core::default_threads()
}

/// Deliver the core's queued events. `last` marks the last delivery, at interpreter exit.
#[pyfunction]
#[pyo3(signature = (*, last = false))]
fn deliver_events(py: Python<'_>, last: bool) -> PyResult<()> {
    if !last {
        return logging::deliver(py);
    }
    write::state::warn_of_all(py);
    logging::close(py)
}

#[pymodule]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::{default_threads, deliver_events, image_size, permute};
    #[pymodule_export]
    use crate::augment::{Mixing, Recipe};
    #[pymodule_export]
    use crate::build_info::{
        all_limits, codecs, count_chunks, instructions, libraries, resident_bytes, side_kinds, value_bytes,
    };
    #[pymodule_export]
    use crate::copier::{Copier, stored_bytes};
    #[pymodule_export]
    use crate::image::{crop_image, decode_image, decode_records, draw_crops, foreign_kind, pack_jpeg};
    #[pymodule_export]
    use crate::interchange::{crc32c, example_names, find_tfrecords, read_examples};
    #[pymodule_export]
    use crate::loader::{Load, LoadPlan, Loading};
    #[pymodule_export]
    use crate::order::blocks::BlockOrder;
    #[pymodule_export]
    use crate::order::draw::{draw_balanced, draw_mixed, draw_weighted};
    #[pymodule_export]
    use crate::order::random::uniform;
    #[pymodule_export]
    use crate::read::batch::Batch;
    #[pymodule_export]
    use crate::read::parts::{
        allocate, check_field, commit_parts, damaged_payloads, field_parts, payload_fields, payload_parts, punch_hole,
        set_place, supply_of,
    };
    #[pymodule_export]
    use crate::read::payloads::Payloads;
    #[pymodule_export]
    use crate::read::ragged::Arrays;
    #[pymodule_export]
    use crate::read::reader::Reader;
    #[pymodule_export]
    use crate::read::reopen::{open_shard, open_snapshot};
    #[pymodule_export]
    use crate::read::unopened::Contents;
    #[pymodule_export]
    use crate::salvage::Salvage;
    #[pymodule_export]
    use crate::write::add_index::add_crop_index;
    #[pymodule_export]
    use crate::write::new_field::NewFieldWriter;
    #[pymodule_export]
    use crate::write::writer::Writer;

    #[pymodule_init]
    fn init(m: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::logging::install();
        let errors = m.py().import("fastrecord.errors")?;
        for name in crate::error::EXCEPTIONS {
            m.add(name, errors.getattr(name)?)?;
        }
        m.add("FORMAT_VERSION", fastrecord_core::FORMAT_VERSION)?;
        m.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
