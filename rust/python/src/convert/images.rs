//! Conversion of Python arguments to the core's `DecodeOptions`.

use fastrecord_core::image::DecodeOptions;
use fastrecord_core::image::SixteenBit;
use fastrecord_core::image::Truncated;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// How images are decoded: a `fastrecord.Decoding`.
#[derive(FromPyObject)]
pub(crate) struct Decoding {
    truncated: String,
    sixteen_bit: String,
    exif_orientation: bool,
    max_pixels: Option<u64>,
}

impl Decoding {
    pub(crate) fn options(&self) -> PyResult<DecodeOptions> {
        options_from(&self.truncated, &self.sixteen_bit, self.exif_orientation, self.max_pixels)
    }
}

/// Builds the core's options from Python arguments.
pub(crate) fn options_from(
    truncated: &str,
    sixteen_bit: &str,
    exif_orientation: bool,
    max_pixels: Option<u64>,
) -> PyResult<DecodeOptions> {
    let sixteen_bit = sixteen_bit_from(sixteen_bit)?;
    let truncated = match truncated {
        "reject" => Truncated::Reject,
        "accept" => Truncated::Accept,
        other => return Err(PyValueError::new_err(format!("truncated is \"reject\" or \"accept\", not {other:?}"))),
    };
    if max_pixels == Some(0) {
        return Err(PyValueError::new_err("max_pixels is at least 1"));
    }
    let default = DecodeOptions::default();
    let max_pixels = max_pixels.unwrap_or(default.max_pixels);
    Ok(DecodeOptions { truncated, sixteen_bit, orientation: exif_orientation, max_pixels, ..default })
}

/// Parses the handling of 16-bit grey images.
pub(crate) fn sixteen_bit_from(name: &str) -> PyResult<SixteenBit> {
    match name {
        "reject" => Ok(SixteenBit::Reject),
        "scale" => Ok(SixteenBit::Scale),
        "clip" => Ok(SixteenBit::Clip),
        other => Err(PyValueError::new_err(format!("sixteen_bit is \"reject\", \"scale\" or \"clip\", not {other:?}"))),
    }
}
