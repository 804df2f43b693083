//! The messages of a chat request: checked, and reduced to what a template of a text model may see.

use serde_json::{Map, Value, json};

use super::error::Error;
use super::fields::{Fields, missing, wrong};

/// The messages with plain text as content, in the form that chat templates take.
pub(super) fn read(fields: Fields<'_>) -> Result<Value, Error> {
    let messages = fields.list("messages")?.ok_or_else(|| missing("messages"))?;
    if messages.is_empty() {
        return Err(Error::invalid("messages", "'messages' must hold at least one message."));
    }
    messages.iter().enumerate().map(|(index, message)| read_one(&format!("messages[{index}]"), message)).collect()
}

fn read_one(place: &str, message: &Value) -> Result<Value, Error> {
    let Value::Object(message) = message else { return Err(wrong(place, "an object", message)) };
    let role = role(place, message)?;
    if message.get("tool_calls").is_some_and(|calls| !calls.is_null() && *calls != json!([])) {
        return Err(unsupported(format!("{place}.tool_calls"), "tools are not built"));
    }
    let mut plain = json!({ "role": role, "content": content(place, message)? });
    if let Some(name) = message.get("name").filter(|name| name.is_string()) {
        plain["name"] = name.clone();
    }
    Ok(plain)
}

fn role<'a>(place: &str, message: &'a Map<String, Value>) -> Result<&'a str, Error> {
    let place = format!("{place}.role");
    match message.get("role") {
        None | Some(Value::Null) => Err(missing(&place)),
        Some(Value::String(role)) => match role.as_str() {
            // Templates know only the older name.
            "developer" => Ok("system"),
            "system" | "user" | "assistant" => Ok(role),
            "tool" | "function" => Err(unsupported(place, "tools are not built")),
            _ => Err(Error::invalid(&place, format!("'{place}' must be one of system, developer, user, assistant."))),
        },
        Some(other) => Err(wrong(&place, "a string", other)),
    }
}

/// A string, or a list of text parts, which are joined by newlines, as other servers and the gateway's count have it.
fn content(place: &str, message: &Map<String, Value>) -> Result<String, Error> {
    let place = format!("{place}.content");
    match message.get("content") {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().enumerate().map(|(index, part)| text_of(&format!("{place}[{index}]"), part));
            Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        None | Some(Value::Null) => Err(missing(&place)),
        Some(other) => Err(wrong(&place, "a string or a list of parts", other)),
    }
}

fn text_of<'p>(place: &str, part: &'p Value) -> Result<&'p str, Error> {
    match (part["type"].as_str(), part["text"].as_str()) {
        (Some("text"), Some(text)) => Ok(text),
        (Some("text"), None) => Err(missing(&format!("{place}.text"))),
        (Some(_), _) => Err(unsupported(format!("{place}.type"), "the model reads text only")),
        (None, _) => Err(missing(&format!("{place}.type"))),
    }
}

fn unsupported(param: String, cure: &'static str) -> Error {
    Error::Unsupported { param, cure }
}
