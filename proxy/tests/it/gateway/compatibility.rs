//! The wire: unknown fields, spellings, framings, and what reaches an upstream.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    rig::{Answer, KEY, Rig, Settings, chat, request},
    upstream::{self, Upstream},
};

const OK: &str =
    "{\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1},\"extra\":[1,{\"b\":2,\"a\":1}]}";

async fn ok() -> Upstream {
    Upstream::start(|_| upstream::json(200, OK)).await
}

#[tokio::test]
async fn unknown_fields_survive_both_ways_also_under_an_alias() {
    let upstream = ok().await;
    let rig = Rig::start(&upstream).await;
    let rest = ",\"cache_salt\":\"mine\",\"chat_template_kwargs\":{\"enable_thinking\":false},\"top_k\":20,\"extra_body\":{\"google\":{\"x\":1.50}}";
    let body = chat(rest);
    let answer = rig.chat(&body).await;
    assert_eq!(answer.text(), OK);
    assert_eq!(upstream.asked()[0].body, body.as_bytes());
    let body = body.replace("\"model\":\"m\"", "\"model\":\"alias\"");
    rig.chat(&body).await;
    assert_eq!(upstream.asked()[1].body, body.replace("\"alias\"", "\"m\"").as_bytes());
}

#[tokio::test]
async fn caps_keep_their_names_and_the_larger_is_reserved() {
    let upstream = ok().await;
    let rig = Rig::start(&upstream).await;
    for (caps, held) in [
        (",\"max_tokens\":50", 50),
        (",\"max_completion_tokens\":50", 50),
        (",\"max_tokens\":1,\"max_completion_tokens\":500", 500),
        (",\"max_tokens\":20,\"n\":3", 60),
        ("", 100),
    ] {
        rig.chat(&chat(caps)).await;
        let asked = upstream.asked();
        assert_eq!(asked[asked.len() - 1].body, chat(caps).as_bytes());
        assert_eq!(rig.lines(asked.len()).await[asked.len() - 1].demand.expect("admitted").max_output, held, "{caps}");
    }
}

#[tokio::test]
async fn spellings_of_the_path_are_served_directly() {
    let upstream = ok().await;
    let rig = Rig::start(&upstream).await;
    for path in ["/v1/chat/completions/", "/v1//chat/completions", "/chat/completions"] {
        let answer = rig.send(&request("POST", path, &[KEY], &chat(""))).await;
        assert_eq!(answer.status, 200, "{path}");
    }
    let azure = request(
        "POST",
        "/openai/deployments/m/chat/completions?api-version=1",
        &[("api-key", "K")],
        "{\"messages\":[]}",
    );
    assert_eq!(rig.send(&azure).await.status, 200);
    for asked in upstream.asked() {
        assert_eq!(asked.line, "POST /v1/chat/completions HTTP/1.1");
        assert_eq!(asked.json()["model"], "m");
    }
}

#[tokio::test]
async fn the_scheme_of_the_key_is_free_and_the_upstream_gets_its_own() {
    let upstream = ok().await;
    let rig = Rig::start(&upstream).await;
    for value in ["bearer K", "BEARER  K", "Bearer K "] {
        let answer = rig.send(&request("POST", "/v1/chat/completions", &[("authorization", value)], &chat(""))).await;
        assert_eq!(answer.status, 200, "{value:?}");
    }
    for asked in upstream.asked() {
        assert_eq!(asked.headers["authorization"], "Bearer UP");
        assert_eq!(asked.headers["host"], upstream.address.to_string());
    }
}

