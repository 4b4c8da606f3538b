//! `Value` and `Column`: the values that a caller passes, and the checks that a value fits its
//! field.

use crate::format::dtype::ArrayType;
use crate::format::dtype::DType;
use crate::format::dtype::shape_text;
use crate::format::field_type::FieldType;
use crate::format::list::ALIGN;
use crate::format::list::check_list;
use crate::format::list::is_variable;
use crate::limits::MAX_SIDE_BYTES;
use crate::limits::check_image;

/// One value of a record, as [`Writer::append`] takes it.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// For fields of type image and bytes.
    Bytes(&'a [u8]),
    /// For fields of type string and json. The caller must check that it is JSON.
    Str(&'a str),
    /// For fields of type int64.
    Int(i64),
    /// For fields of type float64.
    Float(f64),
    /// For fields of any scalar type: the number, little-endian.
    Number(&'a [u8]),
    /// For fields of type array.
    Array {
        /// The numbers, little-endian, in C order.
        data: &'a [u8],
        /// All dimensions.
        shape: &'a [u64],
    },
    /// For fields of type list: the result of [`encode_list`](crate::encode_list) or
    /// [`encode_numbers`](crate::encode_numbers).
    List(&'a [u8]),
    /// An image whose size and CRC-32C are already known.
    Image {
        /// The encoded image.
        data: &'a [u8],
        /// Extra data for a decoder, as [`crop_index`](crate::image::crop_index) makes; otherwise
        /// empty.
        side: &'a [u8],
        /// Width and height in pixels.
        size: (u32, u32),
        /// CRC-32C of `data` followed by `side`.
        crc: u32,
    },
    /// A packed JPEG whose size and CRC-32C are already known.
    PackedJpeg {
        /// What [`pack_jpeg`](crate::image::pack_jpeg) has made.
        packed: &'a [u8],
        /// The length of the JPEG in bytes.
        length: u64,
        /// Width and height in pixels.
        size: (u32, u32),
        /// CRC-32C of `packed`.
        crc: u32,
    },
}

/// Checks a value. Returns the size of its image, or zeros if it is not an image.
///
/// # Errors
/// The value does not fit the type of its field; the error is text.
pub(super) fn check_value(kind: &FieldType, value: &Value<'_>) -> std::result::Result<(u32, u32), String> {
    match (kind, value) {
        (FieldType::Bytes, Value::Bytes(_) | Value::Image { side: [], .. })
        | (FieldType::String | FieldType::Json, Value::Str(_))
        | (FieldType::Scalar(DType::Int64), Value::Int(_))
        | (FieldType::Scalar(DType::Float64), Value::Float(_)) => Ok((0, 0)),
        (FieldType::Bytes, Value::Image { .. }) => Err("only images have side bytes".to_owned()),
        (FieldType::Image, Value::Image { side, .. }) if side.len() as u64 > MAX_SIDE_BYTES => {
            Err(format!("{} side bytes", side.len()))
        }
        (FieldType::Image, Value::Image { size, data, .. }) => check_image(data.len() as u64).map(|()| *size),
        (FieldType::Image, Value::PackedJpeg { size, length, packed, .. }) => {
            check_image(*length).and_then(|()| check_image(packed.len() as u64)).map(|()| *size)
        }
        (FieldType::Image, Value::Bytes(data)) => {
            check_image(data.len() as u64).and_then(|()| crate::image::size::image_size(data))
        }
        (FieldType::Scalar(dtype), Value::Number(bytes)) => check_number(*dtype, bytes).map(|()| (0, 0)),
        (FieldType::Array(array), Value::Array { data, shape }) => check_array(array, data, shape).map(|()| (0, 0)),
        (FieldType::List(item), Value::List(data)) => check_list(item, data).map(|()| (0, 0)),
        (kind, _) => Err(format!("the value is not {kind}")),
    }
}

pub(super) fn check_number(dtype: DType, bytes: &[u8]) -> std::result::Result<(), String> {
    if bytes.len() != dtype.size() {
        return Err(format!("{} bytes, where {dtype} has {}", bytes.len(), dtype.size()));
    }
    if dtype == DType::Bool && bytes[0] > 1 {
        return Err(format!("the byte {}, where a bool is 0 or 1", bytes[0]));
    }
    Ok(())
}

pub(super) fn check_array(array: &ArrayType, data: &[u8], shape: &[u64]) -> std::result::Result<(), String> {
    match array.nbytes_of(shape) {
        None => Err(format!("an array of shape {}, where the field is {array}", shape_text(shape))),
        Some(bytes) if bytes != data.len() as u64 => {
            Err(format!("{} bytes for an array of shape {}, which has {bytes}", data.len(), shape_text(shape)))
        }
        Some(_) => Ok(()),
    }
}

/// The values of one field for many records.
#[derive(Debug)]
pub enum Column<'a> {
    /// Numbers or arrays of one shape, without gaps: little-endian, in C order.
    Block {
        /// The bytes of all values.
        data: &'a [u8],
        /// The shape of each value; empty for numbers.
        shape: &'a [u64],
    },
    /// Values one by one.
    Values(Vec<Value<'a>>),
}

impl<'a> Value<'a> {
    /// The bytes that the caller passes.
    pub fn input_bytes(&self) -> usize {
        self.payload().map_or(8, <[u8]>::len)
    }

    /// The bytes to compress in a compressed field.
    pub(super) fn payload(&self) -> Option<&'a [u8]> {
        match *self {
            Self::Bytes(data) | Self::List(data) | Self::Array { data, .. } | Self::Image { data, .. } => Some(data),
            Self::Str(text) => Some(text.as_bytes()),
            _ => None,
        }
    }
}

/// How the values of one column lie in its block, if it is one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    /// The bytes of one value.
    bytes: usize,
    /// Whether values are numbers, not arrays.
    scalar: bool,
}

impl Block {
    pub(super) fn new(kind: &FieldType, shape: &[u64]) -> Self {
        match kind {
            FieldType::Scalar(dtype) => Self { bytes: dtype.size(), scalar: true },
            FieldType::Array(array) => {
                Self { bytes: array.nbytes_of(shape).unwrap_or_default() as usize, scalar: false }
            }
            _ => Self { bytes: 0, scalar: false },
        }
    }

    /// One value of a block.
    pub(super) fn value<'a>(self, i: usize, data: &'a [u8], shape: &'a [u64]) -> Value<'a> {
        let data = &data[i * self.bytes..(i + 1) * self.bytes];
        if self.scalar { Value::Number(data) } else { Value::Array { data, shape } }
    }
}

impl Column<'_> {
    /// How its values lie in a field of type `kind`.
    pub(super) fn block(&self, kind: &FieldType) -> Block {
        match self {
            Self::Block { shape, .. } => Block::new(kind, shape),
            Self::Values(_) => Block { bytes: 0, scalar: false },
        }
    }

    /// The value of record `i`, for a field of type `kind`, which the column fits.
    pub fn get(&self, kind: &FieldType, i: usize) -> Value<'_> {
        self.value(i, self.block(kind))
    }

    /// The value of one record.
    pub(super) fn value(&self, i: usize, block: Block) -> Value<'_> {
        match self {
            Self::Block { data, shape } => block.value(i, data, shape),
            Self::Values(values) => values[i],
        }
    }
}

