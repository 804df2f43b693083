//! The golden files against the HTTP face: what a client of the real models sees.

use std::path::PathBuf;
use std::sync::LazyLock;

use engine::Config;
use engine::http::Model;
use serde_json::{Value, json};

use crate::driver::{GEMMA3, SMOLLM2};
use crate::http::{Running, load_model, serve, text};

static SMOL: LazyLock<Model> = LazyLock::new(|| load_model(SMOLLM2, 2048, Config::default()));
static GEMMA: LazyLock<Model> = LazyLock::new(|| load_model(GEMMA3, 2048, Config::default()));

fn golden(name: &str) -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(name);
    serde_json::from_slice(&std::fs::read(path).expect("a golden file")).expect("JSON")
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("token ids")
}

/// Steps before the first whose smaller margin is under 0.75: there another engine may rightly choose otherwise.
fn certain_steps(item: &Value) -> usize {
    let margins = |name: &str| -> Vec<f64> { serde_json::from_value(item[name].clone()).expect("numbers") };
    let (theirs, exact) = (margins("margin_top1_top2"), margins("exact_f32_margin"));
    theirs.iter().zip(&exact).position(|(a, b)| a.min(*b) < 0.75).unwrap_or(theirs.len())
}

/// Greedy continuations, by token ids, all at once. Returns how many steps were compared.
async fn check_greedy(running: &Running, file: &str) -> usize {
    let golden = golden(file);
    let items = golden["items"].as_array().expect("a list");
    let ask = |item: &Value| {
        let max_tokens = ids(&item["greedy_ids"]).len();
        running.ok("/v1/completions", json!({ "prompt": item["ids"], "temperature": 0, "max_tokens": max_tokens }))
    };
    let answers = futures_util::future::join_all(items.iter().map(ask)).await;
    let mut compared = 0;
    for (item, answer) in items.iter().zip(answers) {
        let (certain, greedy) = (certain_steps(item), ids(&item["greedy_ids"]));
        compared += certain;
        let expected = running.model.tokenizer.decode(&greedy[..certain], tokenizer::Special::Plain);
        let expected = expected.trim_end_matches(char::REPLACEMENT_CHARACTER);
        assert!(text(&answer).starts_with(expected), "{}: {:?} after {certain} steps", item["id"], text(&answer));
        assert_eq!(answer["usage"]["prompt_tokens"], ids(&item["ids"]).len(), "{}", item["id"]);
    }
    compared
}

/// Perplexity of the shared text by `echo`, against exact arithmetic on the same weights.
async fn check_perplexity(running: &Running, file: &str, tolerance: f64) {
    let golden = golden(file);
    let body = json!({ "prompt": golden["ids"], "echo": true, "logprobs": 0, "max_tokens": 0 });
    let answer = running.ok("/v1/completions", body).await;
    let logprobs = answer["choices"][0]["logprobs"]["token_logprobs"].as_array().expect("a list").clone();
    assert_eq!((logprobs.len(), &logprobs[0]), (ids(&golden["ids"]).len(), &Value::Null));
    let sum: f64 = logprobs[1..].iter().map(|logprob| logprob.as_f64().expect("a number")).sum();
    let perplexity = (-sum / (logprobs.len() - 1) as f64).exp();
    let exact = golden["exact_f32"]["ppl"].as_f64().expect("a number");
    assert!((perplexity / exact - 1.0).abs() < tolerance, "perplexity {perplexity}, exact {exact}");
}

#[tokio::test]
async fn smollm2_continues_as_the_reference_does() {
    assert!(check_greedy(&serve(&SMOL).await, "smollm2_greedy.json").await > 40);
}

#[tokio::test]
async fn gemma3_continues_as_the_reference_does() {
    assert!(check_greedy(&serve(&GEMMA).await, "gemma3_greedy.json").await > 15);
}

#[tokio::test]
async fn smollm2_scores_a_text_by_echo() {
    check_perplexity(&serve(&SMOL).await, "smollm2_perplexity.json", 0.005).await;
}

#[tokio::test]
async fn gemma3_scores_a_text_by_echo() {
    check_perplexity(&serve(&GEMMA).await, "gemma3_perplexity.json", 0.01).await;
}

#[tokio::test]
async fn chats_render_as_the_models_own_template_does() {
    let running = serve(&SMOL).await;
    let golden = golden("smollm2_chat_template.json");
    // A note marks the conversation in which a user spells control tokens: there we differ, on purpose.
    let same = |item: &&Value| item["note"].is_null() && item["add_generation_prompt"] == true;
    for item in golden["items"].as_array().expect("a list").iter().filter(same) {
        let tokens = running.ok("/tokenize", json!({ "messages": item["messages"] })).await["tokens"].clone();
        assert_eq!(tokens, item["ids"], "{}", item["text"]);
    }
}

#[tokio::test]
async fn gemma3_begins_a_prompt_with_its_begin_token_and_cannot_chat() {
    let running = serve(&GEMMA).await;
    let prompt = "The capital of France is";
    let answer = running.ok("/v1/completions", json!({ "prompt": prompt, "temperature": 0, "max_tokens": 4 })).await;
    assert_eq!(answer["usage"]["prompt_tokens"], 6);
    let messages = json!([{ "role": "user", "content": "hi" }]);
    let (status, text) = running.post("/v1/chat/completions", json!({ "model": "model", "messages": messages })).await;
    assert!(status.as_u16() == 400 && text.contains("model_has_no_chat_template"), "{text}");
}
