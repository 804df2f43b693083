use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Map, Value, json};

use super::fixture::*;

async fn check(running: &Running, path: &str, body: Value, status: u16, code: &str, param: Option<&str>) {
    let (got, answer) = running.post(path, body.clone()).await;
    let error = &answer["error"];
    assert_eq!(
        (got.as_u16(), error["code"].as_str(), error["param"].as_str()),
        (status, Some(code), param),
        "{body}\n{answer}"
    );
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()) && error["type"].is_string());
}

#[tokio::test]
async fn wrong_fields_are_refused_by_name() {
    let running = running().await;
    let long = "x".repeat(500);
    for (field, value) in [
        ("temperature", json!(-1)),
        ("temperature", json!(2.1)),
        ("temperature", json!("hot")),
        ("top_p", json!(1.5)),
        ("top_k", json!(2.5)),
        ("min_p", json!(-0.1)),
        ("presence_penalty", json!(3)),
        ("frequency_penalty", json!([])),
        ("repetition_penalty", json!(0)),
        ("n", json!(0)),
        ("n", json!(-1)),
        ("n", json!(1e9)),
        ("seed", json!("text")),
        ("seed", json!(u64::MAX)),
        ("stop", json!(5)),
        ("stop", json!(["a", 5])),
        ("stop", json!(vec!["a"; 17])),
        ("logit_bias", json!([1])),
        ("logit_bias", json!({"97": 101})),
        ("logit_bias", json!({"a": 1})),
        ("logit_bias", json!({"300": 1})),
        ("stream", json!("yes")),
        ("stream_options", json!({"include_usage": true})),
        ("logprobs", json!(3)),
        ("top_logprobs", json!(2)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-5)),
        ("max_tokens", json!(2.5)),
        ("max_tokens", json!("50")),
        ("max_tokens", json!(true)),
        ("max_tokens", json!(1e300)),
        ("max_tokens", json!(i64::MAX)),
        ("max_completion_tokens", json!(u64::MAX)),
        ("messages", json!([])),
        ("messages", json!({"role": "user"})),
        ("messages", json!(long)),
    ] {
        check(&running, "/v1/chat/completions", chat(json!({ field: value })), 400, "invalid_value", Some(field)).await;
    }
}

#[tokio::test]
async fn messages_are_checked_one_by_one() {
    let running = running().await;
    for (message, param) in [
        (json!({"role": "banana", "content": "x"}), "messages[0].role"),
        (json!({"content": "x"}), "messages[0].role"),
        (json!({"role": "user"}), "messages[0].content"),
        (json!({"role": "user", "content": 7}), "messages[0].content"),
        (json!({"role": "user", "content": [{"text": "x"}]}), "messages[0].content[0].type"),
        (json!("hi"), "messages[0]"),
    ] {
        check(
            &running,
            "/v1/chat/completions",
            chat(json!({ "messages": [message] })),
            400,
            "invalid_value",
            Some(param),
        )
        .await;
    }
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]);
    let param = Some("messages[0].content[0].type");
    check(&running, "/v1/chat/completions", chat(json!({ "messages": image })), 400, "unsupported_parameter", param)
        .await;
}

#[tokio::test]
async fn what_is_not_built_is_refused_and_what_asks_for_nothing_is_not() {
    let running = running().await;
    for (field, value) in [
        ("response_format", json!({"type": "json_object"})),
        ("tools", json!([{"type": "function"}])),
        ("tool_choice", json!("required")),
        ("guided_json", json!({"type": "object"})),
        ("prompt_logprobs", json!(1)),
        ("min_tokens", json!(5)),
        ("continue_final_message", json!(true)),
    ] {
        check(
            &running,
            "/v1/chat/completions",
            chat(json!({ field: value })),
            400,
            "unsupported_parameter",
            Some(field),
        )
        .await;
    }
    let harmless = chat(json!({
        "response_format": {"type": "text"}, "tools": [], "tool_choice": "none", "user": "ana", "store": false,
        "some_future_field": {"a": 1}, "logit_bias": {}, "stop": "", "seed": null, "max_tokens": 3,
        "parallel_tool_calls": true, "min_tokens": 0, "skip_special_tokens": true,
    }));
    let answer = running.ok("/v1/chat/completions", harmless).await;
    assert_eq!(answer["usage"]["completion_tokens"], 3);
}

#[tokio::test]
async fn a_template_that_complains_is_the_clients_400() {
    let running = running().await;
    let messages = json!([{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]);
    let (status, answer) = running.post("/v1/chat/completions", chat(json!({ "messages": messages }))).await;
    assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!("messages")));
    assert!(
        answer["error"]["message"].as_str().is_some_and(|message| message.contains("system comes first")),
        "{answer}"
    );
}

