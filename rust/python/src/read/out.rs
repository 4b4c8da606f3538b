//! Checks of the output arrays and tensors that callers pass for batches.

use fastrecord_core::{FieldType, shape_text};
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::convert::arrays::stacked;
use crate::convert::arrays::{is_of, tensor_array};

/// Refuses an output array of the wrong dtype or shape for a batch of fixed arrays.
pub(crate) fn check_out(out: &Bound<'_, PyAny>, kind: &FieldType, records: usize) -> PyResult<()> {
    let array = match kind {
        FieldType::Array(array) if array.nbytes().is_some() => array,
        _ => return Ok(()),
    };
    let wanted = stacked(records, array);
    let (found, bfloat) = match out.cast::<PyUntypedArray>() {
        Ok(found) => (found.clone(), false),
        Err(_) if out.hasattr("__torch_function__")? => tensor_array(out)?,
        Err(_) => return Ok(()), // plain memory
    };
    let (shape, dtype) = (found.shape(), found.dtype());
    let same_type = is_of(&dtype, array.dtype(), bfloat) && dtype.is_native_byteorder().unwrap_or(true);
    let flat = shape.len() == 1 && (same_type || dtype.itemsize() == 1);
    if flat || (same_type && shape.iter().map(|&dim| dim as u64).eq(wanted.iter().copied())) {
        return Ok(());
    }
    let (name, wanted) = (array.dtype(), shape_text(&wanted));
    let shape: Vec<u64> = shape.iter().map(|&dim| dim as u64).collect();
    Err(PyValueError::new_err(format!(
        "an array of {name} of shape {wanted} is wanted, not of {dtype} and {}: nothing was written",
        shape_text(&shape)
    )))
}
