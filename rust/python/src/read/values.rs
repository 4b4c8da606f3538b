//! The values of records as Python objects: of one record, of a batch, of a column.

use std::sync::{Arc, OnceLock};

use fastrecord_core::memory::room;
use fastrecord_core::{ArrayType, ColumnBytes, DType, Datum, FieldIndex, FieldType, Records, Verify};
use numpy::PyArray1;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMemoryView, PyString};

use crate::convert::arrays::{array_of, array_over, new_array, number, stacked};
use crate::convert::buffers::{BatchMemory, Bytes, export, slice, with_writable};
use crate::error::{to_py, without_gil};
use crate::read::lists::{list_owned, lists_of};
use crate::read::payloads::Payloads;
use crate::read::ragged::Arrays;
use crate::read::state::{Place, ReaderState};

/// The values of one field of a batch.
pub(crate) enum Values {
    /// A `Payloads` or a numpy array.
    Ready(Py<PyAny>),
    /// Texts or parsed JSON, created at first access.
    Texts(FieldIndex, OnceLock<Py<PyAny>>),
}

impl ReaderState {
    /// Returns a record as a dict of all fields.
    pub(crate) fn row<'py>(&self, py: Python<'py>, record: u64, place: Place) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (field, definition) in self.reader.schema().iter() {
            dict.set_item(&definition.name, self.value(py, field, record, self.verify, place)?)?;
        }
        Ok(dict)
    }

    /// Returns the values of records: of the named fields, or of all.
    pub(crate) fn fields(
        self: &Arc<Self>,
        py: Python<'_>,
        records: &Records<'static>,
        fields: Option<&[String]>,
        verify: Verify,
        place: Place,
    ) -> PyResult<Vec<(String, Values)>> {
        let schema = self.reader.schema();
        let wanted: Vec<FieldIndex> = match fields {
            Some(names) => names.iter().map(|name| self.field(name)).collect::<PyResult<_>>()?,
            None => schema.iter().map(|(field, _)| field).collect(),
        };
        let mut fields = Vec::with_capacity(wanted.len());
        for field in wanted {
            fields.push((schema[field].name.clone(), self.values(py, field, records, verify, place)?));
        }
        Ok(fields)
    }

    /// Returns all values of a column.
    pub(crate) fn column<'py>(&self, py: Python<'py>, name: &str, place: Place) -> PyResult<Bound<'py, PyAny>> {
        let read = || if place == Place::Copy { self.reader.column_copy(name) } else { self.reader.column(name) };
        let (kind, bytes) = py.detach(read).map_err(to_py)?;
        let (view, offset) = match (bytes, &self.view) {
            (ColumnBytes::Mapped(offset, _), Some(view)) => (view.clone_ref(py), offset),
            (ColumnBytes::Mapped(..), None) => return Err(PyTypeError::new_err("no mapping")),
            (ColumnBytes::Copied(bytes), _) => (export(py, Bytes::Owned(bytes))?, 0),
        };
        array_over(view.bind(py), offset, kind.dtype(), stacked(self.reader.len() as usize, &kind))
    }

    /// Returns all dimensions of a record's array.
    fn shape_of(&self, field: FieldIndex, array: &ArrayType, record: u64) -> PyResult<Vec<u64>> {
        if array.variable() == 0 {
            return Ok(array.shape().iter().flatten().copied().collect());
        }
        self.reader.records(&[record]).and_then(|one| self.reader.shapes(field, &one)).map_err(to_py)
    }

    /// Returns one value as a Python object. With `copy`, it is plain bytes, never a view of the
    /// mapping.
    pub(crate) fn value<'py>(
        &self,
        py: Python<'py>,
        field: FieldIndex,
        record: u64,
        verify: Verify,
        place: Place,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (reader, copy) = (&self.reader, place == Place::Copy);
        let kind = &reader.schema()[field].kind;
        // The copy checks the CRC itself. A list is always copied, and its payload may be long.
        let read = || reader.datum(field, record, if copy { Verify::Never } else { verify });
        // Reading from a mapping takes a few loads. A system call or a checksum may take long, so they
        // release the GIL.
        let due = kind.has_payloads() && !copy && !kind.holds_text() && reader.is_due(field, record, verify);
        let quick = self.view.is_some() && !due && !matches!(kind, FieldType::List(_));
        let datum = if quick { read() } else { py.detach(read) };
        match datum.map_err(to_py)? {
            Datum::Payload(offset, length) => match (&self.view, kind) {
                (Some(view), FieldType::Array(array)) if !copy => {
                    array_over(view.bind(py), offset, array.dtype(), self.shape_of(field, array, record)?)
                }
                (Some(view), _) if !copy => slice(view.bind(py), offset, length),
                _ => {
                    let bytes = PyBytes::new_with(py, length as usize, |out| {
                        py.detach(|| reader.value_into(field, record, out, verify)).map_err(to_py)
                    })?;
                    match kind {
                        FieldType::Array(array) => {
                            array_over(&bytes, 0, array.dtype(), self.shape_of(field, array, record)?)
                        }
                        _ if copy => Ok(bytes.into_any()),
                        _ => Ok(PyMemoryView::from(&bytes.into_any())?.into_any()),
                    }
                }
            },
            Datum::Decompressed(bytes) => {
                if let FieldType::List(item) = kind {
                    return list_owned(py, self, field, item, record, bytes);
                }
                if copy && !matches!(kind, FieldType::Array(_)) {
                    let copy = PyBytes::new_with(py, bytes.len(), |out| {
                        out.copy_from_slice(&bytes);
                        Ok(())
                    });
                    return Ok(copy?.into_any());
                }
                let view = export(py, Bytes::Owned(Arc::new(bytes)))?.into_bound(py);
                match kind {
                    FieldType::Array(array) => {
                        array_over(&view, 0, array.dtype(), self.shape_of(field, array, record)?)
                    }
                    _ => Ok(view),
                }
            }
            Datum::Values(bytes) => match kind {
                FieldType::Scalar(dtype) => number(py, *dtype, &bytes),
                FieldType::Array(array) => array_of(py, &bytes, array.dtype(), self.shape_of(field, array, record)?),
                other => Err(PyTypeError::new_err(format!("a field of type {other} cannot be read"))),
            },
            Datum::Str(text) if *kind == FieldType::Json => self.parsed(py, field, record, &text),
            Datum::Str(text) => Ok(PyString::from_bytes(py, text.as_bytes())?.into_any()),
            Datum::Int(number) => Ok(number.into_pyobject(py)?.into_any()),
            Datum::Float(number) => Ok(number.into_pyobject(py)?.into_any()),
            Datum::Missing => Ok(py.None().into_bound(py)),
        }
    }

    /// Returns the values of one field of a batch.
    pub(crate) fn values(
        self: &Arc<Self>,
        py: Python<'_>,
        field: FieldIndex,
        records: &Records<'static>,
        verify: Verify,
        place: Place,
    ) -> PyResult<Values> {
        let (reader, copy) = (&self.reader, place == Place::Copy);
        let kind = &reader.schema()[field].kind;
        let array = match kind {
            FieldType::String | FieldType::Json => return Ok(Values::Texts(field, OnceLock::new())),
            FieldType::Image | FieldType::Bytes => {
                // `None` if nothing is mapped, or if values are compressed. They are then read into a
                // new buffer of the batch.
                let mapped = match &self.random {
                    Some(view) if !copy => {
                        let ranges = without_gil(py, |control| reader.view_batch(field, records, verify, control));
                        ranges?.map(|ranges| (view.clone_ref(py), ranges))
                    }
                    _ => None,
                };
                let (view, ranges) = if let Some(mapped) = mapped {
                    mapped
                } else {
                    let read = without_gil(py, |control| reader.read_batch_owned(field, records, verify, control));
                    let (bytes, ranges) = read?;
                    (export(py, Bytes::Owned(Arc::new(bytes)))?, ranges)
                };
                let payloads = Payloads { view, ranges: Arc::new(ranges) };
                Bound::new(py, payloads)?.into_any()
            }
            // For labels and scores of small batches: one call turns the vector into an array.
            FieldType::Scalar(DType::Int64) => {
                let bytes = py.detach(|| reader.values(field, records)).map_err(to_py)?;
                let mut values = room(records.len()).map_err(to_py)?;
                values.extend(words(&bytes).map(i64::from_le_bytes));
                PyArray1::from_vec(py, values).into_any()
            }
            FieldType::Scalar(DType::Float64) => {
                let bytes = py.detach(|| reader.values(field, records)).map_err(to_py)?;
                let mut values = room(records.len()).map_err(to_py)?;
                values.extend(words(&bytes).map(f64::from_le_bytes));
                PyArray1::from_vec(py, values).into_any()
            }
            kind => match kind.values() {
                Some(array) => {
                    let out = new_array(py, array.dtype(), &stacked(records.len(), &array))?;
                    with_writable(&out, |bytes| {
                        py.detach(|| reader.values_into(field, records, bytes)).map_err(to_py)
                    })?;
                    out
                }
                None => match kind {
                    FieldType::Array(array) if array.nbytes().is_some() => {
                        self.stacked_payloads(py, field, array, records, verify)?
                    }
                    FieldType::List(item) => lists_of(py, self, field, item, records)?.into_any(),
                    FieldType::Array(array) => {
                        Bound::new(py, Arrays::new(py, self, field, array, records, (verify, place))?)?.into_any()
                    }
                    other => return Err(PyTypeError::new_err(format!("a field of type {other} cannot be read"))),
                },
            },
        };
        Ok(Values::Ready(array.unbind()))
    }

    /// Reads fixed-shape arrays and stacks them, on the core's threads, in memory that later batches
    /// reuse.
    fn stacked_payloads<'py>(
        &self,
        py: Python<'py>,
        field: FieldIndex,
        array: &ArrayType,
        records: &Records<'static>,
        verify: Verify,
    ) -> PyResult<Bound<'py, PyAny>> {
        let reader = &self.reader;
        let total = array.nbytes().and_then(|bytes| bytes.checked_mul(records.len() as u64));
        let total = total.filter(|&bytes| i64::try_from(bytes).is_ok()).unwrap_or(u64::MAX >> 1);
        let buffer = without_gil(py, |control| {
            let mut buffer = self.spares(field).take(total as usize)?;
            reader.read_batch_into(field, records, buffer.bytes_mut(), verify, control)?;
            Ok(buffer)
        })?;
        let memory = Bound::new(py, BatchMemory::new(buffer))?.into_any();
        array_over(&memory, 0, array.dtype(), stacked(records.len(), array))
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; 8]> {
    bytes.chunks_exact(8).map(|word| word.try_into().unwrap_or_default())
}
