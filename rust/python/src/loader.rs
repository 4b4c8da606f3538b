//! `LoadPlan`, `Loading` and `Load`: the loader's threads for `fastrecord.loader`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fastrecord_core::image::{Channels, DecodeOptions};
use fastrecord_core::{
    BufferPool, Error, ImageOutput, Load as CoreLoad, LoadCounters, LoadFile, LoadPlan as CoreLoadPlan, LoadSource,
    Loader, Output, Verify, View, Workload,
};
use numpy::{PyArray1, PyArray2, PyArray3, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::augment::Mixing;
use crate::convert::buffers::{BatchMemory, lend, release_lent};
use crate::convert::images::Decoding;
use crate::convert::indices::positions as numbers;
use crate::convert::verify::Check;
use crate::error::{to_py, without_gil};
use crate::logging::{deliver, delivered, follow};
use crate::read::reader::Reader;

/// Returns each file, and the schema positions of the named fields. The first file is opened, and
/// others unless they are shards that the loader can open.
fn files_of(files: Vec<(PyRef<'_, Reader>, Vec<String>)>) -> PyResult<Vec<LoadFile>> {
    let file = |(at, (reader, names)): (usize, (PyRef<'_, Reader>, Vec<String>))| match reader.shard()? {
        Some(named) if at > 0 => Ok(LoadFile::Shard(Arc::clone(&named.shard))),
        _ => Ok(LoadSource::new(reader.state()?.reader.clone(), &names).map_err(to_py)?.into()),
    };
    files.into_iter().enumerate().map(file).collect()
}

/// What becomes of a field: None: its values are stacked; else the description of an output of images.
type Given = Option<String>;

fn output(given: &Given) -> PyResult<Output> {
    let Some(described) = given else { return Ok(Output::Stack) };
    Ok(Output::Image(Box::new(ImageOutput::new(described).map_err(PyValueError::new_err)?)))
}

/// What a loader's threads make of each record: images, and values stacked as they are.
///
/// Args:
///     files: Readers, each with the names of its fields, one for each output.
///     outputs: For each output what becomes of its images, as `fastrecord.transforms` describes it in JSON;
///         None: its values are stacked, which are scalars, or arrays of a fixed shape.
///     decoding: How images are decoded, a `fastrecord.Decoding`.
///     mixing: What is done to pairs of records: record i and the last but i.
///     verify: When to check payloads against their CRCs, as in `Reader`.
///     spares: Number of batches whose memory is kept for reuse.
/// Raises:
///     KeyError, TypeError: a field does not exist, or does not hold bytes, or its values differ in
///     size. ValueError: a description is invalid.
#[pyclass(module = "fastrecord._core", frozen)]
pub(crate) struct LoadPlan {
    plan: Arc<CoreLoadPlan>,
    counters: Arc<LoadCounters>,
    blocks: usize,
    spares: Mutex<Arc<BufferPool>>,
}

impl LoadPlan {
    /// Returns the spare memory of this process.
    fn spares(&self) -> Arc<BufferPool> {
        // The lock is held briefly and only with the GIL, so no fork finds it locked.
        let mut spares = self.spares.lock().unwrap_or_else(PoisonError::into_inner);
        if !spares.is_ours() {
            *spares = BufferPool::new(self.blocks);
        }
        Arc::clone(&spares)
    }
}

#[pymethods]
impl LoadPlan {
    #[new]
    #[pyo3(signature = (files, outputs, *, decoding = None, mixing = None, verify = Check(Verify::Once), spares = 4))]
    fn new(
        files: Vec<(PyRef<'_, Reader>, Vec<String>)>,
        outputs: Vec<Given>,
        decoding: Option<Decoding>,
        mixing: Option<PyRef<'_, Mixing>>,
        verify: Check,
        spares: usize,
    ) -> PyResult<Self> {
        let outputs: Vec<Output> = outputs.iter().map(output).collect::<PyResult<_>>()?;
        let decode = decoding.map_or_else(|| Ok(DecodeOptions::default()), |decoding| decoding.options())?;
        let mut plan = CoreLoadPlan::new(files_of(files)?, &outputs, decode, verify.0).map_err(to_py)?;
        if let Some(mixing) = mixing {
            plan = plan.mixed(mixing.0.clone()).map_err(to_py)?;
        }
        let spare = Mutex::new(BufferPool::new(spares));
        Ok(Self { plan: Arc::new(plan), counters: Arc::default(), blocks: spares, spares: spare })
    }

    /// Start `threads` threads, at least 1, that load batches until they are closed.
    fn start(&self, py: Python<'_>, threads: usize) -> PyResult<Loading> {
        let (plan, counters) = (Arc::clone(&self.plan), Arc::clone(&self.counters));
        follow(py)?;
        let loader = delivered(py, py.detach(|| plan.start(Arc::clone(&counters), threads)).map_err(to_py))?;
        Ok(Loading { spares: self.spares(), counters, plan, rows: loader.rows(), loader: Mutex::new(Some(loader)) })
    }

    /// Return totals of all threads since the plan was created.
    ///
    /// They are records, failures, reads, bytes, and nanoseconds of reading, decoding and resizing.
    fn counters(&self) -> [u64; 7] {
        let LoadCounters { records, failures, reads, bytes, read_nanos, decode_nanos, resize_nanos } = &*self.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [records, failures, reads, bytes, read_nanos, decode_nanos, resize_nanos].map(get)
    }
}

/// Running loader threads. They end when it is closed or dropped.
#[pyclass(module = "fastrecord._core", frozen)]
pub(crate) struct Loading {
    rows: u64,
    spares: Arc<BufferPool>,
    counters: Arc<LoadCounters>,
    plan: Arc<CoreLoadPlan>,
    loader: Mutex<Option<Loader>>,
}

#[pymethods]
impl Loading {
    /// Submit a batch and return at once.
    ///
    /// Args:
    ///     seed, epoch: With the positions, they determine the crops.
    ///     rows: Record numbers over all files, int64 (N,).
    ///     positions: Positions in the epoch order, int64 (N,); may be None without images.
    ///     memory: A writable buffer for each output, such as pinned memory, to use instead of our
    ///         own. No other code may use it before the batch is complete.
    ///     ahead: Record numbers of later batches to prefetch, ascending, int64 (N,).
    #[pyo3(signature = (seed, epoch, rows, positions = None, memory = None, ahead = None))]
    #[allow(clippy::too_many_arguments)] // the properties of a batch
    fn submit(
        &self,
        py: Python<'_>,
        seed: u64,
        epoch: u64,
        rows: PyReadonlyArray1<'_, i64>,
        positions: Option<PyReadonlyArray1<'_, i64>>,
        memory: Option<Vec<Bound<'_, PyAny>>>,
        ahead: Option<PyReadonlyArray1<'_, i64>>,
    ) -> PyResult<Load> {
        release_lent(py);
        let lent = memory.is_some();
        let given = |array: Option<PyReadonlyArray1<'_, i64>>, limit| {
            array.map_or_else(|| Ok(Vec::new()), |array| numbers(&array, limit))
        };
        let rows = numbers(&rows, self.rows)?;
        let (positions, ahead) = (given(positions, u64::MAX)?, given(ahead, self.rows)?);
        let own = || {
            let lengths = self.plan.row_bytes().iter().map(|row| row * rows.len());
            py.detach(|| lengths.map(|length| self.spares.take(length)).collect::<Result<Vec<_>, _>>()).map_err(to_py)
        };
        let buffers = memory.map_or_else(own, |memory| memory.iter().map(lend).collect())?;
        let loader = self.loader.lock().unwrap_or_else(PoisonError::into_inner);
        let loader = loader.as_ref().ok_or_else(|| to_py(Error::LoaderClosed))?;
        let load = loader.submit(Workload { seed, epoch, rows, positions, ahead, buffers }).map_err(to_py)?;
        let lent = lent.then_some(ReleaseLent);
        Ok(Load { inner: load, lent, counters: Arc::clone(&self.counters), plan: Arc::clone(&self.plan) })
    }

    /// End the threads after their current images. Waiting for an incomplete batch then raises.
    ///
    /// Closing twice is allowed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let loader = self.loader.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(loader));
        deliver(py)
    }

    /// The number of running threads.
    #[getter]
    fn threads(&self) -> usize {
        let loader = self.loader.lock().unwrap_or_else(PoisonError::into_inner);
        loader.as_ref().map_or(0, Loader::threads)
    }
}

/// A batch in progress.
#[pyclass(module = "fastrecord._core", frozen)]
pub(crate) struct Load {
    // Fields drop in order: dropping an unfinished batch also releases lent memory.
    inner: CoreLoad,
    lent: Option<ReleaseLent>,
    counters: Arc<LoadCounters>,
    plan: Arc<CoreLoadPlan>,
}

struct ReleaseLent;

impl Drop for ReleaseLent {
    fn drop(&mut self) {
        let _ = Python::try_attach(release_lent);
    }
}

/// The memory of each output, and the records that failed.
type Made = (Vec<BatchMemory>, Vec<(usize, PyErr)>);
/// Sizes, parts and matrices of the images of one output.
type Views<'py> = (Bound<'py, PyArray2<i64>>, Bound<'py, PyArray3<f64>>, Bound<'py, PyArray3<f64>>);

#[pymethods]
impl Load {
    /// Wait until the batch is complete. Allowed once.
    ///
    /// Returns:
    ///     Memory for each output, writable, uint8 (N x bytes per row,), unless `submit` received
    ///     memory; and the failed records: (position in the batch, exception), in order. Their
    ///     slots are zeros; if an image fails, the images only.
    /// Raises:
    ///     KeyboardInterrupt, or another exception of a signal handler: the batch can be waited for
    ///     again. RuntimeError: the threads are closed, or belong to another process.
    fn wait(&self, py: Python<'_>) -> PyResult<Made> {
        deliver(py)?; // first: an interrupt of a handler must not lose the batch
        let (mut buffers, failures) = without_gil(py, |control| self.inner.wait(control))?;
        let failures = failures.into_iter().map(|failure| (failure.slot, to_py(failure.error))).collect();
        if self.lent.is_some() {
            buffers.clear();
            release_lent(py);
        }
        Ok((buffers.into_iter().map(BatchMemory::new).collect(), failures))
    }

    /// Make a record's images as the threads do, some of them from data that the caller supplies. Counts the
    /// record as loaded instead of failed.
    ///
    /// Args:
    ///     slot: The record's slot in the batch.
    ///     images: The number of an image output, the encoded bytes or the pixels as binary PPM of the image of
    ///         its field, and the colours of the source: "palette", "one" for one channel, "several", or None to
    ///         inspect the bytes.
    /// Returns:
    ///     For each image output the bytes of its row in the batch, uint8 (N,).
    /// Raises:
    ///     DecodeError: an image cannot be decoded, does not fit the other images, or may be a mask.
    ///     CorruptFileError, OSError: one cannot be read.
    fn make_of<'py>(
        &self,
        py: Python<'py>,
        slot: usize,
        images: Vec<(usize, Vec<u8>, Option<String>)>,
    ) -> PyResult<Vec<Bound<'py, PyArray1<u8>>>> {
        let channels = |name: &Option<String>| match name.as_deref() {
            Some("palette") => Some(Channels::Palette),
            Some("one") => Some(Channels::One),
            Some(_) => Some(Channels::Several),
            None => None,
        };
        let images: Vec<_> = images.iter().map(|(at, data, name)| (*at, &data[..], channels(name))).collect();
        let made = py.detach(|| self.plan.make_of(&self.inner, slot, &images, &self.counters)).map_err(to_py)?;
        Ok(made.into_iter().map(|row| PyArray1::from_vec(py, row)).collect())
    }

    /// Return which part of its image each output shows; call it after `wait`.
    ///
    /// Returns:
    ///     For each image output: height and width of the images, int64 (N, 2); left, top, right and bottom
    ///     of the part that the crop of each view shows, float64 (N, views, 4); the matrix from a point (x, y, 1)
    ///     of the image to a point of the output, float64 (N, views, 9). Zeros for records that failed.
    fn views<'py>(&self, py: Python<'py>) -> PyResult<Vec<Views<'py>>> {
        let rows = py.detach(|| self.plan.views(&self.inner));
        let of = |(output, views): (usize, usize)| {
            let none = View { image: (0, 0), part: [0.0; 4], matrix: [[0.0; 3]; 3] };
            let of_row = |row: &Option<Vec<Vec<View>>>| {
                row.as_ref().map_or_else(|| vec![none; views], |outputs| outputs[output].clone())
            };
            let all: Vec<Vec<View>> = rows.iter().map(of_row).collect();
            let sizes = all.iter().flat_map(|row| [row[0].image.1, row[0].image.0]).map(i64::from);
            let sizes = PyArray1::from_iter(py, sizes).reshape([rows.len(), 2])?;
            let each = || all.iter().flatten();
            let parts = PyArray1::from_iter(py, each().flat_map(|view| view.part)).reshape([rows.len(), views, 4])?;
            let matrices = each().flat_map(|view| view.matrix.into_iter().flatten());
            Ok((sizes, parts, PyArray1::from_iter(py, matrices).reshape([rows.len(), views, 9])?))
        };
        self.plan.image_views().into_iter().enumerate().map(of).collect()
    }

    /// Return whether `wait` would return at once.
    fn is_ready(&self) -> bool {
        self.inner.is_ready()
    }
}
