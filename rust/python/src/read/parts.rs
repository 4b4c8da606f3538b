//! Where the parts of a file lie, and whether they are intact, for `fastrecord.store`, which keeps
//! copies of files that are only partly there.

use std::path::PathBuf;

use fastrecord_core::{CommitParts, hex};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::convert::indices::int64_array;
use crate::error::to_py;
use crate::read::reader::Reader;

/// Return the file id, commit number and records of a commit, and the (offset, length) of its
/// directory and metadata.
///
/// Args:
///     path: What errors name.
///     first: The first page of the file.
///     footer: The page of the footer.
///     offset: Where the footer lies.
///
/// Raises:
///     CorruptFileError: the pages are not of one .frec file.
#[pyfunction]
#[allow(clippy::type_complexity)]
pub(crate) fn commit_parts(
    path: PathBuf,
    first: PyBackedBytes,
    footer: PyBackedBytes,
    offset: u64,
) -> PyResult<(String, u64, u64, (u64, u64), (u64, u64))> {
    let parts = CommitParts::of(&path, &first, &footer, offset).map_err(to_py)?;
    Ok((hex(&parts.file_id), parts.commit, parts.records, parts.directory, parts.metadata))
}

/// Return the (offset, length) of each column of a field, with its checksums, and of its dictionaries.
#[pyfunction]
pub(crate) fn field_parts(reader: &Bound<'_, Reader>, field: &str) -> PyResult<Vec<(u64, u64)>> {
    let state = reader.get().state()?;
    Ok(state.reader.field_parts(state.field(field)?))
}

/// Return the names of the fields whose values are payloads, in the order of the schema.
#[pyfunction]
pub(crate) fn payload_fields(reader: &Bound<'_, Reader>) -> PyResult<Vec<String>> {
    let state = reader.get().state()?;
    let fields = state.reader.schema().iter().filter(|(_, field)| field.kind.has_payloads());
    Ok(fields.map(|(_, field)| field.name.clone()).collect())
}

/// Give the space of bytes of an open file back to the file system; they then read as zeros.
///
/// Raises:
///     OSError: the file system cannot.
#[pyfunction]
pub(crate) fn punch_hole(py: Python<'_>, descriptor: i32, offset: u64, length: u64) -> PyResult<()> {
    Ok(py.detach(|| fastrecord_core::punch_hole(descriptor, offset, length))?)
}

/// Find space for bytes of an open file that are written next, as far as the file system can.
#[pyfunction]
pub(crate) fn allocate(py: Python<'_>, descriptor: i32, offset: u64, length: u64) {
    // Writing finds the space else, and reports if there is none.
    let _ = py.detach(|| fastrecord_core::allocate(descriptor, offset, length));
}

/// Check all columns of a field.
///
/// Raises:
///     CorruptFileError: one is damaged.
#[pyfunction]
pub(crate) fn check_field(py: Python<'_>, reader: &Bound<'_, Reader>, field: &str) -> PyResult<()> {
    let state = reader.get().state()?;
    let field = state.field(field)?;
    py.detach(|| state.reader.check_field(field)).map_err(to_py)
}

/// Return where the payloads of records lie, int64 (4 * N,): for each the offset and length of the
/// stored value, and of its side bytes elsewhere. Lengths are 0 for what it does not have.
#[pyfunction]
pub(crate) fn payload_parts<'py>(
    py: Python<'py>,
    reader: &Bound<'py, Reader>,
    field: &str,
    records: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let state = reader.get().state()?;
    let (records, field) = (state.records(records)?, state.field(field)?);
    let parts = py.detach(|| state.reader.payload_parts(field, &records)).map_err(to_py)?;
    let flat = parts.iter().flat_map(|p| [p.value.0, p.value.1, p.side.0, p.side.1]).collect();
    Ok(int64_array(py, flat))
}

/// Return the positions in `records` of payloads that differ from their checksums, int64 (N,). Reads
/// the file, whatever has been checked before.
#[pyfunction]
pub(crate) fn damaged_payloads<'py>(
    py: Python<'py>,
    reader: &Bound<'py, Reader>,
    field: &str,
    records: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let state = reader.get().state()?;
    let (records, field) = (state.records(records)?, state.field(field)?);
    let damaged = py.detach(|| state.reader.damaged_payloads(field, &records)).map_err(to_py)?;
    Ok(int64_array(py, damaged))
}

/// Return what brings parts of a file to this machine; None if it lies here.
///
/// Whoever brings parts on a thread of its own calls it from Python (`fastrecord.store.shard_source.bring`):
/// when the interpreter ends, it ends threads that run Python, and if functions of the core are below
/// that on their stack, the process aborts.
///
/// Args:
///     reader: The file.
///
/// Returns:
///     It, and whether `set_place` was called.
#[pyfunction]
pub(crate) fn supply_of(py: Python<'_>, reader: &Bound<'_, Reader>) -> PyResult<(Option<Py<PyAny>>, bool)> {
    Ok(reader.get().shard()?.map_or((None, false), |shard| shard.supply(py)))
}

/// Say where a file's parts are brought to.
///
/// Args:
///     reader: The file.
///     place: The path.
#[pyfunction]
pub(crate) fn set_place(reader: &Bound<'_, Reader>, place: PathBuf) -> PyResult<()> {
    if let Some(shard) = reader.get().shard()? {
        shard.set_place(place);
    }
    Ok(())
}
