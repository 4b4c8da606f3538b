//! Conversion of arrays and numbers between the core and numpy, torch or Python.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::convert::numbers::not_wanted;
use crate::convert::numbers::number_bytes;
use crate::convert::numbers::wrong;
use crate::convert::objects::int;
use fastrecord_core::{ArrayType, DType};
use half::{bf16, f16};
use numpy::PyArrayDescr;
use numpy::PyArrayDescrMethods;
use numpy::PyUntypedArray;
use numpy::PyUntypedArrayMethods;
use pyo3::exceptions::PyOverflowError;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyComplex, PyTuple};

/// Cached numpy functions and dtypes.
struct Numpy {
    ndarray: Py<PyAny>,
    empty: Py<PyAny>,
    /// Indexed in the order of `DType::ALL`.
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

/// Whether a value is an array. This does not import numpy, which takes longer than a small pack:
/// without numpy, no value is an array.
pub(crate) fn is_array(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    static IMPORTED: AtomicBool = AtomicBool::new(false);
    if !IMPORTED.load(Ordering::Relaxed) {
        let modules = value.py().import("sys")?.getattr("modules")?;
        if !modules.contains("numpy")? {
            return Ok(false);
        }
        IMPORTED.store(true, Ordering::Relaxed);
    }
    Ok(value.is_instance_of::<PyUntypedArray>())
}

/// Returns the numpy dtype name. numpy has no bfloat16: it sees the bits.
pub(crate) fn numpy_name(dtype: DType) -> &'static str {
    if dtype == DType::BFloat16 { "uint16" } else { dtype.name() }
}

/// Returns the numpy dtype that represents an element type.
pub(crate) fn dtype_of(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    let place = DType::ALL.iter().position(|other| *other == dtype).unwrap_or_default();
    Ok(numpy(py)?.dtypes[place].bind(py).clone())
}

/// Creates an array over a buffer and keeps the buffer alive; read-only if the buffer is.
pub(crate) fn array_over<'py>(
    buffer: &Bound<'py, PyAny>,
    offset: u64,
    dtype: DType,
    shape: impl IntoIterator<Item = u64, IntoIter: ExactSizeIterator>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = buffer.py();
    let shape = PyTuple::new(py, shape)?;
    numpy(py)?.ndarray.bind(py).call1((shape, dtype_of(py, dtype)?, buffer, int(py, offset)?))
}

/// Creates a read-only array that owns a copy of the bytes.
pub(crate) fn array_of<'py>(
    py: Python<'py>,
    bytes: &[u8],
    dtype: DType,
    shape: impl IntoIterator<Item = u64, IntoIter: ExactSizeIterator>,
) -> PyResult<Bound<'py, PyAny>> {
    array_over(&PyBytes::new(py, bytes), 0, dtype, shape)
}

/// Creates an uninitialized array.
pub(crate) fn new_array<'py>(py: Python<'py>, dtype: DType, shape: &[u64]) -> PyResult<Bound<'py, PyAny>> {
    numpy(py)?.empty.bind(py).call1((PyTuple::new(py, shape)?, dtype_of(py, dtype)?))
}

/// Returns the shape of N stacked values.
pub(crate) fn stacked(records: usize, array: &ArrayType) -> Vec<u64> {
    let dims = array.shape().iter().map(|dim| dim.unwrap_or_default());
    std::iter::once(records as u64).chain(dims).collect()
}

/// Converts a number to Python's own type. `bytes` has the size of the type.
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

/// Returns a numpy array over a value's memory, and whether its integers are bfloat16 bits.
pub(crate) fn array_from<'py>(
    value: &Bound<'py, PyAny>,
    wanted: &ArrayType,
) -> Result<(Bound<'py, PyUntypedArray>, bool), String> {
    let fail = |error: PyErr| wrong(value, &format!("an array for {wanted}"), &error);
    if let Ok(array) = value.cast::<PyUntypedArray>() {
        let plain = value.is_exact_instance_of::<PyUntypedArray>();
        if !plain && value.get_type().name().is_ok_and(|name| name == "MaskedArray") {
            return Err("an array is wanted, not a masked one: fill it first".to_owned());
        }
        return Ok((array.clone(), false));
    }
    if value.hasattr("__torch_function__").map_err(fail)? && value.hasattr("detach").map_err(fail)? {
        return tensor_array(value).map_err(|error| wrong(value, "a dense tensor on the CPU", &error));
    }
    let single =
        wanted.shape().is_empty() && (value.hasattr("__float__").map_err(fail)? || value.is_instance_of::<PyComplex>());
    let single = single && !value.hasattr("__array__").map_err(fail)?;
    if single {
        // A Python number has no dtype: it is converted as for a scalar field.
        return number_array(value, wanted.dtype()).map(|array| (array, wanted.dtype() == DType::BFloat16));
    }
    if !value.hasattr("__array__").map_err(fail)? {
        return Err(not_wanted(value, "a numpy array or a torch tensor"));
    }
    let numpy = value.py().import("numpy").map_err(fail)?;
    let array = numpy.call_method1("asarray", (value,)).map_err(fail)?;
    array.cast_into::<PyUntypedArray>().map(|array| (array, false)).map_err(|e| fail(e.into()))
}

