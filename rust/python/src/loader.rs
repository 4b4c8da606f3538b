//! The loader's threads, for `fastrecord.loader`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fastrecord_core::image::{DecodeOptions, Geometry};
use fastrecord_core::{Error, Load as CoreLoad, LoadCounters, LoadPlan, LoadSource, Loader, Spares, Workload};
use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::convert::positions as numbers;
use crate::error::{to_py, without_gil};
use crate::export::{BatchMemory, lend, release_lent};
use crate::image::options_from;
use crate::reader::Reader;

/// Height and width, as Python has them, to width and height.
fn size((height, width): (u32, u32)) -> (u32, u32) {
    (width, height)
}

fn geometry(given: &Bound<'_, PyTuple>) -> PyResult<Geometry> {
    let kind: String = given.get_item(0)?.extract()?;
    let out = size(given.get_item(1)?.extract()?);
    Ok(match kind.as_str() {
        "random_resized_crop" => Geometry::RandomResizedCrop {
            size: out,
            scale: given.get_item(2)?.extract()?,
            ratio: given.get_item(3)?.extract()?,
        },
        "center_crop" => Geometry::CenterCrop { size: out, resize: given.get_item(2)?.extract()? },
        "resize" => Geometry::Resize { size: out },
        "random_crop" => Geometry::RandomCrop { size: out, padding: given.get_item(2)?.extract()? },
        other => return Err(PyValueError::new_err(format!("no such geometry: {other:?}"))),
    })
}

/// What is done to each record: which of its images become which pixels.
///
/// Args:
///     files: Readers, each with the names of its fields that hold the images, one for each output.
///     outputs: The geometry of each output, as `fastrecord.transforms` describe it.
///     flip: Mirror every other image, on average.
///     verify: Check payloads against their CRC.
///     truncated: "reject" or "accept".
///     exif_orientation: Turn images as their EXIF data says.
///     max_pixels: Larger images are refused; None: where Pillow refuses them.
///     spares: Batches' memory that is kept for later ones.
///     region: Decode only what a crop needs; False decodes whole images, as a yardstick.
/// Raises:
///     KeyError, TypeError: a field that is not there, or holds no bytes. ValueError: a geometry that makes no sense.
#[pyclass(module = "fastrecord._core", frozen)]
pub(crate) struct ImagePlan {
    plan: Arc<LoadPlan>,
    counters: Arc<LoadCounters>,
    keep: usize,
    spares: Mutex<Arc<Spares>>,
}

#[pymethods]
impl ImagePlan {
    #[new]
    #[pyo3(signature = (
        files, outputs, *, flip = false, verify = true, truncated = "reject", exif_orientation = false, max_pixels = None,
        spares = 4, region = true
    ))]
    #[allow(clippy::too_many_arguments, clippy::fn_params_excessive_bools)] // keywords in Python
    fn new(
        files: Vec<(PyRef<'_, Reader>, Vec<String>)>,
        outputs: Vec<Bound<'_, PyTuple>>,
        flip: bool,
        verify: bool,
        truncated: &str,
        exif_orientation: bool,
        max_pixels: Option<u64>,
        spares: usize,
        region: bool,
    ) -> PyResult<Self> {
        let mut sources = Vec::new();
        for (reader, names) in files {
            let reader = reader.state()?.reader.clone();
            let fields = names.iter().map(|name| reader.field(name)).collect::<Result<_, _>>().map_err(to_py)?;
            sources.push(LoadSource { reader, fields });
        }
        let decode = DecodeOptions { region, ..options_from(truncated, exif_orientation, max_pixels)? };
        let outputs = outputs.iter().map(geometry).collect::<PyResult<_>>()?;
        let plan = LoadPlan::new(sources, outputs, flip, decode, verify).map_err(to_py)?;
        let (plan, counters) = (Arc::new(plan), Arc::default());
        Ok(Self { plan, counters, keep: spares, spares: Mutex::new(Spares::new(spares)) })
    }

    /// Start `threads` threads, at least 1, that make batches until they are closed.
    fn start(&self, py: Python<'_>, threads: usize) -> PyResult<Loading> {
        let spares = {
            // Held for a moment only, and never without the GIL: no fork finds it locked.
            let mut spares = self.spares.lock().unwrap_or_else(PoisonError::into_inner);
            if !spares.is_ours() {
                *spares = Spares::new(self.keep);
            }
            Arc::clone(&spares)
        };
        let (plan, counters) = (Arc::clone(&self.plan), Arc::clone(&self.counters));
        let loader = py.detach(|| Loader::start(plan, counters, threads)).map_err(to_py)?;
        let image_bytes = self.plan.image_bytes();
        Ok(Loading { rows: self.plan.rows(), image_bytes, spares, loader: Mutex::new(Some(loader)) })
    }

    /// Return what all threads have done since the plan was made: images, failures, reads, bytes, and nanoseconds of reading,
    /// decoding and resizing.
    fn counters(&self) -> [u64; 7] {
        let LoadCounters { images, failures, reads, bytes, read_nanos, decode_nanos, resize_nanos } = &*self.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [images, failures, reads, bytes, read_nanos, decode_nanos, resize_nanos].map(get)
    }
}

