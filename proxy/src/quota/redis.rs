//! The shared store: Redis 7 or Valkey. One script per operation, so one round trip each, on the server's clock.
//! Connections are in `redis/connection.rs`, their health in `redis/line.rs`, the scripts in `redis/script.rs`, and what
//! comes before the first call in `redis/start.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::account::Amounts;
use super::chain::Chain;
use super::codec::{self, PackedLease};
use super::identity::GLOBAL_TAG;
use super::lease::{LeaseId, OnExpiry};
use super::ledger::{CANCELLED_FOR, EXPIRED_FOR};
use super::secret::Secret;
use super::store::{Answer, Ask, Extension, Reclaimed, Renewal, Status, StoreError};

mod address;
mod batches;
mod cluster;
mod connection;
mod detour;
mod gateways;
mod line;
mod patience;
mod probe;
mod script;
mod slot_map;
mod start;
mod turn;

pub use address::RedisAddress;
use batches::{Batches, Kind, Operation};
use connection::Connection;
pub use probe::Durability;
use script::{Call, SCRIPTS, deadlines_key};
pub use start::RedisOptions;

/// Leases resolved per pass of reclaim, and how many of them at once: no burst may block the server.
const RECLAIM_BATCH: usize = 64;
const RECLAIM_IN_FLIGHT: usize = 16;

#[derive(Debug)]
pub struct RedisStore {
    /// Reserve, amend, renew, settle, cancel: in order, on one connection.
    hot: Connection,
    /// The way of reserves and settles onto it.
    batches: Arc<Batches>,
    /// Reclaim and audit: a large reply there must not delay a request.
    bulk: Connection,
    options: RedisOptions,
    durability: Option<Durability>,
    secret: Secret,
    /// Server clock minus ours at the last answer, microseconds, as the bits of an `i64`.
    clock_offset: AtomicU64,
    /// Cursor of the slow walk over all orgs.
    walk: AtomicU64,
}

impl RedisStore {
    /// What the probe at start holds.
    pub const OWN_TAG: &'static str = probe::TAG;

    /// What the server promises about keeping data; `None` when its user may not ask.
    pub fn durability(&self) -> Option<Durability> {
        self.durability
    }

    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    pub fn join(&self) {
        self.hot.join();
    }

    /// Those that beat, or those that the configuration names, whichever are more.
    pub fn gateways(&self) -> usize {
        self.hot.gateways().max(self.options.replicas)
    }

    pub fn patience(&self) -> Duration {
        self.options.timeout
    }

    /// Whether the node that has this org's keys is up.
    pub fn serves(&self, tag: &str) -> bool {
        self.hot.serves(&deadlines_key(tag))
    }

    pub fn serves_some(&self) -> bool {
        self.hot.serves_some()
    }

    /// The last error of a node that is down.
    pub fn health(&self) -> Result<(), StoreError> {
        self.hot.health()
    }

    pub async fn reserve(&self, chain: &Arc<Chain>, ask: &Ask) -> Result<Answer, StoreError> {
        let numbers = [ask.need.input, ask.need.output, ask.need.nano_usd, micros(ask.hold)];
        Ok(self.in_batch(Kind::Reserve, chain, ask.id, numbers).await?.0)
    }

    pub async fn amend(&self, old: &Arc<Chain>, new: &Arc<Chain>, ask: &Ask) -> Result<Answer, StoreError> {
        let index = |key: &str, keys: &[&str]| keys.iter().position(|known| *known == key);
        let mut keys: Vec<&str> = new.accounts.iter().map(|account| account.key.as_str()).collect();
        let mut map = Vec::with_capacity(old.accounts.len());
        for account in &old.accounts {
            let at = index(&account.key, &keys).unwrap_or_else(|| {
                keys.push(&account.key);
                keys.len() - 1
            });
            map.push(at as u8 + 1);
        }
        let call = |windows: &[u8]| {
            let call = Call::on_keys(&SCRIPTS.amend, &new.tag, ask.id, keys.iter().copied());
            let call = call.arg(pack_ask(ask)).arg(&new.packed).arg(windows);
            call.arg(codec::mark(&old.packed)).arg(map.as_slice())
        };
        Ok(self.in_windows(new, call).await?.0)
    }

    pub async fn extend(&self, chain: &Arc<Chain>, extension: &Extension) -> Result<Answer, StoreError> {
        let Amounts { output, nano_usd, .. } = extension.more;
        let more = codec::pack_numbers(&[output, nano_usd, micros(extension.ttl)]);
        let call = |windows: &[u8]| {
            let call = Call::new(&SCRIPTS.extend, chain, extension.id).arg(more.as_slice()).arg(windows);
            call.arg(codec::mark(&chain.packed)).arg(chain.binding(extension.bind))
        };
        Ok(self.in_windows(chain, call).await?.0)
    }

