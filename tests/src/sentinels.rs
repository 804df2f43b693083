//! A primary, its replica, and three real sentinels that promote the replica when the primary is gone.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use crate::resp::{Connection, Reply};
use crate::wait::free_address;
use crate::{Process, RedisServer, until};

const GROUP: &str = "main";
const SENTINELS: usize = 3;
/// How long the primary must be silent before it counts as gone.
const DOWN_AFTER_MS: u32 = 500;

pub struct Sentinels {
    pub primary: RedisServer,
    pub replica: RedisServer,
    sentinels: Vec<(SocketAddr, Process)>,
    _folder: tempfile::TempDir,
}

impl Sentinels {
    pub async fn start() -> Self {
        let primary = RedisServer::start().await;
        let of = format!("127.0.0.1 {}", primary.address().port());
        let of: Vec<&str> = of.split(' ').collect();
        let replica = RedisServer::start_with(&["--replicaof", of[0], of[1]]).await;
        until(Duration::from_secs(20), "the replica to follow", async || {
            (master_link(&replica)? == "up").then_some(())
        })
        .await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let sentinels = (0..SENTINELS).map(|number| sentinel(number, &primary, folder.path())).collect();
        let group = Self { primary, replica, sentinels, _folder: folder };
        group.agreed().await;
        group
    }

    /// The store's address for a gateway.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.sentinels.iter().map(|(address, _)| address.to_string()).collect();
        format!("redis+sentinel://{}/{GROUP}/0", hosts.join(","))
    }

    pub fn sentinel(&mut self, number: usize) -> &mut Process {
        &mut self.sentinels[number].1
    }

    /// The replica serves as the primary.
    pub async fn promoted(&self) {
        until(Duration::from_secs(30), "the replica to be promoted", async || {
            (field(&self.replica, "role")? == "master").then_some(())
        })
        .await;
    }

    /// Every sentinel knows the others and the replica: from then on they can agree on a failover.
    async fn agreed(&self) {
        for (address, _) in &self.sentinels {
            until(Duration::from_secs(30), "the sentinels to know each other", async || {
                let known = |command| count(*address, command);
                (known("SENTINELS")? == SENTINELS - 1 && known("REPLICAS")? == 1).then_some(())
            })
            .await;
        }
    }
}

fn sentinel(number: usize, primary: &RedisServer, folder: &Path) -> (SocketAddr, Process) {
    let address = free_address();
    let dir = folder.join(number.to_string());
    fs::create_dir(&dir).expect("a folder");
    // It writes into its configuration what it learns.
    let config = dir.join("sentinel.conf");
    let text = format!(
        "port {}\nbind 127.0.0.1\ndir {}\nsentinel monitor {GROUP} 127.0.0.1 {} 2\n\
         sentinel down-after-milliseconds {GROUP} {DOWN_AFTER_MS}\nsentinel failover-timeout {GROUP} 5000\n",
        address.port(),
        dir.display(),
        primary.address().port(),
    );
    fs::write(&config, text).expect("written");
    let process = Process::start("sentinel", Path::new("redis-server"), [config.as_os_str(), "--sentinel".as_ref()]);
    (address, process)
}

fn count(sentinel: SocketAddr, what: &str) -> Option<usize> {
    let reply = Connection::open(sentinel).ok()?.call(&[b"SENTINEL", what.as_bytes(), GROUP.as_bytes()]).ok()?;
    match reply {
        Reply::Array(entries) => Some(entries.len()),
        _ => None,
    }
}

fn master_link(server: &RedisServer) -> Option<String> {
    field(server, "master_link_status")
}

fn field(server: &RedisServer, name: &str) -> Option<String> {
    let Reply::Bulk(info) = server.call(&["INFO", "replication"]) else { return None };
    let info = String::from_utf8(info).ok()?;
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(|value| value.trim().to_owned())
}
