//! What a call may use at most: prompt tokens by the model's own tokenizer, plus the cap on its answer. An estimate
//! before the fact; the charge after it is `charge`'s part.

use std::{ops::Range, sync::Arc};

use serde_json::Value;
use tokenizer::Tokenizer;

use crate::{
    call::{Call, Invalid},
    catalogue::Model,
    config::TokenizerSource,
    paths::Endpoint,
    quota::Demand,
};

/// Above this a prompt is counted away from the threads that serve requests.
const LONG_PROMPT: usize = 64 << 10;

#[derive(Debug, thiserror::Error)]
#[error("the tokenizer of model {model:?} cannot be loaded from {from}: {message}")]
pub struct LoadError {
    pub model: String,
    pub from: String,
    pub message: String,
}

/// Counts the prompts of one model.
pub struct Counter {
    pub tokenizer: Arc<Tokenizer>,
}

impl Counter {
    pub fn load(model: &str, source: &TokenizerSource) -> Result<Self, LoadError> {
        let error = |from: &str, message: String| LoadError { model: model.to_owned(), from: from.to_owned(), message };
        let tokenizer = match source {
            TokenizerSource::Builtin(name) => Tokenizer::builtin(name).map_err(|e| error(name, e.to_string()))?,
            TokenizerSource::File(path) => {
                Tokenizer::from_file(path).map_err(|e| error(&path.display().to_string(), e.to_string()))?
            }
            TokenizerSource::Gguf(path) => {
                let from = path.display().to_string();
                let file = tokenizer::gguf::File::open_metadata(path).map_err(|e| error(&from, e.to_string()))?;
                Tokenizer::from_gguf(&file).map_err(|e| error(&from, e.to_string()))?
            }
        };
        Ok(Self { tokenizer: Arc::new(tokenizer) })
    }

    /// Prompt tokens of a call.
    fn prompt(&self, call: &Call) -> Result<u64, Invalid> {
        let Some(range) = &call.shape.prompt else { return Ok(0) };
        match call.endpoint {
            Endpoint::ChatCompletions => self.chat(call, range),
            Endpoint::Completions => self.texts("prompt", call.text(range)),
            Endpoint::Embeddings => self.texts("input", call.text(range)),
        }
    }

    fn chat(&self, call: &Call, range: &Range<usize>) -> Result<u64, Invalid> {
        let messages: Vec<Value> = serde_json::from_slice(call.text(range))
            .map_err(|error| Invalid::new("messages", format!("messages cannot be read: {error}")))?;
        let tools = call.shape.tools.as_ref().map_or(0, |range| self.text(call.text(range)));
        let functions = call.shape.functions.as_ref().map_or(0, |range| self.text(call.text(range)));
        let messages: u64 = messages.iter().map(|message| self.message(message)).sum();
        Ok(messages + tools + functions + 3)
    }

    fn message(&self, message: &Value) -> u64 {
        let text = |value: &Value| value.as_str().map_or(0, |text| self.tokenizer.count(text) as u64);
        let content = match &message["content"] {
            Value::Array(parts) => parts.iter().map(|part| text(&part["text"])).sum(),
            content => text(content),
        };
        3 + text(&message["role"]) + content
    }

    fn text(&self, json: &[u8]) -> u64 {
        self.tokenizer.count(&String::from_utf8_lossy(json)) as u64
    }

    /// A text, texts, token ids, or lists of them: ids count as they are.
    fn texts(&self, param: &'static str, json: &[u8]) -> Result<u64, Invalid> {
        let value: Value = serde_json::from_slice(json)
            .map_err(|error| Invalid::new(param, format!("{param} cannot be read: {error}")))?;
        Ok(self.items(&value))
    }

    fn items(&self, value: &Value) -> u64 {
        match value {
            Value::String(text) => self.tokenizer.count(text) as u64,
            Value::Array(items) => items.iter().map(|item| self.items(item)).sum(),
            Value::Number(_) => 1,
            _ => 0,
        }
    }
}

/// The demand of `call` on `model`.
pub async fn of(call: &Call, model: &Arc<Model>) -> Result<Demand, Invalid> {
    let long = call.shape.prompt.as_ref().is_some_and(|range| range.len() > LONG_PROMPT);
    let input = match long {
        false => model.counter.prompt(call)?,
        true => {
            let (call, model) = (call.clone(), model.clone());
            tokio::task::spawn_blocking(move || model.counter.prompt(&call))
                .await
                .unwrap_or_else(|_| Err(Invalid::new("messages", "the prompt could not be counted")))?
        }
    };
    let output = match call.endpoint.generates() {
        true => call.cap.unwrap_or(model.default_max_tokens).saturating_mul(call.choices),
        false => 0,
    };
    Ok(Demand::new(input, output, model.price))
}
