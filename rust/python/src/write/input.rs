//! Values taken from Python records, checked against their fields' types.

use fastrecord_core::memory::zeros;
use fastrecord_core::{ArrayType, Column, DType, FieldType, Value, shape_text};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyComplex, PyDict, PyFrozenSet, PySet, PyString};

use crate::convert::arrays::{dtype_of, to_bfloat, to_half};
use crate::convert::buffers::array_bytes;
use crate::convert::indices::json_text;
use crate::read::lists::hold_list;

/// A value taken from a Python record, kept alive while it is appended.
pub(crate) enum Held {
    Bytes(Py<PyBytes>),
    Buffer(Vec<u8>),
    Text(String),
    Int(i64),
    Float(f64),
    Number([u8; 16], usize),
    /// A list's payload.
    List(Vec<u8>),
    /// Contiguous, little-endian.
    Array(Py<PyUntypedArray>, Vec<u64>),
}

impl Held {
    pub(crate) fn value<'a>(&'a self, py: Python<'a>) -> Value<'a> {
        match self {
            Self::Bytes(bytes) => Value::Bytes(bytes.as_bytes(py)),
            Self::Buffer(bytes) => Value::Bytes(bytes),
            Self::Text(text) => Value::Str(text),
            Self::List(bytes) => Value::List(bytes),
            Self::Int(number) => Value::Int(*number),
            Self::Float(number) => Value::Float(*number),
            Self::Number(bytes, length) => Value::Number(&bytes[..*length]),
            Self::Array(array, shape) => Value::Array { data: array_bytes(py, array), shape },
        }
    }
}

/// Why a value cannot be held that is as it should be: a `MemoryError`, not a `SchemaError`.
pub(crate) const NO_MEMORY: &str = "no memory for a copy of the value";

/// Says what is wanted instead of a value.
fn wrong(value: &Bound<'_, PyAny>, wanted: &str, error: &PyErr) -> String {
    format!("{wanted} is wanted, not {} ({})", type_name(value), error.value(value.py()))
}

fn not_wanted(value: &Bound<'_, PyAny>, wanted: &str) -> String {
    format!("{wanted} is wanted, not {}", type_name(value))
}

pub(crate) fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string())
}

/// Takes a value for a field, or says why it does not fit.
pub(crate) fn hold(value: &Bound<'_, PyAny>, kind: &FieldType) -> Result<Held, String> {
    let py = value.py();
    match kind {
        FieldType::Image | FieldType::Bytes => {
            if let Ok(bytes) = value.cast::<PyBytes>() {
                return Ok(Held::Bytes(bytes.clone().unbind()));
            }
            let unfit = |e: &PyErr| wrong(value, "a bytes-like object", e);
            let buffer = PyBuffer::<u8>::get(value).map_err(|e| unfit(&e))?;
            let mut bytes = zeros(buffer.len_bytes()).map_err(|_| NO_MEMORY.to_owned())?;
            buffer.copy_to_slice(py, &mut bytes).map_err(|e| unfit(&e))?;
            Ok(Held::Buffer(bytes))
        }
        FieldType::String => match value.cast::<PyString>() {
            Ok(text) => text
                .to_str()
                .map(|t| Held::Text(t.to_owned()))
                .map_err(|e| wrong(value, "text that UTF-8 can hold", &e)),
            Err(error) => Err(wrong(value, "a str", &error.into())),
        },
        FieldType::Scalar(dtype) => hold_number(value, *dtype),
        FieldType::Array(array) => hold_array(value, array),
        FieldType::List(item) => hold_list(value, item).map(Held::List),
        FieldType::Json => json_text(value).map(Held::Text).map_err(|e| format!("no JSON: {}", e.value(py))),
        other => Err(format!("a field of type {other} cannot be written")),
    }
}