/// Converts an array or a tensor to a type, in C order; `None` for any other object.
pub(crate) fn as_array<'py>(
    value: &Bound<'py, PyAny>,
    dtype: DType,
) -> Result<Option<Bound<'py, PyUntypedArray>>, String> {
    let fail = |error: PyErr| wrong(value, "an array", &error);
    let tensor = || Ok(value.hasattr("__torch_function__")? && value.hasattr("detach")?);
    if !value.is_instance_of::<PyUntypedArray>() && !tensor().map_err(fail)? {
        return Ok(None);
    }
    let (array, bfloat) = array_from(value, &ArrayType::scalar(dtype))?;
    in_c_order(array, dtype, bfloat).map(Some)
}

pub(crate) fn number_array<'py>(value: &Bound<'py, PyAny>, dtype: DType) -> Result<Bound<'py, PyUntypedArray>, String> {
    let py = value.py();
    let bytes = number_bytes(value, dtype)?;
    let array = array_of(py, &bytes, dtype, []);
    let array = array.and_then(|array| Ok(array.cast_into::<PyUntypedArray>()?));
    array.map_err(|e| wrong(value, "a number", &e))
}

/// Returns a numpy view of a CPU tensor. bfloat16 is returned as int16 bits, with `true` in the
/// second element.
pub(crate) fn tensor_array<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyUntypedArray>, bool)> {
    let py = tensor.py();
    // Most tensors need no preparation, which takes several times as long.
    if let Ok(array) = tensor.call_method0("numpy").and_then(|array| Ok(array.cast_into()?)) {
        return Ok((array, false));
    }
    let device: String = tensor.getattr("device")?.getattr("type")?.extract()?;
    if device != "cpu" {
        return Err(PyTypeError::new_err(format!("it is on the device {device:?}: call .cpu() first")));
    }
    let tensor = tensor.call_method0("detach")?.call_method0("resolve_conj")?.call_method0("resolve_neg")?;
    let torch = py.import("torch")?;
    let bfloat = tensor.getattr("dtype")?.is(&torch.getattr("bfloat16")?);
    let tensor = if bfloat { tensor.call_method1("view", (torch.getattr("int16")?,))? } else { tensor };
    Ok((tensor.call_method0("numpy")?.cast_into::<PyUntypedArray>()?, bfloat))
}

pub(crate) fn in_c_order<'py>(
    array: Bound<'py, PyUntypedArray>,
    wanted: DType,
    bfloat: bool,
) -> Result<Bound<'py, PyUntypedArray>, String> {
    let dtype = array.dtype();
    if !is_of(&dtype, wanted, bfloat) {
        let found = if bfloat { "bfloat16".to_owned() } else { dtype.to_string() };
        return Err(match dtype.kind() {
            _ if bfloat => format!("{wanted} values are wanted, not {found}"),
            b'O' => format!("{wanted} values are wanted, not Python objects"),
            b'V' if dtype.has_fields() => {
                format!("{wanted} values are wanted, not records of several fields ({found})")
            }
            _ => format!("{wanted} values are wanted, not {found}"),
        });
    }
    let native = dtype.is_native_byteorder().unwrap_or(true);
    if native && array.is_c_contiguous() {
        return Ok(array);
    }
    let py = array.py();
    let copied = || -> PyResult<Bound<'py, PyUntypedArray>> {
        let array = if native {
            array.into_any()
        } else {
            let dtype = dtype.call_method1("newbyteorder", ("=",))?;
            array.call_method1("astype", (dtype,))?
        };
        let array = py.import("numpy")?.call_method1("ascontiguousarray", (array,))?;
        Ok(array.cast_into::<PyUntypedArray>()?)
    };
    copied().map_err(|error| error.value(py).to_string())
}

/// Reports whether a numpy dtype is the dtype of a field, in any byte order.
pub(crate) fn is_of(dtype: &Bound<'_, PyArrayDescr>, wanted: DType, bfloat: bool) -> bool {
    let kind = match wanted {
        DType::Bool => b'b',
        DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => b'i',
        DType::Complex64 | DType::Complex128 => b'c',
        DType::Float16 | DType::Float32 | DType::Float64 => b'f',
        // numpy sees the bits of bfloat16. (A package that adds bfloat16 to numpy names the dtype
        // so.)
        DType::BFloat16 => {
            let name = || dtype.getattr("name").is_ok_and(|name| name.eq("bfloat16").unwrap_or(false));
            return bfloat || (dtype.kind() == b'u' && dtype.itemsize() == 2) || name();
        }
        _ => b'u',
    };
    !bfloat && dtype.kind() == kind && dtype.itemsize() == wanted.size() && !dtype.has_subarray()
}
