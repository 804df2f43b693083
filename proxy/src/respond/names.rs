//! Header names of our own answers.

use http::HeaderName;

pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
pub const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
/// `estimate` where a retry time is one.
pub const RETRY: HeaderName = HeaderName::from_static("x-penstock-retry");
/// How long a call may wait for its turn, from its arrival.
pub const DEADLINE_MS: HeaderName = HeaderName::from_static("x-penstock-deadline-ms");
pub const MODEL: HeaderName = HeaderName::from_static("x-penstock-model");
pub const UPSTREAM: HeaderName = HeaderName::from_static("x-penstock-upstream");
/// `estimated` where the usage was counted by us.
pub const USAGE: HeaderName = HeaderName::from_static("x-penstock-usage");
/// Tells nginx to pass each event on at once.
pub const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
