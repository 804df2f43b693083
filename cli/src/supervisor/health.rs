//! Asks an engine whether it can work.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::{Request, StatusCode, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};

use crate::listen::Address;

const TIMEOUT: Duration = Duration::from_secs(2);

/// Any failure means "not yet".
pub async fn answers(address: &Address) -> bool {
    matches!(tokio::time::timeout(TIMEOUT, status(address)).await, Ok(Ok(StatusCode::OK)))
}

async fn status(address: &Address) -> anyhow::Result<StatusCode> {
    match address {
        Address::Tcp(address) => ask(TcpStream::connect(address).await?).await,
        Address::Unix(path) => ask(UnixStream::connect(path).await?).await,
    }
}

async fn ask(stream: impl AsyncRead + AsyncWrite + Unpin) -> anyhow::Result<StatusCode> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get("/health").header("host", "localhost").body(Empty::<Bytes>::new())?;
    // The connection ends when the sender is dropped, after the answer.
    let ask = async move { anyhow::Ok(sender.send_request(request).await?.status()) };
    let (status, _) = tokio::join!(ask, connection);
    status
}
