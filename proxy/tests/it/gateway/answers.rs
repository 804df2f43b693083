//! What clients are told when the gateway itself answers: one envelope, the right status, true headers.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    rig::{Answer, KEY, Rig, Settings, chat, request},
    upstream::{self, Upstream},
};

const OK: &str = "{\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1},\"extra\":[1]}";

async fn ok() -> Upstream {
    Upstream::start(|_| upstream::json(200, OK)).await
}

fn envelope(answer: &Answer) {
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let error = &answer.json()["error"];
    let mut keys: Vec<_> = error.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["code", "message", "param", "type"]);
    assert!(answer.header("x-request-id").is_some());
}

#[tokio::test]
async fn every_error_has_the_one_shape() {
    let upstream = ok().await;
    let rig = Rig::start(&upstream).await;
    let post = |path: &str, body: &str| request("POST", path, &[KEY], body);
    let chats = "/v1/chat/completions";
    for (name, request, status, code) in [
        ("malformed", post(chats, "{"), 400, "invalid_request"),
        ("messages an object", post(chats, "{\"model\":\"m\",\"messages\":{}}"), 400, "invalid_request"),
        ("no model", post(chats, "{\"messages\":[]}"), 400, "invalid_request"),
        (
            "a model without end",
            post(chats, &format!("{{\"model\":\"{}\",\"messages\":[]}}", "x".repeat(1 << 20))),
            400,
            "invalid_request",
        ),
        ("unknown model", post(chats, "{\"model\":\"gone\",\"messages\":[]}"), 404, "model_not_found"),
        ("unknown path", post("/v1/chat", "{}"), 404, "not_found"),
        ("twice v1", post("/v1/v1/chat/completions", &chat("")), 404, "not_found"),
        ("not built", post("/v1/responses", "{}"), 404, "not_found"),
        ("wrong method", request("GET", chats, &[KEY], ""), 405, "method_not_allowed"),
        ("no key", request("POST", chats, &[], &chat("")), 401, "invalid_api_key"),
        ("wrong key", request("POST", chats, &[("authorization", "Bearer k")], &chat("")), 401, "invalid_api_key"),
        ("over quota", post(chats, &chat(",\"max_tokens\":9999999")), 429, "request_too_large"),
        ("gzip", request("POST", chats, &[KEY, ("content-encoding", "gzip")], "x"), 415, "unsupported_media_type"),
        ("unknown model shown", request("GET", "/v1/models/gone", &[KEY], ""), 404, "model_not_found"),
    ] {
        let answer = rig.send(&request).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{name}: {}", answer.text());
        envelope(&answer);
    }
    assert_eq!(upstream.asked().len(), 0);
    assert_eq!(rig.balance().await, (0, 0));
}

#[tokio::test]
async fn absurd_numbers_are_refused_and_take_nothing() {
    let upstream = ok().await;
    let rig = Rig::start(&upstream).await;
    let mut refused = Vec::new();
    for value in ["9223372036854775807", "18446744073709551615", "1e30", "1e300", "-5", "2.5", "\"50\"", "true"] {
        refused.push(rig.chat(&chat(&format!(",\"max_tokens\":{value}"))).await);
    }
    for value in ["0", "-1", "1e9"] {
        refused.push(rig.chat(&chat(&format!(",\"n\":{value}"))).await);
    }
    for answer in &refused {
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.json()["error"]["param"].is_string());
        envelope(answer);
    }
    assert_eq!(upstream.asked().len(), 0);
    assert_eq!(rig.chat(&chat(",\"max_tokens\":null")).await.status, 200);
}

