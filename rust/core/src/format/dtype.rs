//! `DType` and `ArrayType`: element types and shapes of arrays.

use std::fmt;
use std::sync::Arc;

use crate::limits::MAX_DIMS;

/// The type of one number. All are little-endian in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)] // the names are clear
pub enum DType {
    /// One byte, 0 or 1.
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    /// IEEE, 2 bytes.
    Float16,
    /// The upper half of a float32.
    BFloat16,
    Float32,
    Float64,
    /// Two float32: real, imaginary.
    Complex64,
    /// Two float64: real, imaginary.
    Complex128,
}

impl DType {
    /// All types.
    pub const ALL: [Self; 15] = [
        Self::Bool,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::UInt8,
        Self::UInt16,
        Self::UInt32,
        Self::UInt64,
        Self::Float16,
        Self::BFloat16,
        Self::Float32,
        Self::Float64,
        Self::Complex64,
        Self::Complex128,
    ];

    /// The name in the file and in the API: numpy's name, except for bfloat16, which numpy does not
    /// have.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int8 => "int8",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::UInt8 => "uint8",
            Self::UInt16 => "uint16",
            Self::UInt32 => "uint32",
            Self::UInt64 => "uint64",
            Self::Float16 => "float16",
            Self::BFloat16 => "bfloat16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
            Self::Complex64 => "complex64",
            Self::Complex128 => "complex128",
        }
    }

    /// The type with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Bytes of one number.
    pub fn size(self) -> usize {
        match self {
            Self::Bool | Self::Int8 | Self::UInt8 => 1,
            Self::Int16 | Self::UInt16 | Self::Float16 | Self::BFloat16 => 2,
            Self::Int32 | Self::UInt32 | Self::Float32 => 4,
            Self::Int64 | Self::UInt64 | Self::Float64 | Self::Complex64 => 8,
            Self::Complex128 => 16,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The element type and the shape of arrays. `None` is a dimension that varies from value to value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayType {
    dtype: DType,
    shape: Arc<[Option<u64>]>,
    /// Bytes of a value whose variable dimensions are all 1. For a fixed shape: bytes of a value.
    unit: u64,
}

impl ArrayType {
    /// Makes an array type. An empty shape is the shape of a single number.
    ///
    /// # Errors
    /// As text: more than [`MAX_DIMS`] dimensions, 2^63 bytes or more, or a 0 beside a variable
    /// dimension. With a 0, the number of bytes would not determine the variable dimension.
    pub fn new(dtype: DType, shape: &[Option<u64>]) -> Result<Self, String> {
        if shape.len() > MAX_DIMS {
            return Err(format!("{} dimensions: at most {MAX_DIMS} are allowed", shape.len()));
        }
        // Dimensions of 0 do not shrink the others: numpy also refuses such shapes.
        let counted = shape.iter().flatten().filter(|&&dim| dim > 0);
        let bytes = counted.copied().try_fold(dtype.size() as u64, u64::checked_mul);
        let Some(bytes) = bytes.filter(|&bytes| i64::try_from(bytes).is_ok()) else {
            return Err(format!("shape {}: 2^63 bytes or more", Shape(shape)));
        };
        let empty = shape.contains(&Some(0));
        if empty && shape.contains(&None) {
            return Err(format!("shape {}: a dimension of 0 beside one that varies", Shape(shape)));
        }
        Ok(Self { dtype, shape: shape.into(), unit: if empty { 0 } else { bytes } })
    }

    /// The type of single numbers.
    pub fn scalar(dtype: DType) -> Self {
        Self { dtype, shape: [].into(), unit: dtype.size() as u64 }
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The dimensions; `None` where they vary.
    pub fn shape(&self) -> &[Option<u64>] {
        &self.shape
    }

    /// The number of variable dimensions.
    pub fn variable(&self) -> usize {
        self.shape.iter().filter(|dim| dim.is_none()).count()
    }

    /// Bytes of every value; `None` if a dimension varies.
    pub fn nbytes(&self) -> Option<u64> {
        (self.variable() == 0).then_some(self.unit)
    }

    /// Bytes of a value of this shape. `None` if the shape does not match this type or needs 2^63
    /// bytes or more.
    pub fn nbytes_of(&self, shape: &[u64]) -> Option<u64> {
        if shape.len() != self.shape.len() {
            return None;
        }
        let mut bytes = self.unit;
        for (&dim, fixed) in shape.iter().zip(self.shape.iter()) {
            match fixed {
                Some(fixed) if *fixed != dim => return None,
                Some(_) => {}
                // A product with a factor of 0 must not hide the size of another dimension.
                None if bytes == 0 => {}
                None => bytes = bytes.checked_mul(dim)?,
            }
        }
        i64::try_from(bytes).is_ok().then_some(bytes)
    }

    /// The variable dimension of a value of this many bytes, or 0 if no dimension varies. `None` if
    /// no value has this many bytes, or if several dimensions vary.
    pub(crate) fn shape_of_bytes(&self, bytes: u64) -> Option<u64> {
        match self.variable() {
            0 => (bytes == self.unit).then_some(0),
            1 => bytes.is_multiple_of(self.unit).then(|| bytes / self.unit),
            _ => None,
        }
    }
}

impl fmt::Display for ArrayType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "array({}, {})", self.dtype, Shape(&self.shape))
    }
}

