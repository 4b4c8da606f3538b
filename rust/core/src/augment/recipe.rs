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
    /// The names of operations of the same list that come before these.
    #[serde(default)]
    seen: Vec<String>,
    /// Separates its random numbers from those of other outputs and views.
    #[serde(skip)]
    stream: u64,
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
        let recipe: Self = serde_json::from_str(json).map_err(|error| error.to_string())?;
        recipe.check()?;
        Ok(recipe.keyed(stream, view))
    }

    /// Checks a recipe that was read as a part of other JSON.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.after.iter().all(Node::is_erasing) {
            return Ok(());
        }
        Err("after ToFloat, only RandomErasing can follow".to_owned())
    }

    /// Returns the same recipe with the random numbers of another stream or view.
    #[must_use]
    pub fn keyed(mut self, stream: &str, view: u64) -> Self {
        self.stream = Random::key(&[hash(stream), view]);
        let mut seen = self.seen.clone();
        assign(&mut self.operations, self.stream, &mut seen);
        assign(&mut self.after, self.stream, &mut seen);
        self
    }

    /// Returns the random numbers of the crop of that name.
    pub fn crop(&self, base: &Random, name: &str) -> Random {
        base.keyed_by(Random::key(&[self.stream, hash(name), 0]))
    }

    /// Decides what is done to the image of a record, whose random numbers `base` keys, and whose output has that
    /// width and height.
    pub fn draw(&self, base: &Random, size: (usize, usize)) -> Drawn {
        let mut drawn = Drawn::default();
        self.operations.iter().for_each(|node| node.draw(base, size, &mut drawn.steps));
        self.after.iter().for_each(|node| node.draw(base, size, &mut drawn.after));
        drawn
    }
}