#[tokio::test]
async fn rates_are_on_every_answer_to_a_known_caller_and_never_the_upstreams() {
    let upstream = Upstream::start(|asked| {
        let theirs = "x-ratelimit-remaining-tokens: 5\r\nx-ratelimit-limit-tokens: 6\r\nopenai-version: 1\r\nset-cookie: a=b\r\n";
        match asked.json()["user"].as_str() {
            Some("fail") => upstream::with_headers(500, theirs, "{}"),
            Some("stream") => upstream::stream(&[upstream::STOP, upstream::DONE]),
            _ => upstream::with_headers(200, theirs, OK),
        }
    })
    .await;
    let rig = Rig::start(&upstream).await;
    let embed = request("POST", "/v1/embeddings", &[KEY], "{\"model\":\"m\",\"input\":\"x\"}");
    let answers = [
        rig.chat(&chat("")).await,
        rig.chat(&chat(",\"stream\":true,\"user\":\"stream\"")).await,
        rig.send(&embed).await,
        rig.chat(&chat(",\"max_tokens\":9999999")).await,
        rig.chat(&chat(",\"user\":\"fail\"")).await,
        rig.chat("{").await,
        rig.send(&request("GET", "/v1/models", &[KEY], "")).await,
    ];
    let mut last = u64::MAX;
    for answer in &answers {
        assert_eq!(answer.number("x-ratelimit-limit-tokens"), 100_000, "{}", answer.status);
        assert_eq!(answer.number("x-ratelimit-limit-requests"), 1000);
        assert!(answer.number("x-ratelimit-remaining-tokens") <= 100_000);
        last = last.min(answer.number("x-ratelimit-remaining-requests"));
        assert!(answer.header("set-cookie").is_none());
    }
    assert!(last < 1000, "the remaining requests never fell");
    assert_eq!(answers[0].header("openai-version"), Some("1"));
    let unknown = rig.send(&request("POST", "/v1/chat/completions", &[], "{}")).await;
    assert!(unknown.header("x-ratelimit-limit-tokens").is_none());
}

#[tokio::test]
async fn a_refusal_names_level_need_and_left_and_a_true_time() {
    let upstream = ok().await;
    let quotas = "quotas: [{ level: app, match: web, limits: [{ requests: 1, per: second }] }]".to_owned();
    let rig = Rig::with(&upstream, Settings { quotas: Some(quotas), ..Settings::default() }).await;
    assert_eq!(rig.chat(&chat("")).await.status, 200);
    let refused = rig.chat(&chat("")).await;
    assert_eq!((refused.status, refused.code().as_str()), (429, "rate_limit_exceeded"));
    let message = refused.json()["error"]["message"].as_str().expect("a text").to_owned();
    for part in ["app", "acme/web", "requests/second", "needed 1", "left 0"] {
        assert!(message.contains(part), "{part} in {message}");
    }
    let wait = refused.number("retry-after-ms");
    assert!((1..=1051).contains(&wait), "{wait}");
    assert_eq!(refused.number("retry-after"), 1);
    tokio::time::sleep(std::time::Duration::from_millis(wait)).await;
    assert_eq!(rig.chat(&chat("")).await.status, 200, "the time was not true");
}

#[tokio::test]
async fn a_window_that_ends_today_is_a_rate_and_a_longer_one_a_budget() {
    let upstream = ok().await;
    for (limit, code) in [
        ("requests: 1, per: hour, window: calendar", "rate_limit_exceeded"),
        ("requests: 1, per: day, window: calendar", "insufficient_quota"),
        ("requests: 1, per: lifetime", "insufficient_quota"),
    ] {
        let quotas = format!("quotas: [{{ level: app, match: web, limits: [{{ {limit} }}] }}]");
        let rig = Rig::with(&upstream, Settings { quotas: Some(quotas), ..Settings::default() }).await;
        assert_eq!(rig.chat(&chat("")).await.status, 200, "{limit}");
        let refused = rig.chat(&chat("")).await;
        assert_eq!((refused.status, refused.code().as_str()), (429, code), "{limit}");
        assert_eq!(refused.header("retry-after-ms").is_none(), limit.ends_with("lifetime"));
    }
}

#[tokio::test]
async fn head_is_get_without_the_body_and_405_says_what_is_allowed() {
    let upstream = ok().await;
    let rig = Rig::start(&upstream).await;
    for path in ["/v1/models", "/v1/models/alias", "/v1/models/gone"] {
        let [head, get] =
            [rig.send(&request("HEAD", path, &[KEY], "")).await, rig.send(&request("GET", path, &[KEY], "")).await];
        assert_eq!((head.status, head.body.len()), (get.status, 0), "{path}");
        for name in ["content-length", "content-type", "x-should-retry"] {
            assert_eq!(head.header(name), get.header(name), "{path} {name}");
        }
    }
    for (method, path, allow) in [
        ("DELETE", "/v1/models", "GET, HEAD"),
        ("PUT", "/v1/models/m", "GET, HEAD"),
        ("HEAD", "/v1/chat/completions", "POST"),
        ("GET", "/v1/embeddings", "POST"),
    ] {
        let answer = rig.send(&request(method, path, &[KEY], "")).await;
        assert_eq!((answer.status, answer.header("allow")), (405, Some(allow)), "{method} {path}");
    }
}

