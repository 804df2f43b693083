//! Our own count of an answer's tokens, for when the provider reports none. Text is counted per choice and kind,
//! since texts of different kinds are not tokenised together by the model either.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use tokenizer::Tokenizer;

/// Members whose texts the model did not write.
const LABELS: [&str; 5] = ["role", "id", "type", "finish_reason", "object"];
/// Text gathered before it is counted.
const TAIL: usize = 4 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Content,
    Reasoning,
    Refusal,
    /// The tool call with this index.
    Tool(u64),
}

#[derive(Default)]
pub(super) struct Count {
    counted: u64,
    /// Bytes of text taken in, and tokens that came without: no count grows faster.
    written: u64,
    tails: Vec<Tail>,
    /// Choices seen, and those that said why they stopped.
    choices: Vec<(u64, bool)>,
}

struct Tail {
    choice: u64,
    kind: Kind,
    text: String,
}

impl Count {
    /// Takes in one payload: a chunk, or a whole answer.
    pub fn fold(&mut self, payload: &[u8], tokenizer: &Tokenizer) {
        let Ok(chunk) = serde_json::from_slice::<Chunk<'_>>(payload) else {
            return self.unknown(payload, tokenizer);
        };
        for choice in &chunk.choices {
            self.choice(choice, tokenizer);
        }
    }

    /// An answer of a shape that we do not know: whatever text stands in its choices was produced.
    fn unknown(&mut self, payload: &[u8], tokenizer: &Tokenizer) {
        match serde_json::from_slice::<Value>(payload) {
            Ok(answer) => answer.get("choices").into_iter().for_each(|choices| self.texts(choices, tokenizer)),
            Err(_) => self.whole_text(&String::from_utf8_lossy(payload), tokenizer),
        }
    }

    fn texts(&mut self, value: &Value, tokenizer: &Tokenizer) {
        match value {
            Value::String(text) => self.whole_text(text, tokenizer),
            Value::Array(values) => values.iter().for_each(|value| self.texts(value, tokenizer)),
            Value::Object(members) => {
                if members.get("finish_reason").and_then(Value::as_str).is_some_and(|reason| !reason.is_empty()) {
                    self.choices.push((self.choices.len() as u64, true));
                }
                let produced = members.iter().filter(|(key, _)| !LABELS.contains(&key.as_str()));
                produced.for_each(|(_, value)| self.texts(value, tokenizer));
            }
            _ => {}
        }
    }

    fn whole_text(&mut self, text: &str, tokenizer: &Tokenizer) {
        self.written += text.len() as u64;
        self.counted += tokenizer.count(text) as u64;
    }

    fn choice(&mut self, choice: &Choice<'_>, tokenizer: &Tokenizer) {
        let index = choice.index;
        let finished = choice.finish_reason.as_ref().is_some_and(|reason| !reason.is_empty());
        match self.choices.iter_mut().find(|(seen, _)| *seen == index) {
            Some((_, done)) => *done |= finished,
            None => self.choices.push((index, finished)),
        }
        if let Some(tokens) = choice.logprobs.as_ref().and_then(Logprobs::tokens) {
            self.counted += tokens;
            self.written += tokens;
            return;
        }
        self.text(index, Kind::Content, choice.text.as_deref(), tokenizer);
        for message in [&choice.delta, &choice.message].into_iter().flatten() {
            self.text(index, Kind::Content, message.content.as_deref(), tokenizer);
            let reasoning = message.reasoning_content.as_deref().or(message.reasoning.as_deref());
            self.text(index, Kind::Reasoning, reasoning, tokenizer);
            self.text(index, Kind::Refusal, message.refusal.as_deref(), tokenizer);
            for (place, call) in message.tool_calls.iter().flatten().enumerate() {
                let kind = Kind::Tool(call.index.unwrap_or(place as u64));
                self.function(index, kind, call.function.as_ref(), tokenizer);
            }
            self.function(index, Kind::Tool(0), message.function_call.as_ref(), tokenizer);
        }
    }

    fn function(&mut self, choice: u64, kind: Kind, function: Option<&Function<'_>>, tokenizer: &Tokenizer) {
        let Some(function) = function else { return };
        self.text(choice, kind, function.name.as_deref(), tokenizer);
        self.text(choice, kind, function.arguments.as_deref(), tokenizer);
    }

    fn text(&mut self, choice: u64, kind: Kind, text: Option<&str>, tokenizer: &Tokenizer) {
        let Some(text) = text.filter(|text| !text.is_empty()) else { return };
        self.written += text.len() as u64;
        let place = self.tails.iter().position(|tail| tail.choice == choice && tail.kind == kind);
        let place = place.unwrap_or_else(|| {
            self.tails.push(Tail { choice, kind, text: String::new() });
            self.tails.len() - 1
        });
        let tail = &mut self.tails[place].text;
        tail.push_str(text);
        if tail.len() > TAIL {
            let cut = boundary(tail);
            self.counted += tokenizer.count(&tail[..cut]) as u64;
            tail.drain(..cut);
        }
    }

    pub fn written(&self) -> u64 {
        self.written
    }

    /// Choices of `expected` that did not say why they stopped, those that have not begun among them.
    pub fn open(&self, expected: u64) -> Vec<u64> {
        let seen = |index: &u64| self.choices.iter().find(|(seen, _)| seen == index);
        let last = self.choices.iter().map(|(index, _)| index + 1).max().unwrap_or(0);
        (0..expected.max(last)).filter(|index| !seen(index).is_some_and(|(_, finished)| *finished)).collect()
    }

    /// All tokens so far.
    pub fn total(&self, tokenizer: &Tokenizer) -> u64 {
        self.counted + self.tails.iter().map(|tail| tokenizer.count(&tail.text) as u64).sum::<u64>()
    }

    /// Every choice that was seen said why it stopped.
    pub fn is_finished(&self) -> bool {
        !self.choices.is_empty() && self.choices.iter().all(|(_, finished)| *finished)
    }
}

