//! What operators see: metrics that add up, readiness that means something, and the bundled engine's socket.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    time::Duration,
};

use proxy::{
    Config, Proxy, config,
    quota::{Clock, Options, Quota, Store},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixListener},
    sync::mpsc,
};

use super::{
    rig::{Answer, KEY, Rig, Settings, chat, request},
    upstream::{self, DONE, STOP, Step, USAGE, Upstream, chunk, stream, stream_head, text_event},
};
use crate::quota::redis_server::RedisServer;

const OK: &str = "{\"choices\":[],\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":2}}";

/// The operator's port of a rig.
pub async fn admin(rig: &Rig) -> impl AsyncFn(&str) -> Answer {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(proxy::admin::serve(rig.proxy.clone(), listener, std::future::pending()));
    async move |path: &str| {
        let mut socket = TcpStream::connect(address).await.expect("open");
        socket.write_all(&request("GET", path, &[], "")).await.expect("sent");
        Answer::read(&mut socket).await
    }
}

#[tokio::test]
async fn metrics_add_up() {
    let upstream = Upstream::start(|asked| match asked.json()["stream"].as_bool() {
        Some(true) => stream(&[&text_event("a"), &text_event("b"), STOP, USAGE, DONE]),
        _ => upstream::json(200, OK),
    })
    .await;
    let settings = Settings { model: "slo: { ttft: 30s, tpot: 30s },".into(), ..Settings::default() };
    let rig = Rig::with(&upstream, settings).await;
    let get = admin(&rig).await;
    rig.chat(&chat("")).await;
    rig.chat(&chat(",\"stream\":true")).await;
    rig.chat(&chat(",\"max_tokens\":9999999")).await;
    rig.chat("{").await;
    rig.balance().await;
    let text = get("/metrics").await.text();
    for line in [
        "penstock_requests_total{code=\"200\",model=\"m\"} 2",
        "penstock_requests_total{code=\"429\",model=\"m\"} 1",
        "penstock_requests_total{code=\"400\",model=\"none\"} 1",
        "penstock_tokens_total{kind=\"prompt\",model=\"m\"} 17",
        "penstock_tokens_total{kind=\"completion\",model=\"m\"} 5",
        "penstock_goodput_total{model=\"m\",slo=\"met\"} 1",
        "penstock_ttft_seconds_count{model=\"m\"} 1",
        "penstock_upstream_requests_total{model=\"m\",outcome=\"answered\",upstream=\"a\"} 2",
        "penstock_in_flight 0",
        "penstock_quota_settled_tokens_total 22",
        "penstock_quota_held_tokens 0",
        "penstock_quota_leaked_tokens 0",
        "penstock_quota_refusals_total{level=\"org\",limit=\"tokens/lifetime\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[tokio::test]
async fn every_answer_is_counted_under_a_name_that_is_configured() {
    let upstream = Upstream::start(|_| vec![stream_head(), chunk(text_event("x")), Step::AwaitClose]).await;
    let rig = Rig::with(&upstream, Settings { limits: "in_flight: 1".into(), ..Settings::default() }).await;
    let get = admin(&rig).await;
    let path = "/v1/chat/completions";
    rig.send(&request("POST", path, &[], "{}")).await;
    rig.send(&request("GET", path, &[KEY], "")).await;
    rig.send(&request("GET", "/v1/nothing", &[KEY], "")).await;
    rig.send(&request("GET", "/v1/models/gone", &[KEY], "")).await;
    rig.chat("{\"model\":\"gone\",\"messages\":[]}").await;
    rig.send(&request("GET", "/v1/models", &[KEY], "")).await;
    rig.chat(&chat(",\"max_tokens\":9999999").replace("\"m\"", "\"alias\"")).await;
    let mut held = rig.open(&chat(",\"stream\":true")).await;
    held.read_u8().await.expect("the stream began");
    for _ in 0..3 {
        assert_eq!(rig.chat(&chat("")).await.status, 503);
    }
    let text = get("/metrics").await.text();
    let mut found: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("penstock_requests_total{code=")).collect();
    found.sort_unstable();
    let expect = ["200", "401", "404", "405", "503"].map(|code| {
        let count = if matches!(code, "404" | "503") { 3 } else { 1 };
        format!("\"{code}\",model=\"none\"}} {count}")
    });
    let refused = "\"429\",model=\"m\"} 1".to_owned();
    let mut expect: Vec<String> = expect.into_iter().chain([refused]).collect();
    expect.sort_unstable();
    assert_eq!(found, expect);
}

#[tokio::test]
async fn alive_ready_and_nothing_else() {
    let upstream = Upstream::start(|_| upstream::json(200, OK)).await;
    let rig = Rig::start(&upstream).await;
    let get = admin(&rig).await;
    for (path, status) in [("/healthz", 200), ("/livez", 200), ("/readyz", 200), ("/v1/models", 404)] {
        assert_eq!(get(path).await.status, status, "{path}");
    }
}

/// An engine's socket in `folder`: the setting that names it, and what it is asked.
fn engine(folder: &Path) -> (String, mpsc::Receiver<String>) {
    let path = folder.join("engine.sock");
    let listener = UnixListener::bind(&path).expect("a free path");
    let (told, asked) = mpsc::channel(4);
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.expect("asked");
            let told = told.clone();
            tokio::spawn(async move {
                loop {
                    let mut asked = Vec::new();
                    while !asked.ends_with(b"]}") {
                        if socket.read_buf(&mut asked).await.expect("read") == 0 {
                            return;
                        }
                    }
                    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json";
                    let answer = format!("{head}\r\ncontent-length: {}\r\n\r\n{OK}", OK.len());
                    socket.write_all(answer.as_bytes()).await.expect("sent");
                    told.send(String::from_utf8(asked).expect("text")).await.expect("the test reads");
                }
            });
        }
    });
    (format!("[{{ name: engine, url: \"unix:{}\" }}]", path.display()), asked)
}

