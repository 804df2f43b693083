//! What every answer says of itself: id, time, model. The only place of the engine that reads the wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub(super) struct Identity {
    id: String,
    created: u64,
    model: String,
}

impl Identity {
    pub(super) fn new(kind: &str, model: &str) -> Self {
        Self { id: format!("{kind}-{}", random_id()), created: unix_ms() / 1000, model: model.to_owned() }
    }
}

pub(super) fn random_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

#[expect(clippy::disallowed_methods, reason = "answers and load reports carry the time of day")]
pub(super) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
