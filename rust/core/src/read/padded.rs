//! Arrays of different shapes copied into one padded block of memory.

use crate::control::Control;
use crate::error::{Error, Result};
use crate::format::dtype::ArrayType;
use crate::format::extent::Extent;
use crate::format::field_type::FieldType;
use crate::format::schema::FieldIndex;
use crate::memory;
use crate::parallel::disjoint::fill_parts;
use crate::parallel::pool::Pool;
use crate::read::payload::resized;
use crate::read::prefetch::groups_of;
use crate::read::reader::Reader;
use crate::read::records::Records;
use crate::read::seen::Verify;
use crate::read::source::Source;

/// The payloads of a batch, for work that needs each payload as a whole.
struct PayloadSource<'a> {
    reader: &'a Reader,
    field: FieldIndex,
    records: &'a Records<'a>,
    extents: Vec<Extent>,
}

impl PayloadSource<'_> {
    /// Calls `work` with a record's value: in place in the mapping if possible, otherwise as a
    /// copy.
    fn with<T>(&self, i: usize, verify: Verify, work: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let (reader, extent, record) = (self.reader, &self.extents[i], self.records[i]);
        if let (Source::Mapped(map), true) = (&reader.inner.random, extent.is_plain()) {
            let outcome = map.read(|bytes| {
                let stored = reader.stored_in(extent, bytes)?;
                if reader.is_due(self.field, record, verify) {
                    reader.check_crc(self.field, record, extent, stored)?;
                    reader.remember(self.field, record, verify);
                }
                Ok(work(&stored[..extent.length() as usize]))
            });
            return outcome.map_err(|e| reader.name_lost(self.field, &[record], &[*extent], e))?;
        }
        let mut bytes = Vec::new();
        resized(&mut bytes, extent.length())?;
        reader.copy_one(self.field, record, extent, &mut bytes, verify)?;
        Ok(work(&bytes))
    }
}

impl Reader {
    /// Looks up the extents of records, and asks the kernel for the payloads if they may not be in
    /// memory.
    fn payload_source<'a>(&'a self, field: FieldIndex, records: &'a Records<'a>) -> Result<PayloadSource<'a>> {
        let extents = self.extents(field, records)?;
        if let Some(i) = extents.iter().position(|e| e.missing) {
            return Err(self.missing(field, records[i]));
        }
        if self.disk_was_read() {
            self.ask_all(&extents);
        }
        Ok(PayloadSource { reader: self, field, records, extents })
    }

    /// Copies the arrays of records into `out` on all threads, each in a block of the shape `most`.
    /// The rest of a block is filled with `value`, the bytes of one number.
    ///
    /// # Errors
    /// A field of another type, an array larger than the block, or a buffer of another size. Damage
    /// (with `verify`, also of payloads), a record without a value, failed reads and interrupts can
    /// occur after parts of `out` have been written.
    #[allow(clippy::too_many_arguments)]
    pub fn read_batch_padded(
        &self,
        field: FieldIndex,
        records: &Records<'_>,
        most: &[u64],
        value: &[u8],
        out: &mut [u8],
        verify: Verify,
        control: &dyn Control,
    ) -> Result<()> {
        let FieldType::Array(array) = self.kind(field) else {
            return Err(self.wrong_type(field, "it holds no arrays"));
        };
        let item = array.dtype().size();
        let (dims, given) = (array.shape().len(), out.len() as u64);
        let block = most.iter().fold(item as u64, |bytes, &dim| bytes.saturating_mul(dim));
        let needed = block.saturating_mul(records.len() as u64);
        if needed != given || value.len() != item || most.len() != dims {
            return Err(Error::BufferTooSmall { path: self.path().to_owned(), needed, given });
        }
        let shapes = self.shapes(field, records)?;
        if shapes.chunks_exact(dims.max(1)).any(|shape| shape.iter().zip(most).any(|(dim, most)| dim > most)) {
            return Err(self.wrong_type(field, "an array is larger than the block it is to be padded to"));
        }
        let source = self.payload_source(field, records)?;
        let bounds = records.len() + 1;
        let starts = memory::collected((0..bounds).map(|i| i as u64 * block))?;
        let last = dims.saturating_sub(1);
        let fill = |_: usize, i: usize, part: &mut [u8]| {
            let shape = &shapes[i * dims..(i + 1) * dims];
            source.with(i, verify, |bytes| pad(bytes, shape, part, most, value, 0, last))
        };
        let groups = groups_of(&starts)?;
        fill_parts(&Pool::current(), self.threads(), control, out, &starts, &groups, fill)
    }
}

/// Copies an array into a block that is at least as large in every dimension, from dimension `at`
/// on.
fn pad(bytes: &[u8], shape: &[u64], out: &mut [u8], most: &[u64], value: &[u8], at: usize, last: usize) {
    if shape.get(at..) == most.get(at..) {
        out.copy_from_slice(bytes);
        return;
    }
    let (here, there) = (shape[at] as usize, most[at] as usize);
    if bytes.is_empty() || there == 0 {
        fill(out, value);
        return;
    }
    let (from, to) = (bytes.len() / here, out.len() / there);
    let (used, rest) = out.split_at_mut(here * to);
    if at == last || shape[at + 1..] == most[at + 1..] {
        used.copy_from_slice(bytes);
    } else {
        for (bytes, out) in bytes.chunks_exact(from).zip(used.chunks_exact_mut(to)) {
            pad(bytes, shape, out, most, value, at + 1, last);
        }
    }
    fill(rest, value);
}

fn fill(out: &mut [u8], value: &[u8]) {
    match value {
        [first, rest @ ..] if rest.iter().all(|byte| byte == first) => out.fill(*first),
        _ => out.chunks_exact_mut(value.len().max(1)).for_each(|number| number.copy_from_slice(value)),
    }
}

/// The largest size in each dimension over many shapes. Fixed dimensions keep the size of the
/// array's type.
pub fn largest_shape(array: &ArrayType, shapes: &[u64]) -> Vec<u64> {
    let mut most: Vec<u64> = array.shape().iter().map(|dim| dim.unwrap_or_default()).collect();
    for shape in shapes.chunks_exact(most.len().max(1)) {
        for (most, &dim) in most.iter_mut().zip(shape) {
            *most = dim.max(*most);
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_lies_at_the_start_of_its_block_and_the_rest_is_filled() {
        let array: Vec<u8> = (1..=12).collect();
        let mut out = vec![9; 2 * 4 * 3];
        pad(&array, &[2, 3, 2], &mut out, &[2, 4, 3], &[0], 0, 2);
        assert_eq!(out, [1, 2, 0, 3, 4, 0, 5, 6, 0, 0, 0, 0, 7, 8, 0, 9, 10, 0, 11, 12, 0, 0, 0, 0]);
        let mut out = vec![9; 6];
        pad(&[1, 2], &[1], &mut out, &[3], &[7, 8], 0, 0);
        assert_eq!(out, [1, 2, 7, 8, 7, 8]);
        pad(&[], &[0], &mut out, &[3], &[7, 8], 0, 0);
        assert_eq!(out, [7, 8, 7, 8, 7, 8]);
        pad(&[], &[2, 0], &mut out[..2], &[2, 1], &[3], 0, 1);
        assert_eq!(out[..2], [3, 3]);
        pad(&[], &[0, 0], &mut [], &[0, 5], &[3], 0, 1);
    }
}
