//! The features of `tf.train.Example` messages, gathered by feature over many messages.
//!
//! Format: the wire format of protocol buffers ("Encoding" in their documentation), and the messages
//! of `tensorflow/core/example/{example,feature}.proto`:
//! `Example { Features features = 1 }`, `Features { map<string, Feature> feature = 1 }`,
//! `Feature { oneof { BytesList = 1, FloatList = 2, Int64List = 3 } }`, each a list
//! `{ repeated value = 1 }`, with numbers packed or not.

use std::collections::HashMap;
use std::ops::Range;

/// The kind of a feature's values; also the field number of its list.
pub const BYTES: u8 = 1;
/// 32-bit floats.
pub const FLOATS: u8 = 2;
/// 64-bit signed integers.
pub const INTS: u8 = 3;

/// The values of one feature in many messages, one message after the other.
#[derive(Debug, Default, PartialEq)]
pub struct FeatureColumn {
    /// Kind of the values in each message; 0 if the message has none.
    pub kinds: Vec<u8>,
    /// Number of values in each message.
    pub counts: Vec<usize>,
    /// Where byte strings are, all messages' in one.
    pub bytes: Vec<Range<usize>>,
    /// Floats, all messages' in one.
    pub floats: Vec<f32>,
    /// Integers, all messages' in one.
    pub ints: Vec<i64>,
}

impl FeatureColumn {
    /// Takes back the values of a message.
    fn forget(&mut self, kind: u8, count: usize) {
        match kind {
            BYTES => self.bytes.truncate(self.bytes.len() - count),
            FLOATS => self.floats.truncate(self.floats.len() - count),
            INTS => self.ints.truncate(self.ints.len() - count),
            _ => {}
        }
    }

    fn len(&self, kind: u8) -> usize {
        match kind {
            BYTES => self.bytes.len(),
            FLOATS => self.floats.len(),
            INTS => self.ints.len(),
            _ => 0,
        }
    }
}

/// Reads features of messages, which lie in `bytes`.
///
/// Returns a column for each of `names`, and the positions of the messages that are damaged, or not
/// of this type. These have no values.
#[must_use]
pub fn read_examples(bytes: &[u8], messages: &[Range<usize>], names: &[String]) -> (Vec<FeatureColumn>, Vec<usize>) {
    let places: HashMap<&[u8], usize> = names.iter().enumerate().map(|(i, name)| (name.as_bytes(), i)).collect();
    let mut columns: Vec<FeatureColumn> = names.iter().map(|_| FeatureColumn::default()).collect();
    let mut damaged = Vec::new();
    for (number, message) in messages.iter().enumerate() {
        for column in &mut columns {
            column.kinds.push(0);
            column.counts.push(0);
        }
        let whole = each_feature(bytes, message, &mut |name, feature| {
            let Some(&place) = places.get(&bytes[name]) else { return Some(()) };
            let column = &mut columns[place];
            // The last entry of a map counts.
            column.forget(column.kinds[number], column.counts[number]);
            (column.kinds[number], column.counts[number]) = (0, 0);
            read_feature(bytes, feature, column, number)
        });
        if whole.is_none() {
            damaged.push(number);
            for column in &mut columns {
                column.forget(column.kinds[number], column.counts[number]);
                (column.kinds[number], column.counts[number]) = (0, 0);
            }
        }
    }
    (columns, damaged)
}

/// Returns the names of the features of messages, in the order of their first appearance, and the
/// positions of damaged messages. Names that are not UTF-8 are damage.
#[must_use]
pub fn example_names(bytes: &[u8], messages: &[Range<usize>]) -> (Vec<String>, Vec<usize>) {
    let mut names: Vec<String> = Vec::new();
    let mut damaged = Vec::new();
    for (number, message) in messages.iter().enumerate() {
        let whole = each_feature(bytes, message, &mut |name, _| {
            let name = std::str::from_utf8(&bytes[name]).ok()?;
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
            Some(())
        });
        if whole.is_none() {
            damaged.push(number);
        }
    }
    (names, damaged)
}

