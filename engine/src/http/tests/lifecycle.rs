use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener, UnixStream};

use super::fixture::*;
use crate::handle::Config;
use crate::http::{Listener, Options};

fn slow() -> Setup {
    Setup { pace: Duration::from_millis(10), ..Setup::default() }
}

fn endless() -> Value {
    completion(json!({ "ignore_eos": true, "max_tokens": 380 }))
}

async fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < Duration::from_secs(5), "{what} does not come");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Writes a request on a socket of its own and leaves the socket open.
async fn open(running: &Running, body: &Value) -> TcpStream {
    let mut socket = TcpStream::connect(running.address).await.expect("listening");
    let body = body.to_string();
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    socket.write_all((head + &body).as_bytes()).await.expect("sent");
    socket
}

fn handle(running: &Running) -> crate::Handle {
    running.server.app.model.get().expect("installed").handle.clone()
}

#[tokio::test]
async fn health_answers_while_the_model_loads() {
    let (server, address, serving) = listening(Options::new("letters")).await;
    let (model, log) = model(&Setup::default());
    let running = Running { server, address, serving, log };
    let (status, text) = running.get("/health").await;
    assert!(status == StatusCode::SERVICE_UNAVAILABLE && text.contains("model_loading"), "{text}");
    assert_eq!(running.post("/v1/completions", completion(json!({}))).await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(running.get("/v1/models").await.0, StatusCode::OK);
    running.server.install(model);
    assert_eq!(running.get("/health").await.0, StatusCode::OK);
    let failed = tokio::time::timeout(Duration::from_millis(300), running.server.failed()).await;
    assert!(failed.is_err(), "a working engine has not failed");
}

#[tokio::test]
async fn models_are_listed_and_found_whatever_the_slashes() {
    let running = running().await;
    let (_, text) = running.get("/v1/models").await;
    let list: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&list["object"], &list["data"][0]["id"]), (&json!("list"), &json!("letters")));
    for path in ["/v1/models/letters", "//v1/models/letters/", "/models/letters"] {
        assert_eq!(running.get(path).await.0, StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_stops_its_work() {
    for stream in [true, false] {
        let running = start(slow()).await;
        let mut body = endless();
        body["stream"] = json!(stream);
        let socket = open(&running, &body).await;
        eventually("the first step", || running.steps() > 2).await;
        drop(socket);
        eventually("the end of the work", || handle(&running).load().running == 0).await;
        assert!(running.steps() < 200, "stream {stream}: {} steps", running.steps());
        assert_eq!(handle(&running).load().kv.used, 0);
    }
}

#[tokio::test]
async fn a_queued_client_that_leaves_does_not_disturb_the_running_one() {
    let config = Config { max_seqs: 1, ..Config::default() };
    let running = start(Setup { config, ..slow() }).await;
    let body = completion(json!({ "ignore_eos": true, "max_tokens": 60 }));
    let (answer, _) = tokio::join!(running.ok("/v1/completions", body), async {
        eventually("the first step", || running.steps() > 2).await;
        let socket = open(&running, &endless()).await;
        eventually("the queue", || handle(&running).load().waiting == 1).await;
        drop(socket);
        eventually("the empty queue", || handle(&running).load().waiting == 0).await;
    });
    assert_eq!(answer["usage"]["completion_tokens"], 60);
    assert!(running.steps() < 80);
}

#[tokio::test]
async fn a_full_queue_answers_503() {
    let config = Config { max_seqs: 1, max_waiting: 1, ..Config::default() };
    let running = start(Setup { config, ..slow() }).await;
    let first = open(&running, &endless()).await;
    eventually("the first step", || running.steps() > 2).await;
    let second = open(&running, &endless()).await;
    eventually("the queue", || handle(&running).load().waiting == 1).await;
    let (status, answer) = running.post("/v1/completions", endless()).await;
    assert_eq!((status.as_u16(), answer["error"]["code"].as_str()), (503, Some("overloaded")));
    drop((first, second));
}

#[tokio::test]
async fn what_can_never_fit_in_the_queue_is_the_clients_to_mend() {
    let config = Config { max_waiting: 4, ..Config::default() };
    let running = start(Setup { config, ..Setup::default() }).await;
    let ask = |n: u32| completion(json!({ "prompt": ["a", "b"], "n": n, "max_tokens": 1 }));
    running.ok("/v1/completions", ask(2)).await;
    let (status, answer) = running.post("/v1/completions", ask(3)).await;
    assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!("n")), "{answer}");
}

#[tokio::test]
async fn a_step_without_an_end_is_bad_health() {
    let options = Options { stall_timeout: Duration::from_millis(50), ..Options::new("letters") };
    let running = start(Setup { pace: Duration::from_millis(400), options, ..Setup::default() }).await;
    assert_eq!(running.get("/health").await.0, StatusCode::OK);
    let socket = open(&running, &completion(json!({ "max_tokens": 1 }))).await;
    eventually("the step", || handle(&running).step_time().is_some_and(|time| time.as_millis() > 50)).await;
    let (status, text) = running.get("/health").await;
    assert!(status == StatusCode::GATEWAY_TIMEOUT && text.contains("engine_stalled"), "{text}");
    eventually("the end of the step", || handle(&running).step_time().is_none()).await;
    assert_eq!(running.get("/health").await.0, StatusCode::OK);
    drop(socket);
}

