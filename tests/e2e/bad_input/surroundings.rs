//! What is wrong around the program: its configuration, its port, its store, its disk.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::thread;
use std::time::Duration;

use bench::mock::{Mock, Options};
use tests::{Config, Engine, Process, RedisServer, environment};

/// Starting must fail within this time, not hang.
const LIMIT: Duration = Duration::from_secs(20);

/// Waits for a process that must end by itself, unsuccessfully, saying all `words`.
async fn assert_ends_with(process: &mut Process, words: &[&str], what: &str) {
    let status = process.wait(LIMIT).await;
    let log = process.log();
    assert!(!status.success() && status.code().is_some(), "{what}: {status}\n{log}");
    assert!(!log.contains("panicked"), "{what}: {log}");
    for word in words {
        assert!(log.to_lowercase().contains(&word.to_lowercase()), "{what}: no `{word}` in\n{log}");
    }
}

fn config(mock: &Mock) -> Config {
    Config::new().model("m", &mock.url()).key("sk-ana", "acme/web/ana")
}

#[test]
fn bad_yaml_is_refused_with_place_field_and_cure() {
    let rest = "models:\n  - name: m\n    tokenizer: o200k_base\n    upstreams: [ { name: a, url: \"http://127.0.0.1:1/v1\" } ]\n\
                keys: [ { secret: sk, org: a } ]\n";
    let limit = |limit: &str| format!("quotas: [ {{ level: org, match: a, limits: [ {{ {limit} }} ] }} ]\n");
    let rule = |field: &str| format!("quotas: [ {{ level: org, match: a, {field}, limits: [] }} ]\n");
    let table = [
        ("listen: [\n".to_owned(), vec![".yaml:3:", "YAML"]),
        ("listen: 127.0.0.1:0\n\tadmin: x\n".into(), vec![".yaml:1:", "tab"]),
        ("lisen: 127.0.0.1:0\n".into(), vec![".yaml:1:1:", "lisen", "did you mean `listen`"]),
        ("listen: 127.0.0.1:1\nlisten: 127.0.0.1:2\n".into(), vec![".yaml:2:1:", "listen", "twice"]),
        ("listen: 7\n".into(), vec![".yaml:1:9:", "listen", "127.0.0.1:8080"]),
        ("lease: { ttl: soon }\n".into(), vec![".yaml:1:15:", "lease.ttl", "30s"]),
        ("limits: { in_flight: -1 }\n".into(), vec![".yaml:1:22:", "limits.in_flight"]),
        ("limits: { in_flight: 99999999999999999999 }\n".into(), vec![".yaml:1:22:", "limits.in_flight"]),
        ("store: \"${NOT_SET_ANYWHERE}\"\n".into(), vec![".yaml:1:8:", "NOT_SET_ANYWHERE"]),
        ("quotas: [ { level: team, match: a, limits: [] } ]\n".into(), vec![".yaml:1:20:", "level", "team", "org"]),
        (limit("tokens: 1, per: month"), vec![".yaml:1:", "limits[0]", "window: calendar"]),
        (limit("tokens: 1, per: hour, tokns: 2"), vec![".yaml:1:", "tokns"]),
        (limit("tokens: 9223372036854775808, per: hour"), vec![".yaml:1:", "tokens", "out of range"]),
        (limit("tokens: 1e300, per: hour"), vec![".yaml:1:", "tokens"]),
        ("tiers: [ { name: a }, { name: b, reserve: 0.1 } ]\n".into(), vec![".yaml:1:8:", "tiers", "reserve"]),
        (rule("shadow: maybe"), vec![".yaml:1:", "shadow", "true"]),
        (rule("hold_cap: 3"), vec![".yaml:1:", "hold_cap", "write hold: calibrated"]),
        (rule("hold: calibrated"), vec![".yaml:1:", "hold", "add a limit of tokens"]),
        (limit("enqueued_tokens: 5, per: day"), vec![".yaml:1:", "enqueued_tokens", "not built yet"]),
        (
            "store: redis+cluster://h:1\nquotas: [ { level: global, limits: [ { requests: 1, per: hour } ] } ]\n"
                .into(),
            vec![".yaml:2:", "quotas[0].level", "a global limit on a Cluster is not built yet"],
        ),
    ];
    refused(None, &[":1:1:"]);
    for (yaml, words) in &table {
        refused(Some(&format!("{yaml}{rest}")), words);
    }
}