/// Calls `found` with the places of each feature's name and value. `None`: damaged.
fn each_feature(
    bytes: &[u8],
    message: &Range<usize>,
    found: &mut impl FnMut(Range<usize>, Range<usize>) -> Option<()>,
) -> Option<()> {
    let mut example = Fields::new(bytes, message.clone());
    while let Some(field) = example.next()? {
        // Field 2 is the lists of a SequenceExample, whose first field looks like an Example's.
        if field.number == 2 {
            return None;
        }
        let (1, Value::Bytes(features)) = (field.number, field.value) else { continue };
        let mut features = Fields::new(bytes, features);
        while let Some(field) = features.next()? {
            let (1, Value::Bytes(entry)) = (field.number, field.value) else { continue };
            let (mut name, mut feature) = (0..0, 0..0);
            let mut entry = Fields::new(bytes, entry);
            while let Some(field) = entry.next()? {
                match (field.number, field.value) {
                    (1, Value::Bytes(place)) => name = place,
                    (2, Value::Bytes(place)) => feature = place,
                    _ => {}
                }
            }
            found(name, feature)?;
        }
    }
    Some(())
}

fn read_feature(bytes: &[u8], feature: Range<usize>, column: &mut FeatureColumn, number: usize) -> Option<()> {
    let mut lists = Fields::new(bytes, feature);
    while let Some(list) = lists.next()? {
        let (kind @ BYTES..=INTS, Value::Bytes(place)) = (list.number as u8, list.value) else { continue };
        if list.number > u64::from(INTS) {
            continue;
        }
        // Of several lists of different kinds the last one counts; lists of one kind are joined.
        if column.kinds[number] != kind {
            column.forget(column.kinds[number], column.counts[number]);
            (column.kinds[number], column.counts[number]) = (kind, 0);
        }
        let before = column.len(kind);
        let whole = read_list(bytes, place, kind, column);
        column.counts[number] += column.len(kind) - before;
        whole?;
    }
    Some(())
}

fn read_list(bytes: &[u8], list: Range<usize>, kind: u8, column: &mut FeatureColumn) -> Option<()> {
    let mut values = Fields::new(bytes, list);
    while let Some(field) = values.next()? {
        match (field.number, kind, field.value) {
            (1, BYTES, Value::Bytes(place)) => column.bytes.push(place),
            (1, FLOATS, Value::Fixed32(bits)) => column.floats.push(f32::from_bits(bits)),
            (1, FLOATS, Value::Bytes(packed)) => {
                let (floats, rest) = bytes[packed].as_chunks::<4>();
                if !rest.is_empty() {
                    return None;
                }
                column.floats.extend(floats.iter().map(|&bits| f32::from_le_bytes(bits)));
            }
            (1, INTS, Value::Varint(value)) => column.ints.push(value.cast_signed()),
            (1, INTS, Value::Bytes(packed)) => {
                let mut at = packed.start;
                while at < packed.end {
                    column.ints.push(varint(&bytes[..packed.end], &mut at)?.cast_signed());
                }
            }
            (1, ..) => return None,
            _ => {}
        }
    }
    Some(())
}

/// A field of a message.
struct Field {
    number: u64,
    value: Value,
}

enum Value {
    Varint(u64),
    Fixed32(u32),
    Fixed64,
    Bytes(Range<usize>),
}

/// The fields of a message, one after the other.
struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    fn new(bytes: &'a [u8], message: Range<usize>) -> Self {
        Self { bytes: &bytes[..message.end], at: message.start }
    }

    /// Returns the next field: `Some(None)` at the end, `None` for damage.
    #[allow(clippy::option_option)] // `?` passes on damage
    fn next(&mut self) -> Option<Option<Field>> {
        if self.at == self.bytes.len() {
            return Some(None);
        }
        let tag = varint(self.bytes, &mut self.at)?;
        let value = match tag & 7 {
            0 => Value::Varint(varint(self.bytes, &mut self.at)?),
            1 => {
                self.pass(8)?;
                Value::Fixed64
            }
            2 => {
                let length = varint(self.bytes, &mut self.at)?;
                Value::Bytes(self.pass(length)?)
            }
            5 => {
                let place = self.pass(4)?;
                Value::Fixed32(u32::from_le_bytes(*self.bytes[place].first_chunk()?))
            }
            _ => return None,
        };
        Some(Some(Field { number: tag >> 3, value }))
    }

    fn pass(&mut self, length: u64) -> Option<Range<usize>> {
        let start = self.at;
        let end = start.checked_add(usize::try_from(length).ok()?).filter(|&end| end <= self.bytes.len())?;
        self.at = end;
        Some(start..end)
    }
}

fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn field(number: u8, value: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, value.len() as u8], value].concat()
    }

    fn example(features: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let entries: Vec<u8> = features
            .iter()
            .flat_map(|(name, list)| field(1, &[field(1, name.as_bytes()), field(2, list)].concat()))
            .collect();
        field(1, &entries)
    }

    fn read(message: &[u8], names: &[&str]) -> (Vec<FeatureColumn>, Vec<usize>) {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        read_examples(message, std::slice::from_ref(&(0..message.len())), &names)
    }

    #[test]
    fn all_kinds_of_lists_come_out_packed_or_not() {
        let packed = field(3, &field(1, &[1, 0x96, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]));
        let single = field(3, &[8, 5, 8, 6]);
        let floats = field(2, &[&field(1, &1.5f32.to_le_bytes())[..], &[13], &2.5f32.to_le_bytes()].concat());
        let bytes = field(1, &[field(1, b"ab"), field(1, b"")].concat());
        let message = example(&[("p", packed), ("s", single), ("f", floats), ("b", bytes), ("none", vec![])]);
        let (columns, damaged) = read(&message, &["p", "s", "f", "b", "none", "missing"]);
        assert_eq!(damaged, [0; 0]);
        assert_eq!((&columns[0].ints[..], &columns[0].counts[..]), (&[1, 150, -1][..], &[3][..]));
        assert_eq!((&columns[1].ints[..], columns[1].kinds[0]), (&[5, 6][..], INTS));
        assert_eq!((&columns[2].floats[..], columns[2].kinds[0]), (&[1.5, 2.5][..], FLOATS));
        assert_eq!((&message[columns[3].bytes[0].clone()], columns[3].counts[0]), (&b"ab"[..], 2));
        assert_eq!((columns[4].kinds[0], columns[5].kinds[0]), (0, 0));
        assert_eq!(example_names(&message, std::slice::from_ref(&(0..message.len()))).0, ["p", "s", "f", "b", "none"]);
    }

    #[test]
    fn the_last_of_two_entries_counts() {
        let message = example(&[("a", field(3, &[8, 5])), ("a", field(2, &[13, 0, 0, 0, 0]))]);
        let (columns, _) = read(&message, &["a"]);
        assert_eq!((columns[0].kinds[0], columns[0].ints.len(), columns[0].floats.len()), (FLOATS, 0, 1));
    }

    #[test]
    fn a_sequence_example_is_refused() {
        let message = [example(&[("a", field(3, &[8, 5]))]), field(2, b"")].concat();
        let (columns, damaged) = read(&message, &["a"]);
        assert_eq!((damaged, columns[0].ints.len()), (vec![0], 0));
    }

    proptest! {
        #[test]
        fn a_message_cut_short_or_changed_is_damage_or_another_message(
            cut in any::<prop::sample::Index>(), bit in any::<prop::sample::Index>(),
        ) {
            let list = field(3, &field(1, &[1, 2, 0x80, 1]));
            let whole = example(&[("name", list), ("b", field(1, &field(1, b"bytes")))]);
            let mut changed = whole.clone();
            let bit = bit.index(whole.len() * 8);
            changed[bit / 8] ^= 1 << (bit % 8);
            for message in [&changed[..], &whole[..cut.index(whole.len())]] {
                let (columns, damaged) = read(message, &["name", "b"]);
                for column in columns {
                    let values = column.bytes.len() + column.floats.len() + column.ints.len();
                    prop_assert_eq!(values, column.counts[0]);
                    prop_assert!(damaged.is_empty() || values == 0);
                    prop_assert!(column.bytes.iter().all(|place| place.end <= message.len()));
                }
            }
        }
    }
}
