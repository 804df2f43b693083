//! A gateway that is killed while its calls run and wait: the calls of another gateway behind them get their turns, and
//! nothing of it is left in the store.

use std::time::{Duration, Instant};

use bench::mock::{Mock, Options, Settings};
use serde_json::{Value, json};
use tests::audit::Audit;
use tests::{Config, Gateway, RedisServer, until};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(2);
const WAITING: usize = 20;
const BEHIND: usize = 3;

fn call(stream: bool) -> Value {
    json!({"model": "mock-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 400, "stream": stream})
}

async fn waits(gateway: &Gateway, calls: usize) {
    until(Duration::from_secs(20), "the calls to wait", async || {
        (gateway.metric("penstock_queue_depth", "").await == calls as f64).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_behind_a_killed_gateway_gets_its_turn() {
    let redis = RedisServer::start().await;
    // 400 tokens take 100 s: no stream ends by itself.
    let slow = Settings { chunks: 400, itl_ms: 250, prompt_tokens: 8, ..Settings::default() };
    let mock = Mock::start(Options { settings: slow, ..Options::default() }).expect("a mock");
    let config = Config::new()
        .store(&redis.url())
        .model("mock-model", &mock.url())
        .key("sk-ana", "acme/web/ana")
        .line(&format!("lease: {{ ttl: {}s, on_expiry: refund }}", TTL.as_secs()))
        .quota(
            "{ level: org, match: acme, limits: [ { concurrency: 2 } ], \
             on_limit: { queue: { max_wait: 60s, depth: 100 } } }",
        );
    let survivor = config.start().await;
    let mut doomed = config.start().await;

    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = doomed.client("sk-ana").stream_chat(&call(true)).await;
        stream.next().await.expect("an open stream").expect("a first event");
        streams.push(stream);
    }
    let mut lost = JoinSet::new();
    for _ in 0..WAITING {
        let client = doomed.client("sk-ana");
        lost.spawn(async move { client.try_chat(&call(false)).await });
    }
    waits(&doomed, WAITING).await;
    let mut behind = JoinSet::new();
    for _ in 0..BEHIND {
        let client = survivor.client("sk-ana");
        behind.spawn(async move { client.chat(&call(false)).await });
    }
    waits(&survivor, BEHIND).await;

    doomed.process.kill();
    let killed = Instant::now();
    for answer in behind.join_all().await {
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    // The places are void after 2 s, the running leases after their time; then somebody must look.
    assert!(killed.elapsed() < TTL * 2 + Duration::from_secs(6), "{:?}", killed.elapsed());
    assert!(lost.join_all().await.iter().all(Result::is_err), "its clients were cut off");
    let whole = mock.requests().iter().filter(|request| request.json()["stream"] == false).count();
    assert_eq!(whole, BEHIND, "nothing that only waited was sent on");
    until(Duration::from_secs(10), "the keys to balance", async || Audit::of(&redis).live.is_empty().then_some(()))
        .await;
    let audit = Audit::of(&redis);
    audit.assert_balanced();
    assert_eq!(audit.level("o").levels, [0.0]);
    waits(&survivor, 0).await;
}
