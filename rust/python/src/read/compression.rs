//! `Reader.compression`: how the values of a field are stored.

use fastrecord_core::Codec;
use fastrecord_core::Compression;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Builds the dict {"codec", "level", "dictionaries", "bytes", "stored", "ratio"} of one field.
///
/// `bytes` is the size of the field's values, and `stored` is their stored size.
pub(crate) fn stored_dict<'py>(
    py: Python<'py>,
    compression: &Compression,
    (bytes, stored): (u64, u64),
) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("codec", compression.codec.name())?;
    row.set_item("level", (compression.codec == Codec::Zstd).then_some(compression.level))?;
    row.set_item("dictionaries", compression.dictionaries())?;
    row.set_item("bytes", bytes)?;
    row.set_item("stored", stored)?;
    #[allow(clippy::cast_precision_loss)] // a ratio needs no full precision
    row.set_item("ratio", (stored > 0).then(|| bytes as f64 / stored as f64))?;
    Ok(row)
}
