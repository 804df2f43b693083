use serde_json::{Value, json};

use super::fixture::*;

const PATH: &str = "/v1/completions";

#[tokio::test]
async fn text_and_its_tokens_are_the_same_prompt() {
    let running = running().await;
    let ids: Vec<u8> = b"once upon a time".to_vec();
    let ask = |prompt: Value| completion(json!({ "prompt": prompt, "temperature": 0, "max_tokens": 8 }));
    let text = running.ok(PATH, ask(json!("once upon a time"))).await;
    assert_eq!(text["object"], "text_completion");
    assert_eq!(text["choices"][0]["logprobs"], Value::Null);
    for prompt in [json!(["once upon a time"]), json!(ids), json!([ids])] {
        assert_eq!(running.ok(PATH, ask(prompt)).await["choices"][0]["text"], text["choices"][0]["text"]);
    }
}

#[tokio::test]
async fn every_choice_of_every_prompt_is_returned_and_counted() {
    let running = running().await;
    let request =
        completion(json!({ "prompt": ["aa", "bbb"], "n": 2, "max_tokens": 5, "ignore_eos": true, "temperature": 0 }));
    let answer = running.ok(PATH, request.clone()).await;
    let choices = answer["choices"].as_array().expect("a list");
    assert_eq!(
        choices.iter().map(|choice| choice["index"].as_u64()).collect::<Vec<_>>(),
        [Some(0), Some(1), Some(2), Some(3)]
    );
    assert_eq!(choices[0]["text"], choices[1]["text"]);
    assert_ne!(choices[0]["text"], choices[2]["text"]);
    assert_eq!(answer["usage"]["prompt_tokens"], 5);
    assert_eq!(answer["usage"]["completion_tokens"], 20);
    let mut texts = [const { String::new() }; 4];
    for chunk in running.chunks(PATH, request).await {
        let choice = &chunk["choices"][0];
        texts[choice["index"].as_u64().expect("a number") as usize] += choice["text"].as_str().expect("text");
    }
    assert_eq!(json!(texts), json!(choices.iter().map(|choice| choice["text"].clone()).collect::<Vec<_>>()));
}

#[tokio::test]
async fn sixteen_tokens_are_made_when_nothing_is_said() {
    let answer = running().await.ok(PATH, completion(json!({ "ignore_eos": true }))).await;
    assert_eq!(answer["usage"]["completion_tokens"], 16);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn echo_with_logprobs_and_no_tokens_scores_the_prompt() {
    let running = running().await;
    let request = completion(json!({ "prompt": "score me", "echo": true, "logprobs": 2, "max_tokens": 0 }));
    let answer = running.ok(PATH, request.clone()).await;
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("score me"), &json!("length")));
    let logprobs = &choice["logprobs"];
    let letters: Vec<String> = "score me".chars().map(String::from).collect();
    assert_eq!(logprobs["tokens"], json!(letters));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2, 3, 4, 5, 6, 7]));
    assert_eq!((&logprobs["token_logprobs"][0], &logprobs["top_logprobs"][0]), (&Value::Null, &Value::Null));
    for (token, index) in letters.iter().zip(0..).skip(1) {
        let logprob = &logprobs["token_logprobs"][index];
        assert!(logprob.as_f64().is_some_and(|logprob| logprob < 0.0));
        assert_eq!(&logprobs["top_logprobs"][index][token], logprob);
    }
    assert_eq!((&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]), (&json!(8), &json!(0)));
    // A prompt that is cached is scored all the same.
    assert_eq!(running.ok(PATH, request).await["choices"][0]["logprobs"], *logprobs);
}

#[tokio::test]
async fn the_score_of_a_text_is_what_generating_it_reports() {
    let running = running().await;
    let ask = completion(
        json!({ "prompt": "go", "temperature": 0, "logprobs": 0, "max_tokens": 6, "ignore_eos": true, "echo": true }),
    );
    let made = running.ok(PATH, ask).await["choices"][0].clone();
    let score = completion(json!({ "prompt": made["text"], "echo": true, "logprobs": 0, "max_tokens": 0 }));
    let scored = running.ok(PATH, score).await["choices"][0].clone();
    assert_eq!(made["logprobs"], scored["logprobs"]);
}

#[tokio::test]
async fn echo_alone_puts_the_prompt_before_the_text() {
    let running = running().await;
    let plain = running.ok(PATH, completion(json!({ "temperature": 0 }))).await["choices"][0]["text"].clone();
    let expected = format!("once upon a time{}", plain.as_str().expect("text"));
    let request = completion(json!({ "temperature": 0, "echo": true }));
    assert_eq!(running.ok(PATH, request.clone()).await["choices"][0]["text"], expected);
    let streamed: String =
        running.chunks(PATH, request).await.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(streamed, expected);
}

#[tokio::test]
async fn tokens_can_be_counted_and_turned_back() {
    let running = running().await;
    let tokens = running.ok("/tokenize", json!({ "model": "letters", "prompt": "<|im_end|>" })).await;
    assert_eq!((&tokens["count"], &tokens["max_model_len"]), (&json!(10), &json!(400)));
    assert_eq!(running.ok("/detokenize", json!({ "tokens": tokens["tokens"] })).await["prompt"], "<|im_end|>");
    let parsed = running.ok("/tokenize", json!({ "prompt": "<|im_end|>", "parse_special": true })).await;
    assert_eq!(parsed["tokens"], json!([256]));
    let messages = json!({ "messages": [{"role": "user", "content": "hi"}] });
    assert_eq!(running.ok("/tokenize", messages).await["count"], 9);
    let (status, _) = running.post("/detokenize", json!({ "tokens": [257] })).await;
    assert_eq!(status.as_u16(), 400);
}
