//! Conversion of a verification report to a dict, for `Reader.verify`.

use fastrecord_core::Report;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// Returns a dict of the data read, the damage found, and the bytes after the last commit.
pub(crate) fn report_dict(py: Python<'_>, report: Report, tail_bytes: u64) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("ok", report.errors.is_empty())?;
    dict.set_item("records", report.records)?;
    dict.set_item("bytes", report.bytes)?;
    dict.set_item("errors", report.errors)?;
    let damaged = PyList::empty(py);
    for value in report.damaged {
        let row = PyDict::new(py);
        row.set_item("record", value.record)?;
        row.set_item("field", value.field)?;
        row.set_item("key", value.key)?;
        row.set_item("error", value.error)?;
        damaged.append(row)?;
    }
    dict.set_item("damaged", damaged)?;
    dict.set_item("decoded", report.decoded)?;
    dict.set_item("undecoded", report.undecoded)?;
    dict.set_item("tail_bytes", tail_bytes)?;
    Ok(dict)
}
