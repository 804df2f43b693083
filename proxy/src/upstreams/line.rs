//! One connection to an upstream, driven by the call that uses it: no chunk is handed from task to task, and all that
//! has arrived is seen at one look. Which lines stay open between calls is `pool`'s part; TCP and TLS are `connector`'s.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use http::{Request, Uri, response};
use http_body::Body as _;
use hyper::{body::Incoming, client::conn::http1};
use tower::ServiceExt;

use super::{
    connector::{Connector, Stream},
    outgoing::Outgoing,
    pool::Pool,
};

/// Bounds what a stream holds between the upstream's socket and the client's.
const READ_BUFFER: usize = 32 << 10;

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why there is no answer.
pub(super) enum SendError {
    /// No connection came about: nothing was sent.
    Connect(BoxError),
    Broken(hyper::Error),
}

pub(super) struct Line {
    sender: http1::SendRequest<Outgoing>,
    /// `None` once it has ended. Boxed: it is large, and lines move between calls and pool.
    connection: Option<Box<http1::Connection<Stream, Outgoing>>>,
}

impl Line {
    async fn open(connector: &Connector, to: &Uri) -> Result<Self, BoxError> {
        let stream = connector.clone().oneshot(to.clone()).await?;
        let (sender, connection) = http1::Builder::new().max_buf_size(READ_BUFFER).handshake(stream).await?;
        Ok(Self { sender, connection: Some(Box::new(connection)) })
    }

    /// Reads and writes what the socket allows now. What comes of it shows at the request or the body.
    fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && Pin::new(connection.as_mut()).poll(cx).is_ready()
        {
            self.connection = None;
        }
    }

    /// Open, and free for a request, as far as can be known without asking the other end.
    pub fn is_free(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        self.connection.is_some() && self.sender.is_ready()
    }
}

/// Sends `request` to the server at `to`, over a line of `pool` or a new one. Cancel-safe: dropped, it hangs up.
pub(super) async fn send(
    pool: &Arc<Pool>,
    connector: &Connector,
    to: &Uri,
    mut request: Request<Outgoing>,
) -> Result<(response::Parts, Reply), SendError> {
    loop {
        let kept = pool.take();
        let was_kept = kept.is_some();
        let mut line = match kept {
            Some(line) => line,
            None => Line::open(connector, to).await.map_err(SendError::Connect)?,
        };
        let mut answer = pin!(line.sender.try_send_request(request));
        let answer = poll_fn(|cx| {
            line.drive(cx);
            answer.as_mut().poll(cx)
        });
        match answer.await {
            Ok(answer) => {
                let (head, body) = answer.into_parts();
                return Ok((head, Reply { body, line: Some(line), pool: pool.clone() }));
            }
            // The server closed it while it lay idle, and nothing had been sent: as if it had not been there.
            Err(mut unsent) => match unsent.take_message().filter(|_| was_kept) {
                Some(back) => request = back,
                None => return Err(SendError::Broken(unsent.into_error())),
            },
        }
    }
}

/// The body of an answer. Dropped before its end, it closes the connection, which tells the upstream to stop.
pub struct Reply {
    body: Incoming,
    /// Gone when the body has ended.
    line: Option<Line>,
    pool: Arc<Pool>,
}

impl Reply {
    /// The next bytes; `None` at the end, when the connection is free for the next call. Cancel-safe.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<hyper::Result<Bytes>>> {
        loop {
            let frame = match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    // It has nothing left of what was read before.
                    if let Some(line) = &mut self.line {
                        line.drive(cx);
                    }
                    ready!(Pin::new(&mut self.body).poll_frame(cx))
                }
            };
            match frame {
                // Trailers say nothing to us.
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if !data.is_empty() => return Poll::Ready(Some(Ok(data))),
                    _ => {}
                },
                Some(Err(error)) => {
                    self.line = None;
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    self.release();
                    return Poll::Ready(None);
                }
            }
        }
    }

    pub async fn data(&mut self) -> Option<hyper::Result<Bytes>> {
        poll_fn(|cx| self.poll_data(cx)).await
    }

    /// Bytes that are still to come at least.
    pub fn announced(&self) -> u64 {
        self.body.size_hint().lower()
    }

    fn release(&mut self) {
        if let Some(mut line) = self.line.take()
            && line.is_free()
        {
            self.pool.put(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// One connection at a time: answers `per_connection` requests on it, then closes it without a word. Returns its address.
    async fn server(per_connection: usize, answer: &'static [u8]) -> Uri {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                for _ in 0..per_connection {
                    let mut read = [0; 4096];
                    let mut request = Vec::new();
                    while !request.ends_with(b"body") {
                        let length = socket.read(&mut read).await.expect("a request");
                        assert!(length > 0, "closed by the client");
                        request.extend_from_slice(&read[..length]);
                    }
                    socket.write_all(answer).await.expect("written");
                }
            }
        });
        format!("http://{address}").parse().expect("an address")
    }

    async fn text(pool: &Arc<Pool>, connector: &Connector, to: &Uri) -> (String, bool) {
        let request = Request::post("/v1/x").header("host", "h");
        let request = request.body(Outgoing::new(Bytes::from_static(b"body"), Default::default())).expect("valid");
        let Ok((_, mut reply)) = send(pool, connector, to, request).await else { panic!("no answer") };
        let mut text = Vec::new();
        while let Some(data) = reply.data().await {
            text.extend_from_slice(&data.expect("whole"));
        }
        (String::from_utf8(text).expect("text"), pool.take().map(|line| pool.put(line)).is_some())
    }

    const PLAIN: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
    const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n";

    #[tokio::test]
    async fn a_line_is_kept_and_used_again_however_its_answers_are_framed() {
        for answer in [PLAIN, CHUNKED] {
            let (pool, connector) = (Arc::new(Pool::default()), Connector::new(Duration::from_secs(5)));
            let to = server(usize::MAX, answer).await;
            for _ in 0..3 {
                assert_eq!(text(&pool, &connector, &to).await, ("hello".to_owned(), true));
            }
        }
    }

    #[tokio::test]
    async fn a_line_that_the_server_closed_while_idle_costs_no_call() {
        let (pool, connector) = (Arc::new(Pool::default()), Connector::new(Duration::from_secs(5)));
        let to = server(1, PLAIN).await;
        for _ in 0..20 {
            assert_eq!(text(&pool, &connector, &to).await.0, "hello");
            // At times it is closed by now, at times while the next request is on its way to it.
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn an_answer_that_closes_its_connection_leaves_no_line() {
        let (pool, connector) = (Arc::new(Pool::default()), Connector::new(Duration::from_secs(5)));
        let to = server(1, b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello").await;
        assert_eq!(text(&pool, &connector, &to).await, ("hello".to_owned(), false));
    }
}
