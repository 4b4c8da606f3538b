//! Values between Python and the core: indices, JSON, arrays, numbers, buffers. Defines no public
//! Python class.

pub(crate) mod arrays;
pub(crate) mod buffers;
pub(crate) mod compression;
pub(crate) mod images;
pub(crate) mod indices;
pub(crate) mod numbers;
pub(crate) mod objects;
pub(crate) mod verify;
