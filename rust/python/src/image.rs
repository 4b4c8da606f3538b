//! Functions that decode, crop and inspect single images, without a loader.

use crate::convert::images::{Decoding, options_from};
use fastrecord_core::image::{
    Crop, DecodeOptions, Decoder, Geometry, Random, Rect, foreign_kind as kind_of, pack_jpeg as pack,
};
use fastrecord_core::memory::zeros;
use fastrecord_core::{Pixels, Verify, decode_image as decode, decode_records as core_decode_records};
use numpy::{PyArray1, PyArray2, PyArray3, PyArrayMethods};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::convert::indices::indices;
use crate::convert::verify::Check;
use crate::error::{not_decoded, to_py, without_gil};
use crate::read::reader::Reader;

pub(crate) type Array<'py> = Bound<'py, PyArray3<u8>>;

pub(crate) fn array(py: Python<'_>, height: u32, width: u32, pixels: Vec<u8>) -> PyResult<Array<'_>> {
    PyArray1::from_vec(py, pixels).reshape([height as usize, width as usize, 3])
}

/// Copies the bytes, because their owner may change them while other threads run.
fn bytes_of(data: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let buffer = PyBuffer::<u8>::get(data)?;
    let mut bytes = zeros(buffer.len_bytes()).map_err(to_py)?;
    buffer.copy_to_slice(data.py(), &mut bytes)?;
    Ok(bytes)
}

/// Decode an image to RGB, uint8 (H, W, 3), without the GIL.
///
/// Supports JPEG, PNG, WebP, GIF (first frame), BMP, TIFF and PNM, detected from the bytes. The
/// pixels are the same as with Pillow's `convert("RGB")`. Grey is repeated, alpha is dropped, CMYK is
/// treated as Adobe's inverted kind, and 16-bit colours lose their lower half. Rare kinds of TIFF
/// are not supported: palettes, CIELab, 32-bit and float samples, zstd.
///
/// Args:
///     data: The encoded bytes: bytes, a memoryview, or any other object with a buffer.
///     truncated: "reject" raises for an image that ends too early. "accept" decodes the part that
///         is there. The rest is grey, or the coarser scans of a progressive JPEG, or black for
///         other formats.
///     sixteen_bit: Handling of 16-bit grey, which does not fit in 8 bits. "reject" raises. "scale"
///         divides by 257 and rounds. "clip" turns all values above 255 white, as Pillow does.
///     exif_orientation: Turn the image upright as its EXIF data (for TIFF, its tag) specifies.
///         Otherwise it stays as stored.
///     max_pixels: Images with more pixels are refused before memory is allocated. The default is
///         178,956,970, Pillow's limit.
///
/// Returns:
///     uint8 (H, W, 3), which owns its memory.
///
/// Raises:
///     DecodeError: the image is of an unknown or unsupported kind, damaged, truncated or too
///     large.
#[pyfunction]
#[pyo3(signature = (data, *, truncated = "reject", sixteen_bit = "reject", exif_orientation = false, max_pixels = None))]
pub(crate) fn decode_image<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    truncated: &str,
    sixteen_bit: &str,
    exif_orientation: bool,
    max_pixels: Option<u64>,
) -> PyResult<Array<'py>> {
    let options = options_from(truncated, sixteen_bit, exif_orientation, max_pixels)?;
    let data = bytes_of(data)?;
    let image = py.detach(|| decode(&data, options)).map_err(|error| not_decoded(&error))?;
    array(py, image.height, image.width, image.pixels)
}