/// A number that an array or a tensor without dimensions holds, or the value itself.
fn item<'py>(value: &Bound<'py, PyAny>) -> Bound<'py, PyAny> {
    let item = || -> PyResult<Bound<'py, PyAny>> {
        if value.getattr("ndim")?.extract::<usize>()? == 0 { value.call_method0("item") } else { Ok(value.clone()) }
    };
    item().unwrap_or_else(|_| value.clone())
}

fn hold_number(value: &Bound<'_, PyAny>, dtype: DType) -> Result<Held, String> {
    fn held<const N: usize>(bytes: [u8; N]) -> Held {
        let mut all = [0; 16];
        all[..N].copy_from_slice(&bytes);
        Held::Number(all, N)
    }
    fn fit<T: TryFrom<i64>>(value: &Bound<'_, PyAny>, number: i64, dtype: DType) -> Result<T, String> {
        T::try_from(number).map_err(|_| format!("{} does not fit {dtype}", text(value)))
    }
    fn text(value: &Bound<'_, PyAny>) -> String {
        value.str().map_or_else(|_| "the number".to_owned(), |text| text.to_string())
    }
    let int = || value.extract::<i64>().map_err(|e| wrong(value, &format!("an integer for {dtype}"), &e));
    let float = || value.extract::<f64>().map_err(|e| wrong(value, "a float", &e));
    let unfit = || format!("{} does not fit {dtype}", text(value));
    let single = |number: f64| {
        #[allow(clippy::cast_possible_truncation)] // to the nearest, which is what is asked for
        let near = number as f32;
        if near.is_infinite() && number.is_finite() { Err(unfit()) } else { Ok(near) }
    };
    match dtype {
        DType::Int64 => value.extract().map(Held::Int).map_err(|e| wrong(value, "an integer of 64 bits", &e)),
        DType::Float64 => float().map(Held::Float),
        DType::Bool => {
            let value = item(value);
            match value.extract::<bool>() {
                Ok(truth) => Ok(held([u8::from(truth)])),
                Err(_) => Err(not_wanted(&value, "a bool")),
            }
        }
        DType::Int8 => Ok(held(fit::<i8>(value, int()?, dtype)?.to_le_bytes())),
        DType::Int16 => Ok(held(fit::<i16>(value, int()?, dtype)?.to_le_bytes())),
        DType::Int32 => Ok(held(fit::<i32>(value, int()?, dtype)?.to_le_bytes())),
        DType::UInt8 => Ok(held(fit::<u8>(value, int()?, dtype)?.to_le_bytes())),
        DType::UInt16 => Ok(held(fit::<u16>(value, int()?, dtype)?.to_le_bytes())),
        DType::UInt32 => Ok(held(fit::<u32>(value, int()?, dtype)?.to_le_bytes())),
        DType::UInt64 => {
            let number = value.extract::<u64>().map_err(|e| wrong(value, "an integer of 0 to 2^64 - 1", &e))?;
            Ok(held(number.to_le_bytes()))
        }
        DType::Float16 => Ok(held(to_half(float()?).ok_or_else(unfit)?.to_le_bytes())),
        DType::BFloat16 => Ok(held(to_bfloat(float()?).ok_or_else(unfit)?.to_le_bytes())),
        DType::Float32 => Ok(held(single(float()?)?.to_le_bytes())),
        DType::Complex64 | DType::Complex128 => {
            let (real, imaginary) = complex(value)?;
            let mut all = [0; 16];
            if dtype == DType::Complex64 {
                all[..4].copy_from_slice(&single(real)?.to_le_bytes());
                all[4..8].copy_from_slice(&single(imaginary)?.to_le_bytes());
            } else {
                all[..8].copy_from_slice(&real.to_le_bytes());
                all[8..].copy_from_slice(&imaginary.to_le_bytes());
            }
            Ok(Held::Number(all, dtype.size()))
        }
        other => Err(format!("a field of type {other} cannot be written")),
    }
}

