//! Functions for formats of other tools.

use std::ops::Range;

use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::convert::buffers::with_readable;

type Places<'py> = (Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i64>>);

/// Return the CRC-32C of bytes, continued from `start`, the CRC of the bytes before them.
#[pyfunction]
#[pyo3(signature = (data, start = 0))]
pub(crate) fn crc32c(data: &Bound<'_, PyAny>, start: u32) -> PyResult<u32> {
    with_readable(data, |bytes| Ok(fastrecord_core::crc32c_append(start, bytes)))
}

/// Find the whole records in a stretch of a TFRecord file that begins with a record.
///
/// Args:
///     data: The bytes; no other thread may write to them during the call.
///     check: Compare the CRC of each record's data.
///
/// Returns:
///     starts, ends: int64 (N,), where each record's data is; damaged: the records with a wrong CRC;
///     end: where the first record begins that is not whole; next: its length with head and tail,
///     or None if its head is not there; broken: whether the CRC of its length is wrong.
#[pyfunction]
#[pyo3(signature = (data, *, check = true))]
#[allow(clippy::type_complexity)] // a tuple in Python
pub(crate) fn find_tfrecords<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    check: bool,
) -> PyResult<(Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i64>>, Vec<usize>, usize, Option<u64>, bool)> {
    let run = with_readable(data, |bytes| Ok(py.detach(|| fastrecord_core::find_records(bytes, check))))?;
    let (starts, ends) = places(py, &run.data);
    Ok((starts, ends, run.damaged, run.end, run.next, run.broken))
}

/// Return the names of the features of tf.train.Example messages, in the order of their first
/// appearance, and the positions of messages that are damaged, or of another type.
#[pyfunction]
pub(crate) fn example_names(
    data: &Bound<'_, PyAny>,
    starts: PyReadonlyArray1<'_, i64>,
    ends: PyReadonlyArray1<'_, i64>,
) -> PyResult<(Vec<String>, Vec<usize>)> {
    with_readable(data, |bytes| Ok(fastrecord_core::example_names(bytes, &ranges(bytes, &starts, &ends)?)))
}

/// Read features of tf.train.Example messages.
///
/// Args:
///     data: Bytes with the messages; no other thread may write to them during the call.
///     starts, ends: int64 (N,), where each message is in `data`.
///     names: The features.
///
/// Returns:
///     For each name: kinds, uint8 (N,): 1 bytes, 2 floats, 3 integers, 0 none; counts, int64 (N,),
///     of values; starts and ends of byte strings in `data`, int64; floats, float32; integers, int64;
///     each with the values of all messages. And the positions of messages that are damaged, or of
///     another type, which have no values.
///
/// Raises:
///     ValueError: a place is not in `data`.
#[pyfunction]
#[allow(clippy::type_complexity)] // tuples in Python
pub(crate) fn read_examples<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    starts: PyReadonlyArray1<'py, i64>,
    ends: PyReadonlyArray1<'py, i64>,
    names: Vec<String>,
) -> PyResult<(
    Vec<(
        Bound<'py, PyArray1<u8>>,
        Bound<'py, PyArray1<i64>>,
        Places<'py>,
        Bound<'py, PyArray1<f32>>,
        Bound<'py, PyArray1<i64>>,
    )>,
    Vec<usize>,
)> {
    let (columns, damaged) = with_readable(data, |bytes| {
        let messages = ranges(bytes, &starts, &ends)?;
        Ok(py.detach(|| fastrecord_core::read_examples(bytes, &messages, &names)))
    })?;
    let columns = columns
        .into_iter()
        .map(|column| {
            (
                PyArray1::from_vec(py, column.kinds),
                signed(py, column.counts.into_iter()),
                places(py, &column.bytes),
                PyArray1::from_vec(py, column.floats),
                PyArray1::from_vec(py, column.ints),
            )
        })
        .collect();
    Ok((columns, damaged))
}

fn places<'py>(py: Python<'py>, ranges: &[Range<usize>]) -> Places<'py> {
    (signed(py, ranges.iter().map(|range| range.start)), signed(py, ranges.iter().map(|range| range.end)))
}

fn signed(py: Python<'_>, numbers: impl Iterator<Item = usize>) -> Bound<'_, PyArray1<i64>> {
    PyArray1::from_vec(py, numbers.map(|number| (number as u64).cast_signed()).collect())
}

fn ranges(
    bytes: &[u8],
    starts: &PyReadonlyArray1<'_, i64>,
    ends: &PyReadonlyArray1<'_, i64>,
) -> PyResult<Vec<Range<usize>>> {
    let (starts, ends) = (starts.as_array(), ends.as_array());
    let place = |(&start, &end): (&i64, &i64)| {
        let place = usize::try_from(start).ok()?..usize::try_from(end).ok()?;
        (place.start <= place.end && place.end <= bytes.len()).then_some(place)
    };
    if starts.len() != ends.len() {
        return Err(PyValueError::new_err("as many starts as ends are wanted"));
    }
    let places: Option<Vec<_>> = starts.iter().zip(&ends).map(place).collect();
    places.ok_or_else(|| PyValueError::new_err("a place is not in the data"))
}
