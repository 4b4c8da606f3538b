//! Conversion of `append_files` options to the core's `Recode`, and of its counts for
//! `Writer.recoded`.

use fastrecord_core::image::{Markers, SixteenBit};
use fastrecord_core::{Limit, OnError, Recode, Tally};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};

use crate::convert::images::sixteen_bit_from;

/// Parses `on_error`: the handling of a file that cannot be read or is not an image.
pub(crate) fn on_error_from(name: &str) -> Result<OnError, String> {
    match name {
        "raise" => Ok(OnError::Raise),
        "skip" => Ok(OnError::Skip),
        other => Err(format!("on_error is \"raise\" or \"skip\", not {other:?}")),
    }
}

/// Builds the `Recode` that the keywords of `append_files` ask for; `None` if images stay
/// unchanged.
pub(crate) fn recode_from(
    short_side: Option<i64>,
    max_side: Option<i64>,
    quality: Option<i64>,
    raw: bool,
    crop_ready: Option<&str>,
    crop_index: bool,
    sixteen_bit: Option<&str>,
) -> Result<Option<Recode>, String> {
    let limit = match (short_side, max_side) {
        (Some(_), Some(_)) => return Err("give short_side or max_side, not both".to_owned()),
        // `check` refuses values that are out of range.
        (Some(pixels), None) => Some(Limit::ShortSide(pixels.try_into().unwrap_or(0))),
        (None, Some(pixels)) => Some(Limit::LongSide(pixels.try_into().unwrap_or(0))),
        (None, None) => None,
    };
    if quality.is_some() && (limit.is_none() || raw) {
        return Err("quality belongs to short_side or max_side, which make JPEGs".to_owned());
    }
    if sixteen_bit.is_some() && limit.is_none() && !raw {
        return Err("sixteen_bit is for images that short_side, max_side or raw decodes".to_owned());
    }
    let crop_ready = crop_ready.map(markers).transpose()?;
    if limit.is_none() && !raw && crop_ready.is_none() && !crop_index {
        return Ok(None);
    }
    let quality = quality.map_or(Recode::default().quality, |quality| quality.try_into().unwrap_or(0));
    let sixteen_bit = sixteen_bit.map_or(Ok(SixteenBit::Reject), sixteen_bit_from)?;
    let recode = Recode { limit, quality, raw, crop_ready, crop_index, sixteen_bit };
    recode.check()?;
    Ok(Some(recode))
}

fn markers(names: &str) -> Result<Markers, String> {
    match names {
        "all" => return Ok(Markers::ALL),
        "none" => return Ok(Markers::NONE),
        _ => {}
    }
    let mut markers = Markers::NONE;
    for name in names.split(',') {
        match name.trim() {
            "exif" => markers.exif = true,
            "icc" => markers.icc = true,
            "other" => markers.other = true,
            name => {
                return Err(format!(
                    "what is kept is \"all\", \"none\", or names out of exif, icc and other with commas between them, not {name:?}"
                ));
            }
        }
    }
    Ok(markers)
}

/// Builds a dict of the number of images, how they were stored, and their bytes.
pub(crate) fn tally_dict<'py>(py: Python<'py>, tally: &Tally) -> PyResult<Bound<'py, PyDict>> {
    let &Tally { images, kept, smaller, crop_ready, crop_index, raw, bytes_in, bytes_out, .. } = tally;
    let rows = [
        ("images", images),
        ("kept", kept),
        ("smaller", smaller),
        ("crop_ready", crop_ready),
        ("crop_index", crop_index),
        ("raw", raw),
        ("bytes_in", bytes_in),
        ("bytes_out", bytes_out),
    ];
    rows.into_py_dict(py)
}
