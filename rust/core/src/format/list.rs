//! Lists: many values in one payload. See docs/format.md, section 2.

use std::ops::Range;

use crate::format::dtype::DType;
use crate::format::field_type::FieldType;

/// Items begin at multiples of this.
pub(crate) const ALIGN: usize = 8;

/// The position of one item in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListItem {
    /// Its range within the bytes of the list.
    pub range: Range<usize>,
    /// All dimensions of an array; empty for other items.
    pub shape: Vec<u64>,
}

/// Encodes the payload of a list of numbers, which are little-endian and without gaps.
pub fn encode_numbers(dtype: DType, numbers: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 + numbers.len());
    out.extend(((numbers.len() / dtype.size()) as u64).to_le_bytes());
    out.extend_from_slice(numbers);
    out
}

pub(crate) fn is_variable(kind: &FieldType) -> bool {
    matches!(kind, FieldType::Array(array) if array.nbytes().is_none())
}

/// The range of the numbers in a list.
///
/// # Errors
/// What is wrong with the bytes, as text.
pub fn list_numbers(dtype: DType, bytes: &[u8]) -> std::result::Result<Range<usize>, String> {
    let count = count_of(bytes)?;
    let expected = count.checked_mul(dtype.size() as u64).and_then(|n| n.checked_add(8));
    if expected != Some(bytes.len() as u64) {
        return Err(format!("{} bytes for {count} numbers of type {dtype}", bytes.len()));
    }
    Ok(8..bytes.len())
}

/// The positions of the items in a list of values other than numbers.
///
/// # Errors
/// What is wrong with the bytes, as text.
pub fn list_items(kind: &FieldType, bytes: &[u8]) -> std::result::Result<Vec<ListItem>, String> {
    let count = count_of(bytes)?;
    let head = count.checked_mul(8).and_then(|n| n.checked_add(8)).filter(|&n| n <= bytes.len() as u64);
    let Some(head) = head else { return Err(format!("{} bytes for {count} items", bytes.len())) };
    let mut items = Vec::with_capacity(count as usize);
    let mut before = head as usize;
    for (i, end) in bytes[8..before].as_chunks().0.iter().enumerate() {
        let (start, end) = (before.next_multiple_of(ALIGN), u64::from_le_bytes(*end));
        if end > bytes.len() as u64 || end < start as u64 {
            return Err(format!("item {i} ends at {end}, begins at {start}, of {} bytes", bytes.len()));
        }
        before = end as usize;
        items.push(item(kind, bytes, start..before).map_err(|detail| format!("item {i}: {detail}"))?);
    }
    if before != bytes.len() {
        return Err(format!("{} bytes after the last item", bytes.len() - before));
    }
    Ok(items)
}

fn count_of(bytes: &[u8]) -> std::result::Result<u64, String> {
    let count = bytes.first_chunk().map(|count| u64::from_le_bytes(*count));
    count.ok_or_else(|| format!("a list has at least 8 bytes, not {}", bytes.len()))
}

fn item(kind: &FieldType, bytes: &[u8], mut range: Range<usize>) -> std::result::Result<ListItem, String> {
    let FieldType::Array(array) = kind else { return Ok(ListItem { range, shape: Vec::new() }) };
    let shape: Vec<u64> = if is_variable(kind) {
        let dims = array.shape().len();
        let Some(head) = bytes[range.clone()].get(..8 * dims) else {
            return Err(format!("{} bytes are too few for an array of {dims} dimensions", range.len()));
        };
        range.start += 8 * dims;
        head.as_chunks().0.iter().map(|dim| u64::from_le_bytes(*dim)).collect()
    } else {
        array.shape().iter().flatten().copied().collect()
    };
    if array.nbytes_of(&shape) != Some(range.len() as u64) {
        return Err(format!(
            "{} bytes are not the size of {array} with shape {}",
            range.len(),
            crate::format::dtype::shape_text(&shape)
        ));
    }
    Ok(ListItem { range, shape })
}

/// Checks a list's payload against the type of its items.
pub(crate) fn check_list(kind: &FieldType, bytes: &[u8]) -> std::result::Result<(), String> {
    match kind {
        FieldType::Scalar(dtype) => list_numbers(*dtype, bytes).map(drop),
        kind => list_items(kind, bytes).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two strings, `ab` and `c`, that end at these offsets.
    fn list(first: u64, second: u64) -> Vec<u8> {
        let words = [2, first, second].map(u64::to_le_bytes).concat();
        [&words[..], b"ab\0\0\0\0\0\0c"].concat()
    }

    #[test]
    fn items_end_in_order_and_the_last_one_ends_the_list() {
        let items = |bytes: &[u8]| list_items(&FieldType::String, bytes);
        let good = list(26, 33);
        assert_eq!(
            items(&good).unwrap().iter().map(|item| &good[item.range.clone()]).collect::<Vec<_>>(),
            [&b"ab"[..], b"c"]
        );
        assert!(items(&[&good[..], b"d"].concat()).is_err(), "a byte after the last item");
        assert!(items(&list(26, 31)).is_err(), "an item that ends before it begins");
        assert!(items(&list(26, 34)).is_err(), "an item beyond the end");
    }
}
