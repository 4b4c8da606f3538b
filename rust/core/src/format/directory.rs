//! Decoding the directory of a commit: the list of the chunks of its columns.

use std::collections::HashMap;
use std::path::Path;

use crate::error::{Error, Result};
use crate::format::chunk::Chunk;
use crate::format::layout::{CHUNK_LEN, Footer};
use crate::format::schema::{Field, Schema};

/// Decodes the chunks of a directory, in its order. The caller must have checked its CRC.
///
/// # Errors
/// An entry that a reader must refuse by docs/format.md, section 4.
pub(crate) fn decode_directory(path: &Path, directory: &[u8], footer: &Footer, schema: &Schema) -> Result<Vec<Chunk>> {
    let bad = |i: usize, detail: String| Error::corrupt(path, format!("directory entry {i}"), detail);
    let mut chunks: Vec<Chunk> = Vec::with_capacity(directory.len() / CHUNK_LEN);
    let (mut bytes_in_all, mut entries_in_all) = (0, 0);
    let fields: HashMap<u32, &Field> = schema.fields().iter().map(|field| (field.id, field)).collect();
    for (i, bytes) in directory.as_chunks::<CHUNK_LEN>().0.iter().enumerate() {
        let chunk = Chunk::decode(bytes, footer).map_err(|detail| bad(i, detail))?;
        let Some(field) = fields.get(&chunk.field) else {
            return Err(bad(i, format!("field id {} is not in the schema", chunk.field)));
        };
        if field.kind.column(chunk.part) != Some((chunk.encoding, chunk.width)) {
            return Err(bad(i, format!("not a column of field {}, which is {}", field.name, field.kind)));
        }
        if let Some(before) = chunks.last() {
            let (last, this) = ((before.field, before.part), (chunk.field, chunk.part));
            if last > this || (last == this && before.end_record() > chunk.first) {
                return Err(bad(i, "out of order, or it overlaps the entry before it".to_owned()));
            }
        }
        // Each chunk lies within the file. Their total must not exceed it either, or memory use
        // could be many times the file's size.
        bytes_in_all += chunk.end() - chunk.offset;
        if bytes_in_all > footer.offset {
            return Err(bad(i, "the chunks up to here have more bytes than the file".to_owned()));
        }
        // Bounded by the bytes: an entry has at least one.
        entries_in_all += chunk.count;
        chunks.push(chunk);
    }
    // Each record has a value of some field. Otherwise a few bytes could claim any number of
    // records, and a loop over them would never end.
    if entries_in_all < footer.records {
        let detail = format!("its columns have {entries_in_all} entries for {} records", footer.records);
        return Err(Error::corrupt(path, format!("directory of commit {}", footer.commit), detail));
    }
    Ok(chunks)
}
