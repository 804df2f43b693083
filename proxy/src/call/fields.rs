//! The fields of a request body that the gateway reads, and where they stand in it.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Call, Shape};
use crate::{
    members::{self, Members, place},
    paths::Endpoint,
};

/// Beyond this no model generates, and sums stay far from overflow.
const MAX_TOKENS: u64 = 10_000_000;
const MAX_CHOICES: u64 = 128;
/// A model's name goes into errors and the access log: what is longer is no name.
const MAX_NAME: usize = 256;

/// The caller's mistake: 400 with the field's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Invalid {
    pub param: Option<&'static str>,
    pub message: String,
}

impl Invalid {
    pub fn new(param: &'static str, message: impl Into<String>) -> Self {
        Self { param: Some(param), message: message.into() }
    }
}

/// Raw values of the known keys.
#[derive(Default)]
struct Top<'a> {
    model: Option<&'a RawValue>,
    stream: Option<&'a RawValue>,
    stream_options: Option<&'a RawValue>,
    caps: [Option<&'a RawValue>; CAPS.len()],
    n: Option<&'a RawValue>,
    best_of: Option<&'a RawValue>,
    messages: Option<&'a RawValue>,
    prompt: Option<&'a RawValue>,
    input: Option<&'a RawValue>,
    tools: Option<&'a RawValue>,
    tool_choice: Option<&'a RawValue>,
    functions: Option<&'a RawValue>,
    function_call: Option<&'a RawValue>,
    response_format: Option<&'a RawValue>,
    suffix: Option<&'a RawValue>,
    cache_salt: Option<&'a RawValue>,
}

/// All names that a cap goes by; the larger counts when several are given.
const CAPS: [&str; 3] = ["max_tokens", "max_completion_tokens", "max_output_tokens"];

pub(super) fn parse(endpoint: Endpoint, deployment: Option<String>, body: Bytes) -> Result<Call, Invalid> {
    let top: Top<'_> = members::read(&body).map_err(|error| not_json(&error))?;
    let model = match (deployment, top.model.and_then(text)) {
        (Some(model), _) | (None, Some(model)) if !model.is_empty() => model,
        _ => return Err(Invalid::new("model", "you must provide a model, as a text")),
    };
    if model.len() > MAX_NAME {
        return Err(Invalid::new("model", format!("the name of a model has at most {MAX_NAME} bytes")));
    }
    let stream = flag("stream", top.stream)? && endpoint.generates();
    let wants_usage = wants_usage(top.stream_options)?;
    let (prompt, prompts) = prompt(endpoint, &top)?;
    let cap = cap(&top)?;
    let n = whole("n", top.n, 1, MAX_CHOICES)?.unwrap_or(1);
    let best_of = whole("best_of", top.best_of, 1, MAX_CHOICES)?.unwrap_or(1);
    let range = |value: Option<&RawValue>| value.filter(|raw| raw.get() != "null").map(|raw| place(&body, raw));
    let shape = Shape {
        // A null too: what stands there is replaced, since of a second key the last would count.
        model: top.model.map(|raw| place(&body, raw)),
        stream_options: top.stream_options.map(|raw| place(&body, raw)),
        prompt: prompt.map(|raw| place(&body, raw)),
        tools: range(top.tools),
        tool_choice: range(top.tool_choice),
        functions: range(top.functions),
        function_call: range(top.function_call),
        response_format: range(top.response_format),
        suffix: range(top.suffix),
        cache_salt: top.cache_salt.map(|raw| place(&body, raw)),
    };
    let choices = n.max(best_of).saturating_mul(prompts);
    Ok(Call { endpoint, model, stream, wants_usage, cap, choices, shape, body })
}

fn not_json(error: &serde_json::Error) -> Invalid {
    let message = match error.classify() {
        serde_json::error::Category::Data => format!("the body must be a JSON object: {error}"),
        _ => format!("the body is not valid JSON: {error}"),
    };
    Invalid { param: None, message }
}

fn text(raw: &RawValue) -> Option<String> {
    serde_json::from_str(raw.get()).ok()
}

