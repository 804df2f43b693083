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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Well,
    /// It loads, ends or is not there: what becomes of its process decides.
    NotReady,
    /// It does not answer although it listens, or says that its work makes no progress.
    Stuck,
}

pub async fn check(address: &Address) -> Health {
    match tokio::time::timeout(TIMEOUT, status(address)).await {
        Ok(Ok(StatusCode::OK)) => Health::Well,
        Ok(Ok(StatusCode::GATEWAY_TIMEOUT)) | Err(_) => Health::Stuck,
        Ok(_) => Health::NotReady,
    }
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