/// Read and decode the images of records: a list of uint8 (H, W, 3), in the order given.
///
/// `decoding` is a `fastrecord.Decoding`, or has its attributes. Uses at most `threads` threads; None
/// means the reader's own number.
#[pyfunction]
#[pyo3(signature = (reader, records, field, *, verify = Check(Verify::Once), decoding = None, threads = None))]
pub(crate) fn decode_records<'py>(
    py: Python<'py>,
    reader: &Bound<'py, Reader>,
    records: &Bound<'py, PyAny>,
    field: &str,
    verify: Check,
    decoding: Option<Decoding>,
    threads: Option<usize>,
) -> PyResult<Bound<'py, PyList>> {
    let options = decoding.map_or_else(|| Ok(DecodeOptions::default()), |decoding| decoding.options())?;
    let state = reader.get().state()?;
    let core = &state.reader;
    let records = core.resolve(&indices(records)?).map_err(to_py)?;
    let number = core.field(field).map_err(to_py)?;
    let images = reader.get().reading(py, Some(&[field]), Some(&records), true, || {
        without_gil(py, |control| core_decode_records(core, number, &records, verify.0, options, threads, control))
    })?;
    let arrays: Vec<_> = images
        .into_iter()
        .map(|Pixels { width, height, pixels }| array(py, height, width, pixels))
        .collect::<PyResult<_>>()?;
    PyList::new(py, arrays)
}

/// Return a JPEG as packed coefficients, which `decode_image` takes; None if it would not come back the same.
#[pyfunction]
pub(crate) fn pack_jpeg<'py>(py: Python<'py>, data: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let data = bytes_of(data)?;
    Ok(py.detach(|| pack(&data)).map(|packed| PyBytes::new(py, &packed)))
}

/// Return the kind of an image that is recognized but not decoded here, such as "AVIF". Return None
/// if it is decoded, or is not an image.
#[pyfunction]
pub(crate) fn foreign_kind(data: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    Ok(kind_of(&bytes_of(data)?))
}

/// Resize a part of an image to `size` (width, height) as the loader does.
///
/// Returns uint8 (height, width, 3).
///
/// Args:
///     data: The encoded bytes.
///     part: x, y, width and height of the part, in pixels of the image.
///     bounds: x, y, width and height of the whole pixels that the filter may read.
///     size: Width and height of the output.
#[pyfunction]
pub(crate) fn crop_image<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    part: (f64, f64, f64, f64),
    bounds: (u32, u32, u32, u32),
    size: (u32, u32),
) -> PyResult<Array<'py>> {
    if !(1..=65_535).contains(&size.0) || !(1..=65_535).contains(&size.1) {
        return Err(PyValueError::new_err("each side of the size is from 1 to 65535 pixels"));
    }
    let (x, y, width, height) = part;
    let bounds = Rect { x: bounds.0, y: bounds.1, width: bounds.2, height: bounds.3 };
    let crop = Crop { x, y, width, height, bounds, target: Rect::whole(size.0, size.1) };
    let data = bytes_of(data)?;
    let pixels = py.detach(|| {
        let mut out = vec![0; 3 * size.0 as usize * size.1 as usize];
        Decoder::new(DecodeOptions::default()).crop_resize(&data, &crop, false, size, &mut out).map(|_| out)
    });
    array(py, size.1, size.0, pixels.map_err(|error| not_decoded(&error))?)
}

/// Draw the boxes of a random resized crop at positions 0 to n of epoch 0.
///
/// Returns int64 (n, 4): x, y, width, height.
#[pyfunction]
pub(crate) fn draw_crops(
    py: Python<'_>,
    image: (u32, u32),
    n: u64,
    seed: u64,
    scale: (f64, f64),
    ratio: (f64, f64),
) -> PyResult<Bound<'_, PyArray2<i64>>> {
    let geometry = Geometry::RandomResizedCrop { size: (1, 1), scale, ratio };
    geometry.check().map_err(PyValueError::new_err)?;
    let rows: Vec<i64> = (0..n)
        .flat_map(|position| {
            let crop = geometry.crop(image.0, image.1, 0, &mut Random::new(seed, 0, position));
            let Rect { x, y, width, height } = crop.bounds;
            [x, y, width, height].map(i64::from)
        })
        .collect();
    PyArray1::from_vec(py, rows).reshape([n as usize, 4])
}
