//! One exchange on a connection of its own, its answer kept whole: to see whether a target is there and right.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;

use super::{
    Target,
    connection::{Connection, Error},
};

#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    /// Status line and headers, as they came.
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn expect_ok(&self) -> Result<(), String> {
        if self.status == 200 { Ok(()) } else { Err(format!("status {}: {}", self.status, self.body)) }
    }
}

/// The first request of `target`, once.
pub fn probe(target: &Target) -> Result<Answer, String> {
    let request = target.requests.first().ok_or("nothing to send")?;
    ask(target.address, request.clone())
}

pub fn get(address: SocketAddr, path: &str) -> Result<Answer, String> {
    ask(address, Bytes::from(format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n")))
}

pub fn put(address: SocketAddr, path: &str, json: &str) -> Result<Answer, String> {
    let head = format!("PUT {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {}\r\n\r\n", json.len());
    ask(address, Bytes::from(head + json))
}

fn ask(address: SocketAddr, request: Bytes) -> Result<Answer, String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let exchange = async {
        let mut connection = Connection::open(address).await?;
        let mut body = Vec::new();
        let response = connection.exchange(&request, |bytes| body.extend_from_slice(bytes)).await?;
        Ok::<_, Error>(Answer {
            status: response.status,
            head: String::from_utf8_lossy(response.head()).into_owned(),
            body: String::from_utf8_lossy(&body).into_owned(),
        })
    };
    runtime.block_on(async {
        match tokio::time::timeout(Duration::from_secs(10), exchange).await {
            Ok(result) => result.map_err(|error| error.to_string()),
            Err(_) => Err("timed out".into()),
        }
    })
}