#[tokio::test]
async fn of_upstreams_over_their_limits_the_first_that_is_back_names_the_time() {
    for (first, second, expect) in [("50", "5", "5"), ("5", "50", "5"), ("", "7", "7"), ("7", "", "7")] {
        let upstream = Upstream::start(move |asked| {
            let wait = if asked.headers["authorization"] == "Bearer first" { first } else { second };
            let header = if wait.is_empty() { String::new() } else { format!("retry-after: {wait}\r\n") };
            upstream::with_headers(429, &header, "{}")
        })
        .await;
        let url = upstream.url();
        // The weight makes it the first in all but one of a million calls.
        let upstreams = format!(
            "[{{ name: a, url: \"{url}\", api_key: first, weight: 1000000 }}, {{ name: b, url: \"{url}\", api_key: second }}]"
        );
        let rig = Rig::with(&upstream, Settings { upstreams: Some(upstreams), ..Settings::default() }).await;
        let answer = rig.chat(&chat("")).await;
        assert_eq!((answer.status, answer.header("retry-after")), (429, Some(expect)), "{first:?} then {second:?}");
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_at_once_and_the_answer_arrives() {
    let upstream = ok().await;
    let rig = Rig::with(&upstream, Settings { limits: "body: 1MiB".into(), ..Settings::default() }).await;
    // By its announced length, before a byte of it was sent.
    let mut socket = rig.connect().await;
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer K\r\ncontent-length: 104857600\r\n\r\n";
    socket.write_all(head.as_bytes()).await.expect("sent");
    let answer = Answer::read(&mut socket).await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "body_too_large"));
    envelope(&answer);
    // Without a length, as soon as it shows; the client goes on sending and still gets the answer.
    let mut socket = rig.connect().await;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer K\r\ntransfer-encoding: chunked\r\n\r\n";
    socket.write_all(head.as_bytes()).await.expect("sent");
    let piece = [b"10000\r\n", &vec![b' '; 65536][..], b"\r\n"].concat();
    for _ in 0..24 {
        if socket.write_all(&piece).await.is_err() {
            break;
        }
    }
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"}}") && socket.read_buf(&mut bytes).await.expect("the answer is not lost") > 0 {}
    assert_eq!(Answer::parse(&bytes).status, 413);
}

#[tokio::test]
async fn more_calls_than_slots_are_shed_until_a_body_ends() {
    let upstream = Upstream::start(|_| {
        vec![upstream::stream_head(), upstream::chunk(upstream::text_event("x")), upstream::Step::AwaitClose]
    })
    .await;
    let rig = Rig::with(&upstream, Settings { limits: "in_flight: 1".into(), ..Settings::default() }).await;
    let mut first = rig.open(&chat(",\"stream\":true")).await;
    first.read_u8().await.expect("the stream began");
    let shed = rig.chat(&chat("")).await;
    assert_eq!((shed.status, shed.code().as_str()), (503, "overloaded"));
    envelope(&shed);
    drop(first);
    rig.balance().await;
    let mut next = rig.open(&chat(",\"stream\":true")).await;
    let mut line = [0; 15];
    next.read_exact(&mut line).await.expect("answered");
    assert_eq!(&line, b"HTTP/1.1 200 OK");
}

#[tokio::test]
async fn models_come_from_the_configuration_alone() {
    let upstream = ok().await;
    let settings =
        Settings { upstreams: Some("[{ name: a, url: \"http://192.0.2.1/v1\" }]".into()), ..Settings::default() };
    let rig = Rig::with(&upstream, settings).await;
    let start = std::time::Instant::now();
    let list = rig.send(&request("GET", "/v1/models/", &[KEY], "")).await;
    assert!(start.elapsed() < std::time::Duration::from_millis(500));
    let list = list.json();
    assert_eq!((list["object"].as_str(), list["data"][0]["id"].as_str()), (Some("list"), Some("m")));
    assert_eq!(rig.send(&request("GET", "/v1/models/alias", &[KEY], "")).await.json()["id"], "alias");
}
