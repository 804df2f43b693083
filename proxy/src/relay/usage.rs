//! Finds `usage` in an answer without parsing the rest of it, and cuts it out by bytes.

use std::ops::Range;

use serde::Deserialize;
use serde_json::value::RawValue;
use wire::Usage;

use crate::members::{self, Members};

/// No call uses more: a larger count is a fault of the provider, such as -1 without its sign.
const CREDIBLE: u64 = 10_000_000;

/// The usage of a whole answer.
pub(super) fn of_whole(body: &[u8]) -> Option<Usage> {
    let top: Top<'_> = members::read(body).ok()?;
    top.usage.and_then(read)
}

/// What one payload of a stream says of usage.
pub(super) struct Found {
    pub usage: Option<Usage>,
    /// It carries no choice: it is there for its usage only.
    pub alone: bool,
    /// The key, its value, and one comma beside them.
    pub cut: Range<usize>,
}

/// `None`: the payload has no `usage` key of its own.
pub(super) fn find(payload: &[u8]) -> Option<Found> {
    memchr::memmem::find(payload, b"\"usage\"")?;
    let top: Top<'_> = members::read(payload).ok()?;
    let value = top.usage?;
    let cut = with_key(payload, members::place(payload, value))?;
    let empty = |raw: &RawValue| raw.get().trim_start_matches('[').trim_start() == "]";
    Some(Found { usage: read(value), alone: top.choices.is_some_and(empty), cut })
}

/// Widens the range of a value to its key and one of the commas around them.
fn with_key(payload: &[u8], value: Range<usize>) -> Option<Range<usize>> {
    let before = payload[..value.start].trim_ascii_end().strip_suffix(b":")?.trim_ascii_end();
    let before = before.strip_suffix(b"\"usage\"")?;
    if let Some(rest) = before.trim_ascii_end().strip_suffix(b",") {
        return Some(rest.len()..value.end);
    }
    let after = &payload[value.end..];
    let space = after.len() - after.trim_ascii_start().len();
    let comma = usize::from(after.trim_ascii_start().starts_with(b","));
    let end = if comma == 1 { value.end + space + 1 } else { value.end };
    Some(before.len()..end)
}

/// Both spellings of providers. Without any count it is no usage: an unknown shape must not pass for zero.
fn read(raw: &RawValue) -> Option<Usage> {
    #[derive(Default, Deserialize)]
    struct Details {
        #[serde(default)]
        cached_tokens: Option<u64>,
    }
    #[derive(Deserialize)]
    struct Wire {
        #[serde(default, alias = "input_tokens")]
        prompt_tokens: Option<u64>,
        #[serde(default, alias = "output_tokens")]
        completion_tokens: Option<u64>,
        #[serde(default)]
        total_tokens: Option<u64>,
        #[serde(default, alias = "input_tokens_details")]
        prompt_tokens_details: Option<Details>,
    }
    let wire: Wire = serde_json::from_str(raw.get()).ok()?;
    let prompt = wire.prompt_tokens.or_else(|| Some(wire.total_tokens?.saturating_sub(wire.completion_tokens?)))?;
    let rest = wire.total_tokens.map_or(0, |total| total.saturating_sub(prompt));
    let completion = wire.completion_tokens.unwrap_or(rest);
    let cached = wire.prompt_tokens_details.unwrap_or_default().cached_tokens.unwrap_or(0);
    (prompt <= CREDIBLE && completion <= CREDIBLE).then_some(Usage { prompt, completion, cached: cached.min(prompt) })
}

#[derive(Default)]
struct Top<'a> {
    choices: Option<&'a RawValue>,
    usage: Option<&'a RawValue>,
}

impl<'a> Members<'a> for Top<'a> {
    fn member(&mut self, key: &str) -> Option<&mut Option<&'a RawValue>> {
        match key {
            "choices" => Some(&mut self.choices),
            "usage" => Some(&mut self.usage),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(payload: &str) -> Option<String> {
        let found = find(payload.as_bytes())?;
        Some(format!("{}{}", &payload[..found.cut.start], &payload[found.cut.end..]))
    }

    #[test]
    fn usage_is_cut_wherever_it_stands() {
        for (payload, expect) in [
            (r#"{"id":1,"choices":[{}],"usage":{"prompt_tokens":1}}"#, r#"{"id":1,"choices":[{}]}"#),
            (r#"{"usage" : null , "id":1}"#, r#"{ "id":1}"#),
            (r#"{"a":{"usage":3},"usage":null,"b":2}"#, r#"{"a":{"usage":3},"b":2}"#),
            (r#"{"usage":null}"#, "{}"),
        ] {
            assert_eq!(cut(payload).as_deref(), Some(expect), "{payload}");
        }
        assert_eq!(cut(r#"{"a":{"usage":3},"c":"\"usage\""}"#), None);
    }

    #[test]
    fn an_explicit_zero_is_a_usage_and_an_unknown_shape_is_none() {
        let of = |usage: &str| of_whole(format!("{{\"usage\":{usage}}}").as_bytes());
        assert_eq!(of("{\"prompt_tokens\":0,\"completion_tokens\":0}"), Some(Usage::default()));
        assert_eq!(of("{\"prompt_tokens\":5,\"total_tokens\":5}"), Some(Usage { prompt: 5, completion: 0, cached: 0 }));
        assert_eq!(
            of("{\"input_tokens\":5,\"output_tokens\":7,\"input_tokens_details\":{\"cached_tokens\":2}}"),
            Some(Usage { prompt: 5, completion: 7, cached: 2 })
        );
        let absurd = "{\"prompt_tokens\":1,\"completion_tokens\":18446744073709551615}";
        for unknown in ["null", "{}", "{\"units\":3}", "{\"prompt_tokens\":-1}", "[]", absurd] {
            assert_eq!(of(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_chunk_without_choices_is_there_for_its_usage_only() {
        let alone = |payload: &str| find(payload.as_bytes()).expect("usage").alone;
        assert!(alone(r#"{"choices":[ ],"usage":{"prompt_tokens":1}}"#));
        assert!(!alone(r#"{"choices":[{"delta":{}}],"usage":{"prompt_tokens":1}}"#));
    }
}
