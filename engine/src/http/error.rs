//! Everything the engine refuses or fails at, and the one place where that becomes a status and an error body.

use http::{HeaderValue, Response, StatusCode, header};
use wire::openai::ErrorBody;

use super::body::{self, Body};
use crate::request::Refused;

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{message}")]
    Invalid { param: Option<String>, message: String },
    #[error("'{param}' is not supported by this engine yet: {cure}")]
    Unsupported { param: String, cure: &'static str },
    #[error("the model has no chat template (a base model); use /v1/completions")]
    NoChatTemplate,
    #[error("The model '{0}' does not exist; GET /v1/models lists those that do.")]
    UnknownModel(String),
    #[error("Unknown request URL: {0}")]
    UnknownPath(String),
    #[error("Method not allowed; use {0}.")]
    Method(&'static str),
    #[error("The content type must be application/json.")]
    MediaType,
    #[error("The request body is larger than {0} bytes.")]
    TooLarge(usize),
    #[error("The request body did not arrive in time.")]
    BodyTimeout,
    #[error("{refused}")]
    Refused {
        refused: Refused,
        /// Where the prompt was: `messages` or `prompt`.
        param: &'static str,
    },
    #[error("The model is still loading.")]
    Loading,
    #[error("The engine made no progress in time.")]
    Stalled,
    #[error("{0}")]
    Failed(String),
}

const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";

impl Error {
    pub(super) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid { param: Some(param.into()), message: message.into() }
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let (status, body) = self.status_and_body();
        let mut response = body::json(status, body.to_json());
        let headers = response.headers_mut();
        match &self {
            Self::Method(allowed) => {
                headers.insert(header::ALLOW, HeaderValue::from_static(allowed));
            }
            // The rest of the body is not read: the connection is of no further use.
            Self::TooLarge(_) | Self::BodyTimeout => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Self::Loading | Self::Refused { refused: Refused::Overloaded { .. }, .. } => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }

    pub(super) fn body(&self) -> ErrorBody {
        self.status_and_body().1
    }

    fn status_and_body(&self) -> (StatusCode, ErrorBody) {
        let (status, kind, code, param) = self.parts();
        (status, ErrorBody::new(kind, code, param, self.to_string()))
    }

    fn parts(&self) -> (StatusCode, &'static str, Option<&'static str>, Option<&str>) {
        match self {
            Self::Invalid { param, .. } => (StatusCode::BAD_REQUEST, INVALID, Some("invalid_value"), param.as_deref()),
            Self::Unsupported { param, .. } => {
                (StatusCode::BAD_REQUEST, INVALID, Some("unsupported_parameter"), Some(param))
            }
            Self::NoChatTemplate => {
                (StatusCode::BAD_REQUEST, INVALID, Some("model_has_no_chat_template"), Some("messages"))
            }
            Self::UnknownModel(_) => (StatusCode::NOT_FOUND, INVALID, Some("model_not_found"), Some("model")),
            Self::UnknownPath(_) => (StatusCode::NOT_FOUND, INVALID, Some("unknown_url"), None),
            Self::Method(_) => (StatusCode::METHOD_NOT_ALLOWED, INVALID, Some("method_not_allowed"), None),
            Self::MediaType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID, Some("unsupported_media_type"), None),
            Self::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, INVALID, Some("request_too_large"), None),
            Self::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, INVALID, Some("request_timeout"), None),
            Self::Refused { refused, param } => refused_parts(*refused, param),
            Self::Loading => (StatusCode::SERVICE_UNAVAILABLE, SERVER, Some("model_loading"), None),
            Self::Stalled => (StatusCode::GATEWAY_TIMEOUT, SERVER, Some("engine_stalled"), None),
            Self::Failed(_) => (StatusCode::INTERNAL_SERVER_ERROR, SERVER, Some("engine_failed"), None),
        }
    }
}

fn refused_parts(
    refused: Refused,
    param: &'static str,
) -> (StatusCode, &'static str, Option<&'static str>, Option<&'static str>) {
    match refused {
        Refused::EmptyPrompt | Refused::UnknownToken { .. } => {
            (StatusCode::BAD_REQUEST, INVALID, Some("invalid_value"), Some(param))
        }
        Refused::ContextLength { context, prompt, .. } => {
            let culprit = if prompt < context { "max_tokens" } else { param };
            (StatusCode::BAD_REQUEST, INVALID, Some("context_length_exceeded"), Some(culprit))
        }
        Refused::Overloaded { .. } => (StatusCode::SERVICE_UNAVAILABLE, SERVER, Some("overloaded"), None),
        Refused::Draining => (StatusCode::SERVICE_UNAVAILABLE, SERVER, Some("draining"), None),
        Refused::Stopped => (StatusCode::SERVICE_UNAVAILABLE, SERVER, Some("engine_failed"), None),
    }
}
