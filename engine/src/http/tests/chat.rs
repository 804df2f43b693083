use serde_json::{Value, json};

use super::fixture::*;

const PATH: &str = "/v1/chat/completions";

fn content(chunks: &[Value], index: u64) -> String {
    let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().expect("a list"));
    choices.filter(|choice| choice["index"] == index).filter_map(|choice| choice["delta"]["content"].as_str()).collect()
}

fn finish_reasons(chunks: &[Value]) -> Vec<&str> {
    let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().expect("a list"));
    choices.filter_map(|choice| choice["finish_reason"].as_str()).collect()
}

#[tokio::test]
async fn a_stream_says_what_the_whole_answer_says() {
    let running = running().await;
    let request = chat(json!({ "temperature": 0, "max_tokens": 30, "n": 2, "stream_options": null }));
    let whole = running.ok(PATH, request.clone()).await;
    assert_eq!(whole["object"], "chat.completion");
    let chunks = running.chunks(PATH, request).await;
    for index in [0, 1] {
        let message = &whole["choices"][index]["message"];
        assert_eq!(message["role"], "assistant");
        assert_eq!(message["content"], content(&chunks, index as u64));
    }
    assert_eq!(chunks[0]["object"], "chat.completion.chunk");
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    assert_eq!(chunks[0]["choices"][0]["finish_reason"], Value::Null);
    assert_eq!(finish_reasons(&chunks).len(), 2);
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"] && chunk.get("usage").is_none()));
}

#[tokio::test]
async fn usage_is_right_to_the_token_and_comes_once_if_asked_for() {
    let running = running().await;
    let request = chat(json!({ "max_tokens": 9, "n": 3, "ignore_eos": true }));
    // "user: hi\n", one token per byte.
    let usage = running.ok(PATH, request.clone()).await["usage"].clone();
    assert_eq!(
        (&usage["prompt_tokens"], &usage["completion_tokens"], &usage["total_tokens"]),
        (&json!(9), &json!(27), &json!(36))
    );
    for (options, asked) in
        [(json!(null), false), (json!({"include_usage": false}), false), (json!({"include_usage": true}), true)]
    {
        let mut streamed = request.clone();
        streamed["stream_options"] = options;
        let mut chunks = running.chunks(PATH, streamed).await;
        if asked {
            let last = chunks.pop().expect("some");
            assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &usage));
            assert!(chunks.iter().all(|chunk| chunk["usage"] == Value::Null && chunk.get("usage").is_some()));
        }
        assert!(chunks.iter().all(|chunk| chunk["choices"].as_array().is_some_and(|choices| choices.len() == 1)));
    }
}

#[tokio::test]
async fn the_headers_of_a_stream_keep_proxies_from_collecting_it() {
    let (headers, _) = running().await.stream(PATH, chat(json!({ "max_tokens": 1 }))).await;
    assert!(headers["content-type"].to_str().expect("text").starts_with("text/event-stream"));
    assert_eq!(
        (&headers["cache-control"], &headers["x-accel-buffering"]),
        (&"no-cache".parse().expect("valid"), &"no".parse().expect("valid"))
    );
    assert!(headers.contains_key("x-request-id"));
}

#[tokio::test]
async fn a_seed_repeats_an_answer_and_none_does_not() {
    let running = running().await;
    let request = |seed: Value| chat(json!({ "seed": seed, "max_tokens": 20, "ignore_eos": true }));
    let mut answers = Vec::new();
    for seed in [json!(1), json!(1), json!(-2), json!(null), json!(null)] {
        answers.push(running.ok(PATH, request(seed)).await["choices"][0]["message"]["content"].clone());
    }
    assert_eq!(answers[0], answers[1]);
    assert_ne!(answers[0], answers[2]);
    assert_ne!(answers[3], answers[4]);
}

#[tokio::test]
async fn a_stop_string_is_neither_shown_nor_streamed() {
    let running = running().await;
    let free = chat(json!({ "temperature": 0, "max_tokens": 40, "ignore_eos": true }));
    let whole = running.ok(PATH, free.clone()).await;
    let text = whole["choices"][0]["message"]["content"].as_str().expect("text").to_owned();
    let stop = &text[20..24];
    let at = text.find(stop).expect("part of it");
    let mut stopped = free;
    stopped["stop"] = json!([stop, "\n\n"]);
    let answer = running.ok(PATH, stopped.clone()).await;
    assert_eq!(answer["choices"][0]["message"]["content"], text[..at]);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["usage"]["completion_tokens"], at + 4);
    let chunks = running.chunks(PATH, stopped).await;
    assert_eq!(content(&chunks, 0), text[..at]);
    assert_eq!(finish_reasons(&chunks), ["stop"]);
}

#[tokio::test]
async fn logprobs_are_as_many_as_completion_tokens() {
    let running = running().await;
    let request = chat(json!({ "temperature": 0, "max_tokens": 12, "logprobs": true, "top_logprobs": 2 }));
    let whole = running.ok(PATH, request.clone()).await;
    let entries = whole["choices"][0]["logprobs"]["content"].as_array().expect("a list").clone();
    assert_eq!(json!(entries.len()), whole["usage"]["completion_tokens"]);
    let first = &entries[0];
    assert_eq!(first["top_logprobs"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        (&first["token"], &first["logprob"]),
        (&first["top_logprobs"][0]["token"], &first["top_logprobs"][0]["logprob"])
    );
    assert!(first["logprob"].as_f64().is_some_and(|logprob| logprob < 0.0) && first["bytes"].is_array());
    let chunks = running.chunks(PATH, request).await;
    let streamed: Vec<&Value> =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array()).flatten().collect();
    assert_eq!(streamed, entries.iter().collect::<Vec<_>>());
    let plain = running.ok(PATH, chat(json!({ "max_tokens": 1 }))).await;
    assert_eq!(plain["choices"][0]["logprobs"], Value::Null);
}

#[tokio::test]
async fn without_a_cap_the_answer_may_fill_the_context() {
    let running = running().await;
    let answer = running.ok(PATH, chat(json!({ "ignore_eos": true }))).await;
    assert_eq!(answer["usage"]["total_tokens"], 400);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn the_newer_cap_wins_and_content_may_come_in_parts() {
    let running = running().await;
    let parts = json!([{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]);
    let request = chat(json!({
        "max_tokens": 5, "max_completion_tokens": 7, "ignore_eos": true, "messages": [{"role": "user", "content": parts}],
    }));
    let usage = running.ok(PATH, request).await["usage"].clone();
    assert_eq!(
        (&usage["prompt_tokens"], &usage["completion_tokens"]),
        (&json!(10), &json!(7)),
        "with a newline between"
    );
}

#[tokio::test]
async fn a_repeated_prompt_is_reported_as_cached_within_one_salt() {
    let running = running().await;
    let long = json!([{"role": "user", "content": "x".repeat(100)}]);
    let ask = |salt: &str| chat(json!({ "messages": long, "max_tokens": 1, "cache_salt": salt }));
    let cached = |answer: Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    assert_eq!(cached(running.ok(PATH, ask("a")).await), 0);
    assert_eq!(cached(running.ok(PATH, ask("a")).await), 96);
    assert_eq!(cached(running.ok(PATH, ask("b")).await), 0);
}

#[tokio::test]
async fn bias_bans_and_forces() {
    let running = running().await;
    let forced = chat(json!({ "logit_bias": {"98": 100}, "max_tokens": 4 }));
    assert_eq!(running.ok(PATH, forced).await["choices"][0]["message"]["content"], "bbbb");
}
