//! Waiting for something to become true, with a limit that fails by name. And free ports.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

/// Asks `ready` every 20 ms until it has a value; fails naming `what` after `limit`.
pub async fn until<T>(limit: Duration, what: &str, mut ready: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = ready().await {
            return value;
        }
        assert!(began.elapsed() < limit, "waited {limit:?} for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A loopback address that nobody listens on now.
pub fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port is free");
    listener.local_addr().expect("a bound socket has an address")
}