/// A shape as Python writes it.
pub(crate) struct Shape<'a>(pub &'a [Option<u64>]);

impl fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dim = |dim: &Option<u64>| dim.map_or_else(|| "None".to_owned(), |dim| dim.to_string());
        match self.0 {
            [only] => write!(f, "({},)", dim(only)),
            dims => write!(f, "({})", dims.iter().map(dim).collect::<Vec<_>>().join(", ")),
        }
    }
}

/// The shape of one value as Python writes it.
pub fn shape_text(shape: &[u64]) -> String {
    Shape(&shape.iter().copied().map(Some).collect::<Vec<_>>()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_one_type_and_leads_back_to_it() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
        }
        assert_eq!(DType::from_name("float8"), None);
    }

    #[test]
    fn shapes_that_no_array_can_have_are_refused() {
        let new = |shape: &[Option<u64>]| ArrayType::new(DType::UInt16, shape);
        assert_eq!(new(&[Some(3), Some(5)]).unwrap().nbytes(), Some(30));
        assert_eq!(new(&[]).unwrap().nbytes(), Some(2));
        assert_eq!(new(&[Some(0), Some(5)]).unwrap().nbytes(), Some(0));
        assert_eq!(new(&[None, Some(5)]).unwrap().nbytes(), None);
        assert!(new(&[Some(1); 32]).is_ok() && new(&[Some(1); 33]).is_err());
        assert!(new(&[Some(1 << 31), Some(1 << 30)]).is_ok());
        assert!(new(&[Some(1 << 31), Some(1 << 31)]).is_err());
        assert!(new(&[Some(1 << 40), Some(0), Some(1 << 40)]).is_err());
        assert!(new(&[Some(u64::MAX)]).is_err() && new(&[None, Some(0)]).is_err());
    }

    #[test]
    fn a_value_has_the_bytes_of_its_shape() {
        let array = ArrayType::new(DType::Float32, &[None, Some(3), None]).unwrap();
        assert_eq!(array.nbytes_of(&[2, 3, 5]), Some(120));
        assert_eq!(array.nbytes_of(&[0, 3, u64::MAX]), Some(0));
        for wrong in [&[2, 4, 5][..], &[2, 3], &[2, 3, 5, 1], &[1 << 40, 3, 1 << 40]] {
            assert_eq!(array.nbytes_of(wrong), None, "{wrong:?}");
        }
        let rows = ArrayType::new(DType::Float32, &[Some(2), None]).unwrap();
        assert_eq!(
            (rows.shape_of_bytes(24), rows.shape_of_bytes(20), rows.shape_of_bytes(0)),
            (Some(3), None, Some(0))
        );
        assert_eq!(array.to_string(), "array(float32, (None, 3, None))");
        assert_eq!(shape_text(&[7]), "(7,)");
    }
}
