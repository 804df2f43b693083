//! The JSON that an OpenAI-compatible upstream answers, built from the settings. No HTTP, no timing.

use serde::Deserialize;
use serde_json::{Value, json};
use wire::openai::{ErrorBody, Model, ModelList};

use super::settings::{Settings, UsageMode};

pub const CREATED: u64 = 1_700_000_000;

/// What the mock reads of a request body; anything else in it is none of its business.
#[derive(Debug, Default, Deserialize)]
pub struct Asked {
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default)]
    pub stream: Option<bool>,
    #[serde(default)]
    pub stream_options: Option<StreamOptions>,
    #[serde(default)]
    pub max_tokens: Option<u64>,
    #[serde(default)]
    pub max_completion_tokens: Option<u64>,
    /// Embeddings: a text, a list of texts, token ids, or lists of those.
    #[serde(default)]
    pub input: Option<Value>,
    /// A patch of the settings for this request alone. It survives gateways that forward unknown fields.
    #[serde(default)]
    pub x_mock: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
pub struct StreamOptions {
    #[serde(default)]
    pub include_usage: Option<bool>,
}

impl Asked {
    pub fn streams(&self) -> bool {
        self.stream == Some(true)
    }

    pub fn include_usage(&self) -> bool {
        self.stream_options.as_ref().is_some_and(|options| options.include_usage == Some(true))
    }

    pub fn model(&self) -> &str {
        self.model.as_deref().unwrap_or("mock-model")
    }

    /// Chunks to produce, and whether that is fewer than the mock had in mind.
    pub fn chunks(&self, settings: &Settings) -> (u32, bool) {
        let cap = self.max_completion_tokens.or(self.max_tokens);
        match cap.map(|cap| u32::try_from(cap).unwrap_or(u32::MAX)) {
            Some(cap) if cap < settings.chunks && !settings.ignore_max_tokens => (cap, true),
            _ => (settings.chunks, false),
        }
    }
}

/// The two text endpoints differ only in their envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Chat,
    Completions,
}

impl Endpoint {
    pub fn id(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl-mock0000000000000000000001",
            Self::Completions => "cmpl-mock0000000000000000000001",
        }
    }

    pub fn object(self, stream: bool) -> &'static str {
        match (self, stream) {
            (Self::Chat, false) => "chat.completion",
            (Self::Chat, true) => "chat.completion.chunk",
            (Self::Completions, _) => "text_completion",
        }
    }
}

pub fn usage(settings: &Settings, produced: u32) -> Value {
    if settings.usage == UsageMode::Zero {
        return json!({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0});
    }
    let completion = settings.completion_tokens.unwrap_or(produced.into());
    json!({
        "prompt_tokens": settings.prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": settings.prompt_tokens.saturating_add(completion),
        "prompt_tokens_details": {"cached_tokens": settings.cached_tokens},
    })
}

pub fn finish_reason(settings: &Settings, truncated: bool) -> &str {
    if truncated { "length" } else { &settings.finish_reason }
}

/// The whole answer of a request that did not ask for a stream.
pub fn completion(endpoint: Endpoint, asked: &Asked, settings: &Settings) -> Value {
    let (chunks, truncated) = asked.chunks(settings);
    let text = settings.chunk_text.repeat(chunks as usize);
    let finish = finish_reason(settings, truncated);
    let choice = match endpoint {
        Endpoint::Chat => json!({"index": 0, "message": {"role": "assistant", "content": text, "refusal": null},
                                 "logprobs": null, "finish_reason": finish}),
        Endpoint::Completions => json!({"index": 0, "text": text, "logprobs": null, "finish_reason": finish}),
    };
    let mut body = json!({
        "id": endpoint.id(),
        "object": endpoint.object(false),
        "created": CREATED,
        "model": asked.model(),
        "choices": [choice],
        "service_tier": "default",
        "system_fingerprint": "fp_mock",
    });
    if settings.usage != UsageMode::Missing {
        body["usage"] = usage(settings, chunks);
    }
    body
}

/// One small, fixed vector per input.
pub fn embeddings(asked: &Asked, settings: &Settings) -> Value {
    let inputs = match &asked.input {
        Some(Value::Array(items)) if !items.iter().any(Value::is_number) => items.len(),
        _ => 1,
    };
    let data: Vec<Value> = (0..inputs)
        .map(|index| json!({"object": "embedding", "index": index, "embedding": [0.5, -0.5, 0.25, index as f64]}))
        .collect();
    let mut body = json!({"object": "list", "data": data, "model": asked.model()});
    if settings.usage != UsageMode::Missing {
        let prompt = if settings.usage == UsageMode::Zero { 0 } else { settings.prompt_tokens };
        body["usage"] = json!({"prompt_tokens": prompt, "total_tokens": prompt});
    }
    body
}

pub fn models(settings: &Settings) -> ModelList {
    ModelList::new(settings.models.iter().map(|name| model(name)).collect())
}

pub fn model(name: &str) -> Model {
    Model::new(name, CREATED, "mock")
}

/// An error as the provider would word it.
pub fn error(settings: &Settings) -> String {
    settings.body.clone().unwrap_or_else(|| {
        let (kind, code) = match settings.status {
            429 => ("requests", "rate_limit_exceeded"),
            500.. => ("server_error", "mock_failure"),
            _ => ("invalid_request_error", "mock_refusal"),
        };
        let body = ErrorBody::new(kind, Some(code), None, format!("the mock was told to answer {}", settings.status));
        String::from_utf8_lossy(&body.to_json()).into_owned()
    })
}
