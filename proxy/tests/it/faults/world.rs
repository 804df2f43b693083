//! What many histories share: one upstream, one server with a database for each of them, and what goes wrong with the
//! server itself while they run.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tokio::sync::watch;
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::link::Link;
use super::plan::Call;
use crate::gateway::upstream::Upstream;
use crate::quota::redis_server::RedisServer;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Memory,
    Redis,
}

/// What the server of a world goes through, besides the loss of its scripts at any time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Server {
    Well,
    /// Accepts connections and never answers, for a time.
    Hangs,
    /// Answers READONLY for a time, as a replica does.
    ReadOnly,
    /// Killed, and started again with all it knew.
    Restarts,
    /// Killed, and started again empty.
    Forgets,
    /// Dies, and a replica takes its place: at first read only, then as primary.
    FailsOver,
}

const SERVERS: [Server; 8] = [
    Server::Well,
    Server::Well,
    Server::Hangs,
    Server::ReadOnly,
    Server::Restarts,
    Server::Restarts,
    Server::Forgets,
    Server::FailsOver,
];

/// One for each history.
const DATABASES: [&str; 2] = ["--databases", "64"];

/// Calls by their id: what their upstream does, and how often it was asked.
type Scripts = Arc<Mutex<HashMap<String, (Call, usize)>>>;

pub struct World {
    pub kind: Kind,
    pub server: Server,
    pub upstream: Upstream,
    scripts: Scripts,
    redis: Option<Mutex<RedisServer>>,
    replica: Option<Mutex<RedisServer>>,
    links: Mutex<Vec<Link>>,
    /// When acknowledged writes were last lost.
    lost: Mutex<Option<Instant>>,
    well: watch::Sender<bool>,
}

impl World {
    pub async fn new(kind: Kind, seed: u64) -> Self {
        let server = *SERVERS.choose(&mut SmallRng::seed_from_u64(seed)).unwrap();
        let scripts = Scripts::default();
        let told = scripts.clone();
        let upstream = Upstream::start(move |asked| {
            let (mut scripts, asked) = (told.lock().unwrap(), asked.json());
            let (call, times) = scripts.get_mut(asked["user"].as_str().unwrap()).unwrap();
            *times += 1;
            call.steps(*times - 1)
        });
        // Starting and stopping servers blocks, and other worlds go on meanwhile.
        let (redis, replica) = block_in_place(|| match (kind, server) {
            (Kind::Memory, _) => (None, None),
            (Kind::Redis, Server::Forgets) => (Some(RedisServer::with(&DATABASES)), None),
            (Kind::Redis, Server::FailsOver) => {
                let (primary, replica) = replicated();
                (Some(primary), Some(replica))
            }
            (Kind::Redis, _) => (
                Some(RedisServer::with(&[&DATABASES[..], &["--appendonly", "yes", "--appendfsync", "no"]].concat())),
                None,
            ),
        });
        Self {
            kind,
            server,
            upstream: upstream.await,
            scripts,
            redis: redis.map(Mutex::new),
            replica: replica.map(Mutex::new),
            links: Mutex::default(),
            lost: Mutex::default(),
            well: watch::channel(false).0,
        }
    }

    pub fn link(&self) -> Link {
        let link = Link::to(self.socket());
        self.links.lock().unwrap().push(link.clone());
        link
    }

    /// Of the server that holds the accounts now.
    pub fn socket(&self) -> PathBuf {
        let failed_over = self.replica.as_ref().filter(|_| self.lost.lock().unwrap().is_some());
        failed_over.or(self.redis.as_ref()).unwrap().lock().unwrap().socket()
    }

    pub fn script(&self, id: &str, call: Call) {
        self.scripts.lock().unwrap().insert(id.to_owned(), (call, 0));
    }

    pub fn asked(&self, id: &str) -> usize {
        self.scripts.lock().unwrap()[id].1
    }

    pub fn lost_after(&self, time: Instant) -> bool {
        self.lost.lock().unwrap().is_some_and(|lost| lost >= time)
    }

    /// Until nothing goes wrong with the server any more.
    pub async fn is_well(&self) {
        self.well.subscribe().wait_for(|well| *well).await.unwrap();
    }

    /// The server's own troubles, while histories run.
    pub async fn go_wrong(&self, seed: u64) {
        let mut rng = SmallRng::seed_from_u64(seed ^ 1);
        let pauses: Vec<Duration> = (0..6).map(|_| Duration::from_millis(rng.random_range(20..200))).collect();
        if self.redis.is_some() {
            for pause in &pauses[..3] {
                sleep(*pause).await;
                self.forget_scripts();
            }
            self.own_trouble(&pauses[3..]).await;
            self.forget_scripts();
        }
        self.well.send_replace(true);
    }

    async fn own_trouble(&self, pauses: &[Duration]) {
        let server = |change: &dyn Fn(&mut RedisServer)| {
            block_in_place(|| change(&mut self.redis.as_ref().unwrap().lock().unwrap()));
        };
        match self.server {
            Server::Well => {}
            Server::Hangs => {
                server(&|server| server.freeze());
                sleep(pauses[0]).await;
                server(&|server| server.thaw());
            }
            Server::ReadOnly => {
                server(&|server| replica_of(server, ["127.0.0.1", "1"]));
                sleep(pauses[0]).await;
                server(&|server| replica_of(server, ["NO", "ONE"]));
            }
            Server::Restarts | Server::Forgets => {
                server(&RedisServer::kill);
                sleep(pauses[0]).await;
                if self.server == Server::Forgets {
                    self.loses();
                }
                server(&RedisServer::restart);
            }
            Server::FailsOver => {
                server(&|server| server.freeze());
                sleep(pauses[0]).await;
                // Replication is asynchronous: what was acknowledged last may be missing.
                self.loses();
                for link in self.links.lock().unwrap().iter() {
                    link.lead_to(self.socket());
                }
                sleep(pauses[1]).await;
                server(&RedisServer::kill);
                sleep(pauses[2]).await;
                let replica = self.replica.as_ref().unwrap();
                block_in_place(|| replica_of(&replica.lock().unwrap(), ["NO", "ONE"]));
            }
        }
    }

    fn loses(&self) {
        *self.lost.lock().unwrap() = Some(Instant::now());
    }

    fn forget_scripts(&self) {
        let client = redis::Client::open(format!("unix://{}", self.socket().display())).unwrap();
        // One that still loads its data has forgotten them anyway.
        let flush = || client.get_connection().and_then(|mut raw| redis::cmd("SCRIPT").arg("FLUSH").exec(&mut raw));
        let _loading = block_in_place(flush);
    }
}

fn replica_of(server: &RedisServer, of: [&str; 2]) {
    redis::cmd("REPLICAOF").arg(&of).exec(&mut server.connection()).unwrap();
}

/// A primary and its replica, which has caught up.
pub fn replicated() -> (RedisServer, RedisServer) {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let primary = RedisServer::with(
        &[&DATABASES[..], &["--bind", "127.0.0.1", "--port", &port, "--repl-diskless-sync-delay", "0"]].concat(),
    );
    let replica = RedisServer::with(&[&DATABASES[..], &["--replicaof", &format!("127.0.0.1 {port}")]].concat());
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let info: String = redis::cmd("INFO").arg("replication").query(&mut replica.connection()).unwrap();
        if info.contains("master_link_status:up") {
            return (primary, replica);
        }
        assert!(Instant::now() < end, "the replica never caught up: {info}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
