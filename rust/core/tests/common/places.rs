//! Maps each byte of a file to its meaning by docs/format.md alone: the bytes that a reader of a
//! commit uses, and the unused ones.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use fastrecord_core::{Damage, Error};
use serde_json::Value as Json;

use super::{EXTENTS, u32_at, u64_at};

/// The part of a commit that a byte belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Superblock,
    Footer,
    Directory,
    Metadata,
    Dictionary(String),
    /// A block of a column chunk, or its entry in the check table: field, column, records.
    Block(String, String, u64, u64),
    /// Field and record.
    Payload(String, u64),
}

impl Place {
    /// Returns whether an error is the expected one for damage here.
    pub fn is_named_by(&self, error: &Error) -> bool {
        match (self, error) {
            (Self::Superblock, Error::NotFrec { .. } | Error::Version { .. }) => true,
            (Self::Superblock, Error::Corrupt { part, .. }) => part == "superblock",
            (Self::Footer, Error::Corrupt { part, .. }) => part.starts_with("footer of commit "),
            (Self::Directory, Error::Corrupt { part, .. }) => part.starts_with("directory of commit "),
            (Self::Metadata, Error::Corrupt { part, .. }) => part.starts_with("metadata of commit "),
            (Self::Dictionary(field), Error::Corrupt { part, .. }) => {
                part.starts_with("dictionary ") && part.ends_with(&format!(" of field {field}"))
            }
            (Self::Block(_, column, first, last), Error::Corrupt { part, .. }) => {
                part.ends_with(&format!(" of field {column}, records {first} to {last}"))
            }
            (Self::Payload(name, number), Error::Value { record, field, damage: Damage::Checksum { .. }, .. }) => {
                (field, record) == (name, number)
            }
            _ => false,
        }
    }

    /// Returns whether the text of an error is the expected one for damage here.
    pub fn is_in(&self, text: &str) -> bool {
        match self {
            Self::Superblock | Self::Footer | Self::Directory | Self::Metadata => false, // these are errors of opening
            Self::Dictionary(field) => {
                text.contains(": the dictionary ") && text.contains(&format!(" of field {field} "))
            }
            Self::Block(_, column, first, last) => {
                text.contains(&format!(" of field {column}, records {first} to {last} is damaged"))
            }
            Self::Payload(field, record) => text.contains(&format!(": record {record}, field {field}: stored CRC")),
        }
    }

    /// Returns whether an error is about all entries of a run of records that covers this block.
    pub fn is_covered_by(&self, text: &str) -> bool {
        let Self::Block(_, column, first, last) = self else { return false };
        let Some((_, rest)) = text.split_once(&format!(" of field {column}, records ")) else { return false };
        let numbers: Vec<u64> = rest.split(' ').filter_map(|word| word.parse().ok()).take(2).collect();
        matches!(numbers[..], [from, to] if from <= *first && *last <= to)
    }

    /// Returns whether opening a file reads this part.
    pub fn is_structure(&self) -> bool {
        matches!(self, Self::Superblock | Self::Footer | Self::Directory | Self::Metadata)
    }
}

/// Offsets of the footers of an intact file, newest first.
pub fn footers(bytes: &[u8]) -> Vec<u64> {
    let mut all = vec![bytes.len() as u64 - 4096];
    while let Some(&at) = all.last().filter(|&&at| u64_at(bytes, at + 96) > 0) {
        all.push(u64_at(bytes, at + 96));
    }
    all
}

