//! `Recipe`: what a recipe does to one image, without a loader.

use fastrecord_core::augment::{Canvas, Drawn, Recipe as CoreRecipe, Step};
use fastrecord_core::image::Random;
use numpy::{PyArray1, PyReadonlyArray3, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

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

fn parsed(drawn: &str) -> PyResult<Drawn> {
    serde_json::from_str(drawn).map_err(|error| PyValueError::new_err(error.to_string()))
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
        let drawn = self.0.draw(&Random::new(seed, epoch, position), (size.1, size.0));
        serde_json::to_string(&drawn).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Return an image, uint8 (H, W, 3), after the steps on bytes that `draw` has returned.
    fn apply<'py>(&self, py: Python<'py>, image: PyReadonlyArray3<'py, u8>, drawn: &str) -> PyResult<Array<'py>> {
        let (mut canvas, drawn) = (canvas(&image)?, parsed(drawn)?);
        py.detach(|| drawn.steps.iter().for_each(|step: &Step| step.apply(&mut canvas)));
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
        let (canvas, drawn) = (canvas(&image)?, parsed(drawn)?);
        let Some(to_float) = &self.0.to_float else {
            return Err(PyValueError::new_err("the recipe has no ToFloat"));
        };
        let mut out = vec![0; canvas.pixels().len() * to_float.dtype.size()];
        to_float.write(canvas.pixels(), &mut out);
        drawn.after.iter().for_each(|step| to_float.apply(step, canvas.size(), &mut out));
        Ok(PyArray1::from_vec(py, out))
    }
}
