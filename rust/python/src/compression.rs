//! What a writer says about how it compresses: `Writer.compression`, and the log.

use std::path::Path;

use fastrecord_core::{Codec, Packed};
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

/// Logs how fields are compressed, now that it is decided. No writer is held meanwhile: handlers are Python code.
pub(crate) fn log_decisions(py: Python<'_>, path: &Path, decided: Vec<Packed>) -> PyResult<()> {
    if decided.is_empty() {
        return Ok(());
    }
    let log = py.import("logging")?.call_method1("getLogger", ("fastrecord",))?;
    for packed in decided {
        let level = packed.level.map_or_else(String::new, |level| format!(" level {level}"));
        let how = format!("{}{level}", codec_name(&packed));
        let path = path.display().to_string();
        log.call_method1("info", ("%s: field %s: compression %s: %s", path, packed.field, how, packed.why))?;
    }
    Ok(())
}
