//! Before the first call: reaches the server, has it proven by `redis/probe.rs`, and agrees on what gateways share. Or
//! goes on without it, where the rules allow that.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::time::Instant;

use super::RedisStore;
use super::address::RedisAddress;
use super::batches::Batches;
use super::connection::Connection;
use super::line::Voice;
use super::probe::{self, Durability};
use crate::quota::identity::GLOBAL_TAG;
use crate::quota::secret::Secret;
use crate::quota::store::StoreError;

#[derive(Clone, Copy, Debug)]
pub struct RedisOptions {
    /// The longest that one call may wait for a store that says nothing.
    pub timeout: Duration,
    /// The longest that the probe at start may take.
    pub start_timeout: Duration,
    /// Start without a server that does not answer. One that answers and does not suit is refused all the same.
    pub start_without: bool,
    /// At least so many gateways share the server, whatever beats.
    pub replicas: usize,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_millis(50),
            start_timeout: Duration::from_secs(3),
            start_without: false,
            replicas: 1,
        }
    }
}

impl RedisStore {
    /// A server that still loads its data is waited for, all within `start_timeout`.
    pub async fn connect(url: &str, options: RedisOptions) -> Result<Self, StoreError> {
        let address = RedisAddress::parse(url)
            .map_err(|why| StoreError::Refused(format!("not a usable store address: {why}")))?;
        let slow = RedisOptions { timeout: options.timeout * 10, ..options };
        let store = match Self::opened(&address, options, slow).await {
            Err(error) if options.start_without && error.is_passing() => {
                tracing::warn!(%error, "quota store down at the start: calls go by on_store_failure until it answers");
                let absent = |options, voice| Connection::absent(address.clone(), options, voice, error.clone());
                let (hot, bulk) = (absent(options, Voice::Speaks), absent(slow, Voice::Silent));
                // What is shared cannot be known; a secret of its own keeps tenants apart all the same.
                Self::of(hot, bulk, options, None, Secret::random())
            }
            other => other?,
        };
        store.hot.watch();
        store.bulk.watch();
        Ok(store)
    }

    async fn opened(address: &RedisAddress, options: RedisOptions, slow: RedisOptions) -> Result<Self, StoreError> {
        let (hot, durability) = Self::loaded(address, options).await?;
        let secret = secret(&hot, options.start_timeout).await?;
        let bulk = Connection::open(address.clone(), slow, Voice::Silent).await?;
        Ok(Self::of(hot, bulk, options, durability, secret))
    }

    fn of(
        hot: Connection,
        bulk: Connection,
        options: RedisOptions,
        durability: Option<Durability>,
        secret: Secret,
    ) -> Self {
        let (clock_offset, walk) = (AtomicU64::new(0), AtomicU64::new(0));
        let batches = Batches::new(hot.clone());
        Self { hot, batches, bulk, options, durability, secret, clock_offset, walk }
    }

    async fn loaded(
        address: &RedisAddress,
        options: RedisOptions,
    ) -> Result<(Connection, Option<Durability>), StoreError> {
        let deadline = Instant::now() + options.start_timeout;
        loop {
            match Self::proven(address.clone(), options).await {
                Err(StoreError::Refused(why)) if why.contains("loading") && Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                other => return other,
            }
        }
    }

    async fn proven(
        address: RedisAddress,
        options: RedisOptions,
    ) -> Result<(Connection, Option<Durability>), StoreError> {
        let connection = Connection::open(address, options, Voice::Speaks).await?;
        let durability = probe::run(&connection, options).await?;
        Ok((connection, durability))
    }
}

/// The first gateway on a store draws it for all.
async fn secret(connection: &Connection, bound: Duration) -> Result<Secret, StoreError> {
    let (key, fresh) = (format!("ps1:{{{GLOBAL_TAG}}}:salt"), Secret::random());
    match connection.keep_first(&key, fresh.bytes(), bound).await? {
        Some(kept) => Secret::read(&key, &kept),
        None => Ok(fresh),
    }
}
