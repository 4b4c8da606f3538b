//! Formats of other tools, as far as Python is too slow for them: bytes to places and numbers. Opens
//! no file. May import `format`.

pub(crate) mod example;
pub(crate) mod tfrecord;
