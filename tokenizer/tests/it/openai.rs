//! Prompt counts of OpenAI requests: the reported ones exactly, and other parts within their stated estimates.

use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use serde_json::{Value, json};
use tokenizer::openai_chat::{Estimates, ImageRule, Request};
use tokenizer::{ChatTemplate, PromptCounter, Tokenizer};

use crate::fixture::{GEMMA, SMOL, SMOLLM2, golden, model};

static CL100K: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| Arc::new(Tokenizer::builtin("cl100k_base").unwrap()));

fn counter(estimates: Estimates) -> PromptCounter {
    PromptCounter::new(CL100K.clone(), None, estimates)
}

fn chat(body: &Value) -> u64 {
    counter(Estimates::default()).chat(&Request::of(body), b"")
}

/// What one user message with this content costs beyond an empty one.
fn content(content: Value) -> u64 {
    chat(&json!({"messages": [{"role": "user", "content": content}]})) - 7
}

#[test]
fn counts_are_those_openai_reported() {
    let golden = golden("openai_chat_counts.json");
    let items = golden["items"].as_array().unwrap();
    assert!(items.len() >= 12);
    for item in items {
        assert_eq!(chat(item), item["prompt_tokens"].as_u64().unwrap(), "{}", item["id"]);
    }
}

#[test]
fn tools_cost_what_the_functions_in_them_cost() {
    let function = json!({"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}});
    let messages = json!([{"role": "user", "content": "x"}]);
    let old = json!({"messages": messages, "functions": [function], "function_call": {"name": "f"}});
    let choice = json!({"type": "function", "function": {"name": "f"}});
    let new =
        json!({"messages": messages, "tools": [{"type": "function", "function": function}], "tool_choice": choice});
    assert_eq!(chat(&old), chat(&new));
    let with = |choice: Value| chat(&json!({"messages": messages, "functions": [function], "function_call": choice}));
    assert_eq!([with(json!("none")) - with(json!("auto")), with(json!({"name": "f"})) - with(json!(null))], [1, 5]);
    let none = json!({"messages": messages, "tools": []});
    assert_eq!(chat(&none), chat(&json!({"messages": messages})));
}

#[test]
fn a_schema_for_the_answer_costs_its_text() {
    let with = |format: Value| {
        chat(&json!({"messages": [{"role": "user", "content": "x"}], "response_format": format}))
            - chat(&json!({"messages": [{"role": "user", "content": "x"}]}))
    };
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let written = format!("\n\n# Response Formats\n\n## place\n\n{schema}");
    let format = json!({"type": "json_schema", "json_schema": {"name": "place", "strict": true, "schema": schema}});
    assert_eq!(with(format), CL100K.count(&written) as u64);
    assert_eq!([with(json!({"type": "json_object"})), with(json!({"type": "text"})), with(json!(7))], [0, 0, 0]);
}

#[test]
fn calls_in_messages_are_counted() {
    let call = |arguments: &str| {
        let calls = json!([{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}]);
        chat(&json!({"messages": [{"role": "assistant", "content": null, "tool_calls": calls}]}))
    };
    assert_eq!(call(""), 3 + 3 + 1 + 3 + 1);
    assert!(call(&"word ".repeat(500)) > 500);
}

fn png(width: u32, height: u32, size: usize) -> String {
    let mut bytes = [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".as_slice(), &width.to_be_bytes(), &height.to_be_bytes()].concat();
    bytes.resize(size, 0xA5);
    format!("data:image/png;base64,{}", base64::engine::general_purpose::STANDARD.encode(bytes))
}

#[test]
fn images_cost_their_tiles_not_their_base64() {
    let url = png(1024, 1024, 1_500_000);
    let nested = |detail: &str| content(json!([{"type": "image_url", "image_url": {"url": url, "detail": detail}}]));
    assert_eq!([nested("high"), nested("auto"), nested("low")], [765, 765, 85]);
    assert_eq!(content(json!([{"type": "image_url", "image_url": {"url": url}}])), 765);
    assert_eq!(content(json!([{"type": "input_image", "image_url": url, "detail": "low"}])), 85);
    assert_eq!(content(json!([{"type": "text", "text": "hello"}, {"type": "input_image", "image_url": url}])), 766);
    let estimates = Estimates { image: ImageRule::of_model("gpt-4o-mini"), ..Estimates::default() };
    let body = json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]});
    assert_eq!(counter(estimates).chat(&Request::of(&body), b""), 25_501 + 7);
}

