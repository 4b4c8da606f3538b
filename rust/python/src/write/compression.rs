//! Conversion of compression facts to a dict, for `Writer.compression`.

use fastrecord_core::{Codec, Packed};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Builds a dict of field -> {"codec", "level", "dictionary", "ratio", "reason"}.
pub(crate) fn compression_dict(py: Python<'_>, all: Vec<Packed>) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    for packed in all {
        let row = PyDict::new(py);
        row.set_item("codec", packed.codec.map(Codec::name))?;
        row.set_item("level", packed.level)?;
        row.set_item("dictionary", packed.dictionary)?;
        #[allow(clippy::cast_precision_loss)] // a ratio needs no full precision
        row.set_item("ratio", (packed.stored > 0).then(|| packed.raw as f64 / packed.stored as f64))?;
        row.set_item("reason", packed.why)?;
        dict.set_item(packed.field, row)?;
    }
    Ok(dict)
}
