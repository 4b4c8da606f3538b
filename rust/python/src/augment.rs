//! `Recipe`: what a recipe does to one image, without a loader; `Mixing`: what is done to pairs of images.

use fastrecord_core::augment::{Blend, Canvas, Drawn, FloatType, Mixing as CoreMixing, Recipe as CoreRecipe, Step};
use fastrecord_core::image::Random;
use numpy::{PyArray1, PyReadonlyArray3, PyReadwriteArray1, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde_json::{from_str, json, to_string};

use crate::image::{Array, array};

/// The operations on the images of one output, as `fastrecord.transforms` describes them in JSON.
///
/// Args:
///     operations: The JSON.
///     stream: The name of the output, which separates its random numbers from those of others.
///     view: The number of the view.
/// Raises:
///     ValueError: the JSON is no recipe.
#[pyclass(module = "fastrecord._core", frozen)]
pub(crate) struct Recipe(pub(crate) CoreRecipe);

fn canvas(image: &PyReadonlyArray3<'_, u8>) -> PyResult<Canvas> {
    let &[height, width, 3] = image.shape() else {
        return Err(PyValueError::new_err(format!("an image is uint8 (H, W, 3), not {:?}", image.shape())));
    };
    let mut canvas = Canvas::default();
    let pixels = canvas.begin(width, height);
    pixels.iter_mut().zip(image.as_array()).for_each(|(to, &from)| *to = from);
    Ok(canvas)
}

/// Returns the exception for text that is not the JSON wanted.
fn not_json(error: serde_json::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

#[pymethods]
impl Recipe {
    #[new]
    #[pyo3(signature = (operations, stream = "", view = 0))]
    fn new(operations: &str, stream: &str, view: u64) -> PyResult<Self> {
        CoreRecipe::new(operations, stream, view).map(Self).map_err(PyValueError::new_err)
    }

    /// Return what is done to an image of `size` (height, width) at a position of an epoch: JSON.
    fn draw(&self, seed: u64, epoch: u64, position: u64, size: (usize, usize)) -> PyResult<String> {
        to_string(&self.0.draw(&Random::new(seed, epoch, position), (size.1, size.0))).map_err(not_json)
    }

    /// Return an image, uint8 (H, W, 3), after the steps on bytes that `draw` has returned.
    #[staticmethod]
    fn apply<'py>(py: Python<'py>, image: PyReadonlyArray3<'py, u8>, drawn: &str) -> PyResult<Array<'py>> {
        let (mut canvas, drawn) = (canvas(&image)?, from_str::<Drawn>(drawn).map_err(not_json)?);
        py.detach(|| Step::apply_all(&drawn.steps, &mut canvas));
        let (width, height) = canvas.size();
        array(py, height as u32, width as u32, canvas.pixels().to_vec())
    }

    /// Return the bytes of the floats that such an image becomes, with the steps on floats: uint8 (N,).
    fn convert<'py>(
        &self,
        py: Python<'py>,
        image: PyReadonlyArray3<'py, u8>,
        drawn: &str,
    ) -> PyResult<Bound<'py, PyArray1<u8>>> {
        let (canvas, drawn) = (canvas(&image)?, from_str::<Drawn>(drawn).map_err(not_json)?);
        let Some(to_float) = &self.0.to_float else {
            return Err(PyValueError::new_err("the recipe has no ToFloat"));
        };
        let mut out = vec![0; canvas.pixels().len() * to_float.dtype.size()];
        to_float.write(canvas.pixels(), &mut out);
        drawn.after.iter().for_each(|step| to_float.apply(step, canvas.size(), &mut out));
        Ok(PyArray1::from_vec(py, out))
    }
}

/// `MixUp` and `CutMix`, of which one is chosen for each batch, as `fastrecord.transforms` describes them in JSON.
///
/// Raises:
///     ValueError: the JSON is no such list.
#[pyclass(module = "fastrecord._core", frozen)]
pub(crate) struct Mixing(pub(crate) CoreMixing);

#[pymethods]
impl Mixing {
    #[new]
    fn new(operations: &str) -> PyResult<Self> {
        CoreMixing::new(operations).map(Self).map_err(PyValueError::new_err)
    }

    /// Return what is done to a batch of images of `size` (height, width) whose first record is at a position of
    /// an epoch: JSON with `blend`, and `share`, the weight of a record's own label.
    fn draw(&self, seed: u64, epoch: u64, position: u64, size: (usize, usize)) -> PyResult<String> {
        let (blend, share) = self.0.draw(seed, epoch, position, (size.1, size.0));
        to_string(&json!({"blend": blend, "share": share})).map_err(not_json)
    }

    /// Blend two images in place, as `draw` has chosen: the bytes of floats, uint8 (N,).
    #[staticmethod]
    fn apply(
        blend: &str,
        dtype: &str,
        planar: bool,
        size: (usize, usize),
        mut first: PyReadwriteArray1<'_, u8>,
        mut second: PyReadwriteArray1<'_, u8>,
    ) -> PyResult<()> {
        let blend: Blend = from_str(blend).map_err(not_json)?;
        let dtype: FloatType = serde_json::from_value(dtype.into()).map_err(not_json)?;
        let (first, second) = (first.as_slice_mut()?, second.as_slice_mut()?);
        let fits = |start: usize, length, side| start.checked_add(length).is_some_and(|end| end <= side);
        if let Blend::CutMix { x, y, width, height } = blend
            && !(fits(x, width, size.1) && fits(y, height, size.0))
        {
            return Err(PyValueError::new_err(format!("{blend:?} is outside images of {size:?}")));
        }
        let channel = dtype.size() * size.0 * size.1;
        if first.len() != second.len() || channel == 0 || first.len() % channel != 0 {
            return Err(PyValueError::new_err(format!("images of {size:?} have other lengths")));
        }
        blend.apply(dtype, planar, (size.1, size.0), first, second);
        Ok(())
    }
}
