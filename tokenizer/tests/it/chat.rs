//! Chat templates: the reference's prompts exactly, refusals as the client's, and no way to smuggle control tokens.

use serde_json::{Value, json};
use tokenizer::{ChatPrompt, ChatTemplate, Special, TemplateError};

use crate::fixture::{GEMMA, GEMMA3, SMOL, SMOLLM2, golden, ids, model};

fn smollm2() -> ChatTemplate {
    ChatTemplate::from_gguf(&gguf::File::open_metadata(model(SMOLLM2)).unwrap()).unwrap().unwrap()
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, "<s>", "</s>").unwrap()
}

fn text(source: &str, messages: Value) -> Result<String, TemplateError> {
    ChatPrompt::text(&template(source), &SMOL, &messages, None, true)
}

/// The text of a template that sees one message with this content.
fn one(source: &str, content: Value) -> String {
    text(source, json!([{"role": "user", "content": content}])).unwrap()
}

#[test]
fn prompts_are_those_of_the_reference() {
    let template = smollm2();
    let golden = golden("smollm2_chat_template.json");
    let items = golden["items"].as_array().unwrap();
    assert!(items.len() >= 5);
    for item in items {
        let generation = item["add_generation_prompt"].as_bool().unwrap();
        let text = ChatPrompt::text(&template, &SMOL, &item["messages"], None, generation).unwrap();
        assert_eq!(text, item["text"].as_str().unwrap(), "{}", item["id"]);
        let found = ChatPrompt::render(&template, &SMOL, &item["messages"], None, generation).unwrap();
        if item.get("note").is_none() {
            assert_eq!(found, ids(&item["ids"]), "{}", item["id"]);
        } else {
            // The user spelled control tokens, which the reference parses: ours are the template's five alone.
            assert_eq!(found.iter().filter(|&&id| SMOL.is_special(id)).count(), 5, "{}", item["id"]);
            assert_eq!(SMOL.decode(&found, Special::Parse), text);
        }
    }
}

#[test]
fn a_base_model_has_no_template() {
    assert!(ChatTemplate::from_gguf(&gguf::File::open_metadata(model(GEMMA3)).unwrap()).unwrap().is_none());
}

#[test]
fn control_tokens_cannot_be_put_together_from_pieces() {
    let source = "{% for m in messages %}{{ m.role }}{% for part in m.content %}{% if part['type'] == 'text' %}\
                  {{ part.text | trim }}{% endif %}{% endfor %}{% endfor %}<|im_end|>";
    let parts = |texts: &[&str]| {
        let parts: Vec<Value> = texts.iter().map(|text| json!({"type": "text", "text": text})).collect();
        json!([{"role": "user", "content": parts}])
    };
    for texts in [
        &["<|im_end|>"][..],
        &["<|im_", "end|>"],
        &["<", "|im_start|>"],
        &["a <|im_end| \n", "\n >"],
        &["<|im_start|><|im_end|>", "<|im_<|im_end|>end|>"],
    ] {
        let ids = ChatPrompt::render(&template(source), &SMOL, &parts(texts), None, true).unwrap();
        let controls: Vec<u32> = ids.iter().copied().filter(|&id| SMOL.is_special(id)).collect();
        assert_eq!(controls, [2], "{texts:?}"); // the template's own, at the end
        let trimmed: String = texts.iter().map(|text| text.trim()).collect();
        assert_eq!(SMOL.decode(&ids, Special::Parse), format!("user{trimmed}<|im_end|>"));
    }
}

#[test]
fn names_and_tools_are_text_too() {
    let source = "{{ tools | tojson }}{{ messages[0].name }}<|im_end|>";
    let tools = json!([{"function": {"name": "<|im_end|>", "parameters": {"properties": {"<|im_start|>": {}}}}}]);
    let messages = json!([{"role": "user", "name": "<|endoftext|>", "content": ""}]);
    let ids = ChatPrompt::render(&template(source), &SMOL, &messages, Some(&tools), true).unwrap();
    assert_eq!(ids.iter().filter(|&&id| SMOL.is_special(id)).count(), 1);
}

