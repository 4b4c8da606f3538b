//! `Damage`: what is wrong with one stored value.

use crate::error::decode::DecodeError;

/// What is wrong with one stored value. [`Error::Value`](crate::Error::Value) names the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages describe the fields
pub enum Damage {
    #[error("stored CRC {stored:#010x}, computed {computed:#010x}: the payload is damaged")]
    Checksum { stored: u32, computed: u32 },

    #[error("bad extent: {0}")]
    Extent(String),

    #[error("the compressed payload is damaged: {0}")]
    Compressed(String),

    #[error("not valid UTF-8")]
    Text,

    #[error("the list is damaged: {0}")]
    List(String),

    #[error("not valid JSON: {0}")]
    Json(String),

    #[error("the value does not fit its field: {0}")]
    Content(String),

    #[error("the side bytes are damaged (`fastrecord index --rebuild` makes them again): {0}")]
    Side(String),

    #[error("{0}")]
    Image(DecodeError),
}
