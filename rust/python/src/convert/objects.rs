//! Small Python objects that are made in large numbers: too little memory is a `MemoryError`, where pyo3's own
//! constructors panic.
#![allow(unsafe_code)]

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyList;

/// Creates an int.
pub(crate) fn int(py: Python<'_>, number: u64) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: `py` shows that this thread is attached. The call returns a new reference, or null and an error.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyLong_FromUnsignedLongLong(number)) }
}

/// Creates an empty list.
pub(crate) fn empty_list(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    // SAFETY: as in `int`.
    let list = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyList_New(0)) }?;
    Ok(list.cast_into::<PyList>()?)
}