/// The last place where no tokenizer joins what is before with what is after: a space between two words.
fn boundary(text: &str) -> usize {
    let bytes = text.as_bytes();
    let between =
        |at: &usize| bytes[*at] == b' ' && bytes[at - 1].is_ascii_alphanumeric() && bytes[at + 1].is_ascii_alphabetic();
    (1..bytes.len().saturating_sub(1)).rev().find(between).unwrap_or(text.len())
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: u64,
    #[serde(borrow, default)]
    delta: Option<Message<'a>>,
    #[serde(borrow, default)]
    message: Option<Message<'a>>,
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    finish_reason: Option<Cow<'a, str>>,
    #[serde(default)]
    logprobs: Option<Logprobs>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow, default)]
    content: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    reasoning_content: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    reasoning: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    refusal: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    tool_calls: Option<Vec<ToolCall<'a>>>,
    #[serde(borrow, default)]
    function_call: Option<Function<'a>>,
}

#[derive(Deserialize)]
struct ToolCall<'a> {
    #[serde(default)]
    index: Option<u64>,
    #[serde(borrow, default)]
    function: Option<Function<'a>>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    arguments: Option<Cow<'a, str>>,
}

/// One entry per token: chat's `content` and `refusal`, or the `tokens` of completions.
#[derive(Deserialize)]
struct Logprobs {
    #[serde(default)]
    content: Option<Vec<serde::de::IgnoredAny>>,
    #[serde(default)]
    refusal: Option<Vec<serde::de::IgnoredAny>>,
    #[serde(default)]
    tokens: Option<Vec<serde::de::IgnoredAny>>,
}

impl Logprobs {
    fn tokens(&self) -> Option<u64> {
        let lists = [&self.content, &self.refusal, &self.tokens];
        let total: usize = lists.into_iter().flatten().map(Vec::len).sum();
        (total > 0).then_some(total as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(payloads: &[&str]) -> (u64, bool) {
        let tokenizer = Tokenizer::builtin("o200k_base").expect("built in");
        let mut count = Count::default();
        for payload in payloads {
            count.fold(payload.as_bytes(), &tokenizer);
        }
        (count.total(&tokenizer), count.is_finished())
    }

    #[test]
    fn text_is_counted_joined_and_not_by_chunk() {
        let chunk = |text: &str| format!("{{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}");
        let (whole, _) = count(&[&chunk("internationalization")]);
        let (pieces, finished) = count(&[&chunk("intern"), &chunk("ation"), &chunk("alization")]);
        assert_eq!(whole, pieces);
        assert!(!finished);
    }

    #[test]
    fn kinds_and_choices_are_counted_apart() {
        let (total, finished) = count(&[
            r#"{"choices":[{"index":0,"delta":{"content":"a","reasoning_content":"b"}},{"index":1,"text":"c"}]}"#,
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"name":"d","arguments":""}}]},"finish_reason":"tool_calls"}]}"#,
            r#"{"choices":[{"index":1,"delta":{},"finish_reason":"stop"}]}"#,
        ]);
        assert_eq!((total, finished), (4, true));
    }

    #[test]
    fn logprobs_are_the_count_where_they_are() {
        let (total, _) =
            count(&[r#"{"choices":[{"index":0,"delta":{"content":"x"},"logprobs":{"content":[{},{},{}]}}]}"#]);
        assert_eq!(total, 3);
    }

    #[test]
    fn an_unknown_shape_counts_the_text_in_it() {
        for choices in [
            r#"[{"message":{"role":"assistant","content":[{"type":"text","text":"one two three four"}]}}]"#,
            r#"[{"index":-1,"message":{"content":"one two three four"},"finish_reason":"stop"}]"#,
            r#"{"message":{"content":"one two three four"}}"#,
        ] {
            assert_eq!(count(&[&format!("{{\"id\":\"a b c\",\"choices\":{choices}}}")]).0, 4, "{choices}");
        }
        assert_eq!(count(&["one two"]).0, 2);
        assert!(count(&[r#"{"choices":[{"index":-1,"finish_reason":"stop"}]}"#]).1);
    }

    #[test]
    fn a_long_text_is_counted_in_parts_with_the_same_sum() {
        let tokenizer = Tokenizer::builtin("o200k_base").expect("built in");
        let text = "lorem ipsum dolor sit amet ".repeat(600);
        let payload = format!("{{\"choices\":[{{\"text\":\"{text}\"}}]}}");
        let mut parts = Count::default();
        for piece in text.as_bytes().chunks(1000) {
            let piece = std::str::from_utf8(piece).expect("ASCII");
            parts.fold(format!("{{\"choices\":[{{\"text\":\"{piece}\"}}]}}").as_bytes(), &tokenizer);
        }
        let mut whole = Count::default();
        whole.fold(payload.as_bytes(), &tokenizer);
        assert_eq!(parts.total(&tokenizer), tokenizer.count(&text) as u64);
        assert_eq!(whole.total(&tokenizer), tokenizer.count(&text) as u64);
    }
}
