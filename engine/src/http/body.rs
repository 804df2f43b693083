//! Request bodies in, response bodies out: limits, deadlines, content types.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use serde::Serialize;
use serde_json::{Map, Value};

use super::error::Error;

pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The JSON object of a POST.
pub(super) async fn read_object(
    headers: &HeaderMap,
    body: Incoming,
    limit: usize,
    deadline: Duration,
) -> Result<Map<String, Value>, Error> {
    check_media_type(headers)?;
    // Said before a byte of it is read.
    if content_length(headers).is_some_and(|length| length > limit as u64) {
        return Err(Error::TooLarge(limit));
    }
    let collected = tokio::time::timeout(deadline, Limited::new(body, limit).collect()).await;
    let bytes = match collected.map_err(|_| Error::BodyTimeout)? {
        Ok(collected) => collected.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => return Err(Error::TooLarge(limit)),
        Err(error) => return Err(bad_body(format!("The request body could not be read: {error}"))),
    };
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(bad_body("The request body must be a JSON object.".to_owned())),
        Err(error) => Err(bad_body(format!("The request body is not valid JSON: {error}"))),
    }
}

fn bad_body(message: String) -> Error {
    Error::Invalid { param: None, message }
}

/// A missing content type is taken for JSON.
fn check_media_type(headers: &HeaderMap) -> Result<(), Error> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let essence = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let json = essence.eq_ignore_ascii_case("application/json") || essence.to_ascii_lowercase().ends_with("+json");
    if json { Ok(()) } else { Err(Error::MediaType) }
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

pub(super) fn json(status: StatusCode, bytes: impl Into<Bytes>) -> Response<Body> {
    with_type(status, "application/json", bytes)
}

pub(super) fn ok(value: &impl Serialize) -> Response<Body> {
    match serde_json::to_vec(value) {
        Ok(bytes) => json(StatusCode::OK, bytes),
        Err(error) => Error::Failed(format!("the answer could not be written: {error}")).into_response(),
    }
}

pub(super) fn with_type(status: StatusCode, media_type: &'static str, bytes: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(bytes.into()).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}