#[tokio::test]
async fn a_base_model_says_that_it_cannot_chat() {
    let running = start(Setup { template: false, ..Setup::default() }).await;
    let path = "/v1/chat/completions";
    check(&running, path, chat(json!({})), 400, "model_has_no_chat_template", Some("messages")).await;
}

#[tokio::test]
async fn what_does_not_fit_the_context_is_refused_with_the_numbers() {
    let running = running().await;
    let long = "x".repeat(400);
    let (status, answer) =
        running.post("/v1/completions", completion(json!({ "prompt": long, "max_tokens": 7 }))).await;
    assert_eq!((status.as_u16(), answer["error"]["code"].as_str()), (400, Some("context_length_exceeded")));
    let message = answer["error"]["message"].as_str().expect("text");
    assert!(message.contains("maximum context length is 400 tokens") && message.contains("407"), "{message}");
    let path = "/v1/chat/completions";
    let too_much = chat(json!({ "max_tokens": 399 }));
    check(&running, path, too_much, 400, "context_length_exceeded", Some("max_tokens")).await;
}

#[tokio::test]
async fn completions_check_their_prompt() {
    let running = running().await;
    for prompt in
        [json!(null), json!([]), json!(""), json!([[]]), json!({}), json!(["a", 5]), json!([1, "a"]), json!([300])]
    {
        check(
            &running,
            "/v1/completions",
            completion(json!({ "prompt": prompt })),
            400,
            "invalid_value",
            Some("prompt"),
        )
        .await;
    }
    check(
        &running,
        "/v1/completions",
        completion(json!({ "max_tokens": 0 })),
        400,
        "invalid_value",
        Some("max_tokens"),
    )
    .await;
    check(
        &running,
        "/v1/completions",
        completion(json!({ "best_of": 3 })),
        400,
        "unsupported_parameter",
        Some("best_of"),
    )
    .await;
    check(
        &running,
        "/v1/completions",
        completion(json!({ "suffix": "x" })),
        400,
        "unsupported_parameter",
        Some("suffix"),
    )
    .await;
}

#[tokio::test]
async fn a_lone_half_of_a_character_is_text_like_any_other() {
    let running = running().await;
    let (status, _) = running.post("/v1/completions", completion(json!({ "prompt": "\u{fffd}\u{0}😀" }))).await;
    assert_eq!(status, StatusCode::OK);
    let body: Bytes = br#"{"model":"letters","prompt":"\ud83d"}"#[..].into();
    let response = send(running.address, Method::POST, "/v1/completions", &[], body).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn models_and_paths_that_do_not_exist_are_404() {
    let running = running().await;
    check(&running, "/v1/chat/completions", chat(json!({ "model": "gpt-9" })), 404, "model_not_found", Some("model"))
        .await;
    check(&running, "/v1/chat/completions", chat(json!({ "model": null })), 400, "invalid_value", Some("model")).await;
    check(&running, "/v1/banana", json!({}), 404, "unknown_url", None).await;
    let (status, text) = running.get("/v1/models/gpt-9").await;
    assert!(status == StatusCode::NOT_FOUND && text.contains("model_not_found"), "{text}");
}

async fn raw(
    running: &Running,
    method: Method,
    headers: &[(&str, &str)],
    body: &'static str,
) -> (StatusCode, Value, String) {
    let response = send(running.address, method, "/v1/completions", headers, body.into()).await;
    let allow = response.headers().get("allow").map_or("", |allow| allow.to_str().expect("text")).to_owned();
    (response.status(), json_of(response).await, allow)
}

#[tokio::test]
async fn method_media_type_and_syntax_have_the_same_envelope() {
    let running = running().await;
    let (status, answer, allow) = raw(&running, Method::GET, &[], "").await;
    assert_eq!(
        (status.as_u16(), answer["error"]["code"].as_str(), allow.as_str()),
        (405, Some("method_not_allowed"), "POST")
    );
    let (status, answer, _) = raw(&running, Method::POST, &[("content-type", "text/plain")], "{}").await;
    assert_eq!((status.as_u16(), answer["error"]["code"].as_str()), (415, Some("unsupported_media_type")));
    for body in ["{", "[]", "", "{\"a\":1e999}"] {
        let (status, answer, _) =
            raw(&running, Method::POST, &[("content-type", "application/json; charset=utf-8")], body).await;
        assert_eq!((status.as_u16(), answer["error"]["type"].as_str()), (400, Some("invalid_request_error")), "{body}");
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let mut setup = Setup::default();
    setup.options.body_limit = 100;
    let running = start(setup).await;
    let too_large = completion(json!({ "prompt": "x".repeat(100) }));
    check(&running, "/v1/completions", too_large, 413, "request_too_large", None).await;
    let small = Map::from_iter([("prompt".to_owned(), json!("x"))]);
    assert_eq!(running.post("/tokenize", Value::Object(small)).await.0, StatusCode::OK);
}
