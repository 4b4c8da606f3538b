//! `Check`: the argument `verify`, which sets when payloads are compared with their CRCs.

use std::borrow::Cow;

use fastrecord_core::Verify;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;

/// `"once"`, True or False.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Check(pub(crate) Verify);

impl Check {
    /// Returns the setting as a Python object.
    pub(crate) fn object(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        Ok(match self.0 {
            Verify::Once => PyString::new(py, "once").into_any(),
            verify => (verify == Verify::Always).into_pyobject(py)?.to_owned().into_any(),
        })
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Check {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(verify) = given.extract::<bool>() {
            return Ok(Self(if verify { Verify::Always } else { Verify::Never }));
        }
        let wanted = |found: Cow<'_, str>| format!("verify is \"once\", True or False, not {found}");
        match given.cast::<PyString>() {
            Ok(word) if word.to_str().is_ok_and(|word| word == "once") => Ok(Self(Verify::Once)),
            Ok(word) => Err(PyValueError::new_err(wanted(word.repr()?.to_string_lossy()))),
            Err(_) => Err(PyTypeError::new_err(wanted(given.repr()?.to_string_lossy()))),
        }
    }
}