/// Checks a block of `count` values. An error has the position of its record.
pub(super) fn check_block(
    kind: &FieldType,
    data: &[u8],
    shape: &[u64],
    count: usize,
) -> std::result::Result<(), (usize, String)> {
    let Block { bytes, .. } = Block::new(kind, shape);
    let fits = match kind {
        FieldType::Scalar(_) => shape.is_empty(),
        FieldType::Array(array) => array.nbytes_of(shape).is_some(),
        _ => false,
    };
    if !fits || bytes.checked_mul(count) != Some(data.len()) {
        let values = format!("{} bytes for {count} values of shape {}", data.len(), shape_text(shape));
        return Err((0, format!("{values}, where the field is {kind}")));
    }
    if *kind != FieldType::Scalar(DType::Bool) {
        return Ok(());
    }
    match data.iter().position(|&byte| byte > 1) {
        Some(i) => Err((i, format!("the byte {}, where a bool is 0 or 1", data[i]))),
        None => Ok(()),
    }
}

/// Encodes the payload of a list. All items have one type, which is not a number.
///
/// # Errors
/// The first value that does not fit the type, with the reason, as text.
pub fn encode_list(kind: &FieldType, values: &[Value<'_>]) -> std::result::Result<Vec<u8>, String> {
    let mut out = Vec::new();
    out.extend((values.len() as u64).to_le_bytes());
    out.resize(8 + 8 * values.len(), 0);
    for (i, value) in values.iter().enumerate() {
        let wrong = |detail: String| format!("item {i}: {detail}");
        check_value(kind, value).map_err(wrong)?;
        out.resize(out.len().next_multiple_of(ALIGN), 0);
        match *value {
            Value::Bytes(data) | Value::Image { data, side: [], .. } => out.extend_from_slice(data),
            Value::Str(text) => out.extend_from_slice(text.as_bytes()),
            Value::Array { data, shape } => {
                if is_variable(kind) {
                    out.extend(shape.iter().flat_map(|dim| dim.to_le_bytes()));
                }
                out.extend_from_slice(data);
            }
            _ => return Err(wrong("it cannot be in a list".to_owned())),
        }
        let end = out.len() as u64;
        out[8 + 8 * i..16 + 8 * i].copy_from_slice(&end.to_le_bytes());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::dtype::ArrayType;
    use crate::format::list::{encode_numbers, list_items, list_numbers};
    use proptest::prelude::*;

    fn kinds() -> Vec<FieldType> {
        let array = |shape: &[Option<u64>]| FieldType::Array(ArrayType::new(DType::Int16, shape).unwrap());
        vec![
            FieldType::String,
            FieldType::Bytes,
            array(&[Some(3)]),
            array(&[None, Some(2)]),
            array(&[None, None]),
            array(&[]),
            array(&[Some(0)]),
        ]
    }

    #[test]
    fn a_list_holds_what_was_put_into_it() {
        let texts = ["", "a", "größe", "nine bytes"].map(Value::Str);
        let bytes = encode_list(&FieldType::String, &texts).unwrap();
        let found = list_items(&FieldType::String, &bytes).unwrap();
        assert!(found.iter().all(|item| item.range.start.is_multiple_of(8)));
        let found: Vec<&str> = found.iter().map(|i| std::str::from_utf8(&bytes[i.range.clone()]).unwrap()).collect();
        assert_eq!(found, ["", "a", "größe", "nine bytes"]);

        let rows = &kinds()[3];
        let values = [Value::Array { data: &[1; 8], shape: &[2, 2] }, Value::Array { data: &[], shape: &[0, 2] }];
        let bytes = encode_list(rows, &values).unwrap();
        let found = list_items(rows, &bytes).unwrap();
        assert_eq!((&found[0].shape[..], &bytes[found[0].range.clone()]), (&[2, 2][..], &[1; 8][..]));
        assert_eq!((&found[1].shape[..], found[1].range.len()), (&[0, 2][..], 0));
        assert!(encode_list(rows, &[Value::Array { data: &[1; 8], shape: &[4, 1] }]).unwrap_err().contains("item 0"));
        assert!(encode_list(rows, &texts).is_err());

        let bytes = encode_numbers(DType::Complex128, &[7; 48]);
        assert_eq!(list_numbers(DType::Complex128, &bytes), Ok(8..56));
        assert!(list_numbers(DType::Complex64, &bytes).is_err());
        for kind in kinds() {
            assert_eq!(list_items(&kind, &encode_list(&kind, &[]).unwrap()), Ok(vec![]));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_list_or_an_error(
            words in prop::collection::vec(prop_oneof![0_u64..40, any::<u64>()], 0..12),
            cut in 0_usize..9,
        ) {
            let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            bytes.truncate(bytes.len().saturating_sub(cut));
            for kind in kinds() {
                if let Ok(items) = list_items(&kind, &bytes) {
                    let mut before = 0;
                    for item in items {
                        prop_assert!(item.range.start >= before && item.range.end <= bytes.len());
                        before = item.range.end;
                    }
                }
            }
            for dtype in DType::ALL {
                if let Ok(range) = list_numbers(dtype, &bytes) {
                    prop_assert!(range.end <= bytes.len() && range.len().is_multiple_of(dtype.size()));
                }
            }
        }

        #[test]
        fn a_list_with_any_flipped_bit_in_its_head_is_an_error_or_a_list(bit in 0_usize..(8 * 40)) {
            let values = [Value::Bytes(b"abc"), Value::Bytes(b""), Value::Bytes(b"0123456789"), Value::Bytes(b"x")];
            let mut bytes = encode_list(&FieldType::Bytes, &values).unwrap();
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Ok(items) = list_items(&FieldType::Bytes, &bytes) {
                prop_assert!(items.iter().all(|item| item.range.end <= bytes.len()));
            }
        }
    }
}
