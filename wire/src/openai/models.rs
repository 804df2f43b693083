//! `GET /v1/models` and `/v1/models/{id}`.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelList {
    pub object: String,
    pub data: Vec<Model>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    pub id: String,
    pub object: String,
    /// Unix seconds.
    pub created: u64,
    pub owned_by: String,
}

impl Model {
    pub fn new(id: impl Into<String>, created: u64, owned_by: impl Into<String>) -> Self {
        Self { id: id.into(), object: "model".to_owned(), created, owned_by: owned_by.into() }
    }
}

impl ModelList {
    pub fn new(data: Vec<Model>) -> Self {
        Self { object: "list".to_owned(), data }
    }
}