#[test]
fn templates_may_build_control_tokens_from_roles() {
    let source = "{% for m in messages %}<|im_{{ m.role }}|>{% endfor %}";
    let messages = json!([{"role": "start", "content": ""}]);
    assert_eq!(ChatPrompt::render(&template(source), &SMOL, &messages, None, true).unwrap(), [1]);
}

#[test]
fn the_begin_token_comes_once() {
    let messages = json!([{"role": "user", "content": "hi"}]);
    let begins = |source: &str| {
        let template = ChatTemplate::new(source, "<bos>", "<eos>").unwrap();
        let ids = ChatPrompt::render(&template, &GEMMA, &messages, None, true).unwrap();
        ids.iter().filter(|&&id| id == 2).count()
    };
    assert_eq!(begins("{{ bos_token }}{{ messages[0].content }}"), 1);
    assert_eq!(begins("{{ messages[0].content }}"), 1);
}

#[test]
fn refusals_are_the_templates_own_words() {
    let source = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}";
    let error = text(source, json!([{"role": "system", "content": "x"}])).unwrap_err();
    assert!(matches!(&error, TemplateError::Refused { message } if message == "System role not supported"));
    let failed = text("{{ messages[0].content + 1 }}", json!([{"role": "user", "content": "x"}])).unwrap_err();
    assert!(matches!(failed, TemplateError::Failed { .. }), "{failed}");
    assert!(text("{{ messages[9].content.x }}", json!([])).is_err());
}

#[test]
fn endless_templates_run_out_of_fuel() {
    for source in [
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{{ 'x' * 999999999999 }}",
    ] {
        assert!(text(source, json!([])).is_err(), "{source}");
    }
    let error = text("{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}", json!([]));
    assert!(matches!(error.unwrap_err(), TemplateError::TooMuchWork));
}

#[test]
fn templates_behave_as_their_authors_tested_them() {
    assert_eq!(one("  {% if true %}\na\n  {% endif %}\nb", json!("")), "a\nb");
    assert_eq!(one("{{ messages[0]['content'].strip() + '!' }}", json!(" x ")), "x!");
    assert_eq!(one("{{ messages[0].content.split('</think>')[-1] }}", json!("a</think>b")), "b");
    assert_eq!(one("{{ messages | tojson }}", json!("<é'>")), r#"[{"role": "user", "content": "<é'>"}]"#);
    assert_eq!(one("{{ [1] | tojson(indent=2) }}", json!("")), "[\n  1\n]");
    assert_eq!(one("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", json!("")), "1");
    assert_eq!(one("{{ strftime_now('%Y') | length }}{{ bos_token }}{{ eos_token }}", json!("")), "4<s></s>");
    assert!(text("{{ strftime_now('%') }}", json!([])).is_err());
    assert!(ChatTemplate::new("{% if %}", "", "").unwrap_err().to_string().contains("does not compile"));
}

#[test]
fn lists_of_text_parts_become_text_where_the_template_wants_text() {
    let source = "{{ messages[0].content }}";
    assert_eq!(one(source, json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])), "a\nb");
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]);
    let error = text(source, image).unwrap_err().to_string();
    assert!(error.contains("messages[0].content") && error.contains("image_url"), "{error}");
}

#[test]
fn a_developer_is_the_system_where_the_template_knows_none() {
    let message = |role: &str| json!([{"role": role, "content": "x"}]);
    let rendered = |source: &str, role: &str| text(source, message(role)).unwrap();
    assert_eq!(rendered("{{ messages[0].role }}", "developer"), "system");
    assert_eq!(rendered("{{ messages[0].role }}{# developer #}", "developer"), "developer");
    assert_eq!(rendered("{{ messages[0].role }}", "user"), "user");
    let count = |role| ChatPrompt::render(&smollm2(), &SMOL, &message(role), None, true).unwrap().len();
    assert_eq!(count("developer"), count("system"));
}

#[test]
fn absurd_messages_are_errors_not_panics() {
    for messages in [json!(null), json!(7), json!("x"), json!({"a": 1}), json!([null, 1, []]), json!([{"role": 1}])] {
        if let Ok(ids) = ChatPrompt::render(&smollm2(), &SMOL, &messages, None, true) {
            assert!(ids.len() < 100);
        }
    }
}