#[test]
fn parts_without_a_size_cost_a_stated_estimate() {
    let remote = json!([{"type": "image_url", "image_url": {"url": "https://example.org/huge.png"}}]);
    assert_eq!(content(remote), ImageRule::default().worst());
    let base64 = "A".repeat(1_000_000);
    let audio = content(json!([{"type": "input_audio", "input_audio": {"data": base64, "format": "wav"}}]));
    assert_eq!(audio, 1_875); // 187.5 s at 32 kbit/s, ten tokens a second
    let file =
        |len: usize| content(json!([{"type": "file", "file": {"file_data": &base64[..len], "filename": "a.pdf"}}]));
    assert_eq!([file(300_000), file(100)], [1_757, 1_024]);
    assert_eq!(content(json!([{"type": "file", "file": {"file_id": "file-1"}}])), 1_024);
    assert_eq!(content(json!([{"type": "video_url", "video_url": {"url": "https://example.org/v"}}])), 1_024);
    assert_eq!(content(json!([{"type": "future_part", "x": 1}])), 256);
}

#[test]
fn malformed_requests_are_counted_without_a_panic() {
    for body in [
        json!(null),
        json!({"messages": 1}),
        json!({"messages": [null, 1, "x", [], {"role": 1, "content": {"a": 1}, "tool_calls": {}, "function_call": 2}]}),
        json!({"messages": [{"content": [null, 1, "x", {"type": 1}, {"type": "image_url"}, {"type": "input_audio"}]}]}),
        json!({"messages": [], "tools": [1, {"function": 1}], "functions": {"a": 1}, "tool_choice": [1]}),
        json!({"messages": [{"role": "function", "content": null}], "tool_choice": {"function": {}}}),
    ] {
        assert!(chat(&body) < 3_000, "{body}");
    }
}

#[test]
fn a_model_with_a_template_is_counted_by_it() {
    let template = ChatTemplate::from_gguf(&gguf::File::open_metadata(model(SMOLLM2)).unwrap()).unwrap().unwrap();
    let counter = PromptCounter::new(SMOL.clone(), Some(Arc::new(template)), Estimates::default());
    for item in golden("smollm2_chat_template.json")["items"].as_array().unwrap() {
        if item["add_generation_prompt"] == true && item.get("note").is_none() {
            assert_eq!(counter.chat(&Request::of(item), b""), item["ids"].as_array().unwrap().len() as u64);
        }
    }
    let shown = ChatTemplate::new("{% for p in messages[0].content %}{{ p['type'] }}{% endfor %}", "", "").unwrap();
    let shown = PromptCounter::new(SMOL.clone(), Some(Arc::new(shown)), Estimates::default());
    let image = json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": png(8, 8, 99)}}]}]});
    assert_eq!(shown.chat(&Request::of(&image), b""), SMOL.count("image_url") as u64 + 255);
    let refused = json!({"messages": [{"role": "user", "content": {"odd": 1}}]});
    assert!(counter.chat(&Request::of(&refused), b"") > 0);
}

#[test]
fn prompts_are_texts_ids_or_lists_of_them() {
    let counter = counter(Estimates::default());
    let text = |prompt: Value| counter.text(&prompt, b"");
    assert_eq!(text(json!([[57668, 53901], [1, 2, 3]])), 5);
    assert_eq!(text(json!(["hello world", "hello"])), 3);
    assert_eq!(text(json!([1, 2])), 2);
    assert_eq!([text(json!(null)), text(json!({}))], [0, 0]);
    let begins = PromptCounter::new(GEMMA.clone(), None, Estimates::default());
    assert_eq!(begins.text(&json!("Hello world"), b""), 3); // with <bos>
}

#[test]
fn a_conversation_counts_the_same_when_its_beginning_is_remembered() {
    let template = ChatTemplate::from_gguf(&gguf::File::open_metadata(model(SMOLLM2)).unwrap()).unwrap().unwrap();
    let new = |template: Option<&Arc<ChatTemplate>>, tokenizer: &Arc<Tokenizer>| {
        PromptCounter::new(tokenizer.clone(), template.cloned(), Estimates::default())
    };
    let template = Some(Arc::new(template));
    let text = "Water falls through the penstock, and 12 turbines turn. ".repeat(300);
    let mut messages = Vec::new();
    for (template, tokenizer) in [(template.as_ref(), &*SMOL), (None, &*GEMMA), (None, &*CL100K)] {
        let remembering = new(template, tokenizer);
        for turn in 0..6 {
            messages.push(json!({"role": "user", "content": format!("{turn} {}", &text[..turn * 3_000])}));
            let body = json!({"messages": messages});
            let request = Request::of(&body);
            assert_eq!(remembering.chat(&request, b"acme"), new(template, tokenizer).chat(&request, b""), "{turn}");
            let prompt = json!(text[..turn * 3_000]);
            assert_eq!(remembering.text(&prompt, b"acme"), new(template, tokenizer).text(&prompt, b""), "{turn}");
        }
    }
}
