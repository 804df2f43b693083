//! N parallel calls against a budget for k of them admit exactly k, whatever gateway each of them meets.

use bench::mock::{Mock, Settings};
use serde_json::{Value, json};
use tests::{Client, Config, RedisServer};
use tokio::task::JoinSet;

const CALLS: usize = 1000;
const FITS: usize = 10;
const RUNS: usize = 20;

/// 8 prompt tokens (one word, and 7 of OpenAI's envelope) and a cap of 92: 100 held, and all of it used.
fn call() -> Value {
    json!({"model": "mock-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 92})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_parallel_calls_through_two_gateways_admit_exactly_ten() {
    let redis = RedisServer::start().await;
    let used = Settings { chunks: 92, prompt_tokens: 8, ..Settings::default() };
    let mock = Mock::start(bench::mock::Options { settings: used, ..Default::default() }).expect("a mock");
    let config = config(&redis, &mock);
    let gateways = [config.start().await, config.start().await];
    for run in 0..RUNS {
        mock.forget();
        let before = mock.stats().requests;
        let statuses = stampede(&gateways.each_ref().map(|gateway| gateway.client(&key(run)))).await;
        let admitted = statuses.iter().filter(|status| **status == 200).count();
        let refused = statuses.iter().filter(|status| **status == 429).count();
        assert_eq!((admitted, refused), (FITS, CALLS - FITS), "run {run} ({})", limit(run));
        assert_eq!(mock.stats().requests - before, FITS as u64, "run {run}: calls that reached the upstream");
    }
}

/// A fresh org for each run, whose budget cannot refill while the test runs.
fn config(redis: &RedisServer, mock: &Mock) -> Config {
    let config = Config::new().store(&redis.url()).model("mock-model", &mock.url());
    (0..RUNS).fold(config, |config, run| {
        config
            .key(&key(run), &format!("org-{run}/web/ana"))
            .quota(&format!("{{ level: org, match: org-{run}, limits: [ {{ {} }} ] }}", limit(run)))
    })
}

fn limit(run: usize) -> String {
    match run % 3 {
        0 => format!("requests: {FITS}, per: lifetime"),
        1 => format!("tokens: {}, per: lifetime", FITS * 100),
        _ => format!("requests: {FITS}, per: day, window: calendar, timezone: {}", zone_far_from_midnight()),
    }
}

fn key(run: usize) -> String {
    format!("sk-run-{run}")
}

/// A day that turns during the test would admit ten more: take the zone whose midnight is not near.
fn zone_far_from_midnight() -> &'static str {
    let now = std::process::Command::new("date").args(["-u", "+%H"]).output().expect("`date` runs").stdout;
    match String::from_utf8_lossy(&now).trim() {
        "23" | "00" => "Asia/Tokyo",
        _ => "UTC",
    }
}

async fn stampede(gateways: &[Client; 2]) -> Vec<u16> {
    let mut calls = JoinSet::new();
    for call_number in 0..CALLS {
        let client = gateways[call_number % 2].clone();
        calls.spawn(async move { client.chat(&call()).await.status });
    }
    calls.join_all().await
}
