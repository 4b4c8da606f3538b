//! `Arrays`: the values of a batch for a field with a variable shape.

use std::sync::{Arc, OnceLock};

use fastrecord_core::memory::{collected, copied, room};
use fastrecord_core::{ArrayType, DType, Error, FieldIndex, Records, Verify, largest_shape};
use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::convert::arrays::{array_over, new_array};
use crate::convert::buffers::{Bytes, export, with_writable};
use crate::convert::indices::{item_at, list_of};
use crate::convert::numbers::number_bytes;
use crate::error::{to_py, without_gil};
use crate::read::state::{Place, ReaderState};

/// The buffer of a batch's arrays, and offset and length of each; `None` for a missing value.
type Places = (Py<PyAny>, Vec<Option<(u64, u64)>>);

/// The arrays of a variable-shape field of a batch: a sequence of N read-only arrays, each created
/// on access.
///
/// A missing value is None. An array keeps the mapping (or the buffer that holds it) alive, also
/// after the reader is closed.
#[pyclass(module = "fastrecord", frozen, sequence)]
pub(crate) struct Arrays {
    state: Arc<ReaderState>,
    field: FieldIndex,
    array: ArrayType,
    records: Records<'static>,
    /// All dimensions of each array.
    shapes: Vec<u64>,
    verify: Verify,
    places: OnceLock<Places>,
}

impl Arrays {
    pub(crate) fn new(
        py: Python<'_>,
        state: &Arc<ReaderState>,
        field: FieldIndex,
        array: &ArrayType,
        records: &Records<'static>,
        (verify, place): (Verify, Place),
    ) -> PyResult<Self> {
        let reader = &state.reader;
        let shapes = py.detach(|| reader.shapes(field, records)).map_err(to_py)?;
        let places = OnceLock::new();
        if let Some(view) = state.random(py).filter(|_| place == Place::View) {
            let ranges = without_gil(py, |control| reader.view_batch(field, records, verify, control))?;
            if let Some(ranges) = ranges {
                let _ = places.set((view, ranges));
            }
        }
        let (state, array) = (Arc::clone(state), array.clone());
        let records = reader.records(copied(records).map_err(to_py)?).map_err(to_py)?;
        Ok(Self { state, field, array, records, shapes, verify, places })
    }

    /// Returns the locations of the arrays. Values read by system calls, or compressed, are read
    /// now.
    fn places(&self, py: Python<'_>) -> PyResult<&Places> {
        if let Some(places) = self.places.get() {
            return Ok(places);
        }
        let (field, records) = (self.field, &self.records);
        let reader = &self.state.reader;
        let read = without_gil(py, |control| reader.read_batch_owned(field, records, self.verify, control));
        let (bytes, ranges) = read?;
        let places = (export(py, Bytes::Owned(Arc::new(bytes)))?, ranges);
        Ok(self.places.get_or_init(|| places))
    }

    fn dims(&self) -> usize {
        self.array.shape().len()
    }

    fn shape(&self, i: usize) -> &[u64] {
        &self.shapes[i * self.dims()..(i + 1) * self.dims()]
    }

    fn get<'py>(&self, py: Python<'py>, i: usize) -> PyResult<Bound<'py, PyAny>> {
        let (view, ranges) = self.places(py)?;
        match ranges[i] {
            Some((offset, _)) => array_over(view.bind(py), offset, self.array.dtype(), self.shape(i).iter().copied()),
            None => Ok(py.None().into_bound(py)),
        }
    }

    fn check(&self) -> Verify {
        // Views of a mapping were checked by `read_batch`.
        if self.places.get().is_none() { self.verify } else { Verify::Never }
    }
}

#[pymethods]
impl Arrays {
    fn __len__(&self) -> usize {
        self.records.len()
    }

