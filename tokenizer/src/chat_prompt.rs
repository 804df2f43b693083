//! Messages to prompt tokens. Only what the template itself writes may become control tokens: a user who types
//! `<|im_end|>` has typed ten characters.

use std::borrow::Cow;

use serde_json::Value;

use crate::Tokenizer;
use crate::chat_template::{ChatTemplate, TemplateError};
use crate::specials::Part;
use crate::stand_ins::StandIns;

/// The prompt of a conversation.
pub struct ChatPrompt;

impl ChatPrompt {
    /// The tokens of the rendered conversation, begin token included if the model wants one. `messages` and `tools`
    /// are those of a chat request.
    pub fn render(
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        messages: &Value,
        tools: Option<&Value>,
        add_generation_prompt: bool,
    ) -> Result<Vec<u32>, TemplateError> {
        let (text, stand_ins) = guarded(template, tokenizer, messages, tools, add_generation_prompt)?;
        let ids = tokenizer.encode_parts(&text, |part| stand_ins.restore(part));
        Ok(tokenizer.begin(ids))
    }

    /// How many tokens [`render`](Self::render) would make. `count` counts the stretches of text between control tokens.
    pub(crate) fn count(
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        messages: &Value,
        tools: Option<&Value>,
        count: impl Fn(&str) -> u64,
    ) -> Result<u64, TemplateError> {
        let (text, stand_ins) = guarded(template, tokenizer, messages, tools, true)?;
        let mut begins = None;
        let mut tokens = 0;
        tokenizer.specials.split_control(&text, &mut |part| {
            let (first, more) = match part {
                Part::Token(id) => (Some(id), 1),
                Part::Text(text) => (None, count(&stand_ins.restore(text))),
            };
            begins.get_or_insert(first);
            tokens += more;
        });
        let begins_by_itself = begins.flatten() == tokenizer.bos();
        Ok(tokens + u64::from(tokenizer.adds_bos() && !begins_by_itself))
    }

    /// The rendered text, for showing; it does not tell what is a control token and what only looks like one.
    pub fn text(
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        messages: &Value,
        tools: Option<&Value>,
        add_generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        let (text, stand_ins) = guarded(template, tokenizer, messages, tools, add_generation_prompt)?;
        Ok(stand_ins.restore(&text).into_owned())
    }
}

/// The rendered text in which no string of the request spells a control token, and how to undo that.
fn guarded<'t>(
    template: &ChatTemplate,
    tokenizer: &'t Tokenizer,
    messages: &Value,
    tools: Option<&Value>,
    add_generation_prompt: bool,
) -> Result<(String, StandIns<'t>), TemplateError> {
    let messages = adapted(template, messages)?;
    let stand_ins = StandIns::new(tokenizer.specials.control(), [&*messages].into_iter().chain(tools))
        .ok_or(TemplateError::PrivateUse)?;
    let messages = stand_ins.guard(&messages);
    let tools = tools.map(|tools| stand_ins.guard(tools));
    let text = template.render(&messages, tools.as_ref(), add_generation_prompt)?;
    Ok((text, stand_ins))
}

/// For a template that wants strings, lists of text parts are joined by newlines; for one that knows no developers,
/// they are the system.
fn adapted<'m>(template: &ChatTemplate, messages: &'m Value) -> Result<Cow<'m, Value>, TemplateError> {
    let has_parts = |message: &Value| !template.takes_parts() && message["content"].is_array();
    let is_unknown = |message: &Value| !template.knows_developers() && message["role"] == "developer";
    let differs = |message: &Value| has_parts(message) || is_unknown(message);
    if !messages.as_array().is_some_and(|messages| messages.iter().any(differs)) {
        return Ok(Cow::Borrowed(messages));
    }
    let mut messages = messages.clone();
    for (index, message) in messages.as_array_mut().into_iter().flatten().enumerate() {
        if is_unknown(message) {
            message["role"] = "system".into();
        }
        if let Some(parts) = message["content"].as_array().filter(|_| has_parts(message)) {
            let texts = parts.iter().map(|part| text_of(part, index)).collect::<Result<Vec<_>, _>>()?;
            message["content"] = Value::String(texts.join("\n"));
        }
    }
    Ok(Cow::Owned(messages))
}

fn text_of(part: &Value, index: usize) -> Result<&str, TemplateError> {
    let kind = part["type"].as_str().unwrap_or("text");
    match part.as_str().or_else(|| part["text"].as_str()) {
        Some(text) if kind == "text" || kind == "input_text" => Ok(text),
        _ => Err(TemplateError::PartType { index, kind: kind.to_owned() }),
    }
}
