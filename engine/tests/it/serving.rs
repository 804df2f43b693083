//! Promises to users that need a real model: a chat that answers, usage to the token, and answers that do not depend
//! on what shares the batch, the cache or the pool.

use std::sync::LazyLock;

use engine::Config;
use engine::http::Model;
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::driver::SMOLLM2;
use crate::http::{Running, load_model, serve, text};

static MODEL: LazyLock<Model> = LazyLock::new(|| load_model(SMOLLM2, 2048, Config::default()));

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn ask(question: &str) -> Value {
    json!({ "messages": [{ "role": "user", "content": question }], "temperature": 0, "max_tokens": 48 })
}

fn streamed_text(chunks: &[Value]) -> String {
    chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect()
}

#[tokio::test]
async fn the_capital_of_france_is_paris_streamed_or_whole() {
    let running = serve(&MODEL).await;
    // Asked so, the first token leads by more than one nat; asked shorter, eight-bit activations tip a near-tie.
    let question = "What is the capital city of France? Answer in one sentence.";
    let whole = running.ok(CHAT, ask(question)).await;
    assert_eq!(text(&whole), "The capital city of France is Paris.");
    let chunks = running.chunks(CHAT, ask(question)).await;
    assert_eq!(streamed_text(&chunks), text(&whole));
    let usage =
        |answer: &Value| (answer["usage"]["prompt_tokens"].clone(), answer["usage"]["completion_tokens"].clone());
    assert_eq!(usage(chunks.last().expect("some")), usage(&whole));
}

#[tokio::test]
async fn the_end_token_is_counted_and_is_no_text() {
    let running = serve(&MODEL).await;
    let whole = running.ok(CHAT, ask("What is 2+2?")).await;
    assert_eq!(whole["choices"][0]["finish_reason"], "stop", "{whole}");
    let counted = running.ok("/tokenize", json!({ "prompt": text(&whole) })).await["count"].as_u64();
    assert_eq!(whole["usage"]["completion_tokens"].as_u64(), counted.map(|count| count + 1));
}

#[tokio::test]
async fn a_stop_string_over_token_borders_ends_the_text_before_it() {
    let running = serve(&MODEL).await;
    let mut body = json!({ "prompt": "One, two, three, four,", "temperature": 0, "max_tokens": 24 });
    let free = running.ok(COMPLETIONS, body.clone()).await;
    let whole = text(&free);
    let stop = &whole[7..16];
    body["stop"] = json!([stop]);
    let cut = running.ok(COMPLETIONS, body).await;
    assert_eq!(text(&cut), &whole[..whole.find(stop).expect("part of it")]);
    assert_eq!(cut["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn characters_of_several_tokens_arrive_whole() {
    let running = serve(&MODEL).await;
    let prompt = "Repeat: 😀 ďábelské 漢字 👩‍👩‍👧\nRepeat: 😀 ďábelské 漢字 👩‍👩‍👧\nRepeat: 😀 ďábelské 漢字 👩‍👩‍👧\nRepeat:";
    for max_tokens in [2, 3, 5, 9, 30] {
        let body = json!({ "prompt": prompt, "temperature": 0, "max_tokens": max_tokens });
        let whole = running.ok(COMPLETIONS, body.clone()).await;
        let chunks = running.chunks(COMPLETIONS, body).await;
        let joined: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
        assert_eq!(joined, text(&whole));
        assert!(!joined.contains(char::REPLACEMENT_CHARACTER), "{joined}");
        assert_eq!(whole["usage"]["completion_tokens"], max_tokens);
    }
}

/// Eight sampled continuations of different lengths, of `shortest` tokens and more.
fn mixed(shortest: usize) -> Vec<Value> {
    let prompts = ["The", "Once upon a time", "In 1969", "def main():", "Dear Sir,", "2 + 2 =", "Water", "She said"];
    let long = "The quick brown fox jumps over the lazy dog. ".repeat(12);
    let of = |index: usize| if index == 3 { (&*long, 39) } else { (prompts[index], shortest + 9 * index) };
    let body = |(index, (prompt, max_tokens))| {
        json!({
            "prompt": prompt, "temperature": 0.9, "seed": index, "max_tokens": max_tokens,
            "logprobs": 1, "ignore_eos": true,
        })
    };
    (0..8).map(|index| (index, of(index))).map(body).collect()
}

async fn one_by_one(running: &Running, bodies: Vec<Value>) -> Vec<Value> {
    let mut answers = Vec::new();
    for body in bodies {
        answers.push(running.ok(COMPLETIONS, body).await["choices"][0].clone());
    }
    answers
}

async fn together(running: &Running, bodies: Vec<Value>) -> Vec<Value> {
    let answers = join_all(bodies.into_iter().map(|body| running.ok(COMPLETIONS, body))).await;
    answers.into_iter().map(|answer| answer["choices"][0].clone()).collect()
}

#[tokio::test]
async fn an_answer_does_not_depend_on_what_shares_the_batch() {
    let running = serve(&MODEL).await;
    assert_eq!(together(&running, mixed(12)).await, one_by_one(&running, mixed(12)).await);
}

#[tokio::test]
async fn an_answer_does_not_depend_on_chunks_or_preemption() {
    // 13 blocks hold one sequence of the longest kind, or two whole short ones of four to eight; chunks of 7 cut prompts
    // anywhere. Whatever the order of arrival, three of the eight meet before they end, and one has to give way.
    let config = Config { token_budget: 7, max_seqs: 7, context: Some(200), ..Config::default() };
    let tight = load_model(SMOLLM2, 13, config);
    let squeezed = together(&serve(&tight).await, mixed(60)).await;
    assert_eq!(squeezed, one_by_one(&serve(&MODEL).await, mixed(60)).await);
    let metrics = String::from_utf8(tight.handle.metrics()).expect("text");
    let preemptions = metrics.lines().find(|line| line.starts_with("vllm:num_preemptions_total"));
    assert!(preemptions.is_some_and(|line| !line.ends_with(" 0")), "nobody was preempted: {preemptions:?}");
}

#[tokio::test]
async fn a_prefix_hit_changes_no_bit() {
    let running = serve(&MODEL).await;
    let prompt = "A long and winding story about the sea and those who live by it. ".repeat(10);
    let body = json!({
        "prompt": prompt, "temperature": 0.8, "seed": 5, "max_tokens": 20, "logprobs": 2, "cache_salt": "hit",
    });
    let first = running.ok(COMPLETIONS, body.clone()).await;
    let second = running.ok(COMPLETIONS, body).await;
    assert_eq!(first["choices"], second["choices"]);
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert_eq!(cached(&first), Some(0));
    assert!(cached(&second) > Some(100), "{second}");
}
