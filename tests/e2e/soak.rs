//! Everything goes wrong at once: upstreams fail, clients leave, scripts are flushed, a gateway is killed again and
//! again. In the end every token that was reserved is accounted for, and nothing has grown.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bench::mock::{Mock, Options, Settings};
use serde_json::{Value, json};
use tests::audit::Audit;
use tests::{Client, Config, Gateway, RedisServer, until};
use tokio::task::JoinSet;

const WORKERS: u64 = 24;
const TTL: Duration = Duration::from_secs(3);
const LEVELS: [&str; 4] = ["u", "a", "o", "g"];
/// Beyond what the first minute needs: connection pools, tables, the allocator's reserve.
const GROWTH: u64 = 48 << 20;
/// Bytes: about the smallest thing that could be kept of a call, its lease in a map.
const PER_CALL: u64 = 64;
/// Seconds that one reading of memory is the median of.
const TYPICAL: usize = 9;

#[tokio::test(flavor = "multi_thread")]
async fn a_short_storm_leaks_nothing() {
    storm(Duration::from_secs(15)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: ten minutes"]
async fn a_long_storm_leaks_nothing_and_grows_nothing() {
    storm(Duration::from_secs(600)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minute_of_calls_leaves_nothing_behind_in_memory() {
    calm(Duration::from_secs(60)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: ten minutes"]
async fn ten_minutes_of_calls_leave_nothing_behind_in_memory() {
    calm(Duration::from_secs(600)).await;
}

/// Calls that end well, as many as the gateway takes, with everything that learns or waits switched on.
async fn calm(length: Duration) {
    let redis = RedisServer::start().await;
    let settings = Settings { chunks: 12, prompt_tokens: 8, ..Settings::default() };
    let mock = Mock::start(Options { settings, records: 0, ..Options::default() }).expect("a mock");
    let rule = "limits: [ { tokens: 1000000000, per: minute }, { concurrency: 12 } ], hold: calibrated, on_limit: { queue: {} }";
    // A store that a busy machine makes slow is no part of this.
    let config = config(&redis, &mock).line("store_timeout: 2s");
    let gateway = config.quota(&format!("{{ level: org, match: \"ac*\", {rule} }}")).start().await;
    let ends = Instant::now() + length;
    let answered = Arc::new(AtomicU64::new(0));
    let mut workers = JoinSet::new();
    for number in 0..WORKERS {
        let (client, answered) = (gateway.client("sk-ana"), answered.clone());
        workers.spawn(async move {
            for step in number.. {
                if Instant::now() >= ends {
                    return;
                }
                let body = json!({"model": "mock-model", "messages": [{"role": "user", "content": format!("call {step}")}],
                                  "max_tokens": 50, "stream": step.is_multiple_of(2)});
                client.try_events("/v1/chat/completions", &body, None).await.expect("an answer");
                answered.fetch_add(1, Relaxed);
            }
        });
    }
    let mut resident = Vec::new();
    while Instant::now() < ends {
        tokio::time::sleep(Duration::from_secs(1)).await;
        resident.push((gateway.process.rss(), answered.load(Relaxed)));
    }
    workers.join_all().await;
    let (early, late) = (typical(&resident[resident.len() / 3..]), typical(&resident[resident.len() - TYPICAL..]));
    let (grown, calls) = (late.0.saturating_sub(early.0), late.1 - early.1);
    assert!(calls > 1000, "only {calls} calls were answered");
    assert!(grown < calls * PER_CALL, "{grown} bytes for {calls} calls");
}

/// The median resident memory of some seconds, and the calls answered by then.
fn typical(seconds: &[(u64, u64)]) -> (u64, u64) {
    let mut resident: Vec<u64> = seconds[..TYPICAL].iter().map(|(bytes, _)| *bytes).collect();
    resident.sort_unstable();
    (resident[TYPICAL / 2], seconds[TYPICAL / 2].1)
}

async fn storm(length: Duration) {
    let redis = RedisServer::start().await;
    let mock = Mock::start(Options { records: 0, ..Options::default() }).expect("a mock");
    let config = config(&redis, &mock);
    let (steady, mut unlucky) = (config.start().await, config.start().await);
    let ends = Instant::now() + length;
    let answered = Arc::new(AtomicU64::new(0));
    let mut workers = JoinSet::new();
    for number in 0..WORKERS {
        let clients = [steady.client("sk-ana"), unlucky.client("sk-ana")];
        workers.spawn(work(number, clients, ends, answered.clone()));
    }
    let mut rss = None;
    while Instant::now() < ends {
        tokio::time::sleep(Duration::from_secs(4)).await;
        redis.call(&["SCRIPT", "FLUSH"]);
        unlucky.process.kill();
        unlucky.restart().await;
        if rss.is_none() && ends.saturating_duration_since(Instant::now()) < length * 9 / 10 {
            rss = Some(steady.process.rss());
        }
    }
    workers.join_all().await;
    assert!(answered.load(Relaxed) > length.as_secs() * 20, "only {} calls were answered", answered.load(Relaxed));
    assert_settled(&redis, &steady).await;
    let grown = steady.process.rss().saturating_sub(rss.expect("the storm lasts"));
    assert!(grown < GROWTH, "the steady gateway grew by {grown} bytes");
}

fn config(redis: &RedisServer, mock: &Mock) -> Config {
    let limits = "limits: [ { tokens: 1000000000, per: lifetime }, { concurrency: 1000 } ]";
    let config = Config::new()
        .store(&redis.url())
        .model("mock-model", &mock.url())
        .key("sk-ana", "acme/web/ana")
        .line(&format!("lease: {{ ttl: {}s, on_expiry: charge }}", TTL.as_secs()));
    ["level: user, match: ana", "level: app, match: web", "level: org, match: acme", "level: global"]
        .into_iter()
        .fold(config, |config, rule| config.quota(&format!("{{ {rule}, {limits} }}")))
}

/// What the upstream does with a call, and after how many events the client leaves, by a fixed sequence.
fn scenario(step: u64) -> (Value, Option<usize>) {
    let base = json!({"chunks": 12, "itl_ms": 4, "prompt_tokens": 8});
    let with = |more: Value| {
        let mut settings = base.clone();
        for (name, value) in more.as_object().expect("an object") {
            settings[name] = value.clone();
        }
        settings
    };
    match step % 9 {
        0 | 1 => (base, None),
        2 => (base, Some(3)),
        3 => (with(json!({"status": 500})), None),
        4 => (with(json!({"status": 429, "retry_after": "1"})), None),
        5 => (with(json!({"status": 400})), None),
        6 => (with(json!({"fault": {"die": {"after_chunks": 5, "ending": "reset"}}})), None),
        7 => (with(json!({"fault": {"cut": {"after_bytes": 0, "ending": "fin"}}})), None),
        _ => (with(json!({"usage": "missing"})), None),
    }
}

async fn work(number: u64, clients: [Client; 2], ends: Instant, answered: Arc<AtomicU64>) {
    let mut step = number * 7;
    while Instant::now() < ends {
        step += 1;
        let (settings, leaves_after) = scenario(step);
        let stream = step.is_multiple_of(2);
        let body = json!({"model": "mock-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 50,
                          "stream": stream, "x_mock": settings});
        let client = &clients[(step % 3 / 2) as usize];
        // The gateway that is killed breaks connections; that is the point.
        if client.try_events("/v1/chat/completions", &body, leaves_after).await.is_ok() {
            answered.fetch_add(1, Relaxed);
        }
    }
}

/// Nobody spends any more: what was held is settled or expired, at all levels alike.
async fn assert_settled(redis: &RedisServer, gateway: &Gateway) {
    until(TTL * 10, "every lease to be settled or reclaimed", async || {
        // A call keeps the org known to the gateway that reclaims.
        let probe = json!({"model": "mock-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1});
        assert_eq!(gateway.client("sk-ana").chat(&probe).await.status, 200);
        tokio::time::sleep(Duration::from_millis(200)).await;
        Audit::of(redis).live.is_empty().then_some(())
    })
    .await;
    let audit = Audit::of(redis);
    audit.assert_balanced();
    for level in LEVELS {
        let account = audit.level(level);
        assert!(account.settled > 0.0, "at {level}: {account}");
        assert_eq!(account.levels, [account.charged(), 0.0], "at {level}: {account}");
        assert_eq!(account, audit.level("g"), "{level} and global have seen the same calls");
    }
    assert_eq!(gateway.metric("penstock_quota_leaked_tokens", "").await, 0.0);
}
