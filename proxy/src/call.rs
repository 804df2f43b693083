//! A client's request, read and understood as far as the gateway needs: the original bytes are kept, and only known
//! fields are looked at. What they cost is `demand`'s part.

mod fields;
mod intake;
mod shape;
mod splice;

use std::ops::Range;

use bytes::Bytes;

pub use fields::Invalid;
pub use intake::{Intake, ReadError};
pub use shape::Shape;

use crate::paths::Endpoint;

/// One parsed request. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Call {
    pub endpoint: Endpoint,
    pub body: Bytes,
    /// The name the client asked for.
    pub model: String,
    pub stream: bool,
    /// The client asked for a usage chunk itself.
    pub wants_usage: bool,
    /// Most output tokens per choice, if the request says.
    pub cap: Option<u64>,
    /// Choices to generate, over all prompts.
    pub choices: u64,
    pub shape: Shape,
}

impl Call {
    /// Parses the body that [`Intake::collect`] returned. `deployment` is the model named by the path, which wins.
    pub fn parse(endpoint: Endpoint, deployment: Option<String>, body: Bytes) -> Result<Self, Invalid> {
        fields::parse(endpoint, deployment, body)
    }

    /// The client's own `cache_salt`, as it spelled it.
    pub fn cache_salt(&self) -> &[u8] {
        self.shape.cache_salt.as_ref().map_or(b"", |range| self.text(range))
    }

    /// The text of a field, by its place in the body.
    pub fn text(&self, range: &Range<usize>) -> &[u8] {
        &self.body[range.clone()]
    }
}
