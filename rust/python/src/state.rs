//! What a reader's methods work on: the core's reader, and values of it as Python objects.

use std::sync::{Arc, OnceLock};

use fastrecord_core::{Datum, FieldType, Reader as CoreReader};
use numpy::PyArray1;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

use crate::batch::{Payloads, Values};
use crate::error::{to_py, without_gil};
use crate::export::{Bytes, export, slice};

/// A core reader with the memoryviews that all views are slices of.
pub(crate) struct State {
    pub(crate) reader: CoreReader,
    /// For single records and columns; None if nothing is mapped.
    pub(crate) view: Option<Py<PyAny>>,
    /// For batches in random order.
    random: Option<Py<PyAny>>,
}

impl State {
    pub(crate) fn new(py: Python<'_>, reader: CoreReader) -> PyResult<Arc<Self>> {
        let of = |map: Option<&Arc<_>>| map.map(|map| export(py, Bytes::Mapped(Arc::clone(map)))).transpose();
        let (view, random) = (of(reader.mapping())?, of(reader.random_mapping())?);
        Ok(Arc::new(Self { reader, view, random }))
    }
}

/// One value of a record as a Python object.
pub(crate) fn value<'py>(
    py: Python<'py>,
    state: &State,
    field: usize,
    record: u64,
    verify: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let read = || state.reader.datum(field, record, verify);
    // From a mapping it is a few loads; a system call or a checksum may take long.
    let datum = if state.view.is_some() && !verify { read() } else { py.detach(read) };
    match datum.map_err(to_py)? {
        Datum::Payload(offset, length) => {
            if let Some(view) = &state.view {
                return slice(view.bind(py), offset, length);
            }
            let bytes = py.detach(|| state.reader.payload(field, record, verify)).map_err(to_py)?;
            Ok(PyMemoryView::from(&PyBytes::new(py, &bytes).into_any())?.into_any())
        }
        Datum::Str(text) => Ok(text.into_pyobject(py)?.into_any()),
        Datum::Int(number) => Ok(number.into_pyobject(py)?.into_any()),
        Datum::Float(number) => Ok(number.into_pyobject(py)?.into_any()),
        Datum::Missing => Ok(py.None().into_bound(py)),
    }
}

/// The values of one field of a batch.
pub(crate) fn values_of(
    py: Python<'_>,
    state: &Arc<State>,
    field: usize,
    records: &[u64],
    verify: bool,
) -> PyResult<Values> {
    let reader = &state.reader;
    let kind = reader.schema().fields()[field].kind;
    let array = match kind {
        FieldType::String => return Ok(Values::Texts(field, OnceLock::new())),
        FieldType::Image | FieldType::Bytes => {
            let payloads = if let Some(view) = &state.random {
                let ranges = without_gil(py, |interrupted| {
                    if verify {
                        reader.verify_mapped(field, records, &mut *interrupted)?;
                    }
                    reader.view_batch(field, records, interrupted)
                })?;
                Payloads { view: view.clone_ref(py), ranges: Arc::new(ranges) }
            } else {
                let (bytes, starts) =
                    without_gil(py, |interrupted| reader.read_batch_copy(field, records, verify, interrupted))?;
                let ranges = starts.windows(2).map(|pair| Some((pair[0], pair[1] - pair[0]))).collect();
                Payloads { view: export(py, Bytes::Owned(Arc::new(bytes)))?, ranges: Arc::new(ranges) }
            };
            Bound::new(py, payloads)?.into_any()
        }
        FieldType::Int64 => {
            let words = py.detach(|| reader.words(field, records)).map_err(to_py)?;
            PyArray1::from_vec(py, words.into_iter().map(i64::from_le_bytes).collect()).into_any()
        }
        FieldType::Float64 => {
            let words = py.detach(|| reader.words(field, records)).map_err(to_py)?;
            PyArray1::from_vec(py, words.into_iter().map(f64::from_le_bytes).collect()).into_any()
        }
        other => return Err(PyTypeError::new_err(format!("a field of type {} cannot be read", other.name()))),
    };
    Ok(Values::Ready(array.unbind()))
}
