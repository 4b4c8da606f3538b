//! Random numbers for transforms of batches.

use fastrecord_core::image;
use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The maximum number of draws per record. A larger number is a mistake.
const MANY: usize = 1 << 16;

/// Return uniform numbers in [0, 1), float64 (B, draws). They depend only on seed, epoch, stream
/// and position.
#[pyfunction]
pub(crate) fn uniform<'py>(
    py: Python<'py>,
    seed: u64,
    epoch: u64,
    stream: u64,
    positions: PyReadonlyArray1<'py, i64>,
    draws: usize,
) -> PyResult<Bound<'py, PyArray2<f64>>> {
    if draws > MANY {
        return Err(PyValueError::new_err(format!("a record draws at most {MANY} numbers, not {draws}")));
    }
    let count = positions.len();
    let keys: Result<Vec<u64>, _> = positions.as_array().iter().map(|&position| u64::try_from(position)).collect();
    let keys = keys.map_err(|_| PyValueError::new_err("positions are at least 0"))?;
    let numbers = py.detach(|| image::uniform(seed, epoch, stream, &keys, draws));
    PyArray1::from_vec(py, numbers).reshape([count, draws])
}
