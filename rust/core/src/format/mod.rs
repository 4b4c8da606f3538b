//! `docs/format.md` as code: encodes, decodes, refuses. Opens no file. Imports `error`, `limits`
//! and `codec`.

pub(crate) mod chunk;
pub(crate) mod compression;
pub(crate) mod crc;
pub(crate) mod dictionary;
pub(crate) mod directory;
pub(crate) mod dtype;
pub(crate) mod extent;
pub(crate) mod field_type;
pub(crate) mod layout;
pub(crate) mod list;
pub(crate) mod metadata;
pub(crate) mod schema;
