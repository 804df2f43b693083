//! A gateway that is killed leaks nothing: when the leases' deadline has passed, the keys balance to the token.

use std::time::Duration;

use bench::mock::{Mock, Options, Record, Settings};
use serde_json::{Value, json};
use tests::audit::Audit;
use tests::http::Stream;
use tests::{Config, RedisServer, until};
use tokio::task::JoinSet;

const STREAMS: usize = 500;
const TTL: Duration = Duration::from_secs(6);
/// One word and OpenAI's envelope of 7.
const PROMPT: u64 = 8;
const CAP: u64 = 400;
const LEVELS: [&str; 4] = ["u", "a", "o", "g"];

fn call() -> Value {
    json!({"model": "mock-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": CAP, "stream": true})
}

fn config(redis: &RedisServer, mock: &Mock, on_expiry: &str) -> Config {
    let limits = "limits: [ { tokens: 10000000, per: lifetime }, { concurrency: 1000 } ]";
    Config::new()
        .store(&redis.url())
        .model("mock-model", &mock.url())
        .key("sk-ana", "acme/web/ana")
        .line(&format!("lease: {{ ttl: {}s, on_expiry: {on_expiry} }}", TTL.as_secs()))
        .quota(&format!("{{ level: user, match: ana, {limits} }}"))
        .quota(&format!("{{ level: app, match: web, {limits} }}"))
        .quota(&format!("{{ level: org, match: acme, {limits} }}"))
        .quota(&format!("{{ level: global, {limits} }}"))
}

/// 500 open streams, each of which has delivered at least one token.
async fn open_streams(client: &tests::Client) -> Vec<Stream> {
    let mut opening = JoinSet::new();
    for _ in 0..STREAMS {
        let client = client.clone();
        opening.spawn(async move {
            let mut stream = client.stream_chat(&call()).await;
            assert_eq!(stream.status, 200);
            stream.next().await.expect("an open stream").expect("a first event");
            stream
        });
    }
    opening.join_all().await
}

async fn check(on_expiry: &str) -> (Audit, Vec<Record>) {
    let redis = RedisServer::start().await;
    // Slow enough that no stream ends by itself: 400 tokens take 100 s.
    let slow = Settings { chunks: 400, itl_ms: 250, prompt_tokens: PROMPT, ..Settings::default() };
    let mock = Mock::start(Options { settings: slow, ..Options::default() }).expect("a mock");
    let config = config(&redis, &mock, on_expiry);
    let survivor = config.start().await;
    let mut doomed = config.start().await;

    let streams = open_streams(&doomed.client("sk-ana")).await;
    // Every lease has been renewed once with what was streamed so far.
    tokio::time::sleep(TTL / 2).await;
    let before = Audit::of(&redis);
    before.assert_balanced();
    assert_eq!(before.live.len(), STREAMS, "a live lease for each stream");
    for level in LEVELS {
        assert_eq!(before.level(level).held(), (PROMPT + CAP) as f64 * STREAMS as f64, "held at {level}");
    }

    doomed.process.kill();
    drop(streams);
    // The other gateway needs traffic of the org to look after it; a refused call would do as well.
    assert_eq!(survivor.client("sk-ana").get("/v1/models").await.status, 200);
    until(TTL * 3, "the leases to be reclaimed", async || {
        // A call that is refused or served makes the survivor know the org.
        let probe = json!({"model": "mock-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1});
        survivor.client("sk-ana").chat(&probe).await;
        (Audit::of(&redis).expired.len() == STREAMS).then_some(())
    })
    .await;
    until(Duration::from_secs(5), "the probes to settle", async || Audit::of(&redis).live.is_empty().then_some(()))
        .await;
    (Audit::of(&redis), mock.requests())
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_open_streams_are_charged_at_their_last_checkpoint() {
    let (audit, requests) = check("charge").await;
    audit.assert_balanced();
    let charged: f64 = audit.expired.values().sum();
    // Each stream pays its prompt and what it had streamed at a renewal, which the upstream has sent.
    let sent: u64 = requests.iter().filter(|request| request.json()["stream"] == true).map(|r| r.chunks).sum();
    assert!(charged >= (PROMPT + 1) as f64 * STREAMS as f64, "charged only {charged}");
    assert!(charged <= (PROMPT * STREAMS as u64 + sent) as f64, "charged {charged}, sent {sent}");
    for level in LEVELS {
        let account = audit.level(level);
        assert_eq!(account.expired, charged, "at {level}: {account}");
        assert_eq!(account.levels, [account.charged(), 0.0], "at {level}: {account}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_policy_refund_they_cost_nothing() {
    let (audit, _) = check("refund").await;
    audit.assert_balanced();
    for level in LEVELS {
        let account = audit.level(level);
        assert_eq!(account.expired, 0.0, "at {level}: {account}");
        assert_eq!(account.levels, [account.settled, 0.0], "at {level}: {account}");
    }
}
