//! Takes in the bodies of requests: each bounded in size and time, all together bounded in bytes. What a body says is
//! the parent's part.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use crate::config::Limits;

/// The budget of all bodies is counted in these.
const UNIT: usize = 1024;

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("the request body is larger than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("the request body did not arrive in time")]
    TimedOut,
    #[error("the gateway holds as many bytes of request bodies as it may")]
    Overloaded,
    #[error("the request body was cut short")]
    Cut,
    /// One of them may be a lie: see `server::framing`.
    #[error("the request has both a Content-Length and a Transfer-Encoding: send one of the two")]
    TwoLengths,
    #[error("{what} request bodies are not understood: send plain JSON")]
    Unsupported { what: String },
}

/// One for all connections.
pub struct Intake {
    limit: usize,
    idle: Duration,
    total: Duration,
    budget: Arc<Semaphore>,
}

/// A body and its part of the budget, which comes back when the last of its bytes is dropped.
struct Held {
    bytes: Bytes,
    _share: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Intake {
    pub fn new(limits: &Limits) -> Self {
        let budget = Arc::new(Semaphore::new(limits.body_budget.div_ceil(UNIT).min(Semaphore::MAX_PERMITS)));
        Self { limit: limits.body, idle: limits.idle_stream_timeout, total: limits.body_timeout, budget }
    }

    /// The whole body. Too much is refused before reading when `Content-Length` admits it, else as soon as it shows.
    /// Cancel-safe: what was taken of the budget comes back.
    pub async fn collect<B>(&self, headers: &HeaderMap, body: B) -> Result<Bytes, ReadError>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        plain_json(headers)?;
        let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        let announced = usize::try_from(length.unwrap_or(0)).unwrap_or(usize::MAX);
        if announced > self.limit {
            return Err(ReadError::TooLarge { limit: self.limit });
        }
        let end = Instant::now() + self.total;
        let mut share = self.share(announced, end).await?;
        let bytes = self.frames(body, &mut share, end).await?;
        Ok(Bytes::from_owner(Held { bytes, _share: share }))
    }

    /// Waits for room for `bytes` more.
    async fn share(&self, bytes: usize, end: Instant) -> Result<OwnedSemaphorePermit, ReadError> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        match tokio::time::timeout_at(end, self.budget.clone().acquire_many_owned(units)).await {
            Ok(Ok(share)) => Ok(share),
            _ => Err(ReadError::Overloaded),
        }
    }

    /// All data of a body: one frame costs no copy.
    async fn frames<B>(&self, mut body: B, share: &mut OwnedSemaphorePermit, end: Instant) -> Result<Bytes, ReadError>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let mut first = Bytes::new();
        let mut joined = BytesMut::new();
        loop {
            let patience = end.min(Instant::now() + self.idle);
            let frame = tokio::time::timeout_at(patience, body.frame()).await.map_err(|_| ReadError::TimedOut)?;
            let Some(frame) = frame else { break };
            let Ok(data) = frame.map_err(|_| ReadError::Cut)?.into_data() else { continue };
            let size = first.len() + joined.len() + data.len();
            if size > self.limit {
                return Err(ReadError::TooLarge { limit: self.limit });
            }
            let more = size.saturating_sub(share.num_permits() * UNIT);
            if more > 0 {
                share.merge(self.share(more, end).await?);
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

    fn intake(limit: usize, budget: usize) -> Intake {
        let second = Duration::from_secs(1);
        let budget = Arc::new(Semaphore::new(budget.div_ceil(UNIT)));
        Intake { limit, idle: second, total: second / 10, budget }
    }

    #[tokio::test]
    async fn pieces_become_one_body() {
        let body = intake(4, UNIT).collect(&HeaderMap::new(), pieces(&["a", "bc", "d"])).await.expect("fits");
        assert_eq!(body, "abcd");
    }

    #[tokio::test]
    async fn the_limit_holds_with_and_without_a_length() {
        let too_large = intake(4, UNIT).collect(&HeaderMap::new(), pieces(&["ab", "cde"])).await;
        assert!(matches!(too_large, Err(ReadError::TooLarge { limit: 4 })));
        let headers = HeaderMap::from_iter([(header::CONTENT_LENGTH, http::HeaderValue::from_static("5"))]);
        let announced = intake(4, UNIT).collect(&headers, Full::new(Bytes::new())).await;
        assert!(matches!(announced, Err(ReadError::TooLarge { limit: 4 })));
    }

    #[tokio::test]
    async fn bodies_share_one_budget_until_their_last_byte_is_dropped() {
        let intake = intake(4 * UNIT, 2 * UNIT);
        let none = HeaderMap::new();
        let first = intake.collect(&none, Full::new(Bytes::from(vec![b' '; UNIT + 1]))).await.expect("fits");
        let part = first.slice(0..1);
        drop(first);
        let second = || intake.collect(&none, Full::new(Bytes::from_static(b"x")));
        assert!(matches!(second().await, Err(ReadError::Overloaded)));
        drop(part);
        second().await.expect("the budget came back");
    }
}
