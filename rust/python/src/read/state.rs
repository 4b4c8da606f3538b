//! `ReaderState`: the open file of a `Reader`, and its values as Python objects.

use std::sync::{Arc, OnceLock};

use fastrecord_core::memory::room;
use fastrecord_core::{
    ArrayType, BufferPool, ColumnBytes, DType, Damage, Datum, FieldIndex, FieldType, Reader as CoreReader, Records,
    Verify,
};
use numpy::PyArray1;
use pyo3::exceptions::{PyRecursionError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMemoryView, PyString};

use crate::convert::arrays::{array_of, array_over, new_array, number, stacked};
use crate::convert::buffers::{BatchMemory, Bytes, export, slice, with_writable};
use crate::convert::indices::{from_json, index, indices};
use crate::convert::verify::Check;
use crate::error::{to_py, without_gil};
use crate::read::batch::{Payloads, Values};
use crate::read::lists::{list_owned, lists_of};
use crate::read::ragged::Arrays;

/// A core reader, and the memoryviews that all views are slices of.
pub(crate) struct ReaderState {
    pub(crate) reader: CoreReader,
    /// The view for single records and columns; `None` if nothing is mapped.
    pub(crate) view: Option<Py<PyAny>>,
    /// The view for batches in random order.
    random: Option<Py<PyAny>>,
    /// For each field, the memory of earlier batches, for reuse.
    spares: Vec<OnceLock<Arc<BufferPool>>>,
    /// The default of `verify` for each call.
    pub(crate) verify: Verify,
}

/// Where values of a record lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the mapping, if there is one.
    View,
    /// In memory of their own.
    Copy,
}

impl From<bool> for Place {
    fn from(copy: bool) -> Self {
        if copy { Self::Copy } else { Self::View }
    }
}

/// Batches per field whose memory is kept for reuse: the batch in use and the next one.
const SPARES: usize = 2;

impl ReaderState {
    pub(crate) fn new(py: Python<'_>, reader: CoreReader, verify: Verify) -> PyResult<Arc<Self>> {
        let of = |map: Option<&Arc<_>>| map.map(|map| export(py, Bytes::Mapped(Arc::clone(map)))).transpose();
        let (view, random) = (of(reader.mapping())?, of(reader.random_mapping())?);
        let spares = reader.schema().fields().iter().map(|_| OnceLock::new()).collect();
        Ok(Arc::new(Self { reader, view, random, spares, verify }))
    }

    /// Returns the memoryview for batches in random order; `None` if nothing is mapped.
    pub(crate) fn random(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.random.as_ref().map(|view| view.clone_ref(py))
    }

    /// Returns the memory for batches of a field. A forked child does not use its parent's: that
    /// lock may never be released.
    fn spares(&self, field: FieldIndex) -> Arc<BufferPool> {
        let spares = self.spares[field.position()].get_or_init(|| BufferPool::new(SPARES));
        if spares.is_ours() { Arc::clone(spares) } else { BufferPool::new(0) }
    }

    /// Looks a field up by its name.
    pub(crate) fn field(&self, name: &str) -> PyResult<FieldIndex> {
        self.reader.field(name).map_err(to_py)
    }

    /// Checks one record number.
    pub(crate) fn record(&self, given: &Bound<'_, PyAny>) -> PyResult<u64> {
        self.reader.resolve_one(index(given)?).map_err(to_py)
    }

    /// Checks record numbers.
    pub(crate) fn records(&self, given: &Bound<'_, PyAny>) -> PyResult<Records<'static>> {
        self.reader.resolve(&indices(given)?).map_err(to_py)
    }

    /// As [`ReaderState::records`]; all records without numbers.
    pub(crate) fn records_or_all(&self, given: Option<&Bound<'_, PyAny>>) -> PyResult<Records<'static>> {
        given.map_or_else(|| self.reader.run(0..self.reader.len()).map_err(to_py), |given| self.records(given))
    }

    /// The given setting of `verify`, or the reader's default.
    pub(crate) fn verify(&self, given: Option<Check>) -> Verify {
        given.map_or(self.verify, |check| check.0)
    }

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

    /// Parses a record's JSON text.
    pub(crate) fn parsed<'py>(
        &self,
        py: Python<'py>,
        field: FieldIndex,
        record: u64,
        text: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        from_json(py, text).map_err(|error| {
            // Pass KeyboardInterrupt through; it is not a parse error.
            if !error.is_instance_of::<PyValueError>(py) && !error.is_instance_of::<PyRecursionError>(py) {
                return error;
            }
            to_py(self.reader.damaged(field, record, Damage::Json(error.value(py).to_string())))
        })
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
