//! Arrays and numbers of the core as numpy's and Python's.

use fastrecord_core::{ArrayType, DType};
use half::{bf16, f16};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyComplex, PyTuple};

/// What is asked of numpy again and again.
struct Numpy {
    ndarray: Py<PyAny>,
    empty: Py<PyAny>,
    /// In the order of `DType::ALL`.
    dtypes: Vec<Py<PyAny>>,
}

fn numpy(py: Python<'_>) -> PyResult<&Numpy> {
    static NUMPY: PyOnceLock<Numpy> = PyOnceLock::new();
    NUMPY.get_or_try_init(py, || {
        let numpy = py.import("numpy")?;
        let dtype = |dtype: DType| Ok(numpy.call_method1("dtype", (numpy_name(dtype),))?.unbind());
        Ok(Numpy {
            ndarray: numpy.getattr("ndarray")?.unbind(),
            empty: numpy.getattr("empty")?.unbind(),
            dtypes: DType::ALL.into_iter().map(dtype).collect::<PyResult<_>>()?,
        })
    })
}

/// numpy has no bfloat16: it sees the bits.
pub(crate) fn numpy_name(dtype: DType) -> &'static str {
    if dtype == DType::BFloat16 { "uint16" } else { dtype.name() }
}

/// The numpy dtype that an element type is seen as.
pub(crate) fn dtype_of(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    let place = DType::ALL.iter().position(|other| *other == dtype).unwrap_or_default();
    Ok(numpy(py)?.dtypes[place].bind(py).clone())
}

/// An array over a buffer, which it keeps alive; read-only if that is.
pub(crate) fn array_over<'py>(
    buffer: &Bound<'py, PyAny>,
    offset: u64,
    dtype: DType,
    shape: impl IntoIterator<Item = u64, IntoIter: ExactSizeIterator>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = buffer.py();
    let shape = PyTuple::new(py, shape)?;
    numpy(py)?.ndarray.bind(py).call1((shape, dtype_of(py, dtype)?, buffer, offset))
}

/// A read-only array that owns a copy of the bytes.
pub(crate) fn array_of<'py>(
    py: Python<'py>,
    bytes: &[u8],
    dtype: DType,
    shape: impl IntoIterator<Item = u64, IntoIter: ExactSizeIterator>,
) -> PyResult<Bound<'py, PyAny>> {
    array_over(&PyBytes::new(py, bytes), 0, dtype, shape)
}

/// A new array whose numbers are of no meaning yet.
pub(crate) fn new_array<'py>(py: Python<'py>, dtype: DType, shape: &[u64]) -> PyResult<Bound<'py, PyAny>> {
    numpy(py)?.empty.bind(py).call1((PyTuple::new(py, shape)?, dtype_of(py, dtype)?))
}

/// The shape of N stacked values.
pub(crate) fn stacked(records: usize, array: &ArrayType) -> Vec<u64> {
    let dims = array.shape().iter().map(|dim| dim.unwrap_or_default());
    std::iter::once(records as u64).chain(dims).collect()
}

/// A number as Python's own type; `bytes` are as many as the type has.
pub(crate) fn number<'py>(py: Python<'py>, dtype: DType, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    fn word<const N: usize>(bytes: &[u8]) -> [u8; N] {
        bytes.get(..N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
    }
    let f32_at = |at: usize| f64::from(f32::from_le_bytes(word(&bytes[at..])));
    let f64_at = |at: usize| f64::from_le_bytes(word(&bytes[at..]));
    let float = |value: f64| Ok(value.into_pyobject(py)?.into_any());
    match dtype {
        DType::Bool => Ok((bytes[0] != 0).into_pyobject(py)?.to_owned().into_any()),
        DType::Int8 => Ok(i8::from_le_bytes(word(bytes)).into_pyobject(py)?.into_any()),
        DType::Int16 => Ok(i16::from_le_bytes(word(bytes)).into_pyobject(py)?.into_any()),
        DType::Int32 => Ok(i32::from_le_bytes(word(bytes)).into_pyobject(py)?.into_any()),
        DType::Int64 => Ok(i64::from_le_bytes(word(bytes)).into_pyobject(py)?.into_any()),
        DType::UInt8 => Ok(bytes[0].into_pyobject(py)?.into_any()),
        DType::UInt16 => Ok(u16::from_le_bytes(word(bytes)).into_pyobject(py)?.into_any()),
        DType::UInt32 => Ok(u32::from_le_bytes(word(bytes)).into_pyobject(py)?.into_any()),
        DType::UInt64 => Ok(u64::from_le_bytes(word(bytes)).into_pyobject(py)?.into_any()),
        DType::Float16 => float(f16::from_le_bytes(word(bytes)).to_f64()),
        DType::BFloat16 => float(bf16::from_le_bytes(word(bytes)).to_f64()),
        DType::Float32 => float(f32_at(0)),
        DType::Float64 => float(f64_at(0)),
        DType::Complex64 => Ok(PyComplex::from_doubles(py, f32_at(0), f32_at(4)).into_any()),
        DType::Complex128 => Ok(PyComplex::from_doubles(py, f64_at(0), f64_at(8)).into_any()),
        other => Err(PyOverflowError::new_err(format!("{other} has no type in Python"))),
    }
}

/// The float of 32 bits next to a number towards zero, with its last bit set if it is another number: rounded to 16 bits, it gives what
/// the number itself would. (The conversions of `half` from 64 bits overlook the low 32.)
#[allow(clippy::cast_possible_truncation)] // what is cut off is what the last bit stands for
fn to_odd(value: f64) -> f32 {
    let near = value as f32;
    if near.is_infinite() || value.is_nan() || f64::from(near).to_bits() == value.to_bits() {
        return near;
    }
    let beyond = f64::from(near).abs() > value.abs();
    f32::from_bits((near.to_bits() - u32::from(beyond)) | 1)
}

/// The nearest float of 16 bits; `None` if the number is finite and that float is not.
pub(crate) fn to_half(value: f64) -> Option<u16> {
    let near = f16::from_f32(to_odd(value));
    (near.is_finite() || !value.is_finite()).then(|| near.to_bits())
}

/// As [`to_half`].
pub(crate) fn to_bfloat(value: f64) -> Option<u16> {
    let near = bf16::from_f32(to_odd(value));
    (near.is_finite() || !value.is_finite()).then(|| near.to_bits())
}
