//! Why a call was not answered by an upstream. What the client is told is decided in `respond`.

use crate::{
    call::{Invalid, ReadError},
    paths::Miss,
    quota::Refused,
    tenants::Unauthenticated,
    upstreams::Failure,
};

const BUSY: &str = "the gateway is at its limit of concurrent calls";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{method} {path} is not an endpoint of this gateway")]
    Path { miss: Miss, method: http::Method, path: String },
    #[error(transparent)]
    Unauthenticated(#[from] Unauthenticated),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error("the model {0:?} does not exist; GET /v1/models lists those that do")]
    UnknownModel(String),
    /// Its prompt is long, and other long ones were counted for too long.
    #[error("the gateway is counting as many long prompts as it may; send it again in a moment")]
    Uncounted,
    #[error("{}", said(.0))]
    Refused(Refused),
    /// Every slot of `limits.in_flight` is taken.
    #[error("{BUSY}")]
    Overloaded,
    #[error(transparent)]
    Upstream(#[from] Failure),
}

fn said(refused: &Refused) -> String {
    match refused {
        Refused::Limit(refusal) => refusal.to_string(),
        Refused::Store(error) => error.told(),
        Refused::Overloaded => BUSY.to_owned(),
    }
}
