//! Functions that draw records with replacement.

use fastrecord_core::{BalancedDraw, MixedDraw, WeightedDraw};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::convert::indices;

/// The number of positions in a draw, which has no end: the largest int64.
const ENDLESS: u64 = i64::MAX.cast_unsigned();

fn not_contiguous(name: &str) -> PyErr {
    PyValueError::new_err(format!("{name} lies in one piece of memory"))
}

/// Return the records drawn by weight at positions, int64 (N,).
///
/// `cumulative` is float64 (records,): the sum of the weights up to and including each record.
#[pyfunction]
pub(crate) fn draw_weighted<'py>(
    py: Python<'py>,
    cumulative: PyReadonlyArray1<'py, f64>,
    seed: u64,
    epoch: u64,
    positions: PyReadonlyArray1<'py, i64>,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let positions = indices::positions(&positions, ENDLESS)?;
    let cumulative = cumulative.as_slice().map_err(|_| not_contiguous("cumulative"))?;
    let draw = WeightedDraw::new(cumulative.len() as u64, seed, epoch);
    let records: Option<Vec<i64>> = py
        .detach(|| positions.iter().map(|&position| draw.record(cumulative, position).map(u64::cast_signed)).collect());
    let records =
        records.ok_or_else(|| PyValueError::new_err("cumulative weights ascend, to a finite number above 0"))?;
    Ok(PyArray1::from_vec(py, records))
}

/// Return int64 (N,): the records at positions of a balanced draw, which takes the classes in
/// turns.
///
/// Records are numbered class by class. `ends` is uint64 (classes,): the number of records up to
/// and including each class.
#[pyfunction]
pub(crate) fn draw_balanced<'py>(
    py: Python<'py>,
    ends: PyReadonlyArray1<'py, u64>,
    seed: u64,
    epoch: u64,
    positions: PyReadonlyArray1<'py, i64>,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let positions = indices::positions(&positions, ENDLESS)?;
    let ends = ends.as_slice().map_err(|_| not_contiguous("ends"))?;
    let draw = BalancedDraw::new(ends, seed, epoch)
        .ok_or_else(|| PyValueError::new_err("each class has at least one record: ends ascend, from above 0"))?;
    let records = py.detach(|| positions.iter().map(|&position| draw.record(position).cast_signed()).collect());
    Ok(PyArray1::from_vec(py, records))
}

/// Return int64 (N,): the records at positions of a draw in which each source has its share.
///
/// Records are numbered source by source. `ends` is uint64 (sources,): the number of records up to
/// and including each source. `shares` is uint64 (sources,): whole numbers, likewise.
#[pyfunction]
pub(crate) fn draw_mixed<'py>(
    py: Python<'py>,
    ends: PyReadonlyArray1<'py, u64>,
    shares: PyReadonlyArray1<'py, u64>,
    seed: u64,
    epoch: u64,
    positions: PyReadonlyArray1<'py, i64>,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let positions = indices::positions(&positions, ENDLESS)?;
    let ends = ends.as_slice().map_err(|_| not_contiguous("ends"))?;
    let shares = shares.as_slice().map_err(|_| not_contiguous("shares"))?;
    let draw = MixedDraw::new(ends, shares, seed, epoch)
        .ok_or_else(|| PyValueError::new_err("ends and shares ascend, and a source with a share has records"))?;
    let records = py.detach(|| positions.iter().map(|&position| draw.record(position).cast_signed()).collect());
    Ok(PyArray1::from_vec(py, records))
}
