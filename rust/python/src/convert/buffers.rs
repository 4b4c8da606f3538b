//! The buffer protocol: exporting Rust memory to Python, and borrowing Python buffers.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use fastrecord_core::{BatchBuffer, Mapping};
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::buffer::{PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use crate::convert::arrays::tensor_array;
use crate::convert::objects::int;

/// The owner that keeps the bytes alive and in place.
pub(crate) enum Bytes {
    Mapped(Arc<Mapping>),
    Owned(Arc<Vec<u8>>),
}

impl Bytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map.bytes(),
            Self::Owned(bytes) => bytes,
        }
    }
}

/// Owner of exported bytes. Every memoryview and array over them keeps it alive.
#[pyclass(module = "fastrecord._core", frozen)]
pub(crate) struct Exporter {
    bytes: Bytes,
}

#[pymethods]
impl Exporter {
    // SAFETY: unsafe because the caller must pass a valid view to fill. The interpreter is the only
    // caller.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        let bytes = slf.get().bytes.as_slice();
        // SAFETY: PyBuffer_FillInfo fills `view`, which the interpreter passes for that purpose. It
        // takes a reference to the owner, which keeps the bytes alive. The bytes stay in place: the
        // owner is frozen, and neither a mapping nor the vector that an Arc holds ever moves its bytes.
        // Read-only (1): requests for a writable buffer are refused.
        let status = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                bytes.as_ptr().cast::<c_void>().cast_mut(),
                bytes.len().cast_signed(),
                1,
                flags,
            )
        };
        if status == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// Creates a memoryview of all bytes. Users get slices of it.
pub(crate) fn export(py: Python<'_>, bytes: Bytes) -> PyResult<Py<PyAny>> {
    let exporter = Bound::new(py, Exporter { bytes })?;
    Ok(PyMemoryView::from(&exporter.into_any())?.into_any().unbind())
}

/// Slices a memoryview.
#[inline]
pub(crate) fn slice<'py>(view: &Bound<'py, PyAny>, offset: u64, length: u64) -> PyResult<Bound<'py, PyAny>> {
    let py = view.py();
    let (start, stop) = (int(py, offset)?, int(py, offset + length)?);
    // SAFETY: PySlice_New takes its own references to two objects, which live here. It returns a
    // new reference, or null and an error. (`PySlice::new` leaks the numbers that it creates: 64
    // bytes per slice.)
    let slice = unsafe {
        Bound::from_owned_ptr_or_err(py, ffi::PySlice_New(start.as_ptr(), stop.as_ptr(), std::ptr::null_mut()))
    }?;
    view.get_item(slice)
}

/// Memory of a batch that Python owns: writable, and returned to the pool when the last tensor over
/// it is gone.
#[pyclass(module = "fastrecord._core", frozen)]
pub(crate) struct BatchMemory {
    buffer: BatchBuffer,
}

impl BatchMemory {
    pub(crate) fn new(buffer: BatchBuffer) -> Self {
        Self { buffer }
    }
}

#[pymethods]
impl BatchMemory {
    // SAFETY: unsafe because the caller must pass a valid view to fill. The interpreter is the only
    // caller.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        let buffer = &slf.get().buffer;
        // SAFETY: as for `Exporter`. Writable (0): the core has given up the whole buffer, and none
        // of its threads writes to it. The memory stays until this object is gone.
        let status = unsafe {
            let start = buffer.as_ptr().cast::<c_void>();
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, buffer.len().cast_signed(), 0, flags)
        };
        if status == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// Exports that the core's threads no longer use. Releasing one needs the GIL, which those threads
/// never take. [`release_lent`] releases them.
static RETURNED: Mutex<Vec<PyBuffer<u8>>> = Mutex::new(Vec::new());

struct Lent(Option<PyBuffer<u8>>);

impl Drop for Lent {
    fn drop(&mut self) {
        RETURNED.lock().unwrap_or_else(PoisonError::into_inner).extend(self.0.take());
    }
}

/// Lends memory that Python has allocated to the core. The export keeps it in place.
///
/// The caller must ensure that no other code uses the memory before the batch is complete.
pub(crate) fn lend(memory: &Bound<'_, PyAny>) -> PyResult<BatchBuffer> {
    let buffer = PyBuffer::<u8>::get(memory)?;
    if buffer.readonly() || !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("memory for a batch is writable and C-contiguous"));
    }
    let start = NonNull::new(buffer.buf_ptr().cast::<u8>()).unwrap_or(NonNull::dangling());
    let length = buffer.len_bytes();
    // SAFETY: the export keeps `length` bytes at `start` allocated and in place until it is
    // released. That happens after `Lent` was dropped. (An empty buffer has a null pointer.)
    Ok(unsafe { BatchBuffer::lent(start, length, Box::new(Lent(Some(buffer)))) })
}

