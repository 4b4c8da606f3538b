//! How the values of a field are stored, as a dict: for `Reader.compression` and
//! `Writer.compression`.

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Builds the dict {"codec", "level", "dictionaries", "bytes", "stored", "ratio"} of one field.
///
/// `bytes` is the size of the field's values, and `stored` is their stored size.
pub(crate) fn stored_dict<'py>(
    py: Python<'py>,
    codec: Option<&str>,
    level: Option<i32>,
    dictionaries: Vec<u32>,
    (bytes, stored): (u64, u64),
) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("codec", codec)?;
    row.set_item("level", level)?;
    row.set_item("dictionaries", dictionaries)?;
    row.set_item("bytes", bytes)?;
    row.set_item("stored", stored)?;
    #[allow(clippy::cast_precision_loss)] // a ratio needs no full precision
    row.set_item("ratio", (stored > 0).then(|| bytes as f64 / stored as f64))?;
    Ok(row)
}
