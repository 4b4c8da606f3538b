//! Augmentation: a recipe of torchvision's operations, drawn for each record and applied to its pixels.
//! May import `order`.
//!
//! [`Recipe`] is what a user asks for, checked once. [`Recipe::draw`] decides every number of it for one
//! record: a list of [`Step`]s, which is a pure function of seed, epoch and position. Each kernel is a
//! file of its own; it knows nothing of random numbers. Values are those of torchvision's v2 on uint8
//! tensors: tests compare them.
#![allow(clippy::inline_always)] // a loop becomes vectors only with all that it calls
#![allow(clippy::cast_precision_loss, clippy::cast_possible_wrap, clippy::cast_sign_loss)] // sides are below 2^16

mod auto;
mod blend;
mod blur;
mod canvas;
mod flip;
mod floats;
mod gamma;
mod grey;
mod hue;
mod jitter;
mod matrix;
mod mix;
mod op;
mod plane;
mod planes;
mod recipe;
mod sharpness;
mod step;
mod table;
mod tone;
mod vector;
mod warp;

pub use blend::{Blend, Mixing};
pub use canvas::Canvas;
pub use floats::{FloatType, ToFloat};
pub use matrix::{Matrix, product};
pub use plane::{Cut, Pixels, Plane, Sample};
pub use recipe::{Drawn, Recipe};
pub use step::Step;
pub use warp::Interpolation;