#[tokio::test]
async fn a_drain_lets_running_streams_end_and_takes_no_more() {
    let running = start(slow()).await;
    let usage = json!({ "include_usage": true });
    let body = json!({ "ignore_eos": true, "max_tokens": 40, "stream": true, "stream_options": usage });
    let body = completion(body);
    let response = send(running.address, Method::POST, "/v1/completions", &[], body.to_string().into()).await;
    running.server.drain();
    let text = text_of(response).await;
    assert!(text.contains("\"completion_tokens\":40"), "{text}");
    assert!(text.ends_with("data: [DONE]\n\n"));
    tokio::time::timeout(Duration::from_secs(5), running.serving).await.expect("it ends").expect("no panic");
    assert!(TcpStream::connect(running.address).await.is_err());
}

#[tokio::test]
async fn a_failed_device_is_an_error_and_never_a_whole_answer() {
    let running = start(Setup { fails_after: Some(5), ..slow() }).await;
    let (_, events) = running.stream("/v1/completions", endless()).await;
    let last: Value = serde_json::from_str(events.last().expect("some")).expect("JSON, not [DONE]");
    assert_eq!(last["error"]["code"], "engine_failed");
    tokio::time::timeout(Duration::from_secs(5), running.server.failed()).await.expect("the failure is seen");
    assert_eq!(running.get("/health").await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(running.post("/v1/completions", endless()).await.0, StatusCode::SERVICE_UNAVAILABLE);
    let running = start(Setup { fails_after: Some(5), ..slow() }).await;
    assert_eq!(running.post("/v1/completions", endless()).await.0, StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn load_and_metrics_show_what_runs() {
    let running = start(slow()).await;
    let socket = open(&running, &endless()).await;
    eventually("the first step", || running.steps() > 2).await;
    let (_, text) = running.get("/load").await;
    let load: wire::load::LoadReport = serde_json::from_str(&text).expect("a load report");
    assert_eq!((load.running, load.model.as_str(), load.block_size), (1, "letters", 16));
    assert!(load.kv_blocks.used >= 4 && load.kv_blocks.total == 400);
    let (_, text) = running.get("/metrics").await;
    assert!(text.contains("vllm:num_requests_running{model_name=\"letters\"} 1"), "{text}");
    drop(socket);
    running.ok("/v1/completions", completion(json!({ "max_tokens": 3, "ignore_eos": true }))).await;
    eventually("the metrics", || {
        let text = String::from_utf8(handle(&running).metrics()).expect("text");
        text.contains("vllm:request_success_total{finished_reason=\"length\",model_name=\"letters\"} 1")
    })
    .await;
    let (_, text) = running.get("/metrics").await;
    for name in [
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "num_preemptions_total",
        "prompt_tokens_total",
        "generation_tokens_total",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "iteration_tokens_total",
    ] {
        assert!(text.contains(&format!("vllm:{name}")), "{name}");
    }
}

#[tokio::test]
async fn a_unix_socket_serves_the_same() {
    let running = running().await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("engine.sock");
    let listener = UnixListener::bind(&path).expect("bound");
    let server = Arc::clone(&running.server);
    tokio::spawn(async move { server.serve(Listener::Unix(listener)).await });
    let mut socket = UnixStream::connect(&path).await.expect("listening");
    socket.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.expect("sent");
    let mut text = String::new();
    socket.read_to_string(&mut text).await.expect("an answer");
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
}

#[tokio::test]
async fn a_client_of_http_1_0_gets_no_chunked_coding() {
    let running = running().await;
    let body = completion(json!({ "max_tokens": 3, "stream": true, "ignore_eos": true })).to_string();
    let mut socket = TcpStream::connect(running.address).await.expect("listening");
    let head = format!("POST /v1/completions HTTP/1.0\r\nCONTENT-LENGTH: {}\r\n\r\n", body.len());
    socket.write_all((head + &body).as_bytes()).await.expect("sent");
    let mut text = String::new();
    socket.read_to_string(&mut text).await.expect("an answer");
    assert!(!text.to_lowercase().contains("transfer-encoding") && text.ends_with("data: [DONE]\n\n"), "{text}");
}

#[tokio::test]
async fn events_that_wait_together_leave_in_one_write() {
    let running = start(Setup { pace: Duration::from_millis(1), ..Setup::default() }).await;
    let mut body = completion(json!({ "ignore_eos": true, "max_tokens": 50 }));
    body["stream"] = json!(true);
    let mut response = send(running.address, Method::POST, "/v1/completions", &[], body.to_string().into()).await;
    // The runtime is busy elsewhere while the engine goes on.
    std::thread::sleep(Duration::from_millis(400));
    let mut frames = 0;
    while let Some(frame) = response.body_mut().frame().await {
        frames += usize::from(frame.expect("whole").is_data());
    }
    assert!(frames < 10, "{frames} frames for 52 events");
}
