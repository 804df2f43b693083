//! A configuration that changes while calls run: the next admission sees it, use stays, and what runs ends as it began.

use std::time::Duration;

use proxy::quota::audit::audit;
use tokio::{io::AsyncWriteExt, task::JoinSet};

use super::{
    rig::{Answer, KEY, Kind, Rig, Settings, chat, on_both_stores, request},
    upstream::{self, DONE, STOP, Step, USAGE, Upstream, chunk, stream_end, stream_head, text_event},
};

const OK: &str = "{\"choices\":[],\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":2}}";
/// Calls that run while the file changes.
const CALLS: usize = 100;
/// 8 prompt tokens and a cap of 92: 100 held.
const HUNDRED: &str = ",\"max_tokens\":92";

on_both_stores!(
    an_edited_limit_holds_for_the_next_admission_and_use_stays,
    a_new_rule_counts_from_now_and_a_removed_one_lets_go,
);

fn lifetime(tokens: usize) -> String {
    format!("[{{ level: org, match: acme, limits: [{{ tokens: {tokens}, per: lifetime }}] }}]")
}

/// Streams that begin at once and end after a second; whole answers come at once.
async fn upstream() -> Upstream {
    Upstream::start(|asked| match asked.json()["stream"].as_bool() {
        Some(true) => vec![
            stream_head(),
            chunk(text_event("a")),
            Step::Wait(Duration::from_secs(1)),
            chunk(STOP),
            chunk(USAGE),
            chunk(DONE),
            stream_end(),
        ],
        _ => upstream::json(200, OK),
    })
    .await
}

/// Calls that have been admitted and still run.
async fn running(rig: &Rig) -> JoinSet<Answer> {
    let mut calls = JoinSet::new();
    for _ in 0..CALLS {
        let mut socket = rig.open(&chat(&format!("{HUNDRED},\"stream\":true"))).await;
        calls.spawn(async move { Answer::read(&mut socket).await });
    }
    let mut looks = 0;
    while rig.quota.stats().leases < CALLS as u64 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        looks += 1;
        assert!(looks < 2000, "{:?}", rig.quota.stats());
    }
    calls
}

async fn an_edited_limit_holds_for_the_next_admission_and_use_stays(store: Kind) {
    let upstream = upstream().await;
    let limit = |calls: usize| format!("tokens: {},", 100 * calls);
    let settings =
        Settings { store, quotas: Some(format!("quotas: {}", lifetime(100 * 2 * CALLS))), ..Settings::default() };
    let rig = Rig::with(&upstream, settings).await;
    let calls = running(&rig).await;
    let original = limit(2 * CALLS);

    rig.edit(&original, &limit(CALLS)).expect("it can be loaded");
    let refused = rig.chat(&chat(HUNDRED)).await;
    assert_eq!((refused.status, refused.number("x-ratelimit-limit-tokens")), (429, 100 * CALLS as u64));
    assert!(refused.text().contains("needed 100, left 0"), "{}", refused.text());

    rig.edit(&original, &limit(CALLS + 1)).expect("it can be loaded");
    assert_eq!(rig.chat(&chat(HUNDRED)).await.status, 200);
    for answer in calls.join_all().await {
        assert_eq!((answer.status, answer.streamed_text().as_str()), (200, "a"));
    }
    // 12 for each stream and 10 for the one call: nothing was forgotten, nothing counted twice.
    let used = 12 * CALLS as u64 + 10;
    assert_eq!(rig.balance().await.0, used);
    let books = audit(rig.quota.store()).await.expect("the store answers");
    assert!(books.is_balanced(), "{:?}", books.faults());
    assert_eq!(
        rig.chat(&chat(HUNDRED)).await.number("x-ratelimit-remaining-tokens"),
        100 * (CALLS as u64 + 1) - used - 100
    );
}

async fn a_new_rule_counts_from_now_and_a_removed_one_lets_go(store: Kind) {
    let upstream = upstream().await;
    let quotas = "quotas: [{ level: org, match: acme, limits: [{ tokens: 150, per: lifetime }] }]";
    let rig = Rig::with(&upstream, Settings { store, quotas: Some(quotas.into()), ..Settings::default() }).await;
    assert_eq!(rig.chat(&chat(HUNDRED)).await.status, 200);
    rig.balance().await;
    rig.edit(
        quotas,
        &format!(
            "{} ,{{ level: user, match: ana, limits: [{{ requests: 1, per: lifetime }}] }}]",
            &quotas[..quotas.len() - 1]
        ),
    )
    .expect("it can be loaded");
    assert_eq!(rig.chat(&chat(HUNDRED)).await.status, 200, "10 are used of 150, and no request of 1");
    let refused = rig.chat(&chat(HUNDRED)).await;
    assert!(refused.text().contains("requests/lifetime of user acme/web/ana: needed 1, left 0"), "{}", refused.text());
    rig.edit(quotas, "").expect("it can be loaded");
    let free = rig.chat(&chat(HUNDRED)).await;
    assert_eq!((free.status, free.header("x-ratelimit-limit-tokens")), (200, None));
}