fn complex(value: &Bound<'_, PyAny>) -> Result<(f64, f64), String> {
    let value = item(value);
    let number = value.cast::<PyComplex>().cloned();
    let number = number.or_else(|_| value.call_method0("__complex__").and_then(|n| Ok(n.cast_into::<PyComplex>()?)));
    match number {
        Ok(number) => Ok((number.real(), number.imag())),
        Err(_) => value.extract().map(|real| (real, 0.0)).map_err(|e| wrong(&value, "a complex number", &e)),
    }
}

/// Many records' values of one field.
pub(crate) enum HeldColumn {
    /// Numbers or arrays of one shape, in one array.
    Block(Py<PyUntypedArray>, Vec<u64>),
    Values(Vec<Held>),
}

impl HeldColumn {
    /// How many values it has.
    pub(crate) fn len(&self, py: Python<'_>) -> usize {
        match self {
            Self::Block(array, _) => array.bind(py).shape().first().copied().unwrap_or_default(),
            Self::Values(values) => values.len(),
        }
    }

    pub(crate) fn column<'a>(&'a self, py: Python<'a>) -> Column<'a> {
        match self {
            Self::Block(array, shape) => Column::Block { data: array_bytes(py, array), shape },
            Self::Values(values) => Column::Values(values.iter().map(|held| held.value(py)).collect()),
        }
    }
}

/// Takes a field's values of many records; what does not fit is named by its position, 0 for all of them.
pub(crate) fn hold_column(values: &Bound<'_, PyAny>, kind: &FieldType) -> PyResult<Result<HeldColumn, (u64, String)>> {
    let (wanted, scalar) = match kind {
        FieldType::Scalar(dtype) => (Some(ArrayType::scalar(*dtype)), true),
        FieldType::Array(array) => (Some(array.clone()), false),
        _ => (None, false),
    };
    if let Some(wanted) = wanted {
        let tensor = values.hasattr("__torch_function__")? && values.hasattr("detach")?;
        if tensor || values.is_instance_of::<PyUntypedArray>() {
            return Ok(hold_block(values, &wanted, scalar).map_err(|detail| (0, detail)));
        }
    }
    // A text is a sequence too, of its characters, and bytes are one of integers.
    let one = values.is_instance_of::<PyString>() || values.is_instance_of::<PyBytes>();
    // Sets have no order that would go with the other fields', and a dict is its keys.
    let unordered =
        values.is_instance_of::<PySet>() || values.is_instance_of::<PyFrozenSet>() || values.is_instance_of::<PyDict>();
    let values_of = if one || unordered { None } else { values.try_iter().ok() };
    let Some(values_of) = values_of else {
        return Ok(Err((0, not_wanted(values, &format!("a sequence of values, each {kind},")))));
    };
    let mut held = Vec::with_capacity(values.len().unwrap_or_default());
    for (i, value) in values_of.enumerate() {
        match hold(&value?, kind) {
            Ok(value) => held.push(value),
            Err(detail) => return Ok(Err((i as u64, detail))),
        }
    }
    Ok(Ok(HeldColumn::Values(held)))
}

fn hold_block(values: &Bound<'_, PyAny>, wanted: &ArrayType, scalar: bool) -> Result<HeldColumn, String> {
    let (array, bfloat) = array_from(values, wanted)?;
    let shape: Vec<u64> = array.shape().iter().map(|&dim| dim as u64).collect();
    let Some((_, each)) = shape.split_first().filter(|(_, each)| wanted.nbytes_of(each).is_some()) else {
        let values = if scalar { "numbers".to_owned() } else { wanted.to_string() };
        return Err(format!("an array of shape {}, where one of N {values} is wanted", shape_text(&shape)));
    };
    let array = if scalar { widened(array, wanted.dtype(), bfloat)? } else { array };
    let array = in_c_order(array, wanted.dtype(), bfloat)?;
    Ok(HeldColumn::Block(array.unbind(), each.to_vec()))
}

