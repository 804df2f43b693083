//! A client's request, read and understood as far as the gateway needs: the original bytes are kept, and only known
//! fields are looked at. What they cost is `demand`'s part.

mod fields;
mod splice;

use std::{ops::Range, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body::Body;
use http_body_util::BodyExt;

pub use fields::{Invalid, Shape};

use crate::paths::Endpoint;

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("the request body is larger than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("the request body did not arrive in time")]
    TimedOut,
    #[error("the request body was cut short")]
    Cut,
    #[error("{what} request bodies are not understood: send plain JSON")]
    Unsupported { what: String },
}

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
    /// Parses the body that `collect` returned. `deployment` is the model named by the path, which wins.
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

/// The whole body, bounded. Too much is refused before reading when `Content-Length` admits it, else as soon as it shows.
pub async fn collect<B>(headers: &HeaderMap, body: B, limit: usize, idle: Duration) -> Result<Bytes, ReadError>
where
    B: Body<Data = Bytes> + Unpin,
{
    plain_json(headers)?;
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(ReadError::TooLarge { limit });
    }
    collect_frames(body, limit, idle).await
}

/// All data of a body: one frame costs no copy.
async fn collect_frames<B>(mut body: B, limit: usize, idle: Duration) -> Result<Bytes, ReadError>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut first = Bytes::new();
    let mut joined = BytesMut::new();
    loop {
        let frame = tokio::time::timeout(idle, body.frame()).await.map_err(|_| ReadError::TimedOut)?;
        let Some(frame) = frame else { break };
        let Ok(data) = frame.map_err(|_| ReadError::Cut)?.into_data() else { continue };
        if first.len() + joined.len() + data.len() > limit {
            return Err(ReadError::TooLarge { limit });
        }
        match (first.is_empty(), joined.is_empty()) {
            (true, true) => first = data,
            (false, _) => {
                joined.extend_from_slice(&std::mem::take(&mut first));
                joined.extend_from_slice(&data);
            }
            (true, false) => joined.extend_from_slice(&data),
        }
    }
    Ok(if joined.is_empty() { first } else { joined.freeze() })
}

fn plain_json(headers: &HeaderMap) -> Result<(), ReadError> {
    let text = |name| headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
    let unsupported = |what: &str| Err(ReadError::Unsupported { what: what.to_owned() });
    match text(header::CONTENT_ENCODING) {
        Some(encoding) if !encoding.eq_ignore_ascii_case("identity") => return unsupported(encoding),
        _ => {}
    }
    match text(header::CONTENT_TYPE) {
        Some(kind) if kind.to_ascii_lowercase().starts_with("multipart/") => unsupported("multipart"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{Full, StreamBody};

    fn pieces(pieces: &'static [&'static str]) -> impl Body<Data = Bytes> + Unpin {
        let frames =
            pieces.iter().map(|piece| Ok::<_, ReadError>(http_body::Frame::data(Bytes::from_static(piece.as_bytes()))));
        StreamBody::new(futures_util::stream::iter(frames))
    }

    #[tokio::test]
    async fn pieces_become_one_body() {
        let body = collect_frames(pieces(&["a", "bc", "d"]), 4, Duration::from_secs(1)).await.expect("fits");
        assert_eq!(body, "abcd");
    }

    #[tokio::test]
    async fn the_limit_holds_with_and_without_a_length() {
        let too_large = collect_frames(pieces(&["ab", "cde"]), 4, Duration::from_secs(1)).await;
        assert!(matches!(too_large, Err(ReadError::TooLarge { limit: 4 })));
        let headers = HeaderMap::from_iter([(header::CONTENT_LENGTH, http::HeaderValue::from_static("5"))]);
        let announced = collect(&headers, Full::new(Bytes::new()), 4, Duration::from_secs(1)).await;
        assert!(matches!(announced, Err(ReadError::TooLarge { limit: 4 })));
    }
}
