//! What writers and readers say about how values are compressed: `Writer.compression`, `Reader.compression`.

use fastrecord_core::{Codec, Compression, Packed};
use pyo3::prelude::*;
use pyo3::types::PyDict;

fn codec_name(packed: &Packed) -> &'static str {
    if packed.undecided && packed.codec == Codec::None { "auto" } else { packed.codec.name() }
}

/// A dict of field -> {"codec", "level", "dictionary", "ratio", "reason"}.
pub(crate) fn compression_dict(py: Python<'_>, all: Vec<Packed>) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    for packed in all {
        let row = PyDict::new(py);
        row.set_item("codec", codec_name(&packed))?;
        row.set_item("level", packed.level)?;
        row.set_item("dictionary", packed.dictionary)?;
        #[allow(clippy::cast_precision_loss)] // of a ratio
        row.set_item("ratio", (packed.stored > 0).then(|| packed.raw as f64 / packed.stored as f64))?;
        row.set_item("reason", packed.why)?;
        dict.set_item(packed.field, row)?;
    }
    Ok(dict)
}

/// A dict {"codec", "level", "dictionaries", "bytes", "stored", "ratio"}, of the bytes of a field's values and what is stored of them.
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
    #[allow(clippy::cast_precision_loss)] // of a ratio
    row.set_item("ratio", (stored > 0).then(|| bytes as f64 / stored as f64))?;
    Ok(row)
}
