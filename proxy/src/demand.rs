//! What a call may use at most: prompt tokens by the model's own tokenizer, plus the cap on its answer. An estimate
//! before the fact; the charge after it is `charge`'s part.

use std::{ops::Range, sync::Arc};

use serde_json::Value;
use tokenizer::{
    ChatTemplate, PromptCounter, Tokenizer,
    openai_chat::{Estimates, ImageRule, Request},
};

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

/// What counts the prompts of one model.
pub fn load(model: &str, source: &TokenizerSource) -> Result<PromptCounter, LoadError> {
    let error = |from: &str, message: String| LoadError { model: model.to_owned(), from: from.to_owned(), message };
    let (tokenizer, template) = match source {
        TokenizerSource::Builtin(name) => {
            (Tokenizer::builtin(name).map_err(|cause| error(name, cause.to_string()))?, None)
        }
        TokenizerSource::File(path) => {
            let tokenizer = Tokenizer::from_file(path);
            (tokenizer.map_err(|cause| error(&path.display().to_string(), cause.to_string()))?, None)
        }
        TokenizerSource::Gguf(path) => {
            let from = path.display().to_string();
            let file = tokenizer::gguf::File::open_metadata(path).map_err(|cause| error(&from, cause.to_string()))?;
            let tokenizer = Tokenizer::from_gguf(&file).map_err(|cause| error(&from, cause.to_string()))?;
            let template = ChatTemplate::from_gguf(&file).map_err(|cause| error(&from, cause.to_string()))?;
            (tokenizer, template.map(Arc::new))
        }
    };
    let estimates = Estimates { image: ImageRule::of_model(model), ..Estimates::default() };
    Ok(PromptCounter::new(Arc::new(tokenizer), template, estimates))
}

fn prompt(call: &Call, counter: &PromptCounter) -> Result<u64, Invalid> {
    let shape = &call.shape;
    let Some(prompt) = &shape.prompt else { return Ok(0) };
    match call.endpoint {
        Endpoint::ChatCompletions => {
            let part =
                |param, range: &Option<Range<usize>>| range.as_ref().map(|range| read(param, call, range)).transpose();
            let messages = read("messages", call, prompt)?;
            let (tools, tool_choice) = (part("tools", &shape.tools)?, part("tool_choice", &shape.tool_choice)?);
            let (functions, function_call) =
                (part("functions", &shape.functions)?, part("function_call", &shape.function_call)?);
            Ok(counter.chat(&Request {
                messages: Some(&messages),
                tools: tools.as_ref(),
                tool_choice: tool_choice.as_ref(),
                functions: functions.as_ref(),
                function_call: function_call.as_ref(),
            }))
        }
        Endpoint::Completions => Ok(counter.text(&read("prompt", call, prompt)?)),
        Endpoint::Embeddings => Ok(counter.text(&read("input", call, prompt)?)),
    }
}

fn read(param: &'static str, call: &Call, range: &Range<usize>) -> Result<Value, Invalid> {
    let cannot = |error| Invalid::new(param, format!("{param} cannot be read: {error}"));
    serde_json::from_slice(call.text(range)).map_err(cannot)
}

/// The demand of `call` on `model`.
pub async fn of(call: &Call, model: &Arc<Model>) -> Result<Demand, Invalid> {
    let long = call.shape.prompt.as_ref().is_some_and(|range| range.len() > LONG_PROMPT);
    let input = match long {
        false => prompt(call, &model.counter)?,
        true => {
            let (call, model) = (call.clone(), model.clone());
            tokio::task::spawn_blocking(move || prompt(&call, &model.counter))
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
