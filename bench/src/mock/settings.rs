//! What the mock does with a request, as plain data: the same shape in `PUT /settings`, `POST /next`, the request
//! header `x-mock` and the request field `x_mock`. Later sources override single fields of earlier ones.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Before the response head, streaming or not.
    pub delay_ms: u64,
    /// Before the first chunk of a stream (its head leaves at once), or before a whole answer.
    pub ttft_ms: u64,
    /// Between chunks. Chunk n is due at `ttft + n * itl`, so late timers do not add up.
    pub itl_ms: u64,
    /// Content chunks of a stream; also the completion tokens reported unless `completion_tokens` says otherwise.
    pub chunks: u32,
    /// The content of one chunk; a whole answer is `chunks` of them.
    pub chunk_text: String,
    /// Chunk content is `@<CLOCK_MONOTONIC ns>;` instead, so that a client on this host can measure one-way transit.
    pub stamp: bool,
    /// Chunks without end, as fast as the connection takes them.
    pub endless: bool,
    /// Produce `chunks` even when the request's `max_tokens` is smaller.
    pub ignore_max_tokens: bool,
    pub finish_reason: String,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub completion_tokens: Option<u64>,
    pub usage: UsageMode,
    /// Anything but 200 is an error answer, also to a request for a stream.
    pub status: u16,
    /// `retry-after` of an error answer, verbatim.
    pub retry_after: Option<String>,
    /// Extra response headers.
    pub headers: BTreeMap<String, String>,
    /// Replaces the whole JSON answer (or the error body).
    pub body: Option<String>,
    /// Replaces the generated stream: bytes, waits and endings in this order.
    pub script: Vec<Step>,
    /// Cut every stream frame to at most this many bytes, each its own write.
    pub pieces: Option<usize>,
    pub fault: Option<Fault>,
    /// What `GET /v1/models` lists.
    pub models: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            delay_ms: 0,
            ttft_ms: 0,
            itl_ms: 0,
            chunks: 32,
            chunk_text: " tok".into(),
            stamp: false,
            endless: false,
            ignore_max_tokens: false,
            finish_reason: "stop".into(),
            prompt_tokens: 24,
            cached_tokens: 0,
            completion_tokens: None,
            usage: UsageMode::Reported,
            status: 200,
            retry_after: None,
            headers: BTreeMap::new(),
            body: None,
            script: Vec::new(),
            pieces: None,
            fault: None,
            models: vec!["mock-model".into()],
        }
    }
}

/// How usage is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageMode {
    /// As OpenAI does: in a whole answer always; in a stream only when asked by `include_usage`, as a last chunk
    /// without choices, with `"usage":null` on the chunks before.
    #[default]
    Reported,
    /// Never, asked or not.
    Missing,
    /// As `Reported`, with all counts 0.
    Zero,
    /// On the chunk that carries `finish_reason`, when asked; no chunk of its own.
    OnFinish,
    /// In a chunk of its own even when nobody asked.
    Unasked,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Exactly these bytes.
    Send(String),
    WaitMs(u64),
    /// How the stream ends, if not by running out of steps (which is a clean end).
    End(Ending),
}

/// How a connection ends without finishing its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Closed in the middle of the answer.
    Fin,
    /// Closed by a TCP reset.
    Reset,
    /// Left open, without another byte.
    Hang,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The request is read and never answered.
    Silence,
    /// The stream ends this way after that many content chunks.
    Die { after_chunks: u32, ending: Ending },
    /// The connection ends this way after that many bytes of the response, head included: 0 refuses every byte,
    /// 20 cuts inside the head.
    Cut { after_bytes: u64, ending: Ending },
}

impl Settings {
    /// These settings with the fields of `patch` replaced. Unknown fields and wrong types are errors naming them.
    pub fn patched(&self, patch: &Value) -> Result<Self, String> {
        let Value::Object(patch) = patch else { return Err("settings are a JSON object".into()) };
        let mut fields = match serde_json::to_value(self) {
            Ok(Value::Object(fields)) => fields,
            _ => Map::new(),
        };
        fields.extend(patch.clone());
        serde_json::from_value(Value::Object(fields)).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_patch_replaces_only_its_fields() {
        let base = Settings { ttft_ms: 7, ..Settings::default() };
        let patched = base.patched(&json!({"chunks": 3, "fault": {"die": {"after_chunks": 2, "ending": "reset"}}}));
        let expect = Settings { chunks: 3, fault: Some(Fault::Die { after_chunks: 2, ending: Ending::Reset }), ..base };
        assert_eq!(patched, Ok(expect));
    }

    #[test]
    fn an_unknown_field_is_named() {
        let error = Settings::default().patched(&json!({"chunk": 3})).expect_err("no such field");
        assert!(error.contains("`chunk`"), "{error}");
    }
}
