//! Appends records to files with any content.

use std::path::Path;

use fastrecord_core::{
    Access, ArrayType, DType, FieldType, Mode, Reader, Schema, Value, Writer, WriterOptions, encode_list,
    encode_numbers,
};

use super::bytes::Input;
use super::patch::patched;
use super::place::{Memory, with_file};
use super::{guard, walk};

/// Arrays larger than this are not appended.
const LARGEST: u64 = 1 << 12;

/// Opens the file that the input describes with a reader, and with a writer that appends a record.
pub fn run(data: &[u8]) {
    let file = patched(&mut Input(data));
    guard::within(walk::bound(file.len()), || {
        let memory = Memory::new(file.clone());
        let opened = with_file(&file, |path| {
            Reader::open(path, Access::Pread, Some(1)).ok().map(|reader| (reader.schema().clone(), reader.len()))
        });
        if let Some((schema, len)) = opened
            && append_one(Path::new("memory.frec"), &memory, &schema)
        {
            with_file(&memory.bytes(), |path| {
                let reader = Reader::open(path, Access::Mmap, Some(1)).expect("what a writer has closed");
                assert_eq!(reader.len(), len + 1);
                walk::everything(&reader, data);
            });
        }
    });
}

/// Appends a record of zeros; returns whether it was appended and committed.
pub fn append_one(path: &Path, memory: &Memory, schema: &Schema) -> bool {
    let options = WriterOptions { mode: Mode::Append, ..WriterOptions::default() };
    let Ok(mut writer) = Writer::append_in(path, Box::new(memory.clone()), &options) else { return false };
    let cells: Option<Vec<Cell>> = schema.fields().iter().map(|field| Cell::zero(&field.kind)).collect();
    let Some(cells) = cells else { return false };
    let values: Vec<Value<'_>> = cells.iter().map(Cell::value).collect();
    writer.append(&values).is_ok() && writer.close().is_ok()
}

/// A value that owns its bytes.
enum Cell {
    Bytes(Vec<u8>),
    Text,
    Int,
    Float,
    Number(Vec<u8>),
    Array(Vec<u8>, Vec<u64>),
    List(Vec<u8>),
}

impl Cell {
    /// A value of a type; `None` if every value of the type is too large.
    fn zero(kind: &FieldType) -> Option<Self> {
        Some(match kind {
            FieldType::Image => Self::Bytes(b"P6\n2 1\n255\n123456".to_vec()),
            FieldType::Bytes => Self::Bytes(b"some bytes, some bytes, some bytes".to_vec()),
            FieldType::String | FieldType::Json => Self::Text,
            FieldType::Scalar(DType::Int64) => Self::Int,
            FieldType::Scalar(DType::Float64) => Self::Float,
            FieldType::Scalar(dtype) => Self::Number(vec![0; dtype.size()]),
            FieldType::Array(array) => {
                let (data, shape) = zeros(array)?;
                Self::Array(data, shape)
            }
            FieldType::List(item) => match &**item {
                FieldType::Scalar(dtype) => Self::List(encode_numbers(*dtype, &vec![0; 3 * dtype.size()])),
                item => {
                    let cell = Self::zero(item)?;
                    Self::List(encode_list(item, &[cell.value(), cell.value()]).ok()?)
                }
            },
            _ => return None,
        })
    }

    fn value(&self) -> Value<'_> {
        match self {
            Self::Bytes(data) => Value::Bytes(data),
            Self::Text => Value::Str("0"),
            Self::Int => Value::Int(0),
            Self::Float => Value::Float(0.0),
            Self::Number(data) => Value::Number(data),
            Self::Array(data, shape) => Value::Array { data, shape },
            Self::List(data) => Value::List(data),
        }
    }
}

fn zeros(array: &ArrayType) -> Option<(Vec<u8>, Vec<u64>)> {
    let shape: Vec<u64> = array.shape().iter().map(|dim| dim.unwrap_or(2)).collect();
    let bytes = array.nbytes_of(&shape).filter(|&bytes| bytes <= LARGEST)?;
    Some((vec![0; bytes as usize], shape))
}