#[tokio::test]
async fn the_account_at_the_provider_is_the_gateways_both_ways() {
    let theirs =
        "openai-organization: operator\r\nalt-svc: h3=\":443\"\r\nserver: theirs\r\nopenai-processing-ms: 5\r\n";
    let upstream = Upstream::start(move |_| upstream::with_headers(200, theirs, OK)).await;
    let rig = Rig::start(&upstream).await;
    let mine = [KEY, ("OpenAI-Organization", "org-mine"), ("OpenAI-Project", "proj-mine"), ("X-Mine", "1")];
    let answer = rig.send(&request("POST", "/v1/chat/completions", &mine, &chat(""))).await;
    let asked = &upstream.asked()[0].headers;
    assert!(!asked.contains_key("openai-organization") && !asked.contains_key("openai-project"), "{asked:?}");
    assert_eq!(asked["x-mine"], "1");
    for name in ["openai-organization", "alt-svc", "server"] {
        assert_eq!(answer.header(name), None, "{name}");
    }
    assert_eq!(answer.header("openai-processing-ms"), Some("5"));
}

#[tokio::test]
async fn chunked_bodies_arrive_with_a_length() {
    let upstream = ok().await;
    let rig = Rig::start(&upstream).await;
    let mut socket = rig.connect().await;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer K\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nX-Mine: 1\r\n\r\n";
    socket.write_all(head.as_bytes()).await.expect("sent");
    let body = chat("").replace("\"m\"", "\"alias\"");
    for piece in body.as_bytes().chunks(3) {
        let chunk = [format!("{:x};ext=1\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
        socket.write_all(&chunk).await.expect("sent");
    }
    socket.write_all(b"0\r\nX-Trailer: 1\r\n\r\n").await.expect("sent");
    assert_eq!(Answer::read(&mut socket).await.status, 200);
    let asked = &upstream.asked()[0];
    assert_eq!(asked.headers["content-length"], asked.body.len().to_string());
    assert!(!asked.headers.contains_key("transfer-encoding"));
    assert_eq!(asked.json()["model"], "m");
    assert_eq!(asked.headers["x-mine"], "1");
}

#[tokio::test]
async fn a_body_with_two_lengths_is_refused_and_what_follows_is_never_a_request() {
    let upstream = ok().await;
    let rig = Rig::start(&upstream).await;
    let smuggled = String::from_utf8(request("POST", "/v1/chat/completions", &[KEY], &chat(""))).expect("text");
    let body = chat("");
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n{smuggled}", body.len());
    let (length, coding) = (format!("Content-Length: {}\r\n", chunked.len()), "Transfer-Encoding: chunked\r\n");
    for framing in [format!("{length}{coding}"), format!("{coding}{length}"), format!("{coding}X: 1\r\n{length}")] {
        let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer K\r\n{framing}\r\n");
        // Also as the second call of a connection, and in pieces.
        let mut socket = rig.connect().await;
        let get = "GET /v1/models/m HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer K\r\n\r\n";
        socket.write_all(get.as_bytes()).await.expect("sent");
        read_until(&mut socket, "}").await;
        for piece in head.as_bytes().chunks(40) {
            socket.write_all(piece).await.expect("sent");
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        socket.write_all(chunked.as_bytes()).await.expect("sent");
        let answer = Answer::read(&mut socket).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "ambiguous_length"), "{framing}");
        assert_eq!(answer.header("connection"), Some("close"));
        // One answer and no more: `json` reads all that came.
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    }
    assert!(upstream.asked().is_empty(), "nothing was forwarded");
}

#[tokio::test]
async fn a_body_that_only_looks_like_a_head_is_none() {
    let upstream = ok().await;
    let rig = Rig::start(&upstream).await;
    let mut socket = rig.connect().await;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer K\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n";
    let body = chat("");
    let trailers = "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n";
    let chunks = format!("{:x}\r\n{body}\r\n0\r\n{trailers}\r\n", body.len());
    for _ in 0..2 {
        // What follows an interim answer looks like a new head, and has the lines of one.
        socket.write_all(head.as_bytes()).await.expect("sent");
        read_until(&mut socket, "\r\n\r\n").await;
        socket.write_all(chunks.as_bytes()).await.expect("sent");
        let answer = read_until(&mut socket, OK).await;
        assert_eq!(Answer::parse(&answer).status, 200);
    }
}

async fn read_until(socket: &mut tokio::net::TcpStream, end: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(end.as_bytes()) {
        let read = socket.read_buf(&mut bytes).await.expect("read");
        assert!(read > 0, "{:?}", String::from_utf8_lossy(&bytes));
    }
    bytes
}

#[tokio::test]
async fn an_http_1_0_client_gets_no_chunks() {
    let upstream =
        Upstream::start(|_| upstream::stream(&[&upstream::text_event("hi"), upstream::STOP, upstream::DONE])).await;
    let rig = Rig::start(&upstream).await;
    let body = chat(",\"stream\":true");
    let head = format!(
        "POST /v1/chat/completions HTTP/1.0\r\nAUTHORIZATION: Bearer K\r\ncontent-LENGTH: {}\r\n\r\n",
        body.len()
    );
    let answer = rig.send(format!("{head}{body}").as_bytes()).await;
    assert!(answer.header("transfer-encoding").is_none());
    assert_eq!(answer.streamed_text(), "hi");
}

#[tokio::test]
async fn token_ids_are_counted_by_length_and_left_alone() {
    let upstream = ok().await;
    let rig = Rig::start(&upstream).await;
    let body = "{\"model\":\"m\",\"input\":[[57668,53901],[1,2,3]],\"encoding_format\":\"base64\"}";
    assert_eq!(rig.send(&request("POST", "/v1/embeddings", &[KEY], body)).await.status, 200);
    assert_eq!(upstream.asked()[0].body, body.as_bytes());
    let demand = rig.lines(1).await[0].demand.expect("admitted");
    assert_eq!((demand.prompt, demand.max_output), (5, 0));
}

#[tokio::test]
async fn attachments_do_not_cost_their_text_length() {
    let upstream = ok().await;
    let rig = Rig::start(&upstream).await;
    let base64 = "A".repeat(400_000);
    let parts = [
        json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{base64}")}}),
        json!({"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png", "detail": "low"}}),
        json!({"type": "input_audio", "input_audio": {"data": base64, "format": "wav"}}),
        json!({"type": "file", "file": {"file_data": base64, "filename": "a.pdf"}}),
        json!({"type": "video_url", "video_url": {"url": "http://127.0.0.1:1/x.mp4"}}),
        json!({"type": "future_part", "x": base64}),
    ];
    for (index, part) in parts.iter().enumerate() {
        let body =
            json!({"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": [part]}]}).to_string();
        let answer = rig.chat(&body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(upstream.asked()[index].body, body.as_bytes());
        let demand = rig.lines(index + 1).await[index].demand.expect("admitted");
        assert!((10..3000).contains(&demand.prompt), "{index}: {demand:?}");
    }
}

