//! A way to the server on which every answer takes its time, as from a store that is overloaded: alive, and too slow.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::redis_server::RedisServer;

pub struct SlowLink {
    folder: tempfile::TempDir,
    delay_ms: Arc<AtomicU64>,
}

impl SlowLink {
    pub fn to(server: &RedisServer) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("slow.sock")).unwrap();
        let (delay_ms, target) = (Arc::new(AtomicU64::new(0)), server.socket());
        tokio::spawn(accept(listener, target, delay_ms.clone()));
        Self { folder, delay_ms }
    }

    pub fn url(&self) -> String {
        format!("unix://{}", self.folder.path().join("slow.sock").display())
    }

    /// From now on each answer is so late. Many may be on their way at once.
    pub fn delay(&self, delay: Duration) {
        self.delay_ms.store(delay.as_millis() as u64, Ordering::Relaxed);
    }
}

async fn accept(listener: UnixListener, target: PathBuf, delay_ms: Arc<AtomicU64>) {
    while let Ok((client, _)) = listener.accept().await {
        let Ok(server) = UnixStream::connect(&target).await else { continue };
        let ((mut from_client, to_client), (from_server, mut to_server)) = (client.into_split(), server.into_split());
        tokio::spawn(async move { copy(&mut from_client, &mut to_server).await });
        let (sender, receiver) = mpsc::channel(10_000);
        tokio::spawn(read(from_server, sender, delay_ms.clone()));
        tokio::spawn(write(to_client, receiver));
    }
}

async fn read(
    mut server: tokio::net::unix::OwnedReadHalf,
    sender: mpsc::Sender<(Instant, Vec<u8>)>,
    delay_ms: Arc<AtomicU64>,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = server.read(&mut buffer).await {
        let due = Instant::now() + Duration::from_millis(delay_ms.load(Ordering::Relaxed));
        if sender.send((due, buffer[..length].to_vec())).await.is_err() {
            return;
        }
    }
}

async fn write(mut client: tokio::net::unix::OwnedWriteHalf, mut receiver: mpsc::Receiver<(Instant, Vec<u8>)>) {
    while let Some((due, bytes)) = receiver.recv().await {
        sleep_until(due).await;
        if client.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
