//! A store that sentinels watch: when its primary dies or is cut off under load, gateways find the new one by
//! themselves, and a budget stays a budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bench::mock::{Mock, Options, Settings};
use serde_json::{Value, json};
use tests::audit::Audit;
use tests::sentinels::Sentinels;
use tests::{Config, Gateway, until};
use tokio::task::JoinSet;

const CLIENTS: usize = 8;
/// Calls that the budget lets in, ever; few enough to be used up, many enough to last over the failover.
const BUDGET: usize = 6000;
/// A hold whose answer was lost comes back after the five seconds that a call may hold before it is dispatched.
const HOLDS_END: Duration = Duration::from_secs(30);
/// The gateway asks the sentinels every two seconds. They themselves tell a primary that comes back after eight.
const SOON: Duration = Duration::from_secs(6);

fn call() -> Value {
    json!({"model": "mock-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2})
}

fn mock() -> Mock {
    let settings = Settings { chunks: 2, prompt_tokens: 8, ttft_ms: 5, ..Settings::default() };
    Mock::start(Options { settings, ..Options::default() }).expect("a mock")
}

fn config(store: &Sentinels, mock: &Mock) -> Config {
    Config::new()
        .store(&store.url())
        .model("mock-model", &mock.url())
        .key("sk-ana", "acme/web/ana")
        .line("lease: { ttl: 3s }")
        .quota(&format!("{{ level: org, match: acme, limits: [ {{ requests: {BUDGET}, per: lifetime }} ] }}"))
        .quota("{ level: global, limits: [ { tokens: 100000000, per: lifetime } ] }")
}

/// Answers by status, while clients go on calling.
#[derive(Default)]
struct Tally {
    ok: AtomicUsize,
    refused: AtomicUsize,
    unavailable: AtomicUsize,
}

impl Tally {
    fn of(&self, status: u16) -> &AtomicUsize {
        match status {
            200 => &self.ok,
            429 => &self.refused,
            503 => &self.unavailable,
            other => panic!("an answer with status {other}"),
        }
    }

    fn admitted(&self) -> usize {
        self.ok.load(Ordering::Relaxed)
    }
}

/// Clients that call until they are refused for good.
fn load(gateways: &[Gateway; 2], tally: &Arc<Tally>) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let (client, tally) = (gateways[number % 2].client("sk-ana"), tally.clone());
        clients.spawn(async move {
            loop {
                let status = client.chat(&call()).await.status;
                tally.of(status).fetch_add(1, Ordering::Relaxed);
                match status {
                    429 => return,
                    // As a client would: not at once again.
                    503 => tokio::time::sleep(Duration::from_millis(20)).await,
                    _ => {}
                }
            }
        });
    }
    clients
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_is_killed_under_load_costs_a_pause_and_not_one_call_too_many() {
    let mut store = Sentinels::start().await;
    let mock = mock();
    let config = config(&store, &mock);
    let gateways = [config.start().await, config.start().await];
    let tally = Arc::new(Tally::default());
    let clients = load(&gateways, &tally);
    until(HOLDS_END, "a part of the budget to be used", async || (tally.admitted() > BUDGET / 6).then_some(())).await;
    // With one of the sentinels: the machine that carried both.
    store.sentinel(0).freeze();
    store.primary.process().kill();
    store.promoted().await;
    let at_failover = tally.admitted();
    clients.join_all().await;
    assert!(at_failover < BUDGET, "the budget was used up before the failover: nothing was shown");
    assert!(tally.unavailable.load(Ordering::Relaxed) > 0, "calls met the outage");
    assert!(tally.admitted() <= BUDGET, "{} admitted of {BUDGET}", tally.admitted());
    // What was held for answers that nobody got comes back, and the budget is used to the last call.
    until(HOLDS_END, "the lost holds to come back", async || {
        let status = gateways[0].client("sk-ana").chat(&call()).await.status;
        tally.of(status).fetch_add(1, Ordering::Relaxed);
        let audit = Audit::of(&store.replica);
        (status == 429 && audit.live.is_empty()).then_some(())
    })
    .await;
    let audit = Audit::of(&store.replica);
    audit.assert_balanced();
    assert!(audit.level("o").levels.contains(&(BUDGET as f64)), "the budget is used to the last call");
    assert!(tally.admitted() <= BUDGET, "{} admitted of {BUDGET}", tally.admitted());
    assert_eq!(mock.stats().requests, tally.admitted() as u64, "every admitted call reached the upstream once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_was_cut_off_and_comes_back_is_not_written_to() {
    let mut store = Sentinels::start().await;
    let mock = mock();
    let gateway = config(&store, &mock).start().await;
    let client = gateway.client("sk-ana");
    assert_eq!(client.chat(&call()).await.status, 200);
    store.primary.process().freeze();
    store.promoted().await;
    // Still answering, still a primary in its own eyes, until a sentinel tells it.
    store.primary.process().thaw();
    let charged = || Audit::of(&store.replica).level("o").charged();
    let before = charged();
    until(SOON, "calls to be charged at the new primary", async || {
        client.chat(&call()).await;
        (charged() > before).then_some(())
    })
    .await;
}