/// Threads at work. They end when it is closed or dropped.
#[pyclass(module = "fastrecord._core", frozen)]
pub(crate) struct Loading {
    rows: u64,
    image_bytes: Vec<usize>,
    spares: Arc<Spares>,
    loader: Mutex<Option<Loader>>,
}

#[pymethods]
impl Loading {
    /// Begin a batch and return at once.
    ///
    /// Args:
    ///     seed, epoch: Decide the crops, with the positions.
    ///     rows: Record numbers over all files, int64 (N,).
    ///     positions: Positions in the epoch order, int64 (N,).
    ///     memory: A writable buffer for each output to be used instead of memory of our own, such as a pinned one; nobody
    ///         else may use it before the batch is whole.
    ///     ahead: Record numbers of later batches for which the kernel is asked too, ascending, int64 (N,).
    #[pyo3(signature = (seed, epoch, rows, positions, memory = None, ahead = None))]
    #[allow(clippy::too_many_arguments)] // those of a batch
    fn submit(
        &self,
        py: Python<'_>,
        seed: u64,
        epoch: u64,
        rows: PyReadonlyArray1<'_, i64>,
        positions: PyReadonlyArray1<'_, i64>,
        memory: Option<Vec<Bound<'_, PyAny>>>,
        ahead: Option<PyReadonlyArray1<'_, i64>>,
    ) -> PyResult<Load> {
        release_lent(py);
        let lent = memory.is_some();
        let (rows, positions) = (numbers(&rows, self.rows)?, numbers(&positions, u64::MAX)?);
        let ahead = ahead.map_or_else(|| Ok(Vec::new()), |rows| numbers(&rows, self.rows))?;
        let own = || {
            let lengths = self.image_bytes.iter().map(|image| image * rows.len());
            py.detach(|| lengths.map(|length| self.spares.take(length)).collect::<Result<Vec<_>, _>>()).map_err(to_py)
        };
        let buffers = memory.map_or_else(own, |memory| memory.iter().map(lend).collect())?;
        let loader = self.loader.lock().unwrap_or_else(PoisonError::into_inner);
        let loader = loader.as_ref().ok_or_else(|| to_py(Error::LoaderClosed))?;
        let load = loader.submit(Workload { seed, epoch, rows, positions, ahead, buffers }).map_err(to_py)?;
        Ok(Load { load, lent: lent.then_some(ReleaseLent) })
    }

    /// End the threads, after the images under way; to wait for batches that are not whole is an error then. Closing twice
    /// is allowed.
    fn close(&self, py: Python<'_>) {
        let loader = self.loader.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(loader));
    }

    /// The threads at work.
    #[getter]
    fn threads(&self) -> usize {
        let loader = self.loader.lock().unwrap_or_else(PoisonError::into_inner);
        loader.as_ref().map_or(0, Loader::threads)
    }
}

/// A batch that is being made.
#[pyclass(module = "fastrecord._core", frozen)]
pub(crate) struct Load {
    // Fields are dropped in order: a batch that was not waited for lets go of lent memory too.
    load: CoreLoad,
    lent: Option<ReleaseLent>,
}

struct ReleaseLent;

impl Drop for ReleaseLent {
    fn drop(&mut self) {
        Python::attach(release_lent);
    }
}

/// Memory of each output, and the records that failed.
type Made = (Vec<BatchMemory>, Vec<(usize, PyErr)>);

#[pymethods]
impl Load {
    /// Wait until the batch is whole, once.
    ///
    /// Returns:
    ///     Memory for each output, uint8 (N x height x width x 3,), writable, if none was given to `submit`; and the records without an image: (position in
    ///     the batch, exception), in order. Their places are black.
    /// Raises:
    ///     KeyboardInterrupt or what else a signal handler raises; the batch may be waited for again then. RuntimeError: the
    ///     threads are closed, or in another process.
    fn wait(&self, py: Python<'_>) -> PyResult<Made> {
        let (mut buffers, failures) = without_gil(py, |interrupted| self.load.wait(interrupted))?;
        let failures = failures.into_iter().map(|failure| (failure.place, to_py(failure.error))).collect();
        if self.lent.is_some() {
            buffers.clear();
            release_lent(py);
        }
        Ok((buffers.into_iter().map(BatchMemory::new).collect(), failures))
    }

    /// Whether waiting would take no time.
    fn is_ready(&self) -> bool {
        self.load.is_ready()
    }
}