/// Numbers as those of a type that holds every one of them, as single numbers are taken; others as they are.
fn widened<'py>(
    array: Bound<'py, PyUntypedArray>,
    wanted: DType,
    bfloat: bool,
) -> Result<Bound<'py, PyUntypedArray>, String> {
    if is_of(&array.dtype(), wanted, bfloat) || bfloat || wanted == DType::BFloat16 {
        return Ok(array);
    }
    let py = array.py();
    let cast = || -> PyResult<Bound<'py, PyUntypedArray>> {
        let (numpy, dtype) = (py.import("numpy")?, dtype_of(py, wanted)?);
        if !numpy.call_method1("can_cast", (array.dtype(), &dtype, "safe"))?.extract::<bool>()? {
            return Ok(array.clone());
        }
        Ok(array.call_method1("astype", (dtype,))?.cast_into::<PyUntypedArray>()?)
    };
    cast().map_err(|error| error.value(py).to_string())
}

/// An array in the machine's byte order and in C order, of the type that a field has; its shape is the core's to check.
fn hold_array(value: &Bound<'_, PyAny>, wanted: &ArrayType) -> Result<Held, String> {
    let (array, bfloat) = array_from(value, wanted)?;
    let shape: Vec<u64> = array.shape().iter().map(|&dim| dim as u64).collect();
    let array = in_c_order(array, wanted.dtype(), bfloat).map_err(|detail| {
        let shape = shape_text(&shape);
        format!("{detail} (an array of shape {shape}, where the field is {wanted})")
    })?;
    Ok(Held::Array(array.unbind(), shape))
}

/// A numpy array over a value's memory, and whether its numbers are bfloat16 although numpy sees integers.
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
        // A Python number is of no dtype: it is written as a scalar field would.
        return number_array(value, wanted.dtype()).map(|array| (array, wanted.dtype() == DType::BFloat16));
    }
    if !value.hasattr("__array__").map_err(fail)? {
        return Err(not_wanted(value, "a numpy array or a torch tensor"));
    }
    let numpy = value.py().import("numpy").map_err(fail)?;
    let array = numpy.call_method1("asarray", (value,)).map_err(fail)?;
    array.cast_into::<PyUntypedArray>().map(|array| (array, false)).map_err(|e| fail(e.into()))
}

/// The bytes of a Python number as one of a type.
pub(crate) fn number_bytes(value: &Bound<'_, PyAny>, dtype: DType) -> Result<Vec<u8>, String> {
    match hold_number(value, dtype)? {
        Held::Int(number) => Ok(number.to_le_bytes().to_vec()),
        Held::Float(number) => Ok(number.to_le_bytes().to_vec()),
        Held::Number(bytes, length) => Ok(bytes[..length].to_vec()),
        _ => Err(not_wanted(value, "a number")),
    }
}

/// The numbers of an array or a tensor of a type, in C order; `None` for anything else.
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

fn number_array<'py>(value: &Bound<'py, PyAny>, dtype: DType) -> Result<Bound<'py, PyUntypedArray>, String> {
    let py = value.py();
    let bytes = number_bytes(value, dtype)?;
    let array = crate::convert::arrays::array_of(py, &bytes, dtype, []);
    let array = array.and_then(|array| Ok(array.cast_into::<PyUntypedArray>()?));
    array.map_err(|e| wrong(value, "a number", &e))
}

