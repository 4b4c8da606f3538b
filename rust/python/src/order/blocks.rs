//! The class `fastrecord._core.BlockOrder`: an epoch order in random blocks.

use fastrecord_core::{self as core, Blocks};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

use crate::convert::indices;

/// The epoch order of n rows in random blocks of neighbours, mixed within windows of blocks.
#[pyclass(frozen, module = "fastrecord._core")]
pub(crate) struct BlockOrder(core::BlockOrder);

#[pymethods]
impl BlockOrder {
    #[new]
    fn new(n: u64, block_records: u64, window_blocks: u64, seed: u64, epoch: u64) -> PyResult<Self> {
        if block_records == 0 || window_blocks == 0 {
            return Err(PyValueError::new_err(format!(
                "a block has at least 1 record and a window at least 1 block, not {block_records} and {window_blocks}"
            )));
        }
        Ok(Self(core::BlockOrder::new(n, Blocks { records: block_records, window: window_blocks }, seed, epoch)))
    }

    /// Return the rows at positions of the order, int64 (N,).
    fn rows<'py>(&self, py: Python<'py>, positions: PyReadonlyArray1<'py, i64>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let positions = indices::positions(&positions, self.0.len())?;
        let rows = py.detach(|| positions.iter().map(|&p| self.0.row(p).cast_signed()).collect());
        Ok(PyArray1::from_vec(py, rows))
    }

    /// Return the start and the end of the window that contains a position.
    fn window(&self, position: u64) -> PyResult<(u64, u64)> {
        if position >= self.0.len() {
            let n = self.0.len();
            return Err(PyIndexError::new_err(format!("position {position} is out of range: there are {n}")));
        }
        let window = self.0.window(position);
        Ok((window.start, window.end))
    }
}
