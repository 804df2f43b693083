//! A real Redis Cluster: primaries with one replica each, started from `redis-server` and joined by its own commands.

use std::time::Duration;

use crate::resp::Reply;
use crate::wait::free_address;
use crate::{RedisServer, until};

const SLOTS: u16 = 16384;
const SOON: Duration = Duration::from_secs(30);

pub struct Cluster {
    pub primaries: Vec<RedisServer>,
    /// By the number of their primary.
    pub replicas: Vec<RedisServer>,
}

impl Cluster {
    /// `silence`: how long a primary must be silent before its replica takes over.
    pub async fn start(primaries: u16, silence: Duration) -> Self {
        let mut cluster = Self { primaries: Vec::new(), replicas: Vec::new() };
        for _ in 0..primaries {
            cluster.primaries.push(node(silence).await);
            cluster.replicas.push(node(silence).await);
        }
        let share = SLOTS / primaries;
        for (number, primary) in (0..primaries).zip(&cluster.primaries) {
            let last = if number + 1 == primaries { SLOTS - 1 } else { (number + 1) * share - 1 };
            primary.call(&["CLUSTER", "ADDSLOTSRANGE", &(number * share).to_string(), &last.to_string()]);
            // Of two nodes with the same epoch either may be told otherwise.
            primary.call(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
        }
        cluster.meet();
        cluster.agreed(usize::from(primaries) * 2).await;
        cluster.follow().await;
        cluster
    }

    /// The store's address for a gateway, by two of the nodes.
    pub fn url(&self) -> String {
        format!("redis+cluster://{},{}", self.primaries[0].address(), self.primaries[1].address())
    }

    /// The number of the primary that has the key's slot; the others send a caller there.
    pub fn owner(&self, key: &str) -> usize {
        self.serving(key).next().expect("every slot has a primary")
    }

    fn slot_of(&self, key: &str) -> String {
        match self.primaries[0].call(&["CLUSTER", "KEYSLOT", key]) {
            Reply::Integer(slot) => slot.to_string(),
            other => panic!("CLUSTER KEYSLOT: {other:?}"),
        }
    }

    /// Moves the slot of `key` with its keys, one by one, while others go on using them.
    pub async fn move_slot(&self, key: &str, from: usize, to: usize) {
        self.begin_move(key, from, to);
        self.move_keys(key, from, to);
        self.end_move(key, from, to).await;
    }

    pub fn move_keys(&self, key: &str, from: usize, to: usize) {
        let (slot, from) = (self.slot_of(key), &self.primaries[from]);
        let port = self.primaries[to].address().port().to_string();
        loop {
            let Reply::Array(keys) = from.call(&["CLUSTER", "GETKEYSINSLOT", &slot, "1"]) else { panic!("no list") };
            let Some(Reply::Bulk(key)) = keys.into_iter().next() else { break };
            let key = String::from_utf8(key).expect("keys are ASCII");
            // Gone by now is well too: a lease may have ended.
            from.call(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]);
        }
    }

    pub async fn end_move(&self, key: &str, from: usize, to: usize) {
        let (slot, owner, [from, to]) = (self.slot_of(key), to, [from, to].map(|number| &self.primaries[number]));
        let to_id = id(to);
        // A heartbeat that was under way may still tell a node of the former owner, and then it has to be told again.
        let mut agreed = 0;
        until(SOON, "the nodes to agree on the slot's new owner", async || {
            for server in [to, from].into_iter().chain(&self.primaries).filter(|_| agreed == 0) {
                server.call(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
            }
            let serving: Vec<usize> = self.serving(key).collect();
            agreed = if serving == [owner] { agreed + 1 } else { 0 };
            (agreed == 5).then_some(())
        })
        .await;
    }

    /// From here on the slot's keys that `from` does not have are to be asked for at `to`.
    pub fn begin_move(&self, key: &str, from: usize, to: usize) {
        let (slot, from, to) = (self.slot_of(key), &self.primaries[from], &self.primaries[to]);
        to.call(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
        from.call(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
    }

    fn serving(&self, key: &str) -> impl Iterator<Item = usize> {
        let serves = move |server: &RedisServer| try_call(server, &["EXISTS", key]).is_some();
        self.primaries.iter().enumerate().filter(move |(_, server)| serves(server)).map(|(number, _)| number)
    }

    /// The replica of this primary serves in its place.
    pub async fn promoted(&self, primary: usize) {
        until(SOON, "the replica to take over", async || {
            (info(&self.replicas[primary], "INFO", "replication")?.contains("role:master")).then_some(())
        })
        .await;
    }

    fn meet(&self) {
        let port = |server: &RedisServer| server.address().port().to_string();
        let bus = |server: &RedisServer| bus_port(server.address().port()).to_string();
        for server in self.primaries.iter().skip(1).chain(&self.replicas) {
            self.primaries[0].call(&["CLUSTER", "MEET", "127.0.0.1", &port(server), &bus(server)]);
        }
    }

    async fn follow(&self) {
        for (replica, primary) in self.replicas.iter().zip(&self.primaries) {
            let primary = id(primary);
            until(SOON, "a replica to know its primary", async || {
                try_call(replica, &["CLUSTER", "REPLICATE", &primary])
            })
            .await;
            until(SOON, "a replica to follow", async || {
                info(replica, "INFO", "replication")?.contains("master_link_status:up").then_some(())
            })
            .await;
        }
    }

    async fn agreed(&self, nodes: usize) {
        for server in self.primaries.iter().chain(&self.replicas) {
            until(SOON, "the nodes to agree", async || {
                let known = info(server, "CLUSTER", "INFO")?;
                let all = known.contains(&format!("cluster_known_nodes:{nodes}\r"));
                (all && known.contains("cluster_state:ok")).then_some(())
            })
            .await;
        }
    }
}

async fn node(silence: Duration) -> RedisServer {
    let silence = silence.as_millis().to_string();
    let address = free_address();
    let bus = bus_port(address.port()).to_string();
    // Without the last one the other primaries stop serving as well while one is gone.
    let args = [
        ["--cluster-enabled", "yes"],
        ["--cluster-node-timeout", &silence],
        ["--cluster-port", &bus],
        ["--cluster-require-full-coverage", "no"],
    ];
    RedisServer::start_at(address, args.as_flattened()).await
}

/// The usual distance of 10,000 may lie beyond the last port.
fn bus_port(port: u16) -> u16 {
    if port < 50_000 { port + 10_000 } else { port - 20_000 }
}

fn id(server: &RedisServer) -> String {
    info(server, "CLUSTER", "MYID").expect("a node has an id")
}

fn info(server: &RedisServer, command: &str, what: &str) -> Option<String> {
    match try_call(server, &[command, what])? {
        Reply::Bulk(text) => String::from_utf8(text).ok(),
        _ => None,
    }
}

fn try_call(server: &RedisServer, parts: &[&str]) -> Option<Reply> {
    let bytes: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
    match server.connect().call(&bytes).ok()? {
        Reply::Error(_) => None,
        reply => Some(reply),
    }
}