#[tokio::test]
async fn without_a_token_limit_no_cap_is_needed() {
    let upstream = ok().await;
    let quotas = "quotas: [{ level: org, match: acme, limits: [{ requests: 5, per: lifetime }] }]".to_owned();
    let rig = Rig::with(&upstream, Settings { quotas: Some(quotas), ..Settings::default() }).await;
    assert_eq!(rig.chat(&chat("")).await.status, 200);
}

#[tokio::test]
async fn upstream_urls_join_with_one_slash() {
    let upstream = ok().await;
    for base in ["/v1", "/v1/", ""] {
        let upstreams = format!("[{{ name: a, url: \"http://{}{base}\" }}]", upstream.address);
        let rig = Rig::with(&upstream, Settings { upstreams: Some(upstreams), ..Settings::default() }).await;
        assert_eq!(rig.chat(&chat("")).await.status, 200);
    }
    assert!(upstream.asked().iter().all(|asked| asked.line == "POST /v1/chat/completions HTTP/1.1"));
}

#[tokio::test]
async fn an_upstream_may_know_the_model_by_another_name() {
    let upstream = ok().await;
    let upstreams = format!("[{{ name: a, url: \"{}\", model: theirs }}]", upstream.url());
    let rig = Rig::with(&upstream, Settings { upstreams: Some(upstreams), ..Settings::default() }).await;
    rig.chat(&chat("")).await;
    assert_eq!(upstream.asked()[0].json()["model"], Value::from("theirs"));
}
