//! Binding sockets, with errors that name the cure. Accepting and draining are the servers' own part.

use std::{
    fmt,
    io::{self, ErrorKind},
    net::{SocketAddr, ToSocketAddrs},
    os::unix::{fs::FileTypeExt, net::UnixStream},
    path::{Path, PathBuf},
};

use engine::http::Listener;
use tokio::net::{TcpListener, UnixListener};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Address {
    /// Reads `HOST:PORT` or `unix:PATH`; prints as it is read.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Self::Unix(path.into()));
        }
        let mut found = text.to_socket_addrs().map_err(|_| "write HOST:PORT or unix:PATH".to_owned())?;
        found.next().map(Self::Tcp).ok_or_else(|| format!("`{text}` has no address"))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Removes the socket's name from the file system in the end.
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Nobody is left to tell; the next start clears a stale socket.
        drop(std::fs::remove_file(&self.0));
    }
}

/// `cure`: what to change when the address is taken, e.g. "choose another with --listen".
pub async fn bind_tcp(address: SocketAddr, cure: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| explain(error, &Address::Tcp(address), cure))
}

/// A socket of the engine.
pub struct Bound {
    pub listener: Listener,
    /// With the port that was found, where any was asked for.
    pub address: Address,
    /// To be kept for as long as it is listened on.
    pub file: Option<SocketFile>,
}

pub async fn bind(address: &Address, cure: &str) -> anyhow::Result<Bound> {
    match address {
        Address::Tcp(address) => {
            let listener = bind_tcp(*address, cure).await?;
            let address = Address::Tcp(listener.local_addr()?);
            Ok(Bound { listener: Listener::Tcp(listener), address, file: None })
        }
        Address::Unix(path) => {
            let listener = bind_unix(path).map_err(|error| explain(error, address, cure))?;
            let file = Some(SocketFile(path.clone()));
            Ok(Bound { listener: Listener::Unix(listener), address: address.clone(), file })
        }
    }
}

/// A socket file that nobody answers on was left by a process that was killed.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let is_socket = path.symlink_metadata().is_ok_and(|metadata| metadata.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)?;
    }
    UnixListener::bind(path)
}

fn explain(error: io::Error, address: &Address, cure: &str) -> anyhow::Error {
    match error.kind() {
        ErrorKind::AddrInUse => anyhow::anyhow!("{address} is in use by another program: {cure}"),
        _ => anyhow::Error::new(error).context(format!("cannot listen on {address} ({cure})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_prints_as_it_is_read() {
        for text in ["127.0.0.1:80", "unix:/run/x.sock", "[::1]:80"] {
            assert_eq!(Address::parse(text).expect(text).to_string(), text);
        }
        for wrong in ["127.0.0.1", "80", "", "host:port:80"] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_taken_port_names_the_cure() {
        let held = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = held.local_addr().unwrap();
        let error = bind_tcp(address, "choose another with --listen").await.unwrap_err().to_string();
        assert!(error.contains(&address.to_string()) && error.contains("--listen"), "{error}");
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("e.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let address = Address::Unix(path.clone());
        let held = bind(&address, "").await.expect("nobody listens on it");
        let error = bind(&address, "stop the other").await.err().unwrap();
        assert!(error.to_string().contains("stop the other"), "{error}");
        drop(held);
        assert!(!path.exists(), "the socket's name stayed behind");
    }
}
