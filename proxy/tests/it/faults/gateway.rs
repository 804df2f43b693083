//! A gateway on a thread and a runtime of its own, so that it can be killed: its way to the store ends between two bytes,
//! and nothing of it runs any more.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use proxy::quota::{Clock, Options, Quota, RedisOptions, Store};
use proxy::{Config, Proxy};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::link::Link;

/// How long a gateway may wait for its store before the rules decide.
pub const STORE_TIMEOUT: Duration = Duration::from_millis(60);

pub enum Place {
    Redis { link: Link, database: usize },
    Memory { folder: PathBuf },
}

pub struct Gateway {
    pub address: SocketAddr,
    pub quota: Arc<Quota>,
    pub link: Option<Link>,
    kill: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Gateway {
    pub async fn start(config: Arc<Config>, place: Place, options: Options) -> Self {
        let link = match &place {
            Place::Redis { link, .. } => Some(link.clone()),
            Place::Memory { .. } => None,
        };
        let (ready, started) = oneshot::channel();
        let (kill, killed) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                tokio::select! {
                    () = serve(&config, &place, options, ready) => {}
                    _ = killed => {}
                }
            });
        });
        let (address, quota) = started.await.expect("the gateway starts");
        Self { address, quota, link, kill, thread }
    }

    /// At once. What its runtime still does while it is dropped reaches nobody.
    pub async fn kill(self) {
        if let Some(link) = &self.link {
            link.sever();
        }
        let Self { kill, thread, quota, .. } = self;
        drop(quota);
        let _ended = kill.send(());
        tokio::task::spawn_blocking(move || thread.join().expect("a gateway does not panic")).await.unwrap();
    }
}

async fn serve(config: &Config, place: &Place, options: Options, ready: oneshot::Sender<(SocketAddr, Arc<Quota>)>) {
    let quota = Quota::new(config.quotas.clone(), open(place, config).await, options);
    let proxy = Proxy::new(config, quota.clone()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _driver = ready.send((listener.local_addr().unwrap(), quota));
    proxy.serve(listener, std::future::pending(), Duration::ZERO).await;
}

/// A gateway may be started while the store is away; whoever starts gateways tries again.
async fn open(place: &Place, config: &Config) -> Store {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let opened = match place {
            Place::Redis { link, database } => {
                let start_without = proxy::quota::goes_on_without_store(&config.quotas);
                let redis = RedisOptions {
                    timeout: STORE_TIMEOUT,
                    start_timeout: Duration::from_secs(1),
                    start_without,
                    replicas: 1,
                };
                Store::redis(&link.url(*database), redis).await.map_err(|error| error.to_string())
            }
            Place::Memory { folder } => Store::journalled(folder, Clock::Wall).map_err(|error| error.to_string()),
        };
        match opened {
            Ok(store) => return store,
            Err(error) => assert!(Instant::now() < end, "no store to start with: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