/// The salt that the engine is given for a call that starts with `own`.
async fn salt(rig: &Rig, asked: &mut mpsc::Receiver<String>, own: &str) -> String {
    let answer = rig.chat(&format!("{{{own}\"model\":\"m\",\"messages\":[]}}")).await;
    assert_eq!((answer.status, answer.text().as_str()), (200, OK));
    let asked = tokio::time::timeout(Duration::from_secs(5), asked.recv()).await.expect("in time").expect("asked");
    let (head, body) = asked.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("POST /v1/chat/completions HTTP/1.1\r\n") && head.contains("host: localhost"), "{head}");
    let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
    body["cache_salt"].as_str().expect("a salt").to_owned()
}

#[tokio::test]
async fn an_upstream_may_be_a_unix_socket_and_its_cache_is_salted() {
    let folder = tempfile::tempdir().expect("a folder");
    let (upstreams, mut asked) = engine(folder.path());
    let nobody = Upstream::start(|_| Vec::new()).await;
    let rig = Rig::with(&nobody, Settings { upstreams: Some(upstreams), ..Settings::default() }).await;
    let mut salts = Vec::new();
    for own in ["", "\"cache_salt\":\"theirs\",", "\"cache_salt\":\"theirs\","] {
        salts.push(salt(&rig, &mut asked, own).await);
    }
    assert!(salts.iter().all(|salt| salt.len() == 64), "{salts:?}");
    assert!(salts[0] != salts[1] && salts[1] == salts[2], "{salts:?}");
}

#[tokio::test]
async fn gateways_on_one_store_share_an_engines_prefixes_and_others_do_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let (upstreams, mut asked) = engine(folder.path());
    let nobody = Upstream::start(|_| Vec::new()).await;
    let (one, other) = (RedisServer::start(), RedisServer::start());
    let mut salts = Vec::new();
    for server in [Some(&one), Some(&one), Some(&other), None, None] {
        let redis = server.map(RedisServer::url);
        let upstreams = Some(upstreams.clone());
        let rig = Rig::with(&nobody, Settings { upstreams, redis, ..Settings::default() }).await;
        salts.push(salt(&rig, &mut asked, "").await);
    }
    assert_eq!(salts[0], salts[1]);
    let distinct: HashSet<&String> = salts.iter().collect();
    assert_eq!(distinct.len(), 4, "two stores, and each embedded one, have secrets of their own: {salts:?}");
}

#[tokio::test]
async fn a_configuration_put_together_by_hand_is_held_to_one_owner_per_name_and_secret() {
    let text = "access_log: \"off\"\nmodels:\n  - { name: m, aliases: [a], upstreams: [{ name: u, url: \"http://h/v1\" }] }\n  - { name: n, upstreams: [{ name: u, url: \"http://h/v1\" }] }\nkeys: [{ secret: K, org: acme }, { secret: L, org: beta }]";
    let valid = config::check(text, "test.yaml", &HashMap::new()).expect("valid");
    let start = |change: &dyn Fn(&mut Config)| {
        let mut config = valid.clone();
        change(&mut config);
        let quota = Quota::new(Vec::new(), Store::memory(Clock::Wall), Options::default());
        Proxy::new(&config, quota).err().map(|error| error.to_string())
    };
    assert_eq!(start(&|_| ()), None);
    for (name, change) in [
        ("m", &(|config: &mut Config| config.models[1].name = "m".into()) as &dyn Fn(&mut Config)),
        ("a", &|config| config.models[1].name = "a".into()),
        ("m", &|config| config.models[1].aliases = vec!["m".into()]),
        ("a", &|config| config.models[1].aliases = vec!["a".into()]),
        ("n", &|config| config.models[1].aliases = vec!["n".into()]),
        ("x", &|config| config.models[1].aliases = vec!["x".into(), "x".into()]),
    ] {
        let refused = start(change).expect("a name is taken");
        assert!(refused.contains(&format!("two models answer to the name {name:?}")), "{refused}");
    }
    let refused = start(&|config| config.keys[1].sha256 = config.keys[0].sha256).expect("a secret is taken");
    assert!(refused.contains("two keys have the same secret"), "{refused}");
}

#[tokio::test]
async fn a_client_that_does_not_read_stops_the_reading_of_its_upstream() {
    let upstream = Upstream::start(|_| {
        let event = upstream::chunk(text_event(&"x ".repeat(2000)));
        let mut steps = vec![upstream::stream_head()];
        steps.extend(std::iter::repeat_n(event, 4000));
        steps
    })
    .await;
    let rig = Rig::start(&upstream).await;
    let get = admin(&rig).await;
    let socket = rig.open(&chat(",\"stream\":true")).await;
    // What the client's own kernel takes in is not the gateway's to bound.
    const CLIENT: usize = 64 << 10;
    socket2::SockRef::from(&socket).set_recv_buffer_size(CLIENT).expect("a TCP socket");
    let received = async || {
        let text = get("/metrics").await.text();
        let line = text.lines().find(|line| line.starts_with("penstock_upstream_received_bytes_total")).expect("there");
        line.rsplit(' ').next().and_then(|number| number.parse::<usize>().ok()).expect("a number")
    };
    tokio::time::sleep(Duration::from_millis(700)).await;
    let first = received().await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    let then = received().await;
    assert_eq!(first, then, "the gateway goes on reading");
    assert!(then > 0 && then < (256 << 10) + 4 * CLIENT, "{then} bytes were read ahead");
}
