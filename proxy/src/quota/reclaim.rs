//! Resolves the leases of dead gateways. Every gateway does it, for the orgs it has seen; a short lock in the store
//! keeps them from doing it all at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::Rng;
use tokio::task::JoinHandle;

use super::Shared;
use super::chain::Chain;
use super::stats::Operation;
use super::store::StoreError;

pub(super) fn start(shared: Arc<Shared>) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(pause(shared.options.lease_ttl)).await;
            if let Err(error) = shared.store.note_orgs(&shared.live.tags()).await {
                tracing::debug!(%error, "orgs not noted for reclaim");
            }
            for tag in shared.live.tags() {
                let quiet = shared.options.lease_ttl / 8;
                if shared.store.may_sweep(&tag, quiet).await.unwrap_or(false) {
                    now(&shared, &tag).await;
                }
            }
            walk(&shared).await;
        }
    })
}

/// A quarter of the lease time, give or take a quarter of that, so that gateways drift apart.
fn pause(ttl: Duration) -> Duration {
    (ttl / 4).mul_f64(rand::rng().random_range(0.75..1.25))
}

/// One page per pass of the orgs that any gateway ever used, for those that nobody uses any more, and what gateways left
/// that died while they started.
async fn walk(shared: &Shared) {
    let orgs = shared.store.some_orgs().await.unwrap_or_default();
    for tag in orgs.iter().map(String::as_str).chain(shared.store.own_tag()) {
        now(shared, tag).await;
    }
}

/// Before the first lease of an org, once per process: if all gateways that know it die, the others find its leases by
/// this. One more round trip, within the bound of the call's own. The error of a server that said nothing; what follows is
/// tried all the same, because in a Cluster the names of orgs may lie on another node than the org.
pub(super) async fn introduce(shared: &Shared, chain: &Chain) -> Option<StoreError> {
    if chain.introduced.load(Ordering::Relaxed) {
        return None;
    }
    if !shared.live.is_introduced(&chain.tag) {
        match shared.store.note_org(&chain.tag).await {
            Ok(()) => shared.live.introduced(&chain.tag),
            Err(error) => {
                tracing::debug!(%error, org = chain.tag, "org not noted for reclaim");
                return Some(error).filter(StoreError::is_silence);
            }
        }
    }
    chain.introduced.store(true, Ordering::Relaxed);
    None
}

/// A call that was not sent, because the one before it had found nobody, says what that one found.
pub(super) fn first_cause(silence: Option<StoreError>, error: StoreError) -> StoreError {
    silence.filter(|_| error.is_unsent()).unwrap_or(error)
}

/// True if something was reclaimed.
pub(super) async fn now(shared: &Shared, tag: &str) -> bool {
    let reclaim = shared.store.reclaim(tag, shared.options.on_expiry);
    match shared.stats.timed(Operation::Reclaim, reclaim).await {
        Ok(done) => {
            shared.stats.reclaimed(&done);
            done.leases > 0
        }
        Err(error) => {
            tracing::debug!(%error, org = tag, "reclaim failed; the next pass tries again");
            false
        }
    }
}
