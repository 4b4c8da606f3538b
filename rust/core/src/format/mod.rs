//! `docs/format.md` as code: encode, decode, refuse. Opens no file. Imports `error`, `limits`, `codec`.

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