/// Releases the lent memory that the core no longer uses.
pub(crate) fn release_lent(_attached: Python<'_>) {
    // Do not use `lock`: a thread that fork did not copy may hold it forever.
    let returned = match RETURNED.try_lock() {
        Ok(mut returned) => std::mem::take(&mut *returned),
        Err(TryLockError::Poisoned(mut poisoned)) => std::mem::take(&mut **poisoned.get_mut()),
        Err(TryLockError::WouldBlock) => return,
    };
    drop(returned);
}

/// Lends the memory of a writable, contiguous Python buffer for the duration of a call.
pub(crate) fn with_writable<T>(out: &Bound<'_, PyAny>, work: impl FnOnce(&mut [u8]) -> PyResult<T>) -> PyResult<T> {
    let buffer = match PyUntypedBuffer::get(out) {
        // A CPU tensor has no buffer protocol; the numpy array over its memory has.
        Err(_) if out.hasattr("__torch_function__")? => PyUntypedBuffer::get(&tensor_array(out)?.0)?,
        buffer => buffer?,
    };
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("the buffer is not C-contiguous"));
    }
    if buffer.readonly() {
        return Err(PyBufferError::new_err("the buffer is read-only"));
    }
    let length = buffer.len_bytes();
    let bytes: &mut [u8] = if length == 0 {
        &mut []
    } else {
        // SAFETY: the buffer is contiguous (checked above) and writable. It stays allocated and in
        // place until `buffer` is dropped below. The caller must ensure that no other Python thread
        // reads or writes it meanwhile, as in `file.readinto`.
        unsafe { std::slice::from_raw_parts_mut(buffer.buf_ptr().cast::<u8>(), length) }
    };
    let result = work(bytes);
    drop(buffer); // not earlier: it keeps the memory in place
    result
}

/// The bytes of a Python object. The export keeps them in place.
pub(crate) struct BorrowedBytes(PyBuffer<u8>);

impl BorrowedBytes {
    /// # Panics
    /// If the buffer is not contiguous.
    pub(crate) fn new(buffer: PyBuffer<u8>) -> Self {
        assert!(buffer.is_c_contiguous(), "only the memory of a contiguous buffer can be borrowed");
        Self(buffer)
    }

    pub(crate) fn bytes<'a>(&'a self, _py: Python<'a>) -> &'a [u8] {
        let length = self.0.len_bytes();
        if length == 0 {
            return &[];
        }
        // SAFETY: the buffer is contiguous (checked in `new`). The export, which `self` holds, keeps
        // its bytes allocated and in place. The caller must ensure that no other thread writes to
        // them meanwhile, as for `array_bytes`.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast::<u8>(), length) }
    }
}

/// Lends the bytes of a contiguous Python buffer for the duration of a call.
pub(crate) fn with_readable<T>(data: &Bound<'_, PyAny>, work: impl FnOnce(&[u8]) -> PyResult<T>) -> PyResult<T> {
    let buffer = PyUntypedBuffer::get(data)?;
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("the buffer is not C-contiguous"));
    }
    let length = buffer.len_bytes();
    let bytes: &[u8] = if length == 0 {
        &[]
    } else {
        // SAFETY: the buffer is contiguous (checked above), and stays allocated and in place until
        // `buffer` is dropped below. The caller must ensure that no other Python thread writes to it
        // meanwhile, as in `file.write`.
        unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), length) }
    };
    let result = work(bytes);
    drop(buffer); // not earlier: it keeps the memory in place
    result
}

/// Returns the bytes of a C-contiguous array.
///
/// # Panics
/// If the array is not contiguous.
pub(crate) fn array_bytes<'a>(py: Python<'_>, array: &'a Py<PyUntypedArray>) -> &'a [u8] {
    let array = array.bind(py);
    assert!(array.is_c_contiguous(), "the array was made contiguous");
    let length = array.len() * array.dtype().itemsize();
    if length == 0 {
        return &[];
    }
    // SAFETY: numpy keeps `length` bytes at `data` while the array lives. The result borrows the
    // reference that keeps it alive. numpy does not resize an array with references. The caller
    // must ensure that no other thread writes to it meanwhile, as for every write of a buffer.
    unsafe { std::slice::from_raw_parts((*array.as_array_ptr()).fields.data.cast::<u8>(), length) }
}
