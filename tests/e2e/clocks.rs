//! Gateways count on the store's clock: their own may be wrong by minutes, each in its own way.

use std::time::{Duration, Instant};

use bench::mock::{Mock, Options, Settings};
use serde_json::{Value, json};
use tests::audit::Audit;
use tests::clock::WrongClock;
use tests::resp::Reply;
use tests::{Answer, Config, Gateway, RedisServer, until};
use tokio::task::JoinSet;

const SKEW: i64 = 300;
const FITS: usize = 10;
/// 8 prompt tokens and as many of output as make 100.
const CAP: u64 = 92;
const TTL: Duration = Duration::from_secs(2);

fn call(cap: u64, stream: bool) -> Value {
    json!({"model": "mock-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": cap, "stream": stream})
}

struct Rig {
    redis: RedisServer,
    _mock: Mock,
    /// One is ahead, one behind.
    gateways: [Gateway; 2],
    _clock: WrongClock,
}

impl Rig {
    /// `settings` of the upstream; limits per user of one org.
    async fn start(settings: Settings, users: &[(&str, &str)]) -> Self {
        let redis = RedisServer::start().await;
        let mock = Mock::start(Options { settings, ..Options::default() }).expect("a mock");
        let config = Config::new().store(&redis.url()).model("mock-model", &mock.url());
        // What a busy machine is slow at is not what these are about.
        let config = config.line("store_timeout: 2s");
        let config = config.line(&format!("lease: {{ ttl: {}s, on_expiry: charge }}", TTL.as_secs()));
        let config = users.iter().fold(config, |config, (user, limits)| {
            let config = config.key(&format!("sk-{user}"), &format!("acme/web/{user}"));
            config.quota(&format!("{{ level: user, match: {user}, limits: [ {limits} ] }}"))
        });
        let clock = WrongClock::build();
        let gateways = [clock.ahead(&config, SKEW).start().await, clock.ahead(&config, -SKEW).start().await];
        let rig = Self { redis, _mock: mock, gateways, _clock: clock };
        let apart = rig.date(0).await - rig.date(1).await;
        assert!((apart - 2 * SKEW).abs() <= 5, "the clocks are {apart} s apart");
        rig
    }

    /// What a gateway takes for now, as seconds of a day.
    async fn date(&self, at: usize) -> i64 {
        let answer = self.gateways[at].client("none").get("/v1/models").await;
        let time = answer.header("date").expect("a date").split(' ').nth(4).expect("a time").to_owned();
        let parts: Vec<i64> = time.split(':').map(|part| part.parse().expect("a number")).collect();
        let (hour, minute, second) = (parts[0], parts[1], parts[2]);
        // As if it were noon: the difference of two of them must not meet midnight.
        (hour * 3600 + minute * 60 + second + self.seconds_to_noon()).rem_euclid(86_400)
    }

    fn seconds_to_noon(&self) -> i64 {
        43_200 - self.now() % 86_400
    }

    /// The store's clock, in seconds.
    fn now(&self) -> i64 {
        let Reply::Array(time) = self.redis.call(&["TIME"]) else { panic!("TIME answers a list") };
        let Reply::Bulk(seconds) = &time[0] else { panic!("seconds are a string") };
        String::from_utf8_lossy(seconds).parse().expect("a number")
    }
}

fn whole() -> Settings {
    Settings { chunks: CAP as u32, prompt_tokens: 8, ..Settings::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_with_clocks_ten_minutes_apart_share_each_calendar_window() {
    let limit = format!("{{ requests: {FITS}, per: minute, window: calendar, timezone: UTC }}");
    let users = ["u0", "u1", "u2", "u3"];
    let rig = Rig::start(whole(), &users.map(|user| (user, limit.as_str()))).await;
    let mut fine = [false; 2];
    for (number, user) in users.into_iter().enumerate() {
        while rig.now() % 60 > 45 {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let minute = rig.now() / 60;
        // What one has admitted counts for the other, whichever is ahead.
        let first = number % 2;
        let answers = [stampede(&rig.gateways[first], user).await, stampede(&rig.gateways[1 - first], user).await];
        if rig.now() / 60 != minute {
            continue;
        }
        let admitted = answers.each_ref().map(|answers| answers.iter().filter(|answer| answer.status == 200).count());
        assert_eq!(admitted, [FITS, 0], "gateway {first} first");
        for refused in answers.iter().flatten().filter(|answer| answer.status == 429) {
            assert!(refused.number("retry-after-ms") <= 63_000, "{:?}", refused.headers);
        }
        fine[first] = true;
    }
    assert_eq!(fine, [true, true], "the machine is too busy: no minute was enough");
}

async fn stampede(gateway: &Gateway, user: &str) -> Vec<Answer> {
    let mut calls = JoinSet::new();
    for _ in 0..4 * FITS {
        let client = gateway.client(&format!("sk-{user}"));
        calls.spawn(async move { client.chat(&call(CAP, false)).await });
    }
    calls.join_all().await
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_with_clocks_ten_minutes_apart_refill_no_bucket_twice() {
    let rig = Rig::start(whole(), &[("ana", "{ tokens: 600, per: minute, burst: 200 }")]).await;
    let clients = rig.gateways.each_ref().map(|gateway| gateway.client("sk-ana"));
    let (start, mut admitted) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(4) {
        for client in &clients {
            admitted += u32::from(client.chat(&call(CAP, false)).await.status == 200);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let most = 200.0 + 10.0 * (start.elapsed().as_secs_f64() + 1.0);
    assert!(admitted >= 2 && f64::from(admitted) * 100.0 <= most, "{admitted} calls of 100 tokens, of {most}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_whose_clock_is_ahead_takes_no_lease_of_another_for_dead() {
    // Three times as long as a lease.
    let slow = Settings { chunks: 30, itl_ms: 200, prompt_tokens: 8, ..Settings::default() };
    let rig = Rig::start(slow, &[("ana", "{ tokens: 100000, per: lifetime }, { concurrency: 100 }")]).await;
    let mut streams = JoinSet::new();
    for gateway in &rig.gateways {
        let client = gateway.client("sk-ana");
        streams.spawn(async move { client.stream_chat(&call(CAP, true)).await.all().await });
    }
    for events in streams.join_all().await {
        assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    }
    until(Duration::from_secs(5), "both calls to settle", async || Audit::of(&rig.redis).live.is_empty().then_some(()))
        .await;
    let audit = Audit::of(&rig.redis);
    audit.assert_balanced();
    let account = audit.level("u");
    assert_eq!((account.expired, &account.levels[..]), (0.0, &[76.0, 0.0][..]), "{account}");
    assert!(audit.expired.is_empty());
}
