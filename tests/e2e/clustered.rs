//! A store that is a Cluster: each org's budget is exact while its slot moves to another node and while a primary dies,
//! which the orgs of the other primaries do not notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bench::mock::{Mock, Options, Settings};
use serde_json::{Value, json};
use tests::audit::Audit;
use tests::cluster::Cluster;
use tests::{Config, Gateway, until};
use tokio::task::JoinSet;

const ORGS: usize = 12;
/// Calls that the budget of one org lets in, ever.
const BUDGET: usize = 300;
const SOON: Duration = Duration::from_secs(60);
/// Longer than the default: the tests of a busy machine are about slots, not about time.
const STORE_TIMEOUT: Duration = Duration::from_millis(500);

fn call() -> Value {
    json!({"model": "mock-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2})
}

fn mock() -> Mock {
    let settings = Settings { chunks: 2, prompt_tokens: 8, ttft_ms: 5, ..Settings::default() };
    Mock::start(Options { settings, ..Options::default() }).expect("a mock")
}

fn config(store: &Cluster, mock: &Mock) -> Config {
    let config = Config::new()
        .store(&store.url())
        .model("mock-model", &mock.url())
        .line(&format!("lease: {{ ttl: 3s }}\nstore_timeout: {}ms", STORE_TIMEOUT.as_millis()))
        .quota(&format!(
            "{{ level: org, match: \"*\", limits: [ {{ requests: {BUDGET}, per: lifetime }}, {{ concurrency: 50 }} ] }}"
        ));
    let config = config.quota("{ level: user, match: \"*\", limits: [ { tokens: 1000000, per: day } ] }");
    (0..ORGS).fold(config, |config, org| config.key(&key(org), &format!("org-{org}/web/ana")))
}

fn key(org: usize) -> String {
    format!("sk-{org}")
}

/// A key of the org's slot.
fn key_in(org: usize) -> String {
    format!("ps1:{{org-{org}}}:dl")
}

/// Of one org.
#[derive(Default)]
struct Tally {
    admitted: AtomicUsize,
    unavailable: AtomicUsize,
}

/// Two clients of each org, one at each gateway, that call until they are refused: at their leisure until they are to hurry,
/// so that a budget outlasts what is done to the store meanwhile.
fn load(gateways: &[Gateway; 2], tallies: &Arc<Vec<Tally>>, hurry: &Arc<AtomicBool>) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for (org, gateway) in (0..ORGS).flat_map(|org| gateways.iter().map(move |gateway| (org, gateway))) {
        let (client, tallies, hurry) = (gateway.client(&key(org)), tallies.clone(), hurry.clone());
        clients.spawn(async move {
            loop {
                if !hurry.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                match client.chat(&call()).await.status {
                    200 => drop(tallies[org].admitted.fetch_add(1, Ordering::Relaxed)),
                    429 => return,
                    503 => {
                        tallies[org].unavailable.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    other => panic!("an answer with status {other}"),
                }
            }
        });
    }
    clients
}

fn total(tallies: &[Tally]) -> usize {
    tallies.iter().map(|tally| tally.admitted.load(Ordering::Relaxed)).sum()
}

async fn begun(tallies: &[Tally]) {
    until(SOON, "a part of the budgets to be used", async || (total(tallies) > ORGS * BUDGET / 6).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn budgets_stay_exact_while_their_slots_move() {
    // None is taken for dead, however slow the machine.
    let store = Cluster::start(3, Duration::from_secs(30)).await;
    let mock = mock();
    let config = config(&store, &mock);
    let gateways = [config.start().await, config.start().await];
    let tallies: Arc<Vec<Tally>> = Arc::new((0..ORGS).map(|_| Tally::default()).collect());
    let hurry = Arc::new(AtomicBool::new(false));
    let clients = load(&gateways, &tallies, &hurry);
    begun(&tallies).await;
    for org in 0..ORGS {
        let from = store.owner(&key_in(org));
        store.move_slot(&key_in(org), from, (from + 1) % 3).await;
    }
    assert!(total(&tallies) < ORGS * BUDGET, "the budgets were used up before the slots had moved");
    hurry.store(true, Ordering::Relaxed);
    clients.join_all().await;
    for (org, tally) in tallies.iter().enumerate() {
        let found = (tally.admitted.load(Ordering::Relaxed), tally.unavailable.load(Ordering::Relaxed));
        assert_eq!(found, (BUDGET, 0), "org {org}: admitted, and not served for want of the store");
    }
    until(SOON, "the last calls to be settled", async || Audit::of_all(&store.primaries).live.is_empty().then_some(()))
        .await;
}

/// Redis runs no script on a slot that is on its way unless all of its keys are on one side, and the lease of a new call is
/// on neither.
#[tokio::test(flavor = "multi_thread")]
async fn while_a_slot_is_on_its_way_calls_end_and_new_ones_wait_no_longer_than_for_a_store() {
    let store = Cluster::start(3, Duration::from_secs(30)).await;
    let slow = Settings { chunks: 2, prompt_tokens: 8, ttft_ms: 3000, ..Settings::default() };
    let mock = Mock::start(Options { settings: slow, ..Options::default() }).expect("a mock");
    let gateway = config(&store, &mock).start().await;
    let client = gateway.client(&key(0));
    let audit = || Audit::of_all(&store.primaries);
    let running = tokio::spawn({
        let client = client.clone();
        async move { client.chat(&call()).await.status }
    });
    until(SOON, "the call to be admitted", async || (audit().live.len() == 1).then_some(())).await;
    let from = store.owner(&key_in(0));
    let to = (from + 1) % 3;
    store.begin_move(&key_in(0), from, to);
    store.move_keys(&key_in(0), from, to);
    let began = Instant::now();
    assert_eq!(client.chat(&call()).await.status, 503, "a lease cannot be made");
    assert!(began.elapsed() < STORE_TIMEOUT * 4, "answered after {:?}", began.elapsed());
    assert_eq!(running.await.expect("no panic"), 200);
    until(SOON, "the call to be settled where its keys are", async || audit().live.is_empty().then_some(())).await;
    store.end_move(&key_in(0), from, to).await;
    assert_eq!(client.chat(&call()).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_dies_takes_down_its_own_orgs_until_its_replica_serves_them() {
    let mut store = Cluster::start(3, Duration::from_secs(2)).await;
    let mock = mock();
    let config = config(&store, &mock);
    let gateways = [config.start().await, config.start().await];
    let owners: Vec<usize> = (0..ORGS).map(|org| store.owner(&key_in(org))).collect();
    let dies = owners[0];
    let tallies: Arc<Vec<Tally>> = Arc::new((0..ORGS).map(|_| Tally::default()).collect());
    let hurry = Arc::new(AtomicBool::new(false));
    let clients = load(&gateways, &tallies, &hurry);
    begun(&tallies).await;
    store.primaries[dies].process().kill();
    store.promoted(dies).await;
    assert!(total(&tallies) < ORGS * BUDGET, "the budgets were used up before the replica took over");
    hurry.store(true, Ordering::Relaxed);
    clients.join_all().await;
    for (org, tally) in tallies.iter().enumerate() {
        let admitted = tally.admitted.load(Ordering::Relaxed);
        let unavailable = tally.unavailable.load(Ordering::Relaxed);
        assert!(admitted <= BUDGET, "org {org}: {admitted} admitted of {BUDGET}");
        if owners[org] == dies {
            assert!(unavailable > 0, "org {org} met the outage");
        } else {
            assert_eq!((admitted, unavailable), (BUDGET, 0), "org {org} is of another primary");
        }
    }
    // What was held for answers that nobody got comes back, and each budget is used to the last call.
    let alive = || store.primaries.iter().enumerate().filter(|(number, _)| *number != dies).map(|(_, server)| server);
    until(SOON, "the lost holds to come back", async || {
        let mut refused = 0;
        for org in 0..ORGS {
            let status = gateways[0].client(&key(org)).chat(&call()).await.status;
            if status == 200 {
                tallies[org].admitted.fetch_add(1, Ordering::Relaxed);
            }
            refused += usize::from(status == 429);
        }
        let audit = Audit::of_all(alive().chain([&store.replicas[dies]]));
        (refused == ORGS && audit.live.is_empty()).then_some(())
    })
    .await;
    for (org, tally) in tallies.iter().enumerate() {
        let admitted = tally.admitted.load(Ordering::Relaxed);
        assert!(admitted <= BUDGET, "org {org}: {admitted} admitted of {BUDGET}");
    }
}