    pub async fn renew(&self, chain: &Arc<Chain>, renewal: &Renewal) -> Result<Answer, StoreError> {
        let Amounts { requests, input, output, nano_usd, .. } = renewal.checkpoint;
        let checkpoint = codec::pack_numbers(&[requests, input, output, nano_usd, micros(renewal.ttl)]);
        let held = codec::pack_numbers(&[renewal.held.input, renewal.held.output, renewal.held.nano_usd]);
        let flag = |yes: bool| if yes { "1" } else { "0" };
        let call = |windows: &[u8]| {
            let call = Call::new(&SCRIPTS.renew, chain, renewal.id).arg(checkpoint.as_slice());
            let call = call.arg(flag(renewal.dispatched)).arg(flag(renewal.reassert));
            // The whole record travels only when the store has lost it.
            if renewal.reassert { call.arg(held.as_slice()).arg(&chain.packed).arg(windows) } else { call }
        };
        Ok(self.in_windows(chain, call).await?.0)
    }

    pub async fn settle(&self, chain: &Arc<Chain>, id: LeaseId, actual: &Amounts) -> Result<Answer, StoreError> {
        let Amounts { requests, input, output, nano_usd, .. } = *actual;
        let used = [requests, input, output, nano_usd];
        let (answer, reply) = match chain.queues[..] {
            [] => self.in_batch(Kind::Settle, chain, id, used).await?,
            _ => self.settle_alone(chain, id, actual).await?,
        };
        let Some(lease) = moved(&answer, &reply)? else { return Ok(answer) };
        let call = Call::on_keys(&SCRIPTS.settle, &chain.tag, id, lease.keys.iter().map(String::as_str));
        self.answer(&self.hot.call(call.arg(codec::pack_numbers(&used)).arg("").arg(lease.mark.as_slice())).await?)
    }

    pub async fn cancel(&self, chain: &Arc<Chain>, id: LeaseId) -> Result<Answer, StoreError> {
        let forbid = CANCELLED_FOR.as_millis().to_string();
        let call = Call::new(&SCRIPTS.cancel, chain, id).arg(&forbid).arg(codec::mark(&chain.packed));
        let reply = self.hot.call(call).await?;
        let answer = self.answer(&reply)?;
        let Some(lease) = moved(&answer, &reply)? else { return Ok(answer) };
        let call = Call::on_keys(&SCRIPTS.cancel, &chain.tag, id, lease.keys.iter().map(String::as_str));
        self.answer(&self.hot.call(call.arg(&forbid).arg(lease.mark.as_slice())).await?)
    }

    /// In two steps, so that every script declares its keys: ids that are due and their records, then one script each.
    pub async fn reclaim(&self, tag: &str, policy: OnExpiry) -> Result<Reclaimed, StoreError> {
        let ids = self.bulk.due(tag, RECLAIM_BATCH).await?;
        if ids.is_empty() {
            return Ok(Reclaimed::default());
        }
        let records = self.bulk.leases(tag, &ids).await?;
        let mut due = ids.into_iter().zip(records);
        let mut expiring = FuturesUnordered::new();
        let mut total = Reclaimed::default();
        let mut failed = None;
        loop {
            let room = RECLAIM_IN_FLIGHT - expiring.len();
            expiring.extend(due.by_ref().take(room).map(|(id, record)| self.expire_recorded(tag, id, record, policy)));
            match expiring.next().await {
                Some(Ok(expired)) => total.add(&expired),
                // One account that no script can read must not keep the leases of all others.
                Some(Err(error @ (StoreError::Refused(_) | StoreError::Unreadable(_)))) => failed = Some(error),
                Some(Err(error)) => return Err(error),
                None => break,
            }
        }
        match failed {
            Some(error) if total.leases == 0 => Err(error),
            _ => Ok(total),
        }
    }

    /// A lease whose record is gone only leaves the list of deadlines.
    async fn expire_recorded(
        &self,
        tag: &str,
        id: LeaseId,
        record: Option<Vec<u8>>,
        policy: OnExpiry,
    ) -> Result<Answer, StoreError> {
        let lease = record.map(|record| codec::read_lease(&record)).transpose()?.flatten();
        let (keys, mark) = lease.map(|lease| (lease.keys, lease.mark)).unwrap_or_default();
        let call = Call::on_keys(&SCRIPTS.expire, tag, id, keys.iter().map(String::as_str));
        self.expire_by(call, policy, &mark).await
    }