    /// Return one array, or a list of them for a slice.
    fn __getitem__<'py>(&self, py: Python<'py>, position: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        item_at(position, self.records.len(), "array", |at| self.get(py, at))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.tolist(py)?.try_iter()?.into_any())
    }

    /// Return all arrays as a list.
    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        list_of(py, (0..self.records.len()).map(|i| self.get(py, i)))
    }

    /// The shape of each array, int64 (N, ndim); zeros for a missing value.
    #[getter]
    fn shapes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let shapes = collected(self.shapes.iter().map(|dim| dim.cast_signed())).map_err(to_py)?;
        PyArray1::from_vec(py, shapes).call_method1("reshape", (self.records.len(), self.dims()))
    }

    /// Return all arrays in one, each padded to the largest: (N, *shape), which owns its memory.
    ///
    /// Args:
    ///     value: The padding value; must fit the dtype.
    /// Raises:
    ///     MemoryError: the array would be too large. FastRecordError: a record has no value.
    #[pyo3(signature = (value = None))]
    fn padded<'py>(&self, py: Python<'py>, value: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let dtype = self.array.dtype();
        let number = match value {
            // Bool arrays accept 0 and 1 as padding.
            Some(value) if dtype == DType::Bool && value.extract::<u8>().is_ok_and(|number| number <= 1) => {
                vec![u8::from(value.is_truthy()?)]
            }
            Some(value) => number_bytes(value, dtype).map_err(PyValueError::new_err)?,
            None => vec![0; dtype.size()],
        };
        let most = largest_shape(&self.array, &self.shapes);
        let shape: Vec<u64> = std::iter::once(self.records.len() as u64).chain(most.iter().copied()).collect();
        let out = new_array(py, dtype, &shape)?;
        let (reader, verify) = (&self.state.reader, self.check());
        with_writable(&out, |bytes| {
            without_gil(py, |control| {
                reader.read_batch_padded(self.field, &self.records, &most, &number, bytes, verify, control)
            })
        })?;
        Ok(out)
    }

    /// Return all arrays concatenated along their first axis, and the offset of each.
    ///
    /// Returns:
    ///     values, (sum of the first dimensions, *rest of the shape), which owns its memory;
    ///     offsets, int64 (N + 1,): array i is values[offsets[i]:offsets[i + 1]].
    /// Raises:
    ///     ValueError: the arrays differ in a dimension other than the first. FastRecordError: a
    ///     record has no value.
    fn packed<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let dims = self.dims();
        let mut offsets = room(self.records.len() + 1).map_err(to_py)?;
        offsets.push(0_i64);
        let mut rest: Option<&[u64]> = None;
        let mut end = 0_u64;
        for (i, shape) in self.shapes.chunks_exact(dims).enumerate() {
            if *rest.get_or_insert(&shape[1..]) != &shape[1..] {
                return Err(PyValueError::new_err(format!(
                    "arrays {} and {} cannot be packed: their shapes {} and {} differ in more than the first dimension",
                    0,
                    i,
                    fastrecord_core::shape_text(self.shape(0)),
                    fastrecord_core::shape_text(shape),
                )));
            }
            end = end.checked_add(shape[0]).ok_or_else(|| to_py(Error::Memory { bytes: u64::MAX }))?;
            offsets.push(end.cast_signed());
        }
        let declared: Vec<u64> = self.array.shape().iter().skip(1).map(|dim| dim.unwrap_or_default()).collect();
        let shape: Vec<u64> = std::iter::once(end).chain(rest.map_or(declared, <[u64]>::to_vec)).collect();
        let out = new_array(py, self.array.dtype(), &shape)?;
        let (reader, verify) = (&self.state.reader, self.check());
        with_writable(&out, |bytes| {
            without_gil(py, |control| {
                reader.read_batch_into(self.field, &self.records, bytes, verify, control).map(drop)
            })
        })?;
        Ok((out, PyArray1::from_vec(py, offsets).into_any()))
    }

    fn __repr__(&self) -> String {
        format!("<fastrecord.Arrays: {} of {}>", self.records.len(), self.array)
    }
}
