//! One keep-alive connection: a request out, an answer in. No pipelining, no redirects, no retries.

use std::{io, net::SocketAddr};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::decode::{Malformed, Response};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("connect: {}", .0.kind())]
    Connect(io::Error),
    #[error("connection: {}", .0.kind())]
    Io(io::Error),
    #[error("closed before the end of the answer")]
    Closed,
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> Result<Self, Error> {
        let stream = TcpStream::connect(address).await.map_err(Error::Connect)?;
        stream.set_nodelay(true).map_err(Error::Connect)?;
        Ok(Self { stream, buffer: vec![0; 16 * 1024] })
    }

    /// Sends `request` and reads the whole answer, its body going to `body` as it arrives.
    pub async fn exchange(&mut self, request: &[u8], mut body: impl FnMut(&[u8])) -> Result<Response, Error> {
        self.stream.write_all(request).await.map_err(Error::Io)?;
        let mut response = Response::default();
        while !response.is_done() {
            let read = self.stream.read(&mut self.buffer).await.map_err(Error::Io)?;
            if read == 0 {
                if response.closed() {
                    break;
                }
                return Err(Error::Closed);
            }
            response.feed(&self.buffer[..read], &mut body)?;
        }
        Ok(response)
    }
}
