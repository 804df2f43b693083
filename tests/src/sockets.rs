//! What lies in kernel socket buffers, from /proc/net/tcp: the difference between "written by one side" and "read by
//! the other". With it a test can say what a process in the middle holds itself.

use std::fs;
use std::net::SocketAddr;

/// Bytes on both ends of all established connections to a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queues {
    /// Written by the listener's side and not yet acknowledged by the peer's kernel.
    pub leaving: u64,
    /// Arrived at the peer's kernel and not yet read by the peer.
    pub unread: u64,
}

/// Bytes on their way from `listener` to those who connected to it.
pub fn towards_clients(listener: SocketAddr) -> Queues {
    let table = fs::read_to_string("/proc/net/tcp").expect("Linux lists its sockets");
    let mut queues = Queues::default();
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, local, remote, _state, queued, ..] = fields[..] else { continue };
        let (sending, receiving) = queued.split_once(':').expect("tx_queue:rx_queue");
        if port(local) == listener.port() && port(remote) != 0 {
            queues.leaving += number(sending);
        }
        if port(remote) == listener.port() {
            queues.unread += number(receiving);
        }
    }
    queues
}

fn port(address: &str) -> u16 {
    let (_, port) = address.split_once(':').expect("ADDRESS:PORT in hexadecimal");
    u16::from_str_radix(port, 16).expect("a port in hexadecimal")
}

fn number(hex: &str) -> u64 {
    u64::from_str_radix(hex, 16).expect("a count in hexadecimal")
}