fn flag(param: &'static str, raw: Option<&RawValue>) -> Result<bool, Invalid> {
    match raw.map(RawValue::get) {
        None | Some("null" | "false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(Invalid::new(param, format!("{param} must be true or false"))),
    }
}

fn wants_usage(raw: Option<&RawValue>) -> Result<bool, Invalid> {
    #[derive(Deserialize)]
    struct Options {
        #[serde(default)]
        include_usage: Option<bool>,
    }
    let wrong = || Invalid::new("stream_options", "stream_options must be an object such as {\"include_usage\": true}");
    let Some(raw) = raw.filter(|raw| raw.get() != "null") else { return Ok(false) };
    // serde would also take a list for the struct.
    if !raw.get().starts_with('{') {
        return Err(wrong());
    }
    let options: Options = serde_json::from_str(raw.get()).map_err(|_| wrong())?;
    Ok(options.include_usage.unwrap_or(false))
}

/// The prompt's value, and how many prompts it holds.
fn prompt<'a>(endpoint: Endpoint, top: &Top<'a>) -> Result<(Option<&'a RawValue>, u64), Invalid> {
    let (param, raw) = match endpoint {
        Endpoint::ChatCompletions => ("messages", top.messages),
        Endpoint::Completions => ("prompt", top.prompt),
        Endpoint::Embeddings => ("input", top.input),
    };
    let Some(raw) = raw.filter(|raw| raw.get() != "null") else {
        // A completion without a prompt starts from nothing.
        return match endpoint {
            Endpoint::Completions => Ok((None, 1)),
            _ => Err(Invalid::new(param, format!("{param} is missing"))),
        };
    };
    let first = raw.get().as_bytes()[0];
    match endpoint {
        Endpoint::ChatCompletions if first != b'[' => Err(Invalid::new(param, "messages must be a list of messages")),
        Endpoint::ChatCompletions => Ok((Some(raw), 1)),
        _ if first == b'"' => Ok((Some(raw), 1)),
        _ if first == b'[' => Ok((Some(raw), prompts_in(raw))),
        _ => Err(Invalid::new(param, format!("{param} must be a text, a list of texts, or token ids"))),
    }
}

/// A list of texts or of token lists is that many prompts; a list of token ids is one.
fn prompts_in(raw: &RawValue) -> u64 {
    let items: Vec<&RawValue> = serde_json::from_str(raw.get()).unwrap_or_default();
    match items.first().map(|item| item.get().as_bytes()[0]) {
        Some(b'"' | b'[') => items.len() as u64,
        _ => 1,
    }
}

fn cap(top: &Top<'_>) -> Result<Option<u64>, Invalid> {
    let mut largest = None;
    for (param, raw) in CAPS.iter().zip(top.caps) {
        largest = largest.max(whole(param, raw, 0, MAX_TOKENS)?);
    }
    Ok(largest)
}

/// A whole number in bounds; `null` is absent.
fn whole(param: &'static str, raw: Option<&RawValue>, min: u64, max: u64) -> Result<Option<u64>, Invalid> {
    let Some(text) = raw.map(RawValue::get).filter(|text| *text != "null") else { return Ok(None) };
    let value = text.parse::<u64>().ok().or_else(|| {
        let value: f64 = text.parse().ok().filter(|_| !text.starts_with('"'))?;
        (value.fract() == 0.0 && (0.0..=max as f64).contains(&value)).then_some(value as u64)
    });
    match value.filter(|value| (min..=max).contains(value)) {
        Some(value) => Ok(Some(value)),
        None => Err(Invalid::new(param, format!("{param} must be a whole number from {min} to {max}"))),
    }
}

