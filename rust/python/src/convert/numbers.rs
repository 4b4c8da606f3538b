//! Conversion of Python numbers to the bytes of a field's type.

use fastrecord_core::DType;
use half::{bf16, f16};
use pyo3::prelude::*;
use pyo3::types::PyComplex;

/// Characters of a value that a message shows.
const MOST_SHOWN: usize = 80;

/// Builds the message for a value of the wrong type.
pub(crate) fn wrong(value: &Bound<'_, PyAny>, wanted: &str, error: &PyErr) -> String {
    format!("{wanted} is wanted, not {} ({})", shown(value), error.value(value.py()))
}

pub(crate) fn not_wanted(value: &Bound<'_, PyAny>, wanted: &str) -> String {
    format!("{wanted} is wanted, not {}", shown(value))
}

/// Names the type of a value, and shows a text or a number.
fn shown(value: &Bound<'_, PyAny>) -> String {
    let name = type_name(value);
    match value.repr() {
        Ok(text) if matches!(&*name, "str" | "int" | "float") => {
            format!("{name} {}", text.to_string_lossy().chars().take(MOST_SHOWN).collect::<String>())
        }
        _ => name,
    }
}

pub(crate) fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string())
}

/// Returns the number in an array or a tensor without dimensions, or else the value itself.
pub(crate) fn item<'py>(value: &Bound<'py, PyAny>) -> Bound<'py, PyAny> {
    let item = || -> PyResult<Bound<'py, PyAny>> {
        if value.getattr("ndim")?.extract::<usize>()? == 0 { value.call_method0("item") } else { Ok(value.clone()) }
    };
    item().unwrap_or_else(|_| value.clone())
}

/// The little-endian bytes of a number, and how many its type has: at most 16.
pub(crate) type NumberBytes = ([u8; 16], usize);

/// Converts a Python number to the bytes of `dtype`, or returns why it does not fit.
pub(crate) fn number_of(value: &Bound<'_, PyAny>, dtype: DType) -> Result<NumberBytes, String> {
    fn held<const N: usize>(bytes: [u8; N]) -> NumberBytes {
        let mut all = [0; 16];
        all[..N].copy_from_slice(&bytes);
        (all, N)
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
        #[allow(clippy::cast_possible_truncation)] // round to the nearest, as intended
        let near = number as f32;
        if near.is_infinite() && number.is_finite() { Err(unfit()) } else { Ok(near) }
    };
    match dtype {
        DType::Int64 => {
            let number = value.extract::<i64>().map_err(|e| wrong(value, "an integer of 64 bits", &e))?;
            Ok(held(number.to_le_bytes()))
        }
        DType::Float64 => Ok(held(float()?.to_le_bytes())),
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
            Ok((all, dtype.size()))
        }
        other => Err(format!("a field of type {other} cannot be written")),
    }
}

pub(crate) fn complex(value: &Bound<'_, PyAny>) -> Result<(f64, f64), String> {
    let value = item(value);
    let number = value.cast::<PyComplex>().cloned();
    let number = number.or_else(|_| value.call_method0("__complex__").and_then(|n| Ok(n.cast_into::<PyComplex>()?)));
    match number {
        Ok(number) => Ok((number.real(), number.imag())),
        Err(_) => value.extract().map(|real| (real, 0.0)).map_err(|e| wrong(&value, "a complex number", &e)),
    }
}

/// Returns the bytes of a Python number, converted to a dtype.
pub(crate) fn number_bytes(value: &Bound<'_, PyAny>, dtype: DType) -> Result<Vec<u8>, String> {
    number_of(value, dtype).map(|(bytes, length)| bytes[..length].to_vec())
}

/// Rounds to a 32-bit float towards zero, and sets the last bit if the result is inexact ("round to
/// odd").
///
/// Rounding that result to 16 bits equals rounding the original number. (The 64-bit conversions of
/// `half` ignore the low 32 bits.)
#[allow(clippy::cast_possible_truncation)] // the last bit stands for the bits cut off
fn to_odd(value: f64) -> f32 {
    let near = value as f32;
    if near.is_infinite() || value.is_nan() || f64::from(near).to_bits() == value.to_bits() {
        return near;
    }
    let beyond = f64::from(near).abs() > value.abs();
    f32::from_bits((near.to_bits() - u32::from(beyond)) | 1)
}

/// Rounds to the nearest 16-bit float; `None` if a finite number would become infinite.
fn to_half(value: f64) -> Option<u16> {
    let near = f16::from_f32(to_odd(value));
    (near.is_finite() || !value.is_finite()).then(|| near.to_bits())
}

/// As [`to_half`], for bfloat16.
fn to_bfloat(value: f64) -> Option<u16> {
    let near = bf16::from_f32(to_odd(value));
    (near.is_finite() || !value.is_finite()).then(|| near.to_bits())
}