/// The bytes that a reader of the commit with this footer uses, in file order. Payload ranges may
/// be shared.
pub fn places(bytes: &[u8], footer: u64) -> Vec<(Range<u64>, Place)> {
    let word = |at: u64| u64_at(bytes, footer + at);
    let mut found = vec![(0..32, Place::Superblock), (footer..footer + 4096, Place::Footer)];
    found.push((word(56)..word(56) + word(64), Place::Directory));
    let metadata = word(72)..word(72) + word(80);
    found.push((metadata.clone(), Place::Metadata));
    let metadata: Json = serde_json::from_slice(&bytes[metadata.start as usize..metadata.end as usize]).unwrap();
    let rows = metadata["schema"].as_array().unwrap();
    for row in rows {
        let name = row["name"].as_str().unwrap();
        for dictionary in row["compression"]["dictionaries"].as_array().into_iter().flatten() {
            let (at, length) = (dictionary["offset"].as_u64().unwrap(), dictionary["length"].as_u64().unwrap());
            found.push((at..at + length, Place::Dictionary(name.to_owned())));
        }
    }
    for at in (word(56)..word(56) + word(64)).step_by(64) {
        let (id, part, encoding) = (u32_at(bytes, at), bytes[at as usize + 4], bytes[at as usize + 5]);
        let (width, first) = (u64::from(bytes[at as usize + 6]), u64_at(bytes, at + 8));
        let (offset, length) = (u64_at(bytes, at + 24), u64_at(bytes, at + 32));
        let row = rows.iter().find(|row| row["id"] == id).unwrap();
        let name = row["name"].as_str().unwrap().to_owned();
        let suffix = match (row["type"].as_str().unwrap(), part) {
            (_, 0) => String::new(),
            ("image", 1) => ".width".to_owned(),
            ("image", _) => ".height".to_owned(),
            _ => format!(".dim{part}"),
        };
        let table = (offset + length).next_multiple_of(8);
        let crc = crc32c::crc32c(&bytes[table as usize..][..4 * length.div_ceil(4096) as usize]);
        assert_eq!((crc, word(8) >> 32), (u32_at(bytes, at + 40), 1), "the check table of {name}{suffix}");
        for (number, start) in (0..).zip((0..length).step_by(4096)) {
            let end = length.min(start + 4096);
            let (from, to) = (first + start / width, first + (end - 1) / width);
            let block = Place::Block(name.clone(), format!("{name}{suffix}"), from, to);
            found.push((offset + start..offset + end, block.clone()));
            found.push((table + 4 * number..table + 4 * number + 4, block));
        }
        if encoding == EXTENTS {
            for (record, extent) in (first..).zip((offset..offset + length).step_by(32)) {
                let (start, stored) = (u64_at(bytes, extent), u64_at(bytes, extent + 8));
                found.push((start..start + stored, Place::Payload(name.clone(), record)));
            }
        }
    }
    found.retain(|(range, _)| !range.is_empty());
    found.sort_by_key(|(range, _)| range.start);
    found
}

/// Returns whether a changed index block still matches its entry in the check table: both were replaced
/// from another chunk of the same size. The CRC of the table detects it.
pub fn is_exchanged(file: &File, places: &[(Range<u64>, Place)], place: &Place) -> bool {
    let read = |range: &Range<u64>| {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        file.read_exact_at(&mut bytes, range.start).map(|()| bytes)
    };
    let of_place = |wanted: &Place| {
        places.iter().filter(|(_, place)| place == wanted).map(|(range, _)| read(range)).collect::<Vec<_>>()
    };
    match (place, &of_place(place)[..]) {
        // The entries lie before their check table.
        (Place::Block(..), [Ok(entries), Ok(sum)]) => crc32c::crc32c(entries).to_le_bytes()[..] == sum[..],
        _ => false,
    }
}

/// Returns the places that contain any of the given bytes; both lists are in file order.
pub fn hit<'a>(places: &'a [(Range<u64>, Place)], changed: &[Range<u64>]) -> Vec<&'a Place> {
    let mut found: Vec<&Place> = Vec::new();
    for range in changed {
        let end = places.partition_point(|(place, _)| place.start < range.end);
        found.extend(places[..end].iter().filter(|(place, _)| place.end > range.start).map(|(_, place)| place));
    }
    found.sort();
    found.dedup();
    found
}