impl<'a> Members<'a> for Top<'a> {
    fn member(&mut self, key: &str) -> Option<&mut Option<&'a RawValue>> {
        Some(match key {
            "model" => &mut self.model,
            "stream" => &mut self.stream,
            "stream_options" => &mut self.stream_options,
            "n" => &mut self.n,
            "best_of" => &mut self.best_of,
            "messages" => &mut self.messages,
            "prompt" => &mut self.prompt,
            "input" => &mut self.input,
            "tools" => &mut self.tools,
            "tool_choice" => &mut self.tool_choice,
            "functions" => &mut self.functions,
            "function_call" => &mut self.function_call,
            "response_format" => &mut self.response_format,
            "suffix" => &mut self.suffix,
            "cache_salt" => &mut self.cache_salt,
            other => &mut self.caps[CAPS.iter().position(|name| *name == other)?],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(rest: &str) -> Result<Call, Invalid> {
        let body = format!("{{\"model\":\"m\",\"messages\":[]{rest}}}");
        parse(Endpoint::ChatCompletions, None, Bytes::from(body))
    }

    fn param(rest: &str) -> Option<&'static str> {
        chat(rest).expect_err(rest).param
    }

    #[test]
    fn the_larger_cap_counts_and_of_a_key_given_twice_the_last() {
        assert_eq!(chat(",\"max_tokens\":1,\"max_completion_tokens\":10000").expect("valid").cap, Some(10_000));
        assert_eq!(chat(",\"max_tokens\":1,\"max_tokens\":500").expect("valid").cap, Some(500));
        assert_eq!(chat(",\"max_tokens\":null").expect("valid").cap, None);
        assert_eq!(chat(",\"max_tokens\":1e3,\"n\":2").expect("valid").cap, Some(1000));
    }

    #[test]
    fn absurd_numbers_name_their_field() {
        for value in
            ["9223372036854775807", "18446744073709551615", "1e30", "1e300", "-5", "2.5", "\"50\"", "true", "[]"]
        {
            assert_eq!(param(&format!(",\"max_tokens\":{value}")), Some("max_tokens"), "{value}");
        }
        for value in ["0", "-1", "1e9", "1.5"] {
            assert_eq!(param(&format!(",\"n\":{value}")), Some("n"), "{value}");
        }
    }

    #[test]
    fn wrong_types_name_their_field() {
        assert_eq!(param(",\"stream\":1"), Some("stream"));
        assert_eq!(param(",\"stream_options\":[]"), Some("stream_options"));
        let wrong =
            |body: &'static str| parse(Endpoint::ChatCompletions, None, Bytes::from(body)).expect_err(body).param;
        assert_eq!(wrong("{\"messages\":[]}"), Some("model"));
        assert_eq!(wrong("{\"model\":\"m\"}"), Some("messages"));
        assert_eq!(wrong("{\"model\":\"m\",\"messages\":{}}"), Some("messages"));
        for model in ["5", "null", "\"\"", "[\"m\"]"] {
            assert_eq!(wrong(format!("{{\"model\":{model},\"messages\":[]}}").leak()), Some("model"), "{model}");
        }
        let name = |bytes: usize| format!("{{\"model\":\"{}\",\"messages\":[]}}", "x".repeat(bytes));
        assert_eq!(wrong(name(257).leak()), Some("model"));
        assert!(parse(Endpoint::ChatCompletions, None, Bytes::from(name(256))).is_ok());
        for body in ["", "[]", "{", "\"x\"", "{\"model\":\"m\",\"messages\":[]} x"] {
            assert_eq!(wrong(body), None, "{body}");
        }
    }

    #[test]
    fn all_that_costs_prompt_tokens_is_in_the_size() {
        let size = |rest: &str| chat(rest).expect("valid").shape.counted() - 2; // the messages' brackets
        for field in ["tools", "tool_choice", "functions", "function_call", "response_format", "suffix"] {
            assert_eq!(size(&format!(",\"{field}\":[1,2,3]")), 7, "{field}");
        }
        assert_eq!([size(",\"tools\":null"), size(",\"user\":[1,2,3]")], [0, 0]);
    }

    #[test]
    fn prompts_are_counted() {
        let completion = |prompt: &str| {
            let body = format!("{{\"model\":\"m\",\"prompt\":{prompt},\"n\":2}}");
            parse(Endpoint::Completions, None, Bytes::from(body)).expect("valid").choices
        };
        assert_eq!(
            [completion("\"a\""), completion("[\"a\",\"b\"]"), completion("[1,2,3]"), completion("[[1],[2]]")],
            [2, 4, 2, 4]
        );
    }

    #[test]
    fn usage_is_wanted_only_when_asked_for() {
        let wants = |rest: &str| chat(rest).expect("valid").wants_usage;
        assert!(wants(",\"stream_options\":{\"include_usage\":true}"));
        assert!(!wants(",\"stream_options\":{\"include_usage\":false}"));
        assert!(!wants(",\"stream_options\":null"));
        assert!(!wants(""));
    }
}
