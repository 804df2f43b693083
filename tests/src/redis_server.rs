//! A real Redis (or Valkey) of one test: own port, own folder, nothing on disk unless asked for.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use crate::resp::{Connection, Reply};
use crate::wait::free_address;
use crate::{Process, until};

#[derive(Debug)]
pub struct RedisServer {
    address: SocketAddr,
    process: Process,
    folder: tempfile::TempDir,
    args: Vec<String>,
}

impl RedisServer {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// `args`: more settings in the form of its command line, e.g. `--appendonly yes`.
    pub async fn start_with(args: &[&str]) -> Self {
        Self::start_at(free_address(), args).await
    }

    pub async fn start_at(address: SocketAddr, args: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let process = launch(address, &folder, &args);
        let mut server = Self { address, process, folder, args };
        server.ready().await;
        server
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("redis://{}/0", self.address)
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Starts it again on the same port, after a kill. Without `appendonly` it comes back empty.
    pub async fn restart(&mut self) {
        self.process = launch(self.address, &self.folder, &self.args);
        self.ready().await;
    }

    pub fn connect(&self) -> Connection {
        Connection::open(self.address).expect("a running Redis accepts a connection")
    }

    /// One command on a connection of its own; an error reply fails the test.
    pub fn call(&self, parts: &[&str]) -> Reply {
        let bytes: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
        match self.connect().call(&bytes).expect("Redis answers") {
            Reply::Error(error) => panic!("redis: {parts:?}: {error}"),
            reply => reply,
        }
    }

    async fn ready(&mut self) {
        let (address, process) = (self.address, &mut self.process);
        until(Duration::from_secs(10), "Redis to answer PING", async || {
            process.assert_alive();
            let reply = Connection::open(address).and_then(|mut connection| connection.call(&[b"PING"]));
            // It refuses connections, then answers LOADING, then PONG.
            (reply.ok()? == Reply::Status("PONG".into())).then_some(())
        })
        .await;
    }
}

fn launch(address: SocketAddr, folder: &tempfile::TempDir, args: &[String]) -> Process {
    let port = address.port().to_string();
    let dir = folder.path().to_string_lossy().into_owned();
    let fixed = ["--port", &port, "--bind", "127.0.0.1", "--dir", &dir, "--save", "", "--loglevel", "notice"];
    let all = fixed.iter().copied().chain(args.iter().map(String::as_str));
    // Redis or Valkey: tests/run puts one of them on the PATH under this name.
    Process::start("redis", Path::new("redis-server"), all)
}
