//! Requests that are wrong: each has its status, its code, the field it is about, and reaches no upstream.

use std::time::Duration;

use bench::mock::{Mock, Options};
use http::Method;
use serde_json::{Value, json};
use tests::{Answer, Config, Gateway};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";

struct Stack {
    mock: Mock,
    gateway: Gateway,
}

async fn stack() -> Stack {
    let mock = Mock::start(Options::default()).expect("a mock");
    let gateway = Config::new()
        .model("mock-model", &mock.url())
        .key("sk-ana", "acme/web/ana")
        .quota("{ level: user, match: ana, limits: [ { tokens: 100000, per: lifetime } ] }")
        .line("limits: { body: 1MiB }")
        .start()
        .await;
    Stack { mock, gateway }
}

impl Stack {
    async fn send(&self, method: Method, path: &str, body: &str) -> Answer {
        self.gateway.client("sk-ana").send(method, path, &[], body.to_owned().into()).await
    }

    /// A good call but for these fields.
    async fn chat(&self, field: &str, value: Value) -> Answer {
        let mut body = json!({"model": "mock-model", "messages": [{"role": "user", "content": "hi"}]});
        body[field] = value;
        self.send(Method::POST, CHAT, &body.to_string()).await
    }

    fn assert_nothing_reached_the_upstream(&self) {
        assert_eq!(self.mock.stats().requests, 0, "{:?}", self.mock.requests());
    }
}

fn assert_error(answer: &Answer, status: u16, code: &str, what: &str) {
    assert_eq!(answer.status, status, "{what}: {}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"), "{what}");
    assert!(answer.header("x-request-id").is_some(), "{what}: no x-request-id");
    if !code.is_empty() {
        assert_eq!(answer.error_code(), code, "{what}: {}", answer.text());
    }
    // Every field of the envelope must be there whatever the code.
    answer.error_code();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_call_has_the_right_status_and_envelope() {
    let stack = stack().await;
    let table = [
        (Method::POST, CHAT, "{", 400, ""),
        (Method::POST, CHAT, "", 400, ""),
        (Method::POST, CHAT, "[]", 400, ""),
        (Method::POST, CHAT, "\u{0}", 400, ""),
        (Method::POST, CHAT, r#"{"messages":[]}"#, 400, ""),
        (Method::POST, CHAT, r#"{"model":7,"messages":[]}"#, 400, ""),
        (Method::POST, CHAT, r#"{"model":"mock-model"}"#, 400, ""),
        (Method::POST, CHAT, r#"{"model":"mock-model","messages":{}}"#, 400, ""),
        (Method::POST, CHAT, r#"{"model":"gone","messages":[]}"#, 404, "model_not_found"),
        (Method::GET, "/v1/models/gone", "", 404, "model_not_found"),
        (Method::POST, "/v1/nowhere", "{}", 404, ""),
        (Method::GET, CHAT, "", 405, ""),
        (Method::DELETE, "/v1/models", "", 405, ""),
    ];
    for (method, path, body, status, code) in table {
        let what = format!("{method} {path} {body}");
        assert_error(&stack.send(method, path, body).await, status, code, &what);
    }
    stack.assert_nothing_reached_the_upstream();
}

#[tokio::test(flavor = "multi_thread")]
async fn absurd_numbers_are_refused_by_name_and_cost_nothing() {
    let stack = stack().await;
    let numbers = ["9223372036854775807", "18446744073709551615", "18446744073709551616", "1e300", "-5", "2.5"];
    let wrong = ["\"50\"", "true", "[]", "{}"];
    for field in ["max_tokens", "max_completion_tokens"] {
        for text in numbers.iter().chain(&wrong) {
            let answer = stack.chat(field, serde_json::from_str(text).expect("JSON")).await;
            // A cap that is only too large may also be refused by the limit that it can never fit.
            assert!([400, 429].contains(&answer.status), "{field}={text}: {} {}", answer.status, answer.text());
            answer.error_code();
            if answer.status == 400 {
                assert_eq!(answer.json()["error"]["param"], field, "{field}={text}");
            }
        }
    }
    for text in ["0", "-1", "1000000000", "1e300", "2.5", "\"1\""] {
        let answer = stack.chat("n", serde_json::from_str(text).expect("JSON")).await;
        assert!([400, 429].contains(&answer.status), "n={text}: {} {}", answer.status, answer.text());
        answer.error_code();
    }
    stack.assert_nothing_reached_the_upstream();
    let good = stack.chat("max_tokens", json!(92)).await;
    assert_eq!(good.status, 200, "{}", good.text());
    assert_eq!(good.number("x-ratelimit-remaining-tokens"), 99_900, "refused calls took nothing");
    assert_eq!(stack.chat("max_tokens", Value::Null).await.status, 200, "null means absent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_key_is_401_whatever_its_shape() {
    let stack = stack().await;
    let body = json!({"model": "mock-model", "messages": [{"role": "user", "content": "hi"}]}).to_string();
    let bare = tests::Client::new(stack.gateway.url(), None);
    let long = format!("Bearer {}", "x".repeat(4000));
    for value in ["", "Bearer", "Bearer ", "Bearer sk-ANA", "Basic c2stYW5h", "sk-ana", "Bearer sk-ana sk-ana", &long] {
        let answer = bare.send(Method::POST, CHAT, &[("authorization", value)], body.clone().into()).await;
        assert_error(&answer, 401, "invalid_api_key", &format!("authorization: {value:.40}"));
    }
    let answer = bare.send(Method::POST, CHAT, &[], body.clone().into()).await;
    assert_error(&answer, 401, "invalid_api_key", "no authorization");
    stack.assert_nothing_reached_the_upstream();
    // And the right one in odd spellings is right.
    for value in ["bearer sk-ana", "BEARER  sk-ana", "Bearer sk-ana "] {
        let answer = bare.send(Method::POST, CHAT, &[("authorization", value)], body.clone().into()).await;
        assert_eq!(answer.status, 200, "authorization: {value}: {}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_limit_is_413_before_it_is_sent() {
    let stack = stack().await;
    for head in ["content-length: 1000000000\r\n", "content-length: 1048577\r\n"] {
        let answer = first_bytes(&stack, head, b"").await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{head}{answer}");
    }
    // Without a length, as soon as the limit is passed.
    let chunk = [b"100000\r\n".as_slice(), &vec![b' '; 0x10_0000], b"\r\n10\r\n                \r\n"].concat();
    let answer = first_bytes(&stack, "transfer-encoding: chunked\r\n", &chunk).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "chunked: {answer}");
    stack.assert_nothing_reached_the_upstream();
}

/// What comes back for a head and a part of a body; the rest of the body is never sent.
async fn first_bytes(stack: &Stack, head: &str, body: &[u8]) -> String {
    let mut socket = TcpStream::connect(stack.gateway.address()).await.expect("the gateway accepts");
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer sk-ana\r\n\
         content-type: application/json\r\n{head}\r\n"
    );
    socket.write_all(head.as_bytes()).await.expect("the head is sent");
    // The gateway may have answered and closed before all of this has left.
    socket.write_all(body).await.ok();
    let mut answer = vec![0; 4096];
    let read = tokio::time::timeout(Duration::from_secs(5), socket.read(&mut answer)).await;
    let read = read.expect("an immediate answer").expect("a readable answer");
    String::from_utf8_lossy(&answer[..read]).into_owned()
}