    pub async fn expire(&self, chain: &Arc<Chain>, id: LeaseId, policy: OnExpiry) -> Result<Answer, StoreError> {
        self.expire_by(Call::new(&SCRIPTS.expire, chain, id), policy, codec::mark(&chain.packed)).await
    }

    async fn expire_by(&self, call: Call, policy: OnExpiry, mark: &[u8]) -> Result<Answer, StoreError> {
        let policy = match policy {
            OnExpiry::Charge => "charge",
            OnExpiry::Refund => "refund",
        };
        let call = call.arg(policy).arg(EXPIRED_FOR.as_millis().to_string()).arg(mark);
        self.answer(&self.bulk.call(call).await?)
    }

    /// True for one gateway per `quiet`: the others need not sweep this org now.
    pub async fn may_sweep(&self, tag: &str, quiet: Duration) -> Result<bool, StoreError> {
        self.bulk.lock(&format!("ps1:{{{tag}}}:sw"), quiet).await
    }

    pub async fn note_orgs(&self, tags: &[String]) -> Result<(), StoreError> {
        self.bulk.add(&orgs_key(), tags).await
    }

    pub async fn note_org(&self, tag: &str) -> Result<(), StoreError> {
        self.hot.add(&orgs_key(), &[tag.to_owned()]).await
    }

    /// The next page of all orgs ever used.
    pub async fn some_orgs(&self) -> Result<Vec<String>, StoreError> {
        let (next, page) = self.bulk.scan_set(&orgs_key(), self.walk.load(Ordering::Relaxed)).await?;
        self.walk.store(next, Ordering::Relaxed);
        Ok(page)
    }

    /// Every key of the layout that matches, with its value; for audits.
    pub async fn dump(&self, pattern: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.bulk.dump(pattern).await
    }

    /// Puts `new` in the place of `old`, if that is still there.
    pub async fn exchange(&self, key: &str, old: &[u8], new: &[u8]) -> Result<bool, StoreError> {
        self.bulk.exchange(key, old, new).await
    }

    /// Runs a call with the calendar windows around the server's clock; once more if they turn out not to cover it.
    async fn in_windows(
        &self,
        chain: &Arc<Chain>,
        call: impl Fn(&[u8]) -> Call,
    ) -> Result<(Answer, Vec<u8>), StoreError> {
        let mut now = self.server_now();
        for _ in 0..2 {
            let reply = self.hot.call(call(&chain.calendars(now).packed)).await?;
            let answer = self.answer(&reply)?;
            if answer.status != Status::Stale {
                return Ok((answer, reply));
            }
            now = answer.now_us;
        }
        Err(stale())
    }

    /// As [`RedisStore::in_windows`], in a batch with others.
    async fn in_batch(
        &self,
        kind: Kind,
        chain: &Arc<Chain>,
        id: LeaseId,
        numbers: [f64; 4],
    ) -> Result<(Answer, Vec<u8>), StoreError> {
        let mut now = self.server_now();
        for _ in 0..2 {
            let operation = Operation { kind, id, chain: chain.clone(), windows: chain.calendars(now), numbers };
            let reply = self.batches.ask(operation).await?;
            let answer = self.answer(&reply)?;
            if answer.status != Status::Stale {
                return Ok((answer, reply));
            }
            now = answer.now_us;
        }
        Err(stale())
    }

    fn answer(&self, reply: &[u8]) -> Result<Answer, StoreError> {
        let answer = codec::read_answer(reply)?;
        let offset = answer.now_us - connection::local_now_us();
        self.clock_offset.store((offset as i64).cast_unsigned(), Ordering::Relaxed);
        Ok(answer)
    }

    fn server_now(&self) -> f64 {
        connection::local_now_us() + self.clock_offset.load(Ordering::Relaxed).cast_signed() as f64
    }
}

/// The lease's own accounts, when an amend whose answer was lost has moved it.
fn moved(answer: &Answer, reply: &[u8]) -> Result<Option<PackedLease>, StoreError> {
    match answer.status {
        Status::Moved => codec::read_lease(codec::moved_record(reply)),
        _ => Ok(None),
    }
}

fn stale() -> StoreError {
    StoreError::Unreadable("calendar windows around the server's clock".to_owned())
}

fn pack_ask(ask: &Ask) -> Vec<u8> {
    codec::pack_numbers(&[ask.need.input, ask.need.output, ask.need.nano_usd, micros(ask.hold)])
}

fn micros(duration: Duration) -> f64 {
    duration.as_micros() as f64
}

fn orgs_key() -> String {
    format!("ps1:{{{GLOBAL_TAG}}}:orgs")
}
