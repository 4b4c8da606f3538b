//! A `fastrecord.Recode` as the core's, and the counts for `Writer.recoded`.

use fastrecord_core::image::SixteenBit;
use fastrecord_core::{Form, ImageCounts, Limit, OnError, Recode};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};

use crate::convert::images::sixteen_bit_from;
use crate::convert::numbers::type_name;

/// Parses `on_error`: the handling of a file that cannot be read or is not an image.
pub(crate) fn on_error_from(name: &str) -> PyResult<OnError> {
    match name {
        "raise" => Ok(OnError::Raise),
        "skip" => Ok(OnError::Skip),
        other => Err(PyValueError::new_err(format!("on_error is \"raise\" or \"skip\", not {other:?}"))),
    }
}

/// The attributes of a `fastrecord.Recode`. Its constructor refuses contradictions.
#[derive(FromPyObject)]
struct Settings {
    short_side: Option<u32>,
    max_side: Option<u32>,
    quality: Option<u8>,
    raw: bool,
    crop_index: bool,
    packed: bool,
    sixteen_bit: Option<String>,
}

/// Builds the core's `Recode` from Python's; `None` if images stay unchanged.
pub(crate) fn recode_from(given: &Bound<'_, PyAny>) -> PyResult<Option<Recode>> {
    let refused = |_: PyErr| PyTypeError::new_err(format!("recode is a fastrecord.Recode, not {}", type_name(given)));
    let given: Settings = given.extract().map_err(refused)?;
    let default = Recode::default();
    let recode = Recode {
        limit: given.short_side.map(Limit::ShortSide).or(given.max_side.map(Limit::LongSide)),
        quality: given.quality.unwrap_or(default.quality),
        form: match (given.raw, given.packed, given.crop_index) {
            (true, ..) => Form::Raw,
            (false, true, _) => Form::Packed,
            (false, false, true) => Form::CropIndex,
            (false, false, false) => Form::Encoded,
        },
        sixteen_bit: given.sixteen_bit.map_or(Ok(SixteenBit::Reject), |name| sixteen_bit_from(&name))?,
    };
    Ok((recode != default).then_some(recode))
}

/// Builds a dict of the number of images, how they were stored, and their bytes.
pub(crate) fn tally_dict<'py>(py: Python<'py>, tally: &ImageCounts) -> PyResult<Bound<'py, PyDict>> {
    let &ImageCounts { images, kept, smaller, crop_index, packed, raw, bytes_in, bytes_out, .. } = tally;
    let rows = [
        ("images", images),
        ("kept", kept),
        ("smaller", smaller),
        ("crop_index", crop_index),
        ("packed", packed),
        ("raw", raw),
        ("bytes_in", bytes_in),
        ("bytes_out", bytes_out),
    ];
    rows.into_py_dict(py)
}
