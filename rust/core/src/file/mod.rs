//! A `.frec` file on disk: storage, the writer's lock, replacing a file, and finding the newest
//! commit. Imports `format` and `sys`.

pub(crate) mod find_commit;
pub(crate) mod lock;
pub(crate) mod replace;
pub(crate) mod storage;
