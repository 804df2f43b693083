//! What `serve` and `up` share: the gateway's sockets, its store, and its life from start to drain.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context;
use proxy::{
    Config, Proxy, admin,
    config::{self, StoreUrl},
    quota::{Clock, OnExpiry, Options, Quota, RedisOptions, Store, goes_on_without_store, needs_journal},
};
use tokio::{net::TcpListener, sync::oneshot};

use crate::listen;

pub struct Listeners {
    api: TcpListener,
    admin: TcpListener,
}

impl Listeners {
    pub async fn bind(api: SocketAddr, admin: SocketAddr, cure: &str) -> anyhow::Result<Self> {
        Ok(Self { api: listen::bind_tcp(api, cure).await?, admin: listen::bind_tcp(admin, cure).await? })
    }

    pub fn api_address(&self) -> anyhow::Result<SocketAddr> {
        self.api.local_addr().context("the listener has no address")
    }

    pub fn admin_address(&self) -> anyhow::Result<SocketAddr> {
        self.admin.local_addr().context("the listener has no address")
    }
}

/// Connects the store and loads what the models need.
pub async fn start(config: &Config) -> anyhow::Result<Arc<Proxy>> {
    let store = open(config)
        .await
        .with_context(|| format!("cannot use the quota store {} (`store` of the configuration)", config.store))?;
    let options = Options {
        lease_ttl: config.lease.ttl,
        on_expiry: match config.lease.on_expiry {
            config::OnExpiry::Charge => OnExpiry::Charge,
            config::OnExpiry::Refund => OnExpiry::Refund,
        },
        // Each call in flight and one settlement that is still on its way.
        capacity: config.limits.in_flight.saturating_mul(2),
        // Calls that wait leave room for those that need not.
        waiting_calls: config.limits.in_flight / 2,
        waiting_bytes: config.limits.body_budget / 2,
        ..Options::default()
    };
    let quota = Quota::new(config.quotas.clone(), store, options);
    Ok(Proxy::new(config, quota)?)
}

async fn open(config: &Config) -> anyhow::Result<Store> {
    let url = match &config.store {
        StoreUrl::Redis(url) => url,
        StoreUrl::Memory if needs_journal(&config.quotas) => {
            return Ok(Store::journalled(&config.data_dir.join("ledger"), Clock::Wall)?);
        }
        StoreUrl::Memory => return Ok(Store::memory(Clock::Wall)),
    };
    let options = RedisOptions {
        timeout: config.store_timeout,
        start_without: goes_on_without_store(&config.quotas),
        replicas: config.replicas,
        ..RedisOptions::default()
    };
    let store = Store::redis(url, options).await?;
    if let Store::Redis(redis) = &store
        && redis.durability().is_some_and(|durability| !durability.noeviction)
    {
        tracing::warn!("the store may evict keys, which forgets quota use; set `maxmemory-policy noeviction` there");
    }
    Ok(store)
}

/// Serves until `shutdown`, then lets running answers end for at most `drain`; a second signal does not wait for it.
/// Metrics and health are served until the last has ended.
pub async fn serve(
    proxy: Arc<Proxy>,
    listeners: Listeners,
    shutdown: impl Future<Output = ()>,
    drain: Duration,
) -> anyhow::Result<()> {
    let (ended, end) = oneshot::channel::<()>();
    let stop_admin = async {
        // An error means that the other end was dropped, which says the same.
        end.await.unwrap_or(());
    };
    let admin = tokio::spawn(admin::serve(proxy.clone(), listeners.admin, stop_admin));
    let all_ended = proxy.serve(listeners.api, shutdown, drain).await;
    drop(ended);
    admin.await.context("the admin listener panicked")?;
    anyhow::ensure!(all_ended, "some answers had not ended after {drain:?} (`limits.drain`) and were cut");
    Ok(())
}