/// `config check` and `serve` refuse the file alike; no text is a file without a byte.
fn refused(yaml: Option<&str>, words: &[&str]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("penstock.yaml");
    let yaml = yaml.unwrap_or_default();
    fs::write(&file, yaml).expect("the config can be written");
    for command in [&["config", "check"][..], &["serve", "--config"]] {
        let output = Command::new(environment::penstock()).args(command).arg(&file).output().expect("penstock runs");
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert_eq!(output.status.code(), Some(1), "{command:?} of\n{yaml}\n{said}");
        for word in words {
            assert!(said.contains(word), "{command:?} of\n{yaml}\nno `{word}` in\n{said}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_is_named() {
    let mock = Mock::start(Options::default()).expect("a mock");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("a bound socket");
    let mut gateway = config(&mock).launch_on(address);
    assert_ends_with(&mut gateway.process, &[&address.to_string(), "in use"], "gateway").await;

    let mut engine = Engine::launch_on(address, &environment::smollm2(), "smollm2", &[]);
    assert_ends_with(&mut engine.process, &[&address.to_string(), "in use"], "engine").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_cannot_be_used_is_named_at_start() {
    let mock = Mock::start(Options::default()).expect("a mock");
    let with = |store: &str| config(&mock).store(store).launch();

    let nobody = tests::wait::free_address();
    let mut refused = with(&format!("redis://{nobody}/0"));
    assert_ends_with(&mut refused.process, &["redis", &nobody.port().to_string()], "refusing").await;

    let mut frozen = RedisServer::start().await;
    frozen.process().freeze();
    let mut hanging = with(&frozen.url());
    assert_ends_with(&mut hanging.process, &["redis"], "hanging").await;
    frozen.process().thaw();

    let redis = RedisServer::start().await;
    redis.call(&["ACL", "SETUSER", "limited", "on", ">secret", "~*", "+@all", "-@scripting"]);
    let mut no_scripts = with(&redis.url().replace("redis://", "redis://limited:secret@"));
    assert_ends_with(&mut no_scripts.process, &["redis", "script"], "without scripting").await;
    let mut wrong_password = with(&redis.url().replace("redis://", "redis://limited:wrong@"));
    assert_ends_with(&mut wrong_password.process, &["redis"], "wrong password").await;
    assert!(!wrong_password.process.log().contains("wrong@"), "the password is in the log");
}

/// Serves these bytes for any request, once.
fn serve_once(bytes: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}/tiny.gguf", listener.local_addr().expect("a bound socket"));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = [0; 4096];
            // What is asked does not matter, and a client that gives up early is what the test is about.
            if stream.read(&mut request).is_ok() {
                write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\nconnection: close\r\n\r\n").ok();
                stream.write_all(&vec![b'x'; bytes]).ok();
            }
        }
    });
    url
}

/// The full disk is a tmpfs of 64 KiB in a mount namespace; where the kernel grants none, a limit on the size of files.
const ON_A_FULL_DISK: &str = r#"
    if unshare -rm true 2>/dev/null; then
        exec unshare -rm sh -c 'mount -t tmpfs -o size=64k none "$1" && "$2" model pull "$3"; code=$?
                                find "$1" -name "*.gguf"; exit $code' sh "$@"
    fi
    trap '' XFSZ; ulimit -f 64
    "$2" model pull "$3"; code=$?
    find "$1" -name "*.gguf"; exit $code
"#;

#[test]
fn a_disk_that_fills_while_pulling_is_named_and_leaves_no_model() {
    let cache = tempfile::tempdir().expect("a temporary folder");
    let output = Command::new("bash")
        .args(["-c", ON_A_FULL_DISK, "bash"])
        .arg(cache.path())
        .arg(environment::penstock())
        .arg(serve_once(1 << 20))
        .env("PENSTOCK_CACHE", cache.path())
        .output()
        .expect("bash runs");
    let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(["disk full", "no space left", "file too large"].iter().any(|cause| said.contains(cause)), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    let left = String::from_utf8_lossy(&output.stdout);
    assert_eq!(left.trim(), "", "a partial file stands where a model should");
}
