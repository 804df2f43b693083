//! The example of the README, to the token: 2000 prompt tokens and max_tokens 1000 hold 3000; 200 are produced; 2200
//! are used and 800 come back, at the user, the app, the org and globally.

use std::time::Duration;

use bench::mock::{Mock, Options, Settings};
use serde_json::{Value, json};
use tests::audit::{Account, Audit};
use tests::{Config, Gateway, RedisServer, until};
use tokenizer::Tokenizer;

const LEVELS: [&str; 4] = ["u", "a", "o", "g"];

/// What OpenAI counts around the content of a single user message: 3 for the message, 1 for its role, 3 for the answer.
const ENVELOPE: usize = 7;

fn two_thousand_tokens() -> Value {
    let content = vec!["river"; 2000 - ENVELOPE].join(" ");
    let tokenizer = Tokenizer::builtin("o200k_base").expect("a built-in tokenizer");
    assert_eq!(tokenizer.count(&content) + ENVELOPE, 2000, "each word is one token");
    json!({"model": "mock-model", "messages": [{"role": "user", "content": content}], "max_tokens": 1000})
}

async fn gateway(redis: &RedisServer, mock: &Mock) -> Gateway {
    let limit = "limits: [ { tokens: 100000, per: lifetime } ]";
    Config::new()
        .store(&redis.url())
        .model("mock-model", &mock.url())
        .key("sk-ana", "acme/web/ana")
        .quota(&format!("{{ level: user, match: \"*\", {limit} }}"))
        .quota(&format!("{{ level: app, match: web, {limit} }}"))
        .quota(&format!("{{ level: org, match: acme, {limit} }}"))
        .quota(&format!("{{ level: global, {limit} }}"))
        .start()
        .await
}

async fn check(stream: bool) {
    let redis = RedisServer::start().await;
    let produced = Settings { chunks: 200, prompt_tokens: 2000, ttft_ms: 1500, ..Settings::default() };
    let mock = Mock::start(Options { settings: produced, ..Options::default() }).expect("a mock");
    let gateway = gateway(&redis, &mock).await;
    let client = gateway.client("sk-ana");
    let mut call = two_thousand_tokens();
    call["stream"] = stream.into();

    let calling = tokio::spawn({
        let client = client.clone();
        async move { client.chat(&call).await }
    });
    until(Duration::from_secs(5), "the hold at all four levels", async || {
        let audit = Audit::of(&redis);
        (audit.live.len() == 1).then(|| {
            audit.assert_balanced();
            for level in LEVELS {
                assert_eq!(audit.level(level).held(), 3000.0, "held at {level}");
                assert_eq!(audit.level(level).levels, [3000.0], "used at {level}");
            }
        })
    })
    .await;

    let answer = calling.await.expect("the call returns");
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.number("x-ratelimit-limit-tokens"), 100_000);
    assert_eq!(answer.number("x-ratelimit-remaining-tokens"), 97_000, "what is left after the hold");
    until(Duration::from_secs(5), "the settlement", async || Audit::of(&redis).live.is_empty().then_some(())).await;
    let audit = Audit::of(&redis);
    audit.assert_balanced();
    let expected = Account { reserved: 3000.0, settled: 2200.0, refunded: 800.0, expired: 0.0, levels: vec![2200.0] };
    for level in LEVELS {
        assert_eq!(*audit.level(level), expected, "at {level}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_thousand_held_and_eight_hundred_back_at_all_four_levels() {
    check(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_for_a_stream() {
    check(true).await;
}
