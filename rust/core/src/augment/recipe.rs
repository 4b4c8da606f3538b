//! `Recipe`: the operations on the pixels of one output, in order.

use serde::{Deserialize, Serialize};

use super::floats::ToFloat;
use super::op::{Node, assign, hash};
use super::step::Step;
use crate::order::random::Random;

/// Operations, and the conversion to floats that may follow them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// On bytes.
    operations: Vec<Node>,
    /// What bytes become.
    pub to_float: Option<ToFloat>,
    /// On floats: erasing.
    after: Vec<Node>,
}

/// What a recipe does to one record.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Drawn {
    /// On bytes.
    pub steps: Vec<Step>,
    /// On floats.
    pub after: Vec<Step>,
}

impl Recipe {
    /// Reads a recipe from JSON. Its random numbers differ from those of recipes of other streams, such
    /// as another field's, or of another view.
    ///
    /// # Errors
    /// What is wrong.
    pub fn new(json: &str, stream: &str, view: u64) -> Result<Self, String> {
        let mut recipe: Self = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let (stream, mut seen) = (Random::key(&[hash(stream), view]), Vec::new());
        assign(&mut recipe.operations, stream, &mut seen);
        assign(&mut recipe.after, stream, &mut seen);
        if !recipe.after.iter().all(Node::is_erasing) {
            return Err("after ToFloat, only RandomErasing can follow".to_owned());
        }
        Ok(recipe)
    }

    /// Decides what is done to the image of a record, whose output has that width and height.
    pub fn draw(&self, seed: u64, epoch: u64, position: u64, size: (usize, usize)) -> Drawn {
        let base = Random::new(seed, epoch, position);
        let mut drawn = Drawn::default();
        self.operations.iter().for_each(|node| node.draw(&base, size, &mut drawn.steps));
        self.after.iter().for_each(|node| node.draw(&base, size, &mut drawn.after));
        drawn
    }
}
