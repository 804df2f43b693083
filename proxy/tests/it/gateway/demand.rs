//! What is held for a call: prompts of every shape by their tokens, and the largest answer that was asked for.

use serde_json::{Value, json};
use tokenizer::Tokenizer;

use super::{
    rig::{KEY, Rig, Settings, request},
    upstream::{self, Upstream},
};

/// Limits that no prompt here meets.
const QUOTAS: &str = "quotas: [{ level: org, match: acme, limits: [{ tokens: 100000000, per: lifetime }] }]";

/// Sends each body to the path and checks what was held: prompt tokens and output tokens.
async fn check(path: &str, cases: &[(Value, u64, u64)]) {
    let upstream = Upstream::start(|_| {
        upstream::json(200, "{\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}")
    })
    .await;
    let rig = Rig::with(&upstream, Settings { quotas: Some(QUOTAS.into()), ..Settings::default() }).await;
    for (index, (body, prompt, output)) in cases.iter().enumerate() {
        let mut body = body.clone();
        body["model"] = "m".into();
        let answer = rig.send(&request("POST", path, &[KEY], &body.to_string())).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let demand = rig.lines(index + 1).await[index].demand.expect("admitted");
        let shown: String = body.to_string().chars().take(200).collect();
        assert_eq!((demand.prompt, demand.max_output), (*prompt, *output), "{shown}");
    }
}

#[tokio::test]
async fn completions_hold_all_prompts_and_the_best_of_their_choices() {
    check(
        "/v1/completions",
        &[
            (json!({"prompt": "a b", "max_tokens": 20}), 2, 20),
            (json!({"prompt": ["a b", "c"], "max_tokens": 20, "n": 2, "best_of": 3}), 3, 120),
            (json!({"prompt": [1, 2, 3], "max_tokens": 20, "n": 2}), 3, 40),
            (json!({"prompt": [[1, 2], [3]], "max_tokens": 20}), 3, 40),
            (json!({"prompt": "a", "suffix": " b c", "max_tokens": 1}), 3, 1),
            (json!({"prompt": null}), 0, 100),
        ],
    )
    .await;
}

#[tokio::test]
async fn chats_hold_the_largest_cap_and_a_schema_for_the_answer() {
    let messages = json!([{"role": "user", "content": "hi"}]);
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let tokenizer = Tokenizer::builtin("o200k_base").expect("built in");
    let written = tokenizer.count(&format!("\n\n# Response Formats\n\n## place\n\n{schema}")) as u64;
    let format = json!({"type": "json_schema", "json_schema": {"name": "place", "schema": schema}});
    check(
        "/v1/chat/completions",
        &[
            (json!({"messages": messages}), 8, 100),
            (json!({"messages": messages, "max_tokens": 7, "max_completion_tokens": 9, "max_output_tokens": 8}), 8, 9),
            (json!({"messages": messages, "max_tokens": 7, "n": 3}), 8, 21),
            (json!({"messages": messages, "max_tokens": 7, "response_format": format}), 8 + written, 7),
            (json!({"messages": messages, "max_tokens": 7, "response_format": {"type": "json_object"}}), 8, 7),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_long_prompt_is_counted_as_exactly_as_a_short_one() {
    let tokenizer = Tokenizer::builtin("o200k_base").expect("built in");
    let texts = ["word, 12 of them. ".repeat(20_000), "a".repeat(1_100_000), "漢".repeat(100_000)];
    let cases = texts.map(|text| {
        let tokens = tokenizer.count(&text) as u64 + 7;
        (json!({"messages": [{"role": "user", "content": text}], "max_tokens": 1}), tokens, 1)
    });
    check("/v1/chat/completions", &cases).await;
}