/// The numpy array over a CPU tensor's memory; of bfloat16 the bits, which is told.
pub(crate) fn tensor_array<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyUntypedArray>, bool)> {
    let py = tensor.py();
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

fn in_c_order<'py>(
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

/// Whether a numpy dtype is the one of a field, in whatever byte order.
pub(crate) fn is_of(dtype: &Bound<'_, PyArrayDescr>, wanted: DType, bfloat: bool) -> bool {
    let kind = match wanted {
        DType::Bool => b'b',
        DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => b'i',
        DType::Complex64 | DType::Complex128 => b'c',
        DType::Float16 | DType::Float32 | DType::Float64 => b'f',
        // What numpy sees of them is their bits. (A package that adds bfloat16 to numpy gives it a name.)
        DType::BFloat16 => {
            let name = || dtype.getattr("name").is_ok_and(|name| name.eq("bfloat16").unwrap_or(false));
            return bfloat || (dtype.kind() == b'u' && dtype.itemsize() == 2) || name();
        }
        _ => b'u',
    };
    !bfloat && dtype.kind() == kind && dtype.itemsize() == wanted.size() && !dtype.has_subarray()
}

/// A value that needs nothing of Python.
pub(crate) enum Owned {
    Number(Vec<u8>),
    Array(Vec<u8>, Vec<u64>),
    Text(String),
    List(Vec<u8>),
}

/// One column of values for `append_files`.
pub(crate) enum FileColumn {
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Texts(Vec<String>),
    Bytes(Vec<Vec<u8>>),
    Others(Vec<Owned>),
}

impl FileColumn {
    pub(crate) fn new(values: &Bound<'_, PyAny>, kind: &FieldType) -> PyResult<Self> {
        let py = values.py();
        let array = |dtype: &str, kinds: &str| {
            let array = py.import("numpy")?.call_method1("asarray", (values,))?;
            let kind: String = array.getattr("dtype")?.getattr("kind")?.extract()?;
            if array.len()? > 0 && !kinds.contains(&kind) {
                return Err(PyTypeError::new_err(format!(
                    "{dtype} values are wanted, not {}",
                    array.getattr("dtype")?
                )));
            }
            Ok(array)
        };
        match kind {
            // As Python integers: numpy would wrap those that no int64 holds.
            FieldType::Scalar(DType::Int64) => array("int64", "iub")?.call_method0("tolist")?.extract().map(Self::Ints),
            FieldType::Scalar(DType::Float64) => {
                let values = array("float64", "iubf")?.call_method1("astype", ("float64",))?;
                values.call_method0("tolist")?.extract().map(Self::Floats)
            }
            FieldType::String => values.extract().map(Self::Texts),
            FieldType::Bytes | FieldType::Image => {
                let bytes = values.try_iter()?.map(|item| PyBuffer::<u8>::get(&item?)?.to_vec(py));
                bytes.collect::<PyResult<_>>().map(Self::Bytes)
            }
            other => {
                let owned = |held: Held| match held.value(py) {
                    Value::Number(bytes) => Owned::Number(bytes.to_vec()),
                    Value::Array { data, shape } => Owned::Array(data.to_vec(), shape.to_vec()),
                    Value::Str(text) => Owned::Text(text.to_owned()),
                    Value::List(bytes) => Owned::List(bytes.to_vec()),
                    _ => Owned::Number(Vec::new()), // of no other field; the core refuses it
                };
                let held = values.try_iter()?.map(|item| hold(&item?, other).map_err(PyTypeError::new_err).map(owned));
                held.collect::<PyResult<_>>().map(Self::Others)
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Ints(values) => values.len(),
            Self::Floats(values) => values.len(),
            Self::Texts(values) => values.len(),
            Self::Bytes(values) => values.len(),
            Self::Others(values) => values.len(),
        }
    }

    pub(crate) fn value(&self, i: usize) -> Value<'_> {
        match self {
            Self::Ints(values) => Value::Int(values[i]),
            Self::Floats(values) => Value::Float(values[i]),
            Self::Texts(values) => Value::Str(&values[i]),
            Self::Bytes(values) => Value::Bytes(&values[i]),
            Self::Others(values) => match &values[i] {
                Owned::Number(bytes) => Value::Number(bytes),
                Owned::Array(data, shape) => Value::Array { data, shape },
                Owned::Text(text) => Value::Str(text),
                Owned::List(bytes) => Value::List(bytes),
            },
        }
    }
}