#[tokio::test]
async fn keys_and_models_come_and_go_and_what_runs_ends_as_it_began() {
    let upstream = upstream().await;
    let rig = Rig::start(&upstream).await;
    let mut stream = rig.open(&chat(",\"stream\":true")).await;
    while rig.quota.stats().leases == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let edited = rig.text.replace("secret: K,", "secret: L,").replace("name: m,", "name: n,");
    rig.edit(&rig.text, &edited).expect("it can be loaded");
    assert_eq!(rig.chat(&chat("")).await.status, 401);
    let with = |model: &str| {
        request("POST", "/v1/chat/completions", &[("authorization", "Bearer L")], &chat("").replace("\"m\"", model))
    };
    let gone = rig.send(&with("\"m\"")).await;
    assert_eq!((gone.status, gone.code().as_str()), (404, "model_not_found"));
    assert_eq!(rig.send(&with("\"n\"")).await.status, 200);
    assert_eq!(Answer::read(&mut stream).await.streamed_text(), "a");
    assert_eq!(rig.balance().await.0, 12 + 10);
}

#[tokio::test]
async fn connections_serve_on_while_they_lead_to_the_same_place() {
    let (upstream, other) = (self::upstream().await, self::upstream().await);
    let rig = Rig::start(&upstream).await;
    assert_eq!(rig.chat(&chat("")).await.status, 200);
    for (from, to) in [("api_key: UP", "api_key: OTHER"), ("tokens: 100000", "tokens: 90000")] {
        rig.edit(from, to).expect("it can be loaded");
        assert_eq!(rig.chat(&chat("")).await.status, 200);
    }
    let asked = upstream.asked();
    assert!(asked.iter().all(|call| call.from == asked[0].from), "one connection for all: {asked:?}");
    assert_eq!(asked[1].headers["authorization"], "Bearer OTHER");

    rig.edit(&upstream.url(), &other.url()).expect("it can be loaded");
    assert_eq!(rig.chat(&chat("")).await.status, 200);
    assert_eq!((upstream.asked().len(), other.asked().len()), (3, 1));
}

#[tokio::test]
async fn a_call_that_is_still_arriving_is_admitted_by_the_file_in_force_when_it_has() {
    let upstream = upstream().await;
    let rig = Rig::start(&upstream).await;
    for (from, to, status) in [("tokens: 100000,", "tokens: 50,", 429), ("secret: K,", "secret: L,", 401)] {
        let body = chat(HUNDRED);
        let whole = request("POST", "/v1/chat/completions", &[KEY], &body);
        let (first, last) = whole.split_at(whole.len() - 1);
        let mut socket = rig.connect().await;
        socket.write_all(first).await.expect("sent");
        // Long enough for the head to be read and the key to be known.
        tokio::time::sleep(Duration::from_millis(200)).await;
        rig.edit(from, to).expect("it can be loaded");
        socket.write_all(last).await.expect("sent");
        assert_eq!(Answer::read(&mut socket).await.status, status, "{to}");
        rig.edit(&rig.text, &rig.text).expect("it can be loaded");
    }
}

#[tokio::test]
async fn what_cannot_be_loaded_changes_nothing_and_is_counted() {
    let upstream = upstream().await;
    let rig = Rig::start(&upstream).await;
    let get = super::ops::admin(&rig).await;
    let metrics = async || {
        let text = get("/metrics").await.text();
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).map(str::to_owned);
            line.unwrap_or_else(|| panic!("{name}\n{text}"))
        };
        ["reload_failures_total", "last_reload_successful", "hash"]
            .map(|name| value(&format!("penstock_config_{name}")))
    };
    let [failures, successful, hash] = metrics().await;
    assert_eq!([failures.as_str(), successful.as_str()], ["0", "1"]);
    let broken = "name: m, tokenizer: \"gguf:/nowhere/model.gguf\",";
    rig.edit("name: m,", broken).expect_err("there is no such file");
    assert_eq!(metrics().await, ["1".to_owned(), "0".to_owned(), hash.clone()]);
    assert_eq!(rig.chat(&chat("")).await.status, 200);
    rig.edit("default_max_tokens: 100", "default_max_tokens: 101").expect("it can be loaded");
    let [failures, successful, other] = metrics().await;
    assert_eq!([failures.as_str(), successful.as_str()], ["1", "1"]);
    assert_ne!(other, hash);
}
