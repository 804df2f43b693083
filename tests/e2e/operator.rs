//! An operator's day: a limit is edited while a thousand calls run, a bad file changes nothing, and the log of it all is
//! tried on other quotas.

use std::fs;
use std::process::Command;
use std::time::Duration;

use bench::mock::{Mock, Options, Settings};
use serde_json::{Value, json};
use tests::resp::Reply;
use tests::{Config, Gateway, RedisServer, environment, until};
use tokio::task::JoinSet;

const CALLS: usize = 1000;
/// The watch looks each half second and wants to see the same twice.
const SOON: Duration = Duration::from_secs(10);

/// 8 prompt tokens and a cap of 92: 100 held.
fn call(stream: bool) -> Value {
    json!({"model": "mock-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 92, "stream": stream})
}

fn limit(calls: usize) -> String {
    format!("tokens: {}, per: lifetime", calls * 100)
}

async fn gateway(mock: &Mock) -> Gateway {
    Config::new()
        .model("mock-model", &mock.url())
        .key("sk-ana", "acme/web/ana")
        .quota(&format!("{{ level: org, match: acme, limits: [ {{ {} }} ] }}", limit(2 * CALLS)))
        .start()
        .await
}

async fn in_force(gateway: &Gateway, reloads: f64) {
    until(SOON, "the file to be in force", async || {
        (gateway.metric("penstock_config_reloads_total", "").await >= reloads).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_edited_under_a_thousand_calls_holds_for_the_next_and_use_stays() {
    // 12 tokens in 30 s: no call ends before the edits are done.
    let slow = Settings { chunks: 12, itl_ms: 2500, prompt_tokens: 8, ..Settings::default() };
    let mock = Mock::start(Options { settings: slow, ..Options::default() }).expect("a mock");
    let gateway = gateway(&mock).await;
    let client = gateway.client("sk-ana");
    let mut calls = JoinSet::new();
    for _ in 0..CALLS {
        let client = client.clone();
        calls.spawn(async move {
            let stream = client.stream_chat(&call(true)).await;
            let status = stream.status;
            (status, stream.all().await.len())
        });
    }
    until(SOON * 3, "a thousand calls in flight", async || {
        (gateway.metric("penstock_quota_held_tokens", "").await == 100.0 * CALLS as f64).then_some(())
    })
    .await;

    let original = fs::read_to_string(gateway.config_file()).expect("the file is there");
    let edit = |to: &str| fs::write(gateway.config_file(), original.replace(&limit(2 * CALLS), to)).expect("written");
    edit(&limit(CALLS));
    in_force(&gateway, 2.0).await;
    let refused = client.chat(&call(false)).await;
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!(refused.text().contains("tokens/lifetime of org acme: needed 100, left 0"), "{}", refused.text());

    // A bad file: the same words as from `config check`, and nothing else changes.
    edit("tokns: 5, per: lifetime");
    until(SOON, "the bad file to be counted", async || {
        (gateway.metric("penstock_config_reload_failures_total", "").await == 1.0).then_some(())
    })
    .await;
    let check = penstock(&["config", "check", gateway.config_file().to_str().expect("UTF-8")]);
    assert_eq!(check.status.code(), Some(1));
    for problem in String::from_utf8_lossy(&check.stderr).lines() {
        assert!(gateway.process.log().contains(problem), "{problem}\n{}", gateway.process.log());
    }
    assert_eq!(gateway.metric("penstock_config_last_reload_successful", "").await, 0.0);
    assert_eq!(client.chat(&call(false)).await.status, 429, "the former limit is in force");

    // As an editor saves: a new file in the old one's place. What cannot change is named.
    let beside = gateway.config_file().with_extension("new");
    let raised = original.replace(&limit(2 * CALLS), &limit(CALLS + 1));
    fs::write(&beside, format!("{raised}\nlease: {{ ttl: 61s }}\n")).expect("written");
    fs::rename(&beside, gateway.config_file()).expect("renamed");
    in_force(&gateway, 3.0).await;
    assert!(gateway.process.log().contains("lease changed, which takes a restart"), "{}", gateway.process.log());
    assert_eq!(client.chat(&call(false)).await.status, 200);

    while let Some(ended) = calls.join_next().await {
        let (status, events) = ended.expect("no panic");
        assert_eq!(status, 200);
        assert!(events > 12, "a whole stream: {events}");
    }
    until(SOON, "all to settle", async || {
        (gateway.metric("penstock_quota_held_tokens", "").await == 0.0).then_some(())
    })
    .await;
    // 8 prompt tokens and 12 of output each.
    assert_eq!(gateway.metric("penstock_quota_settled_tokens_total", "").await, 20.0 * (CALLS + 1) as f64);
    assert_eq!(gateway.metric("penstock_quota_leaked_tokens", "").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn sighup_reads_the_file_at_once_and_a_swapped_folder_is_seen() {
    let mock = Mock::start(Options::default()).expect("a mock");
    let gateway = gateway(&mock).await;
    gateway.process.hang_up();
    in_force(&gateway, 2.0).await;

    // As a ConfigMap is mounted: the file is a link into a folder that is a link itself.
    let folder = gateway.config_file().parent().expect("a folder").to_owned();
    let text = fs::read_to_string(gateway.config_file()).expect("the file is there");
    let version = |name: &str, calls: usize| {
        fs::create_dir(folder.join(name)).expect("made");
        let text = text.replace(&limit(2 * CALLS), &limit(calls));
        fs::write(folder.join(name).join("penstock.yaml"), text).expect("written");
        std::os::unix::fs::symlink(name, folder.join("..new")).expect("linked");
        fs::rename(folder.join("..new"), folder.join("..data")).expect("renamed");
    };
    version("..1", 3);
    fs::remove_file(gateway.config_file()).expect("removed");
    std::os::unix::fs::symlink("..data/penstock.yaml", gateway.config_file()).expect("linked");
    for (calls, reloads) in [(3, 3.0), (2, 4.0)] {
        if calls == 2 {
            version("..2", calls);
        }
        in_force(&gateway, reloads).await;
        let answer = gateway.client("sk-ana").chat(&call(false)).await;
        assert_eq!(answer.number("x-ratelimit-limit-tokens"), 100 * calls as u64);
    }
    // Truncated and written again, as some editors save: the empty file is never in force.
    fs::write(folder.join("..2/penstock.yaml"), "").expect("truncated");
    tokio::time::sleep(Duration::from_millis(300)).await;
    fs::write(folder.join("..2/penstock.yaml"), text.replace(&limit(2 * CALLS), &limit(4))).expect("written");
    in_force(&gateway, 5.0).await;
    assert_eq!(gateway.client("sk-ana").chat(&call(false)).await.number("x-ratelimit-limit-tokens"), 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_tried_on_the_quotas_that_made_it_and_on_others() {
    let used = Settings { chunks: 2, prompt_tokens: 8, ..Settings::default() };
    let mock = Mock::start(Options { settings: used, ..Options::default() }).expect("a mock");
    let gateway = Config::new()
        .model("mock-model", &mock.url())
        .key("sk-ana", "acme/web/ana")
        .key("sk-bo", "acme/web/bo")
        .quota("{ level: user, match: \"*\", limits: [ { requests: 3, per: lifetime } ] }")
        .quota("{ level: org, match: acme, limits: [ { tokens: 1000, per: lifetime } ] }")
        .start()
        .await;
    let file = gateway.config_file();
    for key in ["sk-ana", "sk-bo", "sk-ana", "sk-ana", "sk-ana", "sk-ana", "sk-bo"] {
        gateway.client(key).chat(&call(false)).await;
        // A call ends in the log a little after its client has the answer: without a pause the next one would overlap it,
        // and hold its 100 beside those of the first.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let log = file.with_file_name("access.jsonl");
    until(SOON, "the log to be written", async || {
        (fs::read_to_string(&log).unwrap_or_default().lines().count() == 7).then_some(())
    })
    .await;
    let replay = |requests: u64, tokens: u64| {
        let text = fs::read_to_string(&file).expect("the file is there");
        let text = text.replace("requests: 3", &format!("requests: {requests}"));
        let other = file.with_file_name("other.yaml");
        fs::write(&other, text.replace("tokens: 1000", &format!("tokens: {tokens}"))).expect("written");
        let [log, other] = [&log, &other].map(|path| path.to_str().expect("UTF-8"));
        let output = penstock(&["quota", "replay", "--log", log, "--config", other, "--json"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")
    };
    let counts = |report: &Value| {
        ["calls", "admitted", "refused", "newly_refused", "newly_admitted"].map(|name| report[name].as_u64())
    };
    let same = replay(3, 1000);
    assert_eq!(counts(&same), [7, 5, 2, 0, 0].map(Some), "{same}");
    assert_eq!(
        gateway.metric("penstock_quota_refusals_total", "level=\"user\",limit=\"requests/lifetime\"").await,
        2.0
    );
    let row = &same["refusals"][0];
    assert_eq!((row["subject"].as_str(), row["calls"].as_u64()), (Some("acme/web/ana"), Some(2)), "{same}");
    // 10 used by each of five, and the two refused are charged the 100 that they asked for.
    assert_eq!(counts(&replay(9, 1000)), [7, 7, 0, 0, 2].map(Some));
    let tight = replay(3, 125);
    assert_eq!(counts(&tight), [7, 3, 4, 2, 0].map(Some), "{tight}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_is_read_by_name_and_its_books_are_mended_when_asked() {
    let redis = RedisServer::start().await;
    let slow = Settings { chunks: 20, itl_ms: 1000, prompt_tokens: 8, ..Settings::default() };
    let mock = Mock::start(Options { settings: slow, ..Options::default() }).expect("a mock");
    let mut gateway = Config::new()
        .store(&redis.url())
        .model("mock-model", &mock.url())
        .key("sk-ana", "acme/web/ana")
        .quota("{ level: org, match: acme, limits: [ { tokens: 1000, per: lifetime }, { concurrency: 5 } ] }")
        .start()
        .await;
    let mut stream = gateway.client("sk-ana").stream_chat(&call(true)).await;
    stream.next().await.expect("an open stream").expect("a first event");
    let file = gateway.config_file();
    let quota = |command: &[&str]| {
        let args = [&["quota"], command, &["--config", file.to_str().expect("UTF-8"), "--json"]].concat();
        let output = penstock(&args);
        (output.status.code(), serde_json::from_slice::<Value>(&output.stdout).expect("JSON"))
    };
    let account = |shown: &Value| shown["accounts"].as_object().expect("accounts").values().next().cloned();
    let (code, shown) = quota(&["show"]);
    let org = account(&shown).expect("one account");
    assert_eq!((code, &org["level"], &org["subject"]), (Some(0), &json!("org"), &json!("acme")), "{shown}");
    assert_eq!((&org["live_leases"], &org["oldest_lease"]["tokens"]), (&json!(1), &json!(100.0)));
    let tokens = json!({"limit": "tokens/lifetime", "shadow": false, "most": 1000, "used": 100.0, "left": 900});
    assert_eq!((&org["limits"][0], &org["limits"][1]["left"]), (&tokens, &json!(4)));

    // A record that is lost behind the back of everyone, with nobody left to write it anew.
    gateway.process.kill();
    let lease = format!("ps1:{{acme}}:L:{}", org["oldest_lease"]["id"].as_str().expect("an id"));
    assert!(matches!(redis.call(&["DEL", &lease]), Reply::Integer(1)));
    let (code, found) = quota(&["check"]);
    assert_eq!((code, &found["leaked_tokens"], &found["repaired"]), (Some(1), &json!(100.0), &json!([])));
    let (code, mended) = quota(&["check", "--fix"]);
    assert_eq!((code, &mended["balanced"]), (Some(0), &json!(true)), "{mended}");
    assert_eq!(mended["repaired"].as_array().map(Vec::len), Some(1), "{mended}");
    assert_eq!(account(&mended).expect("one account")["limits"][1]["left"], json!(5));
    assert_eq!(quota(&["check"]).0, Some(0));
}

fn penstock(args: &[&str]) -> std::process::Output {
    Command::new(environment::penstock()).args(args).output().expect("it starts")
}
